package head

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// peer is what a connection or link turned out to be. handle gets its frames one
// at a time; gone is called once, after the last of them.
type peer interface {
	handle(f *wire.Frame, b *batch) error
	gone(err error)
}

// helloBound is how long a connection may take to say who it is.
const helloBound = 10 * time.Second

// accept takes connections until the listener is closed. Out of descriptors, it
// turns callers away with an error rather than leave them waiting: it holds one
// descriptor back for that.
func (h *Head) accept() {
	defer h.serving.Done()
	spare := spareFile()
	defer func() { _ = spare.Close() }()
	for {
		nc, err := h.listener.Accept()
		if err != nil && !errors.Is(err, net.ErrClosed) {
			h.opts.Log.Error("cannot accept connections", "err", err)
			_ = spare.Close()
			spare = nil
			nc, err = h.listener.Accept()
		}
		switch {
		case err == nil && spare == nil:
			// The wait may have been long: there may be room again.
			if spare = spareFile(); spare == nil {
				h.turnAway(wire.NewConn(nc))
				spare = spareFile()
				continue
			}
			fallthrough
		case err == nil:
			h.serve(wire.NewConn(nc), false)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(100 * time.Millisecond) // it will not be better at once
		}
	}
}

// spareFile is a descriptor to give up when there are no others; nil without.
func spareFile() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

func (h *Head) turnAway(c *wire.Conn) {
	wire.Refuse(c, spec.Errorf(spec.CodeLimit,
		"the head has no open files left, of %d, to take another connection with: raise that before the script starts (ulimit -n 65536)", openFiles()))
}

// serve reads a connection until it ends. trusted: it was inherited, so it
// needs no token.
func (h *Head) serve(c *wire.Conn, trusted bool) {
	h.connsMu.Lock()
	h.conns[c] = true
	h.serving.Add(1)
	h.connsMu.Unlock()
	if h.crashed.Load() {
		c.Cut()
	}
	go func() {
		p, err := h.greet(c, trusted)
		if err != nil {
			h.done(c)
			return
		}
		r := &reader{h: h, c: c, p: p, lane: h.laneFor()}
		if !r.attend() {
			r.run()
		}
	}()
}

// done lets go of a connection that is not read any more.
func (h *Head) done(c *wire.Conn) {
	h.connsMu.Lock()
	delete(h.conns, c)
	h.connsMu.Unlock()
	_ = c.CloseWhenFlushed()
	h.serving.Done()
}

// greet answers the hello.
func (h *Head) greet(c *wire.Conn, trusted bool) (peer, error) {
	if !trusted {
		_ = c.NetConn().SetReadDeadline(time.Now().Add(helloBound))
	}
	hello, err := wire.ReadHello(c)
	_ = c.NetConn().SetReadDeadline(time.Time{})
	if err != nil {
		var told *spec.Error
		if errors.As(err, &told) {
			wire.Refuse(c, told)
		}
		if trusted {
			h.end("the owner's connection failed: " + err.Error())
		}
		return nil, err
	}
	p, err := h.admit(hello, c, c, trusted)
	if err != nil {
		wire.Refuse(c, spec.AsError(err))
		if trusted { // nobody else would ask for the end
			h.end("the owner was refused: " + err.Error())
		}
		return nil, err
	}
	c.SetLimit(wire.MaxFrame)
	c.Flush()
	if s, ok := p.(starter); ok {
		s.start()
	}
	return p, nil
}

// starter is a peer that has work to do once it is welcomed.
type starter interface{ start() }

// admit checks who says hello, makes the peer for it and queues its welcome: whoever
// sends to it from now on comes after that.
func (h *Head) admit(hello wire.Hello, p port, conn *wire.Conn, trusted bool) (peer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	who, welcome, err := h.admitLocked(hello, p, conn, trusted)
	if err != nil {
		return nil, err
	}
	hd, body := welcome.Frame()
	p.Queue(hd, nil, body, nil)
	return who, nil
}

func (h *Head) admitLocked(hello wire.Hello, p port, conn *wire.Conn, trusted bool) (peer, wire.Welcome, error) {
	w := wire.Welcome{Session: h.opts.Session, Address: h.address, LogDir: h.opts.LogDir, Pid: os.Getpid(), Epoch: h.epoch}
	if h.isOver {
		return nil, w, spec.Errorf(spec.CodeHeadLost, "the head is ending: %s", h.overWhy)
	}
	switch hello.Role {
	case wire.RoleOwner:
		if hello.Back != 0 {
			return h.admitBack(hello, p, conn, w, trusted)
		}
		if !trusted {
			return nil, w, spec.Errorf(spec.CodeAuth, "only the process that started this head can be its owner")
		}
		v, err := parseVirtual(hello.Virtual)
		if err != nil {
			return nil, w, err
		}
		watch, err := process.NewWatch(hello.Pid)
		if err != nil {
			return nil, w, spec.Errorf(spec.CodeProtocol, "the owner cannot be watched: %v", err)
		}
		go h.watchOwner(watch, hello.Pid)
		w.Token = h.token
		h.virtual = v // as the welcome depends on it
		c := h.addCaller(nil, hello.Pid)
		c.runtime = hello.Runtime
		h.owner, h.ownerPid = c, hello.Pid
		h.noteMetaLocked(hello.Virtual)
		go h.startNodes(v, hello.Virtual != "", hello.Pid, hello.Runtime)
		return h.welcomeLocked(c, p, conn, w, false)
	case wire.RoleController:
		if hello.Back != 0 {
			return h.admitBack(hello, p, conn, w, false)
		}
		wk, err := h.checkToken(hello)
		if err != nil {
			return nil, w, err
		}
		c := h.addCaller(wk, hello.Pid)
		c.runtime = hello.Runtime
		if wk == nil {
			go c.watchProcess()
		}
		return h.welcomeLocked(c, p, conn, w, false)
	case wire.RoleEvents:
		if _, err := h.checkToken(hello); err != nil {
			return nil, w, err
		}
		return &listener{h: h, port: p, conn: conn}, w, nil
	case wire.RoleWorker:
		return h.admitWorker(hello, p, w)
	case wire.RoleAgent:
		return h.admitAgent(hello, conn, w)
	}
	return nil, w, spec.Errorf(spec.CodeProtocol, "unknown role %q", hello.Role)
}

// welcomeLocked gives a caller a connection.
func (h *Head) welcomeLocked(c *caller, p port, conn *wire.Conn, w wire.Welcome, back bool) (peer, wire.Welcome, error) {
	w.Caller = c.number
	h.storesOf(&w, c.holder(), c.worker.nodeIndex())
	h.noteCallerLocked(c)
	return &callerConn{caller: c, lineEnd: c.beginLocked(p, conn, back)}, w, nil
}

// admitBack lets a caller in that was here before.
func (h *Head) admitBack(hello wire.Hello, p port, conn *wire.Conn, w wire.Welcome, trusted bool) (peer, wire.Welcome, error) {
	wk := (*worker)(nil)
	if !trusted {
		var err error
		if wk, err = h.checkToken(hello); err != nil {
			return nil, w, err
		}
	}
	c := h.callers[hello.Back]
	if c == nil || c.worker != wk || c.pid != hello.Pid || c.late {
		return nil, w, spec.Errorf(spec.CodeHeadLost, "this head has no controller of number %d and process %d (any more): it was away for too long", hello.Back, hello.Pid)
	}
	if c == h.owner {
		w.Token = h.token
	}
	c.runtime = hello.Runtime
	return h.welcomeLocked(c, p, conn, w, true)
}

func parseVirtual(text string) (spec.Virtual, error) {
	if text == "" {
		return spec.Virtual{}, nil
	}
	return spec.ParseVirtual(text)
}

// checkToken accepts the session's token, or a worker's own.
func (h *Head) checkToken(hello wire.Hello) (*worker, error) {
	if hello.Worker == 0 {
		if wire.SameToken(hello.Token, h.token) {
			return nil, nil
		}
	} else if wk := h.workers[hello.Worker]; wk != nil && wire.SameToken(hello.Token, wk.token) {
		return wk, nil
	}
	return nil, spec.Errorf(spec.CodeAuth, "the token is not that of this session (%s): a script needs the token file beside the head's socket", h.opts.Session)
}

// watchProcess hears of the end of a script's process, which its connection's end
// does not prove.
func (c *caller) watchProcess() {
	watch, err := process.NewWatch(c.pid)
	if err != nil {
		return // not to be seen from here
	}
	defer watch.Close()
	select {
	case <-watch.Done():
	case <-c.ctx.Done():
		return
	case <-c.h.over:
		return
	}
	c.h.mu.Lock()
	c.dead = true
	away := c.port == nil
	c.h.mu.Unlock()
	if away {
		c.leave(fmt.Errorf("its process %d has ended", c.pid))
	}
}

// watchOwnerOf is watchOwner for the process that the head before this one had.
func (h *Head) watchOwnerOf(owner journal.Process) {
	if owner.Pid == 0 {
		return
	}
	watch, err := process.NewWatch(owner.Pid)
	if err != nil || !lives(owner) {
		h.end(fmt.Sprintf("its owner (process %d) is gone", owner.Pid))
		return
	}
	go h.watchOwner(watch, owner.Pid)
}

func (h *Head) watchOwner(w *process.Watch, pid int) {
	select {
	case <-w.Done():
		h.mu.Lock()
		if h.owner != nil {
			h.owner.dead = true
		}
		h.mu.Unlock()
		h.end(fmt.Sprintf("its owner (process %d) is gone", pid))
	case <-h.over:
		w.Close()
	}
}
