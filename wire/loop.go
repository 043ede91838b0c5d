package wire

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Loop tells connections, in one goroutine, when they have something to read. It
// is an epoll instance beside that of Go's runtime, and costs a small frame less:
// no goroutine is parked and readied, no read finds nothing, and nobody is woken
// because the other end has read what it was sent.
type Loop struct {
	epoll int
	wake  int // an eventfd: readable when the loop is to end
	ended chan struct{}
	eager func() (looks, shares bool)
	later []delayed // by when they are due; the loop's goroutine alone looks at it
	joint together

	mu    sync.Mutex
	conns map[int32]*Conn // by descriptor
}

// maxEvents bounds what one wait returns; what is left is told by the next.
const maxEvents = 128

// lookFor is how long an eager loop looks for the next thing to read before it
// sleeps: about as long as a small call takes to come back.
const lookFor = 50 * time.Microsecond

// NewLoop starts a loop. eager, where not nil, is asked after something was read,
// in the loop's goroutine: whether it looks for the next thing, which is most likely
// about to come, and whether it shares its core with others meanwhile. To be there
// for it saves waking up, which takes a core that went to sleep longer than all else;
// but who is to send it may be waiting for this very core, where none is idle. Who
// shares is put behind all others for a while, so not where nobody waits.
func NewLoop(eager func() (looks, shares bool)) (*Loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("no epoll instance to read connections with: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: short(wake)})
		if err != nil {
			_ = unix.Close(wake)
		}
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("no way to end a loop: %w", err)
	}
	l := &Loop{epoll: epoll, wake: wake, ended: make(chan struct{}), conns: map[int32]*Conn{}, eager: eager}
	if useRing {
		l.joint.ring, l.joint.from = newRing(), runtime.NumCPU()+1
	}
	go l.run()
	return l, nil
}

// Close ends the loop; its connections must have been closed and left.
func (l *Loop) Close() {
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-l.ended
	l.joint.close()
	_ = unix.Close(l.wake)
	_ = unix.Close(l.epoll)
}

// delayed is what Later was told.
type delayed struct {
	at time.Time
	do func()
}

// Later has do called after a while, to the millisecond, in the loop's goroutine,
// where it is called, too. A timer of Go's runtime would wake another thread at
// once, to wait for it: just when every core is wanted for what was sent.
func (l *Loop) Later(after time.Duration, do func()) {
	at := time.Now().Add(after)
	i := len(l.later)
	for i > 0 && l.later[i-1].at.After(at) {
		i--
	}
	l.later = slices.Insert(l.later, i, delayed{at, do})
}

// patience is how long to wait for connections before something is due, in
// milliseconds; -1: for ever.
func (l *Loop) patience() int {
	if len(l.later) == 0 {
		return -1
	}
	return max(0, int((time.Until(l.later[0].at)+time.Millisecond-1)/time.Millisecond))
}

// doDue calls what is due. That may call Later.
func (l *Loop) doDue() {
	for len(l.later) > 0 && !l.later[0].at.After(time.Now()) {
		do := l.later[0].do
		l.later = slices.Delete(l.later, 0, 1)
		do()
	}
}

// Len is how many connections it has.
func (l *Loop) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

func (l *Loop) run() {
	defer close(l.ended)
	events := make([]unix.EpollEvent, maxEvents)
	n := 0
	for {
		var err error
		looks, shares := false, false
		if n > 0 && l.eager != nil {
			looks, shares = l.eager()
		}
		if looks {
			n, err = l.look(events, shares)
		} else {
			n, err = unix.EpollWait(l.epoll, events, l.patience())
		}
		if err != nil && !errors.Is(err, syscall.EINTR) { // nothing else can be wrong with it
			panic(fmt.Sprintf("waiting for connections: %v", err))
		}
		for i := range max(n, 0) {
			if events[i].Fd == short(l.wake) {
				return
			}
			l.mu.Lock()
			c := l.conns[events[i].Fd]
			l.mu.Unlock()
			if c != nil { // else it was closed since
				c.told(events[i].Events)
			}
		}
		l.doDue()
	}
}

// look waits for events awake, and asleep where they take longer.
func (l *Loop) look(events []unix.EpollEvent, shares bool) (int, error) {
	for until := time.Now().Add(lookFor); time.Now().Before(until); {
		if n, err := unix.EpollWait(l.epoll, events, 0); n != 0 || err != nil {
			return n, err
		}
		if shares {
			_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
	return unix.EpollWait(l.epoll, events, l.patience())
}

// polling is what a connection has to do with its loop. Before Attend there is
// none, and Go's runtime waits for its descriptor. The connection's mu guards it;
// its reader, which alone calls Attend, and who is at the descriptor may look at
// loop and fd without.
type polling struct {
	loop *Loop
	fd   int
	// readable is called by the loop when there is something to read; nil while
	// the reader waits for that by itself.
	readable func()
	awaited  bool      // the reader sleeps until there is something
	come     sync.Cond // there is, or the connection is over
	using    int       // readers that are at the descriptor: it is not closed under them
	closed   bool
}

const (
	toRead  = unix.EPOLLIN | unix.EPOLLHUP | unix.EPOLLERR
	toWrite = unix.EPOLLOUT | unix.EPOLLHUP | unix.EPOLLERR
)

// Attend has l call readable, in its goroutine, whenever there is something to
// read, instead of the caller waiting in Read: that is Fetch's then, and Read's as
// far as Buffered says. Calls do not overlap. readable must not wait for anything,
// and is called until it calls Leave, which it must at an error. Attend says
// whether that is so now; if not, the connection is as it was.
func (c *Conn) Attend(l *Loop, readable func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loop == nil && !c.moveLocked(l) {
		return false
	}
	if c.closed {
		return false // Read says so
	}
	c.readable = readable
	c.armLocked()
	return true
}

// moveLocked takes the connection away from Go's runtime: a descriptor of our own
// for the same socket, and the other one closed.
func (c *Conn) moveLocked(l *Loop) bool {
	raw := c.raw
	if c.seal != nil {
		raw = c.seal.raw
	}
	if c.draining || c.err != nil || raw == nil {
		return false
	}
	fd, err := -1, error(nil)
	if failed := raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); failed != nil || err != nil {
		return false // out of descriptors, say: it does as it is
	}
	// Of one shot and for nothing: it tells of the other end's end at most, once.
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: short(fd)}); err != nil {
		_ = unix.Close(fd)
		return false
	}
	if c.seal != nil {
		c.seal.move(fd)
	} else {
		_ = c.nc.Close()
	}
	c.loop, c.fd = l, fd
	c.come.L = &c.mu
	l.mu.Lock()
	l.conns[short(fd)] = c
	l.mu.Unlock()
	return true
}

// Leave ends what Attend began: the connection is read by Read again, by any
// goroutine. Called by readable.
func (c *Conn) Leave() {
	c.mu.Lock()
	c.readable = nil
	c.armLocked()
	c.mu.Unlock()
}

// Fetch reads once what has come, without waiting; io.EOF at the end between frames.
func (c *Conn) Fetch() error {
	into, want := c.large.data, headerSize
	if into == nil && c.end-c.start >= headerSize {
		h, err := parseHeader(c.buf[c.start:], c.limit)
		if err != nil {
			return err
		}
		if want += h.length; want > readBuffer {
			c.beginLarge(h)
		}
	}
	if c.large.data != nil {
		into, want = c.growLarge(), headerSize+c.large.length
	} else {
		c.room(want)
		into = c.buf[c.end:]
	}
	n, errno := c.readNow(into)
	have := &c.end
	if c.large.data != nil {
		have = &c.large.have
	}
	*have += n
	switch {
	case n > 0 && c.large.data == nil && c.end == len(c.buf) && c.claims() > readBuffer:
		return c.Fetch() // its rest is there as well, most often
	case n > 0 || errno == syscall.EAGAIN: //nolint:errorlint // as it came from the kernel
		return nil
	case errno != nil:
		return errno
	}
	if c.large.data != nil {
		return c.cut(c.over(), headerSize+c.large.have, want)
	}
	return c.cut(c.over(), c.end-c.start, want)
}

// readNow reads once, without waiting: EAGAIN where there is nothing, and no bytes
// and no error at the end.
func (c *Conn) readNow(b []byte) (int, error) {
	if c.seal != nil {
		return c.unsealNow(b)
	}
	n, errno := readFd(uintptr(c.fd), b)
	if errno != 0 {
		return n, errno
	}
	return n, nil
}

// claims is how long the next frame says it is; 0 where that is not known.
func (c *Conn) claims() int {
	if c.end-c.start < headerSize {
		return 0
	}
	h, err := parseHeader(c.buf[c.start:], c.limit)
	if err != nil {
		return 0
	}
	return headerSize + h.length
}

// Large says that the next frame, which is Buffered, is one of those that take
// time: who has little leaves it to others.
func (c *Conn) Large() bool { return c.large.data != nil && c.large.length > largeFrame }

// largeFrame is as much as is copied in a tenth of a millisecond or so.
const largeFrame = 512 << 10

// over tells a close at this end from one at the other.
func (c *Conn) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return io.EOF
}

// armLocked has the loop told of what is waited for. Where nothing reads all the
// time, one event at a time: the other end's end would be told without pause.
func (c *Conn) armLocked() {
	if c.fd < 0 {
		return
	}
	events := uint32(0)
	if c.draining {
		events |= unix.EPOLLOUT
	}
	switch {
	case c.readable != nil:
		events |= unix.EPOLLIN
		if c.moreLocked() {
			events |= unix.EPOLLOUT // at once: the kernel does not know of what is left
			c.seal.nudged = true
		}
	case c.awaited:
		events |= unix.EPOLLIN | unix.EPOLLONESHOT
	default:
		events |= unix.EPOLLONESHOT
	}
	if err := unix.EpollCtl(c.loop.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: short(c.fd)}); err != nil {
		panic(fmt.Sprintf("waiting for a connection: %v", err)) // it is there, and stays as large as it is
	}
}

// told takes the loop's word.
func (c *Conn) told(events uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return
	}
	if c.draining && events&toWrite != 0 {
		c.writeQueueLocked()
		c.releaseLocked()
	}
	if c.readable == nil {
		if c.awaited && events&toRead != 0 {
			c.awaited = false
			c.come.Broadcast()
		}
		if c.fd >= 0 && (c.awaited || c.draining) { // it was of one shot
			c.armLocked()
		}
		return
	}
	if events&toRead == 0 && !c.moreLocked() {
		return
	}
	for again := true; again; again = c.readable != nil && !c.closed && c.moreLocked() {
		readable := c.readable
		c.using++
		c.mu.Unlock()
		readable()
		c.mu.Lock()
		c.using--
	}
	if c.seal != nil && c.seal.nudged && c.fd >= 0 {
		c.seal.nudged = false
		c.armLocked()
	}
	c.releaseLocked()
}

// readPolled is readSome for a connection with a loop, outside of it.
func (c *Conn) readPolled(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		c.using++
		c.mu.Unlock()
		n, errno := c.readNow(b)
		c.mu.Lock()
		c.using--
		c.releaseLocked()
		switch {
		case n > 0:
			return n, nil
		case errno == syscall.EAGAIN: //nolint:errorlint // as it came from the kernel
			c.awaited = true
			c.armLocked()
			for c.awaited && !c.closed {
				c.come.Wait()
			}
		case errno != nil:
			return 0, errno
		case !c.closed:
			return 0, io.EOF
		}
	}
	return 0, net.ErrClosed
}

// maxParts is how many buffers one write takes.
const maxParts = 64

// writeQueueLocked writes what the kernel takes at once; the loop comes back for
// the rest.
func (c *Conn) writeQueueLocked() {
	if c.seal != nil {
		c.writeSealedLocked()
		return
	}
	if len(c.out) > 0 {
		c.queue = append(c.queue, c.out)
		c.out = nil
	}
	n, err := unix.Writev(c.fd, c.queue[:min(len(c.queue), maxParts)])
	if err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR) {
		c.failLocked(err)
		return
	}
	n = max(n, 0)
	c.pending.Add(-int64(n))
	for len(c.queue) > 0 && n >= len(c.queue[0]) {
		n -= len(c.queue[0])
		c.queue[0] = nil // it may be large
		c.queue = c.queue[1:]
	}
	if n > 0 {
		c.queue[0] = c.queue[0][n:]
	}
	if left := len(c.queue) > 0; left != c.draining {
		c.draining = left
		c.armLocked()
	}
	if !c.draining {
		c.queue = nil
	}
	c.drained.Broadcast()
}

// closeLocked ends a connection with a loop. Whoever reads is told by the socket,
// and the descriptor goes when nobody is at it any more.
func (c *Conn) closeLocked() {
	if c.closed {
		return
	}
	c.closed = true
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // fails where the other end is gone
	c.come.Broadcast()
	c.releaseLocked()
}

func (c *Conn) releaseLocked() {
	if !c.closed || c.using > 0 || c.draining || c.readable != nil || c.fd < 0 {
		return
	}
	c.loop.mu.Lock()
	delete(c.loop.conns, short(c.fd))
	c.loop.mu.Unlock()
	_ = unix.EpollCtl(c.loop.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	_ = unix.Close(c.fd)
	c.fd = -1
}

// short is a descriptor as epoll carries it.
func short(fd int) int32 {
	if fd > math.MaxInt32 {
		panic("a descriptor beyond all limits")
	}
	return int32(fd)
}
