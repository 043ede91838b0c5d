package head

import (
	"bytes"
	"cmp"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// pending is what the head keeps of a call between its frames.
type pending struct {
	caller  *caller
	cluster *cluster
	method  *method
	how     uint8
	marked  bool
	ownRows bool // see dispatch.Request
	again   bool // its legs may have to be sent again
	parent  uint64

	payload []byte // as it came; kept only until the legs are sent, or as long as again says
	bufs    []wire.Buf
	args    wire.Payload // the same, taken apart; only where the head must read it
	plan    dispatch.Plan
	parts   []wire.Value // nil: every rank gets the payload as it came

	begun   time.Time
	store   []byte // results that came, while others are waited for
	waits   []call.Future
	paired  [][]int // see call.Request
	size    int     // bytes of its arguments, on its caller's account until it is answered
	timeout time.Duration
	over    bool // its deadline passed before its caller sent it again
	timer   *time.Timer
	reports map[int]spec.RankInfo // places that ranks told as of this call
	layout  *spec.Error           // what is wrong with them
	unread  int                   // Answers that its caller has not acknowledged

	put     bool // all there is of it is its answer, given back by its caller
	planned bool
	spliced bool // its arguments are complete
	watch   watched
}

var rankZero = []int{0}

// Back-pressure: beyond these a controller's next call waits to be read.
const (
	maxBacklog = 64 << 20  // bytes not taken by a worker
	maxBytes   = 256 << 20 // of one controller's calls that are not answered
	callBytes  = 1 << 10   // what a call counts for beside its arguments
)

// call takes a Call frame.
func (c *callerConn) call(f *wire.Frame, b *batch) error {
	h, r := c.h, &c.route
	payload, err := r.read(f.Body)
	if err != nil {
		return err
	}
	h.fault("call")
	h.mu.Lock()
	if c.lineEnd.gen != c.line.gen || h.resuming != nil || c.draining {
		now, err := c.takesLocked(f, "", b)
		if !now || err != nil {
			h.mu.Unlock()
			return err
		}
	}
	c.ackLocked(f.Ack, b)
	again := f.Flags&wire.FlagAgain != 0
	if again && c.knownLocked(f, payload, b) {
		h.mu.Unlock()
		return nil
	}
	p, refused := h.resolveLocked(c.caller, r)
	if refused == nil && again && r.over() {
		refused = p.tooLate()
	}
	if refused == nil && p.cluster.drains && !again {
		refused = drainingError(p)
	}
	if refused == nil {
		refused = h.prepareLocked(p, r, payload, f)
		if c.lineEnd.gen != c.line.gen || c.left {
			// While it was cut its caller came by another connection, and sends it again
			// by that, or it is gone.
			h.mu.Unlock()
			return errReplaced
		}
	}
	if refused == nil && len(p.waits) > 0 {
		h.pairLocked(p, p.cluster.ranks)
	}
	from := c.holder()
	if again {
		from = 0 // it has told what it knows of
	}
	if refused != nil {
		h.arrivedLocked(from, 0, f.Bufs)
		h.tellStoresLocked(b)
		c.failLocked(nil, f.ID, refused, b)
		h.mu.Unlock()
		return nil
	}
	p.size = wire.Size(nil, payload, f.Bufs) + callBytes
	c.bytes += p.size
	req := h.requestOf(c.caller, f.ID, r, p)
	req.Leased = wire.HasRefs(f.Bufs)
	made, ops := h.table.Submit(req)
	if req.Leased {
		h.arrivedLocked(from, lease.Call(uint64(made.ID)), f.Bufs)
	}
	if made.State == call.Held && len(p.waits) == 0 && p.parts == nil { // behind one that waits
		p.payload = bytes.Clone(payload)
		f.Keep()
		p.bufs = f.Bufs
	}
	h.fault("submitted")
	h.ordersLocked(ops, b)
	if p.timeout > 0 && made.State != call.Answered {
		p.timer = time.AfterFunc(p.timeout, func() { h.expire(made) })
	}
	h.tellStoresLocked(b)
	c.throttleLocked(b)
	h.mu.Unlock()
	h.fault("sending")
	return nil
}

// prepareLocked plans the call, unless it must wait for futures first.
func (h *Head) prepareLocked(p *pending, r *route, payload []byte, f *wire.Frame) *spec.Error {
	layout := p.cluster.ranks
	if p.reads() {
		h.mu.Unlock() // cutting copies the arguments: not under the lock
		defer h.mu.Lock()
		if len(payload) > cutInPlace {
			h.fault("cutting")
		}
	}
	return p.prepareArgs(layout, r, payload, f)
}

func (p *pending) prepareArgs(layout []spec.RankInfo, r *route, payload []byte, f *wire.Frame) *spec.Error {
	if p.again {
		f.Keep()
		payload = bytes.Clone(payload)
	}
	p.payload, p.bufs = payload, f.Bufs
	if !p.reads() {
		return p.prepare(layout, r.ranks)
	}
	if err := p.args.Parse(payload, f.Bufs); err != nil {
		e := *spec.AsError(err)
		e.Message = p.method.title + ": its arguments: " + e.Message
		e.Cluster, e.Method = p.cluster.Name, p.method.Name
		return &e
	}
	if p.marked {
		p.waits = p.futures()
	}
	if len(p.waits) == 0 {
		return p.prepare(layout, r.ranks)
	}
	f.Keep()
	p.payload, p.bufs = bytes.Clone(payload), f.Bufs
	_ = p.args.Parse(p.payload, p.bufs) // the same bytes as just now
	return nil
}

// resolveLocked finds what a route names.
func (h *Head) resolveLocked(c *caller, r *route) (*pending, *spec.Error) {
	cl := h.clusters[r.cluster]
	if cl == nil || !cl.up {
		title := h.gone[r.cluster]
		if cl != nil {
			title = cl.title()
		}
		return nil, spec.Errorf(spec.CodeNotFound, "%s is no more: it was shut down, or its controller ended, or it had died and its name was given anew", cmp.Or(title, spec.KindCluster))
	}
	m := cl.methods[string(r.method)]
	if m == nil && cl.desc.Engines {
		m = cl.engineMethod(r.method)
	}
	if m == nil || (r.how == howMode && !m.Registered) {
		return nil, cl.noMethod(string(r.method), m != nil)
	}
	for _, rank := range r.ranks {
		if rank < 0 || rank >= len(cl.workers) {
			return nil, spec.Errorf(spec.CodeInvalid, "%s.%s: there is no rank %d, the cluster has ranks 0 to %d", cl.Name, m.Name, rank, len(cl.workers)-1)
		}
	}
	if r.how > howOne {
		return nil, spec.Errorf(spec.CodeProtocol, "%s.%s: there is no way %d to pick ranks", cl.Name, m.Name, r.how)
	}
	if r.how == howOne && len(r.ranks) != 1 {
		return nil, spec.Errorf(spec.CodeProtocol, "%s.%s: a call of one rank that names %d", cl.Name, m.Name, len(r.ranks))
	}
	p := &pending{
		caller: c, cluster: cl, method: m, how: r.how, marked: r.flags&routeMarked != 0, ownRows: r.flags&routeOwnRows != 0,
		again:  cl.spec.Restarts() && (m.Idempotent || m.Name == initialize),
		parent: r.parent, begun: time.Now(), timeout: time.Duration(r.timeout) * time.Millisecond, //nolint:gosec // a timeout of 292 years is for ever
	}
	if r.how == howMode { // the mode picks the ranks
		r.ranks = nil
		if m.Execute == dispatch.ExecuteRankZero {
			r.ranks = rankZero
		}
	}
	return p, nil
}

func (cl *cluster) noMethod(name string, public bool) *spec.Error {
	var e *spec.Error
	if public {
		e = spec.Errorf(spec.CodeNotFound, "%s.%s is not registered (@register): call it by execute_all_sync(%q, …), or register it", cl.Name, name, name)
	} else {
		var names []string
		for n := range cl.methods {
			names = append(names, n)
		}
		e = spec.Errorf(spec.CodeNotFound, "%s has no method %q", cl.Name, name)
		if near := spec.NearestName(name, names); near != "" {
			e.Message += "; did you mean " + near + "?"
		}
	}
	e.Cluster, e.Method = cl.Name, name
	return e
}

func (h *Head) requestOf(c *caller, id uint64, r *route, p *pending) call.Request {
	req := call.Request{
		Caller: c.number, CallerID: id, Cluster: &p.cluster.Cluster, Method: p.method.Name, Ranks: r.ranks,
		Split: r.flags&routeSplit != 0, Keep: r.flags&routeKeep != 0, Waiting: r.flags&routeWaiting != 0,
		Whole:      r.flags&routeWhole != 0,
		Apart:      r.flags&routeApart != 0,
		Collective: p.method.Collective, Idempotent: p.method.Idempotent, OnTimeout: p.method.OnTimeout,
		Parent: call.ID(r.parent), Data: p,
	}
	if c.worker != nil && r.parent != 0 {
		req.ParentWorker = &c.worker.Worker
	}
	req.Futures, req.Paired = p.waits, p.paired
	req.Prepares = len(p.waits) > 0 && p.paired == nil
	return req
}

// failLocked answers a call that never came to be; of is what is kept of it, if
// anything.
func (c *caller) failLocked(of *call.Call, id uint64, e *spec.Error, b *batch) {
	// Without flag Rank it is the answer of a Split call for every rank.
	c.answerLocked(of, wire.Header{Kind: wire.KindAnswer, Flags: wire.FlagError, ID: id}, wire.AppendError(nil, e), nil, b)
}

// answerLocked queues an Answer and keeps it.
func (c *caller) answerLocked(of *call.Call, hd wire.Header, body []byte, bufs []wire.Buf, b *batch) {
	c.answers.add(of, hd, body, bufs)
	if c.had != nil {
		c.had[hd.ID] = true
	}
	if to := c.holder(); to != 0 {
		c.h.sentLocked(to, bufs)
	}
	if c.port != nil { // else it is sent when the caller is back
		b.queue(c.port, hd, nil, body, bufs)
	}
}

// acked is ackLocked for a frame that is no call.
func (c *caller) acked(ack uint32, b *batch) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.ackLocked(ack, b)
	c.h.tellStoresLocked(b)
}

// throttleLocked waits while the caller is over its limits. A relayed caller
// shares its connection with others and is not held up.
func (c *caller) throttleLocked(b *batch) {
	if c.conn == nil || (b.slow == nil && c.bytes <= maxBytes) {
		b.slow = nil
		return
	}
	if b.lane != nil {
		b.held = c
		return
	}
	slow := b.slow
	b.slow = nil
	c.h.mu.Unlock()
	b.flush()
	c.wait(slow)
	c.h.mu.Lock()
}

// wait is until slow has caught up and the caller is within its limits again.
func (c *caller) wait(slow port) {
	if slow != nil {
		slow.WaitBelow(maxBacklog)
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.h.throttled++
	for (c.bytes > maxBytes || (c.h.resuming != nil && c.all)) && !c.left {
		c.h.free.Wait()
	}
	c.h.throttled--
}

// ordersLocked carries out what the table decided, in order. What an order leads to
// comes after all that were given with it.
func (h *Head) ordersLocked(ops []call.Op, b *batch) {
	h.todo = append(h.todo, ops...)
	if h.ordering {
		return
	}
	h.ordering = true
	for i := 0; i < len(h.todo); i++ {
		op := h.todo[i]
		p := op.Call.Data.(*pending)
		switch op.Do {
		case call.Prepare:
			h.beginCutLocked(op.Call, p, b)
		case call.Send:
			h.sendLocked(op.Call, p, b)
		case call.SendLeg:
			h.sendLegLocked(op.Call, op.Leg, p, b)
		case call.Answer, call.AnswerLeg, call.Fail, call.FailLeg:
			h.answerLocked(op, p, b)
			if p.again && (op.Do == call.Answer || op.Do == call.AnswerLeg) {
				h.begunLocked(op, p)
			}
		case call.SendAgain:
			h.sendAgainLocked(op.Call, op.Leg, p, b)
		case call.CancelLeg:
			h.cancelLegLocked(op.Call, op.Leg, false, b)
		case call.KillLeg:
			h.cancelLegLocked(op.Call, op.Leg, true, b)
		case call.Stacks:
			go h.expired(op.Call)
		case call.Again:
			p.caller.againLocked(op.Call, b)
		case call.Release:
			p.cluster.workers[op.Call.Legs[op.Leg].Worker.Rank].releaseLocked(b)
		case call.Forget:
			h.leases.End(lease.Call(uint64(op.Call.ID)))
		}
	}
	clear(h.todo)
	h.todo, h.ordering = h.todo[:0], false
	if h.throttled > 0 {
		h.free.Broadcast()
	}
}
