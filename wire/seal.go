package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// recordHeader is what a record of TLS begins with: its kind, a version and its
	// length.
	recordHeader = 5
	// sealBy is how much is encrypted before it is written.
	sealBy = 64 << 10
)

// seal is what lies below TLS. What is written while it holds is kept, so that
// one who must not wait can encrypt, and write what the kernel takes at once. Of
// what has come TLS gets one record at a time, so that what it has not returned
// yet is known to lie here.
type seal struct {
	*net.TCPConn
	raw syscall.RawConn

	// of who reads
	room     []byte
	at, end  int // what of room is to be read
	head     [recordHeader]byte
	headSize int // of a header that has come in part
	body     int // what is left of a record
	take     func(fd uintptr) bool
	tookN    int
	tookErr  syscall.Errno
	more     atomic.Bool // something may be there that the kernel does not know of

	mu    sync.Mutex // a reader may write too: an alert
	holds bool
	kept  []byte

	// of who flushes, that is of the connection's mu, or of its drain
	n     int
	errno syscall.Errno

	// of one that a loop reads; the connection's mu guards them
	moved  bool
	fd     int
	left   []byte // encrypted, and not written
	spare  []byte
	nudged bool // the loop was made to look at what is left
}

func newSeal(nc *net.TCPConn) (*seal, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &seal{TCPConn: nc, raw: raw, room: make([]byte, readBuffer)}
	s.take = func(fd uintptr) bool {
		s.tookN, s.tookErr = readFd(fd, s.room)
		return s.tookErr != syscall.EAGAIN
	}
	return s, nil
}

// move has it use a descriptor of a loop's, and nothing wait any more. Called by
// the reader while nobody writes.
func (s *seal) move(fd int) {
	_ = s.TCPConn.Close()
	s.moved, s.fd = true, fd
	s.more.Store(true)
	s.hold(true)
}

// laterError says that nothing has come. TLS takes no harm from it.
type laterError struct{}

func (laterError) Error() string   { return "nothing has come yet" }
func (laterError) Timeout() bool   { return true }
func (laterError) Temporary() bool { return true }

// Read is for TLS. It returns nothing beyond the end of a record.
func (s *seal) Read(b []byte) (int, error) {
	if s.at == s.end {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := 0
	for ended := false; !ended && n < len(b) && s.at < s.end; {
		come := s.room[s.at:s.end]
		var m int
		if s.body > 0 {
			m = copy(b[n:], come[:min(len(come), s.body)])
			s.body -= m
			ended = s.body == 0
		} else {
			m = copy(b[n:], come[:min(len(come), recordHeader-s.headSize)])
			copy(s.head[s.headSize:], come[:m])
			if s.headSize += m; s.headSize == recordHeader {
				s.headSize, s.body = 0, int(binary.BigEndian.Uint16(s.head[3:]))
			}
		}
		n, s.at = n+m, s.at+m
	}
	return n, nil
}

// fill reads what has come: all of it, as far as there is room.
func (s *seal) fill() error {
	if s.moved {
		s.tookN, s.tookErr = readFd(uintptr(s.fd), s.room)
	} else if err := s.raw.Read(s.take); err != nil {
		return err
	}
	switch {
	case s.tookErr == syscall.EAGAIN:
		return laterError{}
	case s.tookErr != 0:
		return s.tookErr
	case s.tookN == 0:
		return io.EOF
	}
	s.at, s.end = 0, s.tookN
	return nil
}

// moreLocked says that something may be there that the kernel does not know of.
func (c *Conn) moreLocked() bool { return c.seal != nil && c.seal.more.Load() }

// unsealNow is readNow for one with TLS.
func (c *Conn) unsealNow(b []byte) (int, error) {
	s := c.seal
	n, err := c.nc.Read(b)
	if more := n > 0 && (n == len(b) || s.at < s.end); more != s.more.Load() {
		s.more.Store(more)
	}
	switch {
	case n > 0:
		return n, nil // an error comes again
	case err == laterError{}: //nolint:errorlint // TLS returns it as it is
		return 0, syscall.EAGAIN
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil // of one that was killed, and could not take its leave, as well
	}
	return 0, err
}

// Write is for TLS.
func (s *seal) Write(b []byte) (int, error) {
	s.mu.Lock()
	if s.holds {
		s.kept = append(s.kept, b...)
		s.mu.Unlock()
		return len(b), nil
	}
	s.mu.Unlock()
	return s.TCPConn.Write(b)
}

// hold begins or ends the keeping, and is what is kept so far.
func (s *seal) hold(on bool) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds = on
	return s.kept
}

// keep is what is left to be written.
func (s *seal) keep(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = b
}

// finish writes what was kept, waiting for the other end to take it.
func (s *seal) finish() error {
	kept := s.hold(false)
	s.keep(nil)
	if len(kept) == 0 {
		return nil
	}
	_, err := s.TCPConn.Write(kept)
	return err
}

// sealNow encrypts what is queued and tries to write it in one go; it says
// whether nothing is left. What is left goes first in drain.
func (c *Conn) sealNow() bool {
	s := c.seal
	s.hold(true)
	n, err := c.nc.Write(c.out)
	kept := s.hold(false)
	c.pending.Add(-int64(n))
	c.out = c.out[:0]
	if cap(c.out) > idleOutKeep {
		c.out = nil
	}
	if err == nil {
		err = s.raw.Write(func(fd uintptr) bool {
			s.n, s.errno = writeFd(fd, kept)
			return true
		})
	}
	if err == nil && s.errno != 0 && s.errno != syscall.EAGAIN {
		err = s.errno
	}
	if err != nil {
		s.keep(nil)
		c.failLocked(err)
		return true
	}
	if left := kept[max(s.n, 0):]; len(left) > 0 {
		s.keep(left)
		return false
	}
	if kept = kept[:0]; cap(kept) > idleOutKeep {
		kept = nil
	}
	s.keep(kept)
	return true
}

// writeSealedLocked is writeQueueLocked for one with TLS: no more is encrypted than
// the kernel takes, but for the last of it.
func (c *Conn) writeSealedLocked() {
	s := c.seal
	for len(s.left) > 0 || c.sealSomeLocked() {
		n, errno := writeFd(uintptr(c.fd), s.left)
		if errno == syscall.EAGAIN {
			break
		}
		if errno != 0 {
			c.failLocked(errno)
			return
		}
		s.left = s.left[n:]
	}
	if c.err != nil {
		return
	}
	if left := len(s.left) > 0; left != c.draining {
		c.draining = left
		c.armLocked()
	}
	c.drained.Broadcast()
}

// sealSomeLocked encrypts some of what is queued; false where there is nothing, or
// it failed.
func (c *Conn) sealSomeLocked() bool {
	s := c.seal
	for some := 0; some < sealBy && len(c.queue)+len(c.out) > 0; {
		next := c.out
		if len(c.queue) > 0 {
			next = c.queue[0]
		}
		piece := next[:min(len(next), sealBy-some)]
		if _, err := c.nc.Write(piece); err != nil {
			c.failLocked(err)
			return false
		}
		some += len(piece)
		c.pending.Add(-int64(len(piece)))
		switch rest := next[len(piece):]; {
		case len(c.queue) > 0 && len(rest) > 0:
			c.queue[0] = rest
		case len(c.queue) > 0:
			c.queue[0] = nil // it may be large
			c.queue = c.queue[1:]
		case len(rest) > 0:
			c.out = rest
		case cap(c.out) > idleOutKeep:
			c.out = nil
		default:
			c.out = c.out[:0]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == 0 {
		return false
	}
	written := s.spare[:0]
	if cap(written) > idleOutKeep {
		written = nil
	}
	s.left, s.spare, s.kept = s.kept, s.kept, written
	return true
}
