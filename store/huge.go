package store

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// hugePage is what the kernel maps, and passes on, as one where it can.
	hugePage = 2 << 20
	// hugeFrom is from how large a segment on that is tried.
	hugeFrom = 8 * hugePage
	// hugeStep is how much is tried at a time, and hugeBound how much CPU time that
	// may take: twice as much as with small pages. The kernel may have to move
	// others' pages for it, and what it gains is not worth any time.
	hugeStep  = 32 * hugePage
	hugeBound = 50 * time.Millisecond
)

// huge gives bytes of a memfd huge pages, as far as there are any: to sum up, send
// and receive them takes a sixth less. It says whether it is worth trying again. The
// memory is that of the small pages in their place, no more. Machines are mostly
// set up so that memfds have huge pages only where this is asked for (Linux 6.1).
func huge(fd int, at, n uint64) bool {
	runtime.LockOSThread() // whose time it is
	defer runtime.UnlockOSThread()
	from, to := (at+hugePage-1)&^(hugePage-1), (at+n)&^(hugePage-1)
	for ; from < to; from += hugeStep {
		step := min(hugeStep, to-from)
		before := threadTime()
		err := collapse(fd, from, step)
		busy := errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) // some of them
		if err != nil && !busy || threadTime()-before > hugeBound {
			return false
		}
	}
	return true
}

// threadTime is how much CPU time the calling thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // every kernel has it
	return time.Duration(t.Nano())
}

// collapse has the kernel put huge pages there.
func collapse(fd int, at, n uint64) error {
	// What is wholly empty is taken for cut off.
	for page := at; page < at+n; {
		switch err := unix.Fallocate(fd, 0, int64(page), pageSize); { //nolint:gosec // within a budget of memory
		case err == nil:
			page += hugePage
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	mem, err := mmapAligned(fd, at, n, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	return errors.Join(unix.Madvise(mem, unix.MADV_COLLAPSE), munmap(mem))
}

// mmapAligned maps a file so that huge pages can be mapped as such. Only munmap ends it.
func mmapAligned(fd int, at, n uint64, protection int) ([]byte, error) {
	// More than is needed, of which what is too much goes again.
	whole := uintptr(n+pageSize-1)&^(pageSize-1) + hugePage
	all, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(all) & (hugePage - 1)
	after := hugePage - before
	start := unsafe.Add(all, before)
	if before > 0 {
		err = unix.MunmapPtr(all, before)
	}
	if err == nil && after > 0 {
		err = unix.MunmapPtr(unsafe.Add(all, whole-after), after)
	}
	if err == nil {
		_, err = unix.MmapPtr(fd, int64(at), start, uintptr(n), protection, unix.MAP_SHARED|unix.MAP_FIXED) //nolint:gosec // what a machine's memory holds
	}
	if err != nil {
		_ = unix.MunmapPtr(start, whole-hugePage) // nothing else can be there
		return nil, err
	}
	return unsafe.Slice((*byte)(start), n), nil
}

// munmap ends a mapping of mmapAligned.
func munmap(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))); err != nil {
		return fmt.Errorf("a mapping of our own cannot be ended: %w", err)
	}
	return nil
}
