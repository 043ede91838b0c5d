package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readBuffer  = 64 << 10  // a read buffer grows up to here
	firstBuffer = 4 << 10   // and begins with this: a head has a connection a worker
	shareFrom   = 16 << 10  // chunks at least this long are queued by reference
	growBy      = 1 << 20   // large frames are read in steps, never what a header claims
	idleOutKeep = 256 << 10 // an output buffer larger than this is not kept

	flushBound = 2 * time.Second // for the other end to take what is queued at the end
)

// Conn carries frames over a stream. One goroutine reads; any may queue and
// flush. Writes happen in the goroutine that flushes, without blocking it: what
// the kernel does not take at once is written by a goroutine of the connection's
// own. So a small answer costs one system call and no hand-over, and a peer that
// does not read cannot stop the caller.
type Conn struct {
	nc   net.Conn
	raw  syscall.RawConn
	seal *seal // of one with TLS, which has no raw

	// reading: used by the one reader only
	buf        []byte
	start, end int
	limit      int
	large      large
	had        uint8                 // the number of the last frame
	take       func(fd uintptr) bool // made once, as attempt below
	into       []byte
	tookN      int
	tookErr    syscall.Errno

	// writing
	mu       sync.Mutex
	out      []byte   // small chunks, copied together
	queue    [][]byte // what goes first: earlier out and shared chunks, in order
	gave     uint8    // the number of the last frame
	pending  atomic.Int64
	draining bool
	err      error
	drained  sync.Cond
	attempt  func(fd uintptr) bool // made once: a closure a write would allocate
	tryBytes []byte
	tryN     int
	tryErr   syscall.Errno

	polling
}

// NewConn wraps a unix or TCP stream; Sealed is for one with TLS.
func NewConn(nc net.Conn) *Conn {
	c := &Conn{nc: nc, buf: make([]byte, firstBuffer), limit: HelloLimit}
	c.drained.L = &c.mu
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	c.attempt = func(fd uintptr) bool {
		c.tryN, c.tryErr = writeFd(fd, c.tryBytes)
		return true
	}
	c.take = func(fd uintptr) bool {
		c.tookN, c.tookErr = readFd(fd, c.into)
		return c.tookErr != syscall.EAGAIN
	}
	return c
}

// readSome waits for bytes and reads what there is.
func (c *Conn) readSome(b []byte) (int, error) {
	if c.loop != nil {
		return c.readPolled(b)
	}
	if c.raw == nil {
		n, err := c.nc.Read(b)
		if c.seal != nil && errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // of one that was killed, and could not take its leave
		}
		return n, err
	}
	c.into = b
	err := c.raw.Read(c.take)
	c.into = nil
	switch {
	case err != nil:
		return 0, err
	case c.tookErr != 0:
		return 0, c.tookErr
	case c.tookN == 0:
		return 0, io.EOF
	}
	return c.tookN, nil
}

// SetLimit sets the largest frame that Read accepts.
func (c *Conn) SetLimit(n int) { c.limit = n }

// NetConn is the stream below.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Close ends the connection; a blocked Read returns.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.failLocked(net.ErrClosed)
	if c.loop != nil {
		c.closeLocked()
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	return c.nc.Close()
}

// CloseWhenFlushed waits until the other end has taken what is queued, or for
// two seconds, then closes.
func (c *Conn) CloseWhenFlushed() error {
	c.Flush()
	c.mu.Lock()
	if c.draining {
		late := time.AfterFunc(flushBound, func() { _ = c.Close() })
		defer late.Stop()
	}
	for c.draining && c.err == nil {
		c.drained.Wait()
	}
	c.mu.Unlock()
	return c.Close()
}

// Buffered says that a whole frame is in memory already. One that came before is
// dropped.
func (c *Conn) Buffered() bool {
	for {
		if c.large.data != nil {
			if c.large.have < c.large.length {
				return false
			}
			if !c.isRepeat(&c.large.rawHeader) {
				return true
			}
			c.large = large{}
		}
		if c.end-c.start < headerSize {
			return false
		}
		h, err := parseHeader(c.buf[c.start:], c.limit)
		if err != nil {
			return true
		}
		if c.end-c.start < headerSize+h.length {
			return false
		}
		if !c.isRepeat(&h) {
			return true
		}
		c.start += headerSize + h.length
	}
}

// Read returns the next frame; io.EOF at the end between frames.
func (c *Conn) Read() (Frame, error) {
	for {
		h, rest, borrowed, err := c.whole()
		if err != nil {
			return Frame{}, err
		}
		mine, err := c.takes(&h)
		if err != nil {
			return Frame{}, err
		}
		if !mine {
			continue
		}
		f, err := h.split(rest)
		f.borrowed = borrowed
		return f, err
	}
}

// whole waits until there is a whole frame, and takes it out; rest is what comes
// after its header.
func (c *Conn) whole() (h rawHeader, rest []byte, borrowed bool, err error) {
	if c.large.data != nil {
		return c.wholeLarge()
	}
	if err := c.want(headerSize); err != nil {
		return h, nil, false, err
	}
	h, err = parseHeader(c.buf[c.start:], c.limit)
	if err != nil {
		return h, nil, false, err
	}
	if headerSize+h.length > readBuffer {
		c.beginLarge(h)
		return c.wholeLarge()
	}
	if err := c.want(headerSize + h.length); err != nil {
		return h, nil, false, err
	}
	rest = c.buf[c.start+headerSize : c.start+headerSize+h.length : c.start+headerSize+h.length]
	c.start += headerSize + h.length
	return h, rest, true, nil
}

// room has room for n bytes in the buffer from start on, and for one more than
// there are.
func (c *Conn) room(n int) {
	full := c.end == len(c.buf) // a busy stream: read more at once
	if c.start == c.end {
		c.start, c.end = 0, 0
	}
	if size := len(c.buf); n > size || full && size < readBuffer {
		grown := make([]byte, min(readBuffer, max(4*size, n)))
		c.end = copy(grown, c.buf[c.start:c.end])
		c.buf, c.start = grown, 0
	}
	if c.start+n > len(c.buf) {
		c.end = copy(c.buf, c.buf[c.start:c.end])
		c.start = 0
	}
}

// want has n bytes in the buffer from start on.
func (c *Conn) want(n int) error {
	c.room(n)
	for c.end-c.start < n {
		m, err := c.readSome(c.buf[c.end:])
		c.end += m
		if err != nil && c.end-c.start < n {
			return c.cut(err, c.end-c.start, n)
		}
	}
	return nil
}

// ErrCut says that a connection ended inside a frame: it was cut.
var ErrCut = errors.New("the connection ended inside a frame")

// cut words the end of the stream: clean between frames, else how far it got.
func (c *Conn) cut(err error, have, want int) error {
	if errors.Is(err, io.EOF) && have > 0 {
		return fmt.Errorf("%w: %d of %d bytes came", ErrCut, have, want)
	}
	return err
}

// large is a frame that does not fit the buffer, as far as it has come.
type large struct {
	rawHeader
	data []byte // nil: there is none
	have int
}

func (c *Conn) beginLarge(h rawHeader) {
	c.start += headerSize
	have := c.end - c.start
	c.large = large{rawHeader: h, data: make([]byte, min(h.length, max(growBy, 2*have)))}
	c.large.have = copy(c.large.data, c.buf[c.start:c.end])
	c.start, c.end = 0, 0
}

// growLarge is where the next bytes of a large frame go.
func (c *Conn) growLarge() []byte {
	l := &c.large
	if l.have == len(l.data) {
		grown := make([]byte, min(l.length, 2*len(l.data)))
		copy(grown, l.data)
		l.data = grown
	}
	return l.data[l.have:]
}

func (c *Conn) wholeLarge() (h rawHeader, rest []byte, borrowed bool, err error) {
	for c.large.have < c.large.length {
		n, err := c.readSome(c.growLarge())
		c.large.have += n
		if err != nil && c.large.have < c.large.length {
			return h, nil, false, c.cut(err, c.large.have+headerSize, c.large.length+headerSize)
		}
	}
	l := c.large
	c.large = large{}
	return l.rawHeader, l.data, false, nil
}

// Queue appends a frame to what the next Flush writes; its body is prefix and
// body one after the other. Parts of 16 KiB and more are referenced, not copied,
// and must not change any more. Sizes must have passed CheckSize.
func (c *Conn) Queue(h Header, prefix, body []byte, bufs []Buf) {
	size := Size(prefix, body, bufs)
	c.pending.Add(int64(size + headerSize))
	c.mu.Lock()
	at := len(c.out)
	c.out = AppendHeader(c.out, h, size, bufs)
	c.numberLocked(c.out[at:])
	c.add(prefix)
	c.add(body)
	for i := range bufs {
		c.add(bufs[i].Data)
	}
	c.mu.Unlock()
}

// QueueFrame appends a whole frame, as Fanout carries it.
func (c *Conn) QueueFrame(frame []byte) {
	c.pending.Add(int64(len(frame)))
	c.mu.Lock()
	at := len(c.out)
	c.out = append(c.out, frame[:headerSize]...)
	c.numberLocked(c.out[at:])
	c.add(frame[headerSize:])
	c.mu.Unlock()
}

// QueueBytes appends bytes as they are.
func (c *Conn) QueueBytes(frames []byte) {
	c.pending.Add(int64(len(frames)))
	c.mu.Lock()
	c.add(frames)
	c.mu.Unlock()
}

func (c *Conn) add(b []byte) {
	if len(b) < shareFrom {
		c.out = append(c.out, b...)
		return
	}
	if len(c.out) > 0 {
		c.queue = append(c.queue, c.out)
		c.out = nil
	}
	c.queue = append(c.queue, b)
}

// Send queues a frame and flushes.
func (c *Conn) Send(h Header, body []byte, bufs []Buf) {
	c.Queue(h, nil, body, bufs)
	c.Flush()
}

// Pending is how many bytes wait to be written.
func (c *Conn) Pending() int { return int(c.pending.Load()) }

// WaitBelow waits until at most n bytes wait to be written, or writing is over.
func (c *Conn) WaitBelow(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.draining && c.err == nil && c.Pending() > n {
		c.drained.Wait()
	}
}

// Err is what ended the writing side, if anything did. A reader learns of the
// same end by itself, so Flush has no result.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Flush writes what is queued: at once as far as the kernel takes it, the rest
// in the background.
func (c *Conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || (len(c.out) == 0 && len(c.queue) == 0) {
		return
	}
	if c.err != nil {
		c.drop()
		return
	}
	if len(c.queue) == 0 {
		switch {
		case c.seal != nil:
			if c.loop == nil && c.sealNow() {
				return
			}
		case (c.loop != nil || c.raw != nil) && c.writeNow():
			return
		}
	}
	if c.loop != nil {
		c.writeQueueLocked()
		return
	}
	c.draining = true
	go c.drain()
}

// writeNow tries to write out in one go and says whether nothing is left.
func (c *Conn) writeNow() bool {
	c.tryBytes, c.tryN, c.tryErr = c.out, 0, 0
	if c.loop != nil {
		c.attempt(uintptr(c.fd))
	} else if err := c.raw.Write(c.attempt); err != nil {
		c.failLocked(err)
		return true
	}
	c.tryBytes = nil
	if c.tryErr != 0 && c.tryErr != syscall.EAGAIN {
		c.failLocked(c.tryErr)
		return true
	}
	return c.wroteLocked(max(c.tryN, 0))
}

// wroteLocked: so many bytes of out are written; whether nothing is left.
func (c *Conn) wroteLocked(n int) bool {
	c.pending.Add(-int64(n))
	if n == len(c.out) {
		c.out = c.out[:0]
		if cap(c.out) > idleOutKeep {
			c.out = nil
		}
		return true
	}
	c.queue = append(c.queue, c.out[n:])
	c.out = nil
	return false
}

func (c *Conn) drain() {
	if c.seal != nil {
		if err := c.seal.finish(); err != nil {
			c.fail(err)
		}
	}
	for {
		c.mu.Lock()
		if len(c.out) > 0 {
			c.queue = append(c.queue, c.out)
			c.out = nil
		}
		if len(c.queue) == 0 || c.err != nil {
			if c.err != nil {
				c.drop()
			}
			c.draining = false
			c.drained.Broadcast()
			c.mu.Unlock()
			return
		}
		bufs := net.Buffers(c.queue)
		c.queue = nil
		c.mu.Unlock()

		n, err := bufs.WriteTo(c.nc)
		c.pending.Add(-n)
		if err != nil {
			c.fail(err)
		}
		c.mu.Lock()
		c.drained.Broadcast()
		c.mu.Unlock()
	}
}

func (c *Conn) drop() {
	c.out, c.queue = nil, nil
	if c.seal != nil && c.loop != nil {
		c.seal.left = nil
	}
	c.pending.Store(0)
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	c.failLocked(err)
	c.mu.Unlock()
}

func (c *Conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	if c.loop != nil && c.draining { // nobody else is at it
		c.draining = false
		c.armLocked()
	}
	if !c.draining {
		c.drop()
	}
	c.drained.Broadcast()
}

// Cut ends the stream at once, in both directions: what is queued is lost. The
// reader learns of it and has still to close.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loop != nil {
		if !c.closed {
			_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
		}
		return
	}
	nc := c.nc
	if c.seal != nil {
		nc = c.seal.TCPConn
	}
	if s, ok := nc.(interface {
		CloseRead() error
		CloseWrite() error
	}); ok {
		_, _ = s.CloseRead(), s.CloseWrite()
	}
}
