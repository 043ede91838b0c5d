package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// takeChunk is how much memory is taken at a time.
const takeChunk = 256 << 20

// errMeanwhile says that there was room, and others were quicker to take it.
var errMeanwhile = fmt.Errorf("others took it meanwhile: %w", unix.ENOMEM)

// newMemory makes a memfd whose pages are all there. One thread takes them: the
// kernel does that for one caller a file at a time. It would also go on until
// it has to kill somebody for it, so free says before each step what can be
// spared.
func newMemory(capacity uint64, free func() uint64) (int, error) {
	// Machines can be set to refuse memory that could be run as a program.
	fd, err := unix.MemfdCreate("muster", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 that cannot be said
		fd, err = unix.MemfdCreate("muster", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	large := capacity >= hugeFrom && unix.Ftruncate(fd, int64(capacity)) == nil //nolint:gosec // within a budget of memory
	for at := uint64(0); at < capacity && err == nil; {
		n := min(takeChunk, capacity-at)
		if spare := free(); spare < n {
			err = fmt.Errorf("%s of %s were taken, and %s can be spared: %w", bytesText(at), bytesText(capacity), bytesText(spare), errMeanwhile)
			break
		}
		large = large && huge(fd, at, n)
		switch err = unix.Fallocate(fd, 0, int64(at), int64(n)); { //nolint:gosec // within a budget of memory
		case err == nil:
			at += n
		case errors.Is(err, unix.EINTR):
			err = nil
		default:
			err = fmt.Errorf("fallocate: %w", err)
		}
	}
	if err != nil {
		_ = unix.Ftruncate(fd, 0)
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// discard gives a segment's memory, or disk, back although others may have it
// mapped.
func discard(seg *segment) {
	_ = munmap(seg.mem) // a mapping of our own, never half
	seg.mem = nil
	if seg.fd < 0 {
		return
	}
	// By its path: a file's descriptor is only for reading.
	_ = unix.Truncate(fmt.Sprintf("/proc/self/fd/%d", seg.fd), 0)
	unix.Close(seg.fd)
	seg.fd = -1
}

// mapped is a segment's memory, or file, in this process. The store's lock guards
// it; the mapping is good for as long as the object in it is viewed.
func mapped(seg *segment) ([]byte, error) {
	if seg.mem != nil || seg.capacity == 0 {
		return seg.mem, nil
	}
	protection := unix.PROT_READ
	if !seg.file {
		protection |= unix.PROT_WRITE
	}
	mem, err := mmapAligned(seg.fd, 0, seg.capacity, protection)
	if err != nil {
		return nil, fmt.Errorf("a segment of %s cannot be mapped: %w", bytesText(seg.capacity), err)
	}
	seg.mem = mem
	return mem, nil
}

// firstUse says whether the pages of a chunk have to be touched, which the caller is
// about to do. Those of a segment that is used again are mapped still, and to have
// the kernel look at each of them once more takes a tenth of what all of it takes.
// The store's lock guards it.
func (seg *segment) firstUse(chunk uint32) bool {
	if seg.used == nil {
		seg.used = make([]bool, chunksOf(seg.capacity))
	}
	first := !seg.used[chunk]
	seg.used[chunk] = true
	return first
}

// touch takes the page faults of memory in one go, for as far as the kernel can;
// before Linux 5.14 it cannot, and they are taken one by one.
func touch(mem []byte, toWrite bool) {
	advice := unix.MADV_POPULATE_READ
	if toWrite {
		advice = unix.MADV_POPULATE_WRITE
	}
	if len(mem) > 0 {
		_ = unix.Madvise(mem, advice)
	}
}

// copyChunk is how much is copied to disk at a time; the disk starts on each
// before the next, so that dirty pages do not pile up.
const copyChunk = 8 << 20

// spillTo copies the first size bytes of a segment into an unlinked file of dir
// and returns it, open for reading.
func spillTo(dir string, from int, size uint64, stop func() bool) (int, error) {
	file, err := unlinked(dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(file)
	if size > 0 {
		err := unix.Fallocate(file, 0, 0, int64(size)) //nolint:gosec // what a memfd holds
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINTR) {
			return -1, fmt.Errorf("no room for %d bytes in %s: %w", size, dir, err)
		}
	}
	for at := int64(0); uint64(at) < size; { //nolint:gosec // never negative
		if stop() {
			return -1, errStopped
		}
		start := at
		n, err := unix.Sendfile(file, from, &at, int(min(copyChunk, size-uint64(at)))) //nolint:gosec // see above
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return -1, fmt.Errorf("writing to %s: %w", dir, err)
		case n == 0:
			return -1, fmt.Errorf("writing to %s: the segment ends after %d of %d bytes", dir, at, size)
		}
		_ = unix.SyncFileRange(file, start, int64(n), unix.SYNC_FILE_RANGE_WRITE) // not all file systems can
	}
	// Readers get a descriptor that cannot change what they share.
	reader, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open what was spilled to %s: %w", dir, err)
	}
	return reader, nil
}

var errStopped = errors.New("the store is closing")

// unlinked makes a file without a name.
func unlinked(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return fd, nil
	}
	return unnamed(dir) // not every file system has files that never had a name
}

// unnamed makes a file that loses its name at once.
func unnamed(dir string) (int, error) {
	file, err := os.CreateTemp(dir, "muster-spill-")
	if err != nil {
		return -1, fmt.Errorf("cannot make a file to spill into: %w", err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return -1, fmt.Errorf("cannot make a file to spill into: %w", err)
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot make a file to spill into: %w", err)
	}
	return fd, nil
}
