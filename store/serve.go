package store

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// maxRequest bounds what one request says: a hundred thousand objects.
	maxRequest = 1 << 20
	// maxUnread is how much of its answers a client may leave unread.
	maxUnread = 64 << 10
	// keptBody is how large an answer's buffer may get and be used again.
	keptBody = 8 << 10
	// maxRights is how many descriptors the kernel takes with one message.
	maxRights = 253
)

// conn is one client.
type conn struct {
	s    *Store
	wire *wire.Conn
	unix *net.UnixConn
	peer *peer
	ctx  context.Context // ends with the connection
	busy sync.WaitGroup  // a request that takes long is answered by another goroutine
	mu   sync.Mutex      // an answer that is composed and sent, or a notice that is heeded
	body []byte          // of answers, used again
	msg  message
}

// Serve takes a connection of role store whose hello was read, until it ends.
func (s *Store) Serve(wc *wire.Conn, hello wire.Hello) {
	uc, ok := wc.NetConn().(*net.UnixConn)
	switch {
	case !ok:
		wire.Refuse(wc, spec.Errorf(spec.CodeProtocol, "a store is reached by a unix socket: descriptors go over nothing else"))
		return
	case !wire.SameToken(hello.Token, s.opts.Token):
		wire.Refuse(wc, spec.Errorf(spec.CodeAuth, "the token is not that of the store of %s", s.opts.Name))
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		wire.Refuse(wc, spec.AsError(errClosed(s.opts.Name)))
		return
	}
	s.conns[wc] = true
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()

	ctx, cancel := context.WithCancel(s.ctx)
	c := &conn{s: s, wire: wc, unix: uc, ctx: ctx, peer: s.join(hello.Holder, peerPid(uc))}
	wire.Accept(wc, wire.Welcome{StoreNode: s.opts.Node})
	wc.SetLimit(maxRequest)
	err := c.read()
	cancel()
	c.busy.Wait()
	s.leave(c.peer)
	s.mu.Lock()
	delete(s.conns, wc)
	s.mu.Unlock()
	var told *spec.Error
	if errors.As(err, &told) { // what was wrong with what it sent
		wc.Send(wire.Header{Kind: wire.KindClose}, wire.AppendError(nil, told), nil)
	}
	_ = wc.CloseWhenFlushed()
}

// peerPid is the process that made a connection, 0 where that cannot be told.
func peerPid(uc *net.UnixConn) int {
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// read handles frames until the stream ends or cannot be trusted.
func (c *conn) read() error {
	for {
		f, err := c.wire.Read()
		if err != nil {
			return err
		}
		verb, body, err := wire.ReadVerb(f.Body)
		switch {
		case f.Kind == wire.KindRequest:
			c.busy.Wait() // one after the other
			if err == nil {
				err = c.request(f.ID, verb, body)
			}
			if err != nil {
				c.respond(f.ID, nil, err)
			}
		case f.Kind != wire.KindNotice:
			return spec.Errorf(spec.CodeProtocol, "a store was sent a frame of kind %d", f.Kind)
		case err != nil:
			return err // its effect is not known, so nothing after it is sure
		default:
			if err := c.notice(verb, body); err != nil {
				return err
			}
		}
	}
}

func (c *conn) request(id uint64, verb string, body []byte) error {
	if verb != verbAlloc && verb != verbOpen && verb != verbNeed {
		return spec.Errorf(spec.CodeProtocol, "a store knows no request %q", verb)
	}
	if err := c.msg.read(verb, body); err != nil {
		return err
	}
	if verb == verbAlloc {
		size := c.msg.size
		if o := c.s.take(c.peer, size); o != nil {
			c.give(id, o, false)
			return nil
		}
		c.busy.Go(func() {
			o, fresh, err := c.s.allocate(c.ctx, c.peer, size)
			if err != nil {
				c.respond(id, nil, err)
				return
			}
			c.give(id, o, fresh)
		})
		return nil
	}
	if verb == verbNeed {
		object, spans := c.msg.object, slices.Clone(c.msg.spans)
		c.busy.Go(func() { c.respond(id, &answer{}, c.s.need(c.ctx, c.peer, object, spans)) })
		return nil
	}
	if slices.ContainsFunc(c.msg.objects, c.s.far) {
		ids, some := slices.Clone(c.msg.objects), c.msg.some
		c.busy.Go(func() {
			copies, err := c.s.copies(c.ctx, ids, some)
			defer c.s.unhold(copies)
			if err != nil {
				c.respond(id, nil, err)
				return
			}
			c.openSoon(id, ids, nil)
		})
		return nil
	}
	wait, err := c.open(id, c.msg.objects)
	if wait == nil || err != nil {
		return err
	}
	ids := slices.Clone(c.msg.objects)
	c.busy.Go(func() { c.openSoon(id, ids, wait) })
	return nil
}

// openSoon answers open, once nothing has to be waited for any more.
func (c *conn) openSoon(id uint64, ids []uint64, wait <-chan struct{}) {
	for {
		if wait != nil {
			select {
			case <-wait:
			case <-c.ctx.Done():
				return
			}
		}
		var err error
		if wait, err = c.open(id, ids); err != nil {
			c.respond(id, nil, err)
			return
		}
		if wait == nil {
			return
		}
	}
}

// give answers alloc.
func (c *conn) give(id uint64, o *object, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.s.allocated(c.peer, o, fresh)
	c.respondLocked(id, &a, err)
}

// open answers open, or says what it has to wait for.
func (c *conn) open(id uint64, ids []uint64) (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, wait, err := c.s.open(c.peer, ids)
	if wait == nil && err == nil {
		c.respondLocked(id, &a, nil)
	}
	return wait, err
}

func (c *conn) notice(verb string, body []byte) error {
	if err := c.msg.read(verb, body); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.unlock()
	switch m := &c.msg; verb {
	case verbSeal:
		c.s.ledger.seal(c.peer, m.object, m.size, m.what)
	case verbClose:
		for _, l := range m.closed {
			c.s.ledger.unview(c.peer, l.object, l.count)
		}
	case verbFree:
		c.s.ledger.free(c.peer, m.object)
	}
	return nil // what a later release adds does not concern this one
}

func (c *conn) respond(id uint64, a *answer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respondLocked(id, a, err)
}

// respondLocked sends an answer and waits until it is mostly out, so that a
// client that does not read holds up nobody but itself. The descriptors stay
// good meanwhile: what could give them up waits for the same lock.
func (c *conn) respondLocked(id uint64, a *answer, err error) {
	if err != nil {
		c.wire.Send(wire.Header{Kind: wire.KindResponse, Flags: wire.FlagError, ID: id}, wire.AppendError(nil, spec.AsError(err)), nil)
		c.wire.WaitBelow(maxUnread)
		return
	}
	c.body = a.append(c.body[:0])
	h := wire.Header{Kind: wire.KindResponse, ID: id}
	if len(a.fds) == 0 {
		c.wire.Send(h, c.body, nil)
		c.wire.WaitBelow(maxUnread)
		if len(c.body) >= keptBody {
			c.body = nil // it may still be queued, by reference
		}
		return
	}
	c.wire.WaitBelow(0)
	if err := sendRights(c.unix, wire.AppendFrame(nil, h, c.body, nil), a.fds); err != nil {
		_ = c.wire.Close() // the reader ends the rest
	}
}

// sendRights writes a frame with descriptors: as many as one message takes with
// the first byte, more with the bytes after it.
func sendRights(uc *net.UnixConn, frame []byte, fds []int) error {
	for len(fds) > 0 {
		n := min(len(fds), maxRights)
		part := frame[:1]
		if n == len(fds) {
			part = frame
		}
		sent, _, err := uc.WriteMsgUnix(part, unix.UnixRights(fds[:n]...), nil)
		if err != nil {
			return err
		}
		frame, fds = frame[sent:], fds[n:]
	}
	_, err := uc.Write(frame)
	return err
}
