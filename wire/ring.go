package wire

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring writes to many sockets in one system call, by io_uring. A frame that is
// written wakes who waits for it, and where no core is idle that is most often on
// the writer's: it comes to write the next frame when the first is answered, and
// another core has nothing to do meanwhile. In one call all are woken first. Where
// there are cores enough it is the slower way: the first is woken a little later.
//
// It is written by hand as this is all that is wanted of io_uring: nothing that
// waits, no thread of the kernel's, nothing under way when send returns.
type ring struct {
	fd      int
	rings   []byte // both queues
	entries []byte // what is submitted
	sq, cq  struct {
		head, tail *uint32
		mask       uint32
	}
	completions []byte
}

// ringSize is how many writes one call takes at most.
const ringSize = 64

// Of the kernel's interface: offsets of mappings, the sizes of what lies there, and
// where a ring's parameters have what we read.
const (
	ringOffEntries = 0x10000000
	sqeSize        = 64
	cqeSize        = 16
	paramsSize     = 120

	paramFeatures = 20
	paramSQ       = 40
	paramCQ       = 80

	featSingleMmap  = 1
	opSend          = 26
	enterGetEvents  = 1
	sqArray, cqCQEs = 24, 20
)

// newRing makes a ring; nil where there is none to be had: the kernel is older, or
// a container does not allow it.
func newRing() *ring {
	var params [paramsSize]byte
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, ringSize, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return nil
	}
	r := &ring{fd: int(fd)}
	if !r.mapQueues(&params) {
		r.close()
		return nil
	}
	return r
}

func (r *ring) mapQueues(params *[paramsSize]byte) bool {
	at := func(offset int) int { return int(binary.NativeEndian.Uint32(params[offset:])) }
	if at(paramFeatures)&featSingleMmap == 0 {
		return false // before 5.4
	}
	submitted, completed := at(0), at(4)
	array, cqes := at(paramSQ+sqArray), at(paramCQ+cqCQEs)
	const access, kind = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	var err error
	if r.rings, err = unix.Mmap(r.fd, 0, max(array+4*submitted, cqes+cqeSize*completed), access, kind); err != nil {
		return false
	}
	if r.entries, err = unix.Mmap(r.fd, ringOffEntries, sqeSize*submitted, access, kind); err != nil {
		return false
	}
	word := func(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }
	r.sq.head, r.sq.tail, r.sq.mask = word(at(paramSQ)), word(at(paramSQ+4)), *word(at(paramSQ + 8))
	r.cq.head, r.cq.tail, r.cq.mask = word(at(paramCQ)), word(at(paramCQ+4)), *word(at(paramCQ + 8))
	for i := range submitted { // entry i is always the i-th
		*word(array + 4*i) = uint32(i) //nolint:gosec // at most ringSize
	}
	r.completions = r.rings[cqes:][:cqeSize*completed]
	return true
}

func (r *ring) close() {
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	if r.entries != nil {
		_ = unix.Munmap(r.entries)
	}
	_ = unix.Close(r.fd)
}

// sending is one write of many.
type sending struct {
	fd   int
	data []byte
	n    int // written of it; below 0: an error's number
}

// send writes, of each, what its socket takes at once. False: the ring is of no use
// any more; what was written before that is told all the same.
func (r *ring) send(all []sending) bool {
	tail := *r.sq.tail
	for i := range all {
		r.submit((tail+uint32(i))&r.sq.mask, uint64(i), &all[i]) //nolint:gosec // at most ringSize
	}
	end := tail + uint32(len(all)) //nolint:gosec // as above
	atomic.StoreUint32(r.sq.tail, end)
	good := true
	for done := 0; good && done < len(all); done += r.reap(all) {
		left := end - atomic.LoadUint32(r.sq.head)
		_, _, errno := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(left), uintptr(len(all)-done), enterGetEvents, 0, 0)
		good = errno == 0 || errno == syscall.EINTR
	}
	runtime.KeepAlive(all) // the kernel has addresses alone
	return good
}

// submit writes an entry: to send what the socket takes without waiting.
func (r *ring) submit(at uint32, number uint64, s *sending) {
	e := r.entries[sqeSize*at:][:sqeSize]
	clear(e)
	e[0] = opSend
	binary.NativeEndian.PutUint32(e[4:], uint32(s.fd)) //nolint:gosec // a descriptor
	binary.NativeEndian.PutUint64(e[16:], uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.data)))))
	binary.NativeEndian.PutUint32(e[24:], uint32(len(s.data))) //nolint:gosec // at most sendMost
	binary.NativeEndian.PutUint32(e[28:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	binary.NativeEndian.PutUint64(e[32:], number)
	s.n = 0
}

// reap takes what the kernel says of entries, and how many they are.
func (r *ring) reap(all []sending) int {
	head, tail := *r.cq.head, atomic.LoadUint32(r.cq.tail)
	for at := head; at != tail; at++ {
		e := r.completions[cqeSize*(at&r.cq.mask):][:cqeSize]
		all[binary.NativeEndian.Uint64(e)].n = int(int32(binary.NativeEndian.Uint32(e[8:]))) //nolint:gosec // it is signed
	}
	atomic.StoreUint32(r.cq.head, tail)
	return int(tail - head)
}

// sendMost is the size up to which frames are sent together: they are meant to wake
// somebody, and a copy takes longer than that from some size on.
const sendMost = 16 << 10

// together is what FlushAll has of a loop: a ring, for one caller at a time.
type together struct {
	mu    sync.Mutex
	ring  *ring // nil: none can be had
	from  int   // so many connections at least: more than cores
	sends []sending
	conns []*Conn // whose locks it has
}

// FlushAll flushes connections; those with little to write by one system call, where
// that can be had. Of a nil loop each by itself.
func (l *Loop) FlushAll(conns []*Conn) {
	for l != nil && len(conns) >= l.joint.from && l.joint.flush(conns[:min(len(conns), ringSize)]) {
		conns = conns[min(len(conns), ringSize):]
	}
	for _, c := range conns {
		c.Flush()
	}
}

// flush is for at most ringSize connections; false: nothing was done.
func (t *together) flush(conns []*Conn) bool {
	if !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	if t.ring == nil {
		return false
	}
	for _, c := range conns {
		if !c.mu.TryLock() {
			continue // somebody is at it, or we are: it is named twice
		}
		if !c.fitsLocked() {
			c.mu.Unlock()
			continue
		}
		t.sends, t.conns = append(t.sends, sending{fd: c.fd, data: c.out}), append(t.conns, c)
	}
	if !t.ring.send(t.sends) {
		t.close()
	}
	for i, c := range t.conns {
		if n := t.sends[i].n; n > 0 {
			c.wroteLocked(n)
		}
		c.mu.Unlock()
	}
	clear(t.sends)
	clear(t.conns)
	t.sends, t.conns = t.sends[:0], t.conns[:0]
	for _, c := range conns {
		if c.Pending() > 0 { // what the ring did not take
			c.Flush()
		}
	}
	return true
}

func (t *together) close() {
	if t.ring != nil {
		t.ring.close()
		t.ring = nil
	}
}

// fitsLocked says that what is queued may go by a ring.
func (c *Conn) fitsLocked() bool {
	return c.loop != nil && c.fd >= 0 && c.seal == nil && !c.draining && c.err == nil &&
		len(c.queue) == 0 && len(c.out) > 0 && len(c.out) <= sendMost
}
