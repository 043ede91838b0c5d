package head

import (
	"errors"
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

type (
	marshaler   = msgp.Marshaler
	unmarshaler = msgp.Unmarshaler
)

// worker is one rank's process as the head knows it.
type worker struct {
	call.Worker // what calls see
	h           *Head
	cluster     *cluster
	node        *node
	place       placement.Worker
	token       string
	line        // calls go here, once it has dialled in
	pid         int
	state       string // "starting", "ready", "stopping", "dead"
	closed      bool   // its call connection has ended
	exit        *wire.Exited
	failed      *spec.Error // its own word on why it could not become ready
	restarts    int         // how many processes had its rank before
	try         *try        // it is to take the place of one that died
	replaced    bool        // another is to take its place
	final       bool        // it is killed for good: nobody is to take its place
	engines     []spec.Engine
	comeback
}

// workerConn is one call connection of a worker.
type workerConn struct {
	*worker
	lineEnd
}

// admitWorker lets a worker's call connection in.
func (h *Head) admitWorker(hello wire.Hello, p port, w wire.Welcome) (peer, wire.Welcome, error) {
	wk := h.workers[hello.Worker]
	if wk == nil || !wire.SameToken(hello.Token, wk.token) {
		return nil, w, spec.Errorf(spec.CodeAuth, "the token is not that of worker %d of this session", hello.Worker)
	}
	switch {
	case wk.gen > 0 && hello.Back == 0 && wk.state != "starting": // else it was cut off before it was welcome
		return nil, w, spec.Errorf(spec.CodeInvalid, "%s has a call connection already", wk.Name)
	case hello.Back != 0 && (wk.state == "stopping" || wk.state == "dead" || wk.failed != nil):
		return nil, w, spec.Errorf(spec.CodeWorkerDied, "%s is not waited for any more", wk.Name)
	}
	if hello.Back != 0 && wk.try == nil { // the end of the last connection may not have been noticed
		h.table.WorkerDying(&wk.Worker)
	}
	if hello.Back == 0 {
		wk.closed = false
		h.table.Returned(&wk.Worker, 0) // nothing was sent to it
		h.giveSetupLocked(wk)
	}
	conn := &workerConn{worker: wk, lineEnd: wk.beginLocked(p, nil, hello.Back != 0)}
	h.storesOf(&w, wk.holder(), wk.node.index)
	return conn, w, nil
}

func (w *workerConn) handle(f *wire.Frame, b *batch) error {
	switch f.Kind {
	case wire.KindResult:
		return w.h.result(w, f, b)
	case wire.KindNotice:
	default:
		return spec.Errorf(spec.CodeProtocol, "%s sent a frame of kind %d", w.Name, f.Kind)
	}
	verb, rest, err := wire.ReadVerb(f.Body)
	if err != nil {
		return err
	}
	w.h.mu.Lock()
	now, err := w.takesLocked(f, verb)
	w.h.mu.Unlock()
	if !now || err != nil {
		return err
	}
	return w.notice(verb, rest, b)
}

func (w *workerConn) notice(verb string, rest []byte, b *batch) error {
	switch verb {
	case "ready":
		var r wire.Ready
		if _, err := r.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "%s: a notice of being ready that cannot be read: %v", w.Name, err)
		}
		w.h.mu.Lock()
		w.pid = r.Pid
		w.h.readyLocked(w.worker, r)
		w.h.mu.Unlock()
	case "failed":
		var fl wire.Failed
		if _, err := fl.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "%s: a notice of failure that cannot be read: %v", w.Name, err)
		}
		w.h.mu.Lock()
		e := fl.Error
		e.Cluster, e.Rank, e.Worker, e.Node = w.cluster.spec.Name, w.Rank, w.Name, w.Node
		w.failed = &e
		w.cluster.failLocked(&e)
		w.h.mu.Unlock()
	case "engines":
		var m wire.Engines
		if err := parse(verb, &m, rest); err != nil {
			return err
		}
		w.h.mu.Lock()
		w.engines = m.Engines
		w.h.mu.Unlock()
	case "release":
		return w.h.release(lease.Worker(w.Number), rest, b)
	case "back":
		return w.returned(rest, b)
	case "resent":
		w.h.mu.Lock()
		w.all = true
		w.h.settleSoonLocked()
		w.h.mu.Unlock()
	default:
		return noNotice(w.Name, verb)
	}
	return nil
}

// gone: the call connection ended. It comes back, or its agent will say why not.
func (w *workerConn) gone(err error) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if !w.endedLocked(&w.lineEnd) {
		return
	}
	w.closed = true
	if w.state == "stopping" || w.state == "dead" {
		return
	}
	if w.try == nil { // else no call has come to it yet
		h.table.WorkerDying(&w.Worker)
	}
	var broken *spec.Error
	if errors.As(err, &broken) && w.failed == nil {
		// We hung up because of what it sent: that is the cause, not its exit.
		about := *broken
		about.Message = fmt.Sprintf("%s on %s was hung up on for what it sent: %s", w.Name, w.Node, broken.Message)
		about.Cluster, about.Rank, about.Worker, about.Node = w.cluster.Name, w.Rank, w.Name, w.Node
		w.failed = &about
		w.cluster.failLocked(&about)
	}
	if w.exit != nil {
		go h.exited(w.node, *w.exit)
		return
	}
	wait := h.opts.Grace
	if broken != nil {
		wait = h.opts.ExitWait
	}
	w.lateLocked(wait, false, spec.Errorf(spec.CodeWorkerDied, "%s on %s closed its connection (%v), and neither came back nor was its exit reported", w.Name, w.Node, err))
}

// lateLocked gives a worker up that does not come back in time. While its node is
// away, what becomes of that is waited for; once that is back, the worker has all
// of its time.
func (w *worker) lateLocked(wait time.Duration, away bool, why *spec.Error) {
	h := w.node.h
	w.awayLocked(h, wait, func() {
		var b batch
		h.mu.Lock()
		switch now := w.node.far && w.node.lost == nil && w.node.conn == nil; {
		case now || away:
			w.lateLocked(wait, now, why)
		default:
			h.lostLocked(w, why, &b)
		}
		h.mu.Unlock()
		b.flush()
	})
}

// exited is the agent's word on a worker's end.
func (h *Head) exited(n *node, e wire.Exited) {
	var b batch
	h.mu.Lock()
	w := h.workers[e.Worker]
	if w == nil || w.node != n {
		h.mu.Unlock()
		return
	}
	w.exit = &e
	if n.leave != "" { // its agent ends with all its workers: that is told, with the cause
		h.mu.Unlock()
		return
	}
	// What it said last (a failure, a result) may still be on its way to us:
	// its connection's end is the end of that, unless a copy of its socket lives on.
	if w.gen == 0 || w.closed {
		h.lostLocked(w, w.endError(&e), &b)
	} else {
		time.AfterFunc(h.opts.ExitWait, func() {
			var b batch
			h.mu.Lock()
			h.lostLocked(w, w.endError(&e), &b)
			h.mu.Unlock()
			b.flush()
		})
	}
	h.mu.Unlock()
	b.flush()
}

// lostLocked ends a worker's part in everything.
func (h *Head) lostLocked(w *worker, why *spec.Error, b *batch) {
	if w.state == "dead" {
		return
	}
	if h.resuming != nil && (h.resuming.waits[w] || h.resuming.lost[w] != nil) {
		h.loseLaterLocked(w, why)
		return
	}
	stopping := w.state == "stopping"
	w.state = "dead"
	w.hereLocked()
	h.endCallersLocked(w)
	about := *why
	about.Cluster, about.Rank, about.Worker, about.Node = w.cluster.spec.Name, w.Rank, w.Name, w.Node
	if w.failed != nil {
		about = *w.failed
	}
	about.Device = w.device()
	if !stopping && !w.replaced && w.try == nil {
		about.Others = w.cluster.othersLocked(w, time.Now())
	}
	if !stopping {
		w.cluster.failLocked(&about)
	}
	switch {
	case w.replaced:
	case w.try != nil:
		w.try.failLocked(&about)
	case !stopping && h.restartLocked(w, &about, b):
	default:
		h.ordersLocked(h.table.WorkerLost(&w.Worker, &about), b)
		h.deviceFreeLocked(w.cluster)
	}
	h.endedLocked(lease.Worker(w.Number), w.node.index, b)
	h.noteSoonLocked(w.cluster)
	h.settleSoonLocked()
}

// endCallersLocked: a process that is gone does not come back as a controller either.
func (h *Head) endCallersLocked(w *worker) {
	for _, c := range h.callers {
		if c.worker == w {
			c.dead = true
			if c.port == nil {
				go c.leave(errAwayTooLong)
			}
		}
	}
}
