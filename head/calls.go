package head

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
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
	parent  uint64

	payload []byte // as it came; kept only until the legs are sent
	bufs    [][]byte
	args    wire.Payload // the same, taken apart; only where the head must read it
	plan    dispatch.Plan
	parts   []wire.Value // nil: every rank gets the payload as it came

	waits   []call.Future
	timeout time.Duration
	timer   *time.Timer
	reports map[int]spec.RankInfo // places that ranks told as of this call
	layout  *spec.Error           // what is wrong with them
}

var rankZero = []int{0}

// Back-pressure: beyond these a controller's next call waits to be read.
const (
	maxInFlight      = 1000
	maxWorkerBacklog = 64 << 20
)

// call takes a Call frame.
func (c *caller) call(f *wire.Frame, b *batch) error {
	h, r := c.h, &c.route
	payload, err := r.read(f.Body)
	if err != nil {
		return err
	}
	h.mu.Lock()
	c.ackLocked(f.Ack)
	p, refused := h.resolveLocked(c, r)
	if refused == nil {
		refused = h.prepareLocked(p, r, payload, f)
	}
	if refused != nil {
		c.failLocked(f.ID, refused, b)
		h.mu.Unlock()
		return nil
	}
	made, ops := h.table.Submit(h.requestOf(c, f.ID, r, p))
	if made.State == call.Held && len(p.waits) == 0 && p.parts == nil { // behind one that waits
		p.payload = bytes.Clone(payload)
		f.Keep()
		p.bufs = f.Bufs
	}
	h.ordersLocked(ops, b)
	if p.timeout > 0 && made.State != call.Answered {
		p.timer = time.AfterFunc(p.timeout, func() { h.expire(made) })
	}
	c.throttleLocked(p.cluster, b)
	h.mu.Unlock()
	return nil
}

// prepareLocked plans the call, unless it must wait for futures first.
func (h *Head) prepareLocked(p *pending, r *route, payload []byte, f *wire.Frame) *spec.Error {
	p.payload, p.bufs = payload, f.Bufs
	if !p.reads() {
		return p.prepare(p.cluster.ranks, r.ranks)
	}
	layout := p.cluster.ranks
	h.mu.Unlock() // cutting copies the arguments: not under the lock
	defer h.mu.Lock()
	if err := p.args.Parse(payload, f.Bufs); err != nil {
		return spec.AsError(err)
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
		return nil, spec.Errorf(spec.CodeNotFound, "the cluster is no more: it was shut down, or its controller ended")
	}
	m := cl.methods[string(r.method)]
	if m == nil || (r.how == howMode && !m.Registered) {
		return nil, cl.noMethod(string(r.method), m != nil)
	}
	for _, rank := range r.ranks {
		if rank < 0 || rank >= len(cl.workers) {
			return nil, spec.Errorf(spec.CodeInvalid, "%s.%s: there is no rank %d, the cluster has ranks 0 to %d", cl.Name, m.Name, rank, len(cl.workers)-1)
		}
	}
	if r.how == howOne && len(r.ranks) != 1 {
		return nil, spec.Errorf(spec.CodeProtocol, "%s.%s: a call of one rank that names %d", cl.Name, m.Name, len(r.ranks))
	}
	p := &pending{
		caller: c, cluster: cl, method: m, how: r.how, marked: r.flags&routeMarked != 0,
		parent: r.parent, timeout: time.Duration(r.timeout) * time.Millisecond, //nolint:gosec // a timeout of 292 years is for ever
	}
	if r.how == howMode && m.Execute == dispatch.ExecuteRankZero {
		r.ranks = rankZero
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
		Collective: p.method.Collective, OnTimeout: p.method.OnTimeout,
		Parent: call.ID(r.parent), Data: p,
	}
	if c.worker != nil && r.parent != 0 {
		req.ParentWorker = &c.worker.Worker
	}
	req.Futures = p.waits
	return req
}

// failLocked answers a call that never came to be.
func (c *caller) failLocked(id uint64, e *spec.Error, b *batch) {
	// Without flag Rank it is the answer of a Split call for every rank.
	c.answerLocked(wire.Header{Kind: wire.KindAnswer, Flags: wire.FlagError, ID: id}, wire.AppendError(nil, e), nil, b)
}

// answerLocked queues an Answer and counts it.
func (c *caller) answerLocked(hd wire.Header, body []byte, bufs [][]byte, b *batch) {
	c.answers++
	b.queue(c.port, hd, nil, body, bufs)
}

// ackLocked drops kept results that the caller has read.
func (c *caller) ackLocked(ack uint32) {
	for len(c.kept) > 0 && int32(ack-c.kept[0].seq) >= 0 { //nolint:gosec // sequence arithmetic
		c.h.table.Acked(c.kept[0].call)
		c.kept = c.kept[1:]
	}
}

// throttleLocked waits while the caller is over its limits. A relayed caller
// shares its connection with others and is not held up.
func (c *caller) throttleLocked(cl *cluster, b *batch) {
	if c.conn == nil {
		return
	}
	over := func() *wire.Conn {
		for _, w := range cl.workers {
			if conn, ok := w.port.(*wire.Conn); ok && conn.Pending() > maxWorkerBacklog {
				return conn
			}
		}
		return nil
	}
	slow := over()
	if slow == nil && cl.InFlight() < maxInFlight {
		return
	}
	c.h.mu.Unlock()
	b.flush()
	if slow != nil {
		slow.WaitBelow(maxWorkerBacklog)
	}
	c.h.mu.Lock()
	c.h.throttled++
	for cl.InFlight() >= maxInFlight && !c.left {
		c.h.free.Wait()
	}
	c.h.throttled--
}

// result takes a worker's Result frame.
func (h *Head) result(w *worker, f *wire.Frame, b *batch) error {
	r := call.Result{Body: f.Body, Bufs: f.Bufs}
	if f.Flags&wire.FlagError != 0 {
		e := wire.ReadError(f.Body)
		e.Cluster, e.Rank, e.Worker, e.Node = w.cluster.Name, w.Rank, w.Name, w.Node
		r = call.Result{Err: e}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.Flags&wire.FlagInfo != 0 {
		rest, err := h.reportedLocked(w, call.ID(f.ID), f.Body)
		if err != nil {
			return err
		}
		r.Body = rest
	}
	c, ops := h.table.Result(&w.Worker, call.ID(f.ID), r)
	if c != nil && c.Ended() {
		if p := c.Data.(*pending); p.reports != nil {
			p.layout = p.cluster.adoptLocked(p.reports)
		}
	}
	h.ordersLocked(ops, b)
	if h.throttled > 0 {
		h.free.Broadcast()
	}
	if c != nil && r.Err == nil && (c.State == call.Running || c.Keep) {
		keepLeg(c, w, f) // the next frame overwrites the buffer it lies in
	}
	return nil
}

// keepLeg makes a leg's result its own.
func keepLeg(c *call.Call, w *worker, f *wire.Frame) {
	leg := c.LegOf(&w.Worker)
	if leg < 0 {
		return
	}
	l := &c.Legs[leg]
	if f.Owned() {
		return
	}
	l.Result.Body = bytes.Clone(l.Result.Body)
	if len(f.Bufs) > 0 {
		f.Keep()
		l.Result.Bufs = f.Bufs
	}
}

// reportedLocked takes `[rank_info, value]` and returns the value's bytes.
func (h *Head) reportedLocked(w *worker, id call.ID, body []byte) ([]byte, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(body)
	var info spec.RankInfo
	if err == nil && n == 2 {
		rest, err = info.UnmarshalMsg(rest)
	}
	if err != nil || n != 2 {
		return nil, spec.Errorf(spec.CodeProtocol, "%s: a rank report that cannot be read: %v", w.Name, err)
	}
	if c := h.table.Find(id); c != nil {
		p := c.Data.(*pending)
		if p.reports == nil {
			p.reports = map[int]spec.RankInfo{}
		}
		p.reports[w.Rank] = info
	}
	return rest, nil
}

// ordersLocked carries out what the table decided, in order.
func (h *Head) ordersLocked(ops []call.Op, b *batch) {
	// An order can lead to further ones; the table's slice is then no longer ours.
	ops = append([]call.Op(nil), ops...)
	for _, op := range ops {
		p := op.Call.Data.(*pending)
		switch op.Do {
		case call.Send:
			h.sendLocked(op.Call, p, b)
		case call.Answer, call.AnswerLeg, call.Fail, call.FailLeg:
			h.answerLocked(op, p, b)
		case call.CancelLeg:
			h.cancelLeg(op.Call, op.Leg, false)
		case call.KillLeg:
			h.cancelLeg(op.Call, op.Leg, true)
		case call.Stacks:
			go h.expired(op.Call)
		}
	}
}

// sendLocked queues the legs of a call.
func (h *Head) sendLocked(c *call.Call, p *pending, b *batch) {
	if len(c.Futures) > 0 {
		if err := p.splice(h.table, c); err != nil {
			h.ordersLocked(h.table.Refuse(c, err), b)
			return
		}
		if err := p.prepare(p.cluster.ranks, c.Ranks); err != nil {
			h.ordersLocked(h.table.Refuse(c, err), b)
			return
		}
	}
	b.scratch = appendLegHead(b.scratch[:0], p.method.Name, p.parent)
	head := wire.Header{Kind: wire.KindLeg, ID: uint64(c.ID)}
	switch {
	case p.parts == nil:
		p.castLocked(c, head, wire.Value{Raw: p.payload, Bufs: p.bufs}, b)
	case len(p.parts) == 1:
		p.castLocked(c, head, p.parts[0], b)
	default:
		wanted := p.wanted(c)
		for i := range c.Legs {
			part := &p.parts[p.plan.Leg(i).Part]
			head.Flags = muted(wanted, i)
			b.queue(p.cluster.workers[c.Legs[i].Worker.Rank].port, head, b.scratch, part.Raw, part.Bufs)
		}
	}
	p.payload, p.bufs, p.parts, p.args = nil, nil, nil, wire.Payload{}
}

// castLocked sends the same bytes to every leg, once over each agent that relays.
func (p *pending) castLocked(c *call.Call, head wire.Header, v wire.Value, b *batch) {
	type group struct {
		conn  *wire.Conn
		flags wire.Flags
	}
	var relayed map[group][]uint32
	wanted := p.wanted(c)
	for i := range c.Legs {
		to := p.cluster.workers[c.Legs[i].Worker.Rank].port
		head.Flags = wire.FlagCast | muted(wanted, i)
		if l, ok := to.(*link); ok && len(c.Legs) > 1 {
			if relayed == nil {
				relayed = map[group][]uint32{}
			}
			to := group{l.conn, head.Flags}
			relayed[to] = append(relayed[to], l.peer)
			continue
		}
		b.queue(to, head, b.scratch, v.Raw, v.Bufs)
	}
	for to, peers := range relayed {
		head.Flags = to.flags
		fanout(to.conn, peers, head, b.scratch, v.Raw, v.Bufs)
		b.touch(to.conn)
	}
}

// wanted says, by leg, whose results come back; nil: everyone's. The others are
// told so, and do not send what nobody would read.
func (p *pending) wanted(c *call.Call) []bool {
	collect := &p.plan.Collect
	switch {
	case c.Split, collect.Join != dispatch.JoinOne && collect.Ranks == nil, len(c.Legs) == 1:
		return nil
	case collect.Join == dispatch.JoinOne:
		wanted := make([]bool, len(c.Legs))
		wanted[c.LegOfRank(collect.Rank)] = true
		return wanted
	}
	wanted := make([]bool, len(c.Legs))
	for _, rank := range collect.Ranks {
		wanted[c.LegOfRank(rank)] = true
	}
	return wanted
}

func muted(wanted []bool, leg int) wire.Flags {
	if wanted == nil || wanted[leg] {
		return 0
	}
	return wire.FlagMute
}

// answerLocked gives a caller what it waits for.
func (h *Head) answerLocked(op call.Op, p *pending, b *batch) {
	c := op.Call
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.caller.left {
		return
	}
	hd := wire.Header{Kind: wire.KindAnswer, ID: c.CallerID}
	if op.Do == call.AnswerLeg || op.Do == call.FailLeg {
		hd.Flags, hd.Ack = wire.FlagRank, uint32(c.Legs[op.Leg].Worker.Rank) //nolint:gosec // a rank
	}
	err := op.Err
	if err == nil {
		err = p.layout
	}
	var v wire.Value
	if err == nil {
		v, err = p.joined(c, op)
	}
	if err != nil {
		hd.Flags |= wire.FlagError
		v = wire.Value{Raw: wire.AppendError(nil, err)}
	}
	p.caller.answerLocked(hd, v.Raw, v.Bufs, b)
	if c.Keep && c.State == call.Answered {
		if op.Do == call.Answer {
			c.Value = &call.Result{Body: bytes.Clone(v.Raw), Bufs: v.Bufs, Err: err}
		}
		p.caller.kept = append(p.caller.kept, keeper{c, p.caller.answers})
	}
}

// joined makes one value of the legs' results.
func (p *pending) joined(c *call.Call, op call.Op) (wire.Value, *spec.Error) {
	if op.Do == call.AnswerLeg {
		r := c.Legs[op.Leg].Result
		return wire.Value{Raw: r.Body, Bufs: r.Bufs}, nil
	}
	collect := &p.plan.Collect
	value := func(leg int) wire.Value {
		r := &c.Legs[leg].Result
		return wire.Value{Raw: r.Body, Bufs: r.Bufs}
	}
	if collect.Join == dispatch.JoinOne {
		return value(c.LegOfRank(collect.Rank)), nil
	}
	var parts []wire.Value
	if collect.Ranks != nil {
		for _, rank := range collect.Ranks {
			parts = append(parts, value(c.LegOfRank(rank)))
		}
	} else {
		parts = make([]wire.Value, len(c.Legs))
		for i := range parts {
			parts[i] = value(i)
		}
	}
	var v wire.Value
	var err error
	chained := false
	if collect.Join == dispatch.JoinChain {
		chained, err = v.Chain(parts)
	}
	if !chained && err == nil {
		err = v.List(parts)
	}
	if err == nil {
		err = wire.CheckSize(wire.Size(nil, v.Raw, v.Bufs), len(v.Bufs))
	}
	if err != nil {
		e := *spec.AsError(err)
		e.Message = c.Title() + ": its joined result: " + e.Message
		e.Cluster, e.Method = c.Cluster.Name, c.Method
		return v, &e
	}
	return v, nil
}

// expire is a call's deadline.
func (h *Head) expire(c *call.Call) {
	var b batch
	h.mu.Lock()
	h.ordersLocked(h.table.Expire(c), &b)
	h.mu.Unlock()
	b.flush()
}

// expired collects the stacks of those that did not answer, then tells.
func (h *Head) expired(c *call.Call) {
	h.mu.Lock()
	p := c.Data.(*pending)
	var late []*worker
	for _, leg := range c.Out() {
		late = append(late, p.cluster.workers[c.Legs[leg].Worker.Rank])
	}
	h.mu.Unlock()
	stacks := h.stacksOf(late)
	after := "the time its caller waited"
	if p.timeout > 0 {
		after = p.timeout.String()
	}
	var b batch
	h.mu.Lock()
	h.ordersLocked(h.table.Expired(c, after, stacks), &b)
	h.mu.Unlock()
	b.flush()
}

// maxStacks bounds how many ranks' stacks one error carries.
const maxStacks = 64

// stacksOf asks the agents what workers are doing, within two seconds.
func (h *Head) stacksOf(workers []*worker) []spec.Stack {
	if len(workers) > maxStacks {
		workers = workers[:maxStacks]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	byNode := map[*node][]int{}
	for i, w := range workers {
		byNode[w.node] = append(byNode[w.node], i)
	}
	stacks := make([]spec.Stack, len(workers))
	var all sync.WaitGroup
	for n, indices := range byNode {
		all.Go(func() {
			req := wire.StacksRequest{}
			for _, i := range indices {
				req.Workers = append(req.Workers, workers[i].Number)
			}
			var got wire.StacksAnswer
			err := n.ask(ctx, "stacks", &req, &got)
			for k, i := range indices {
				w := workers[i]
				stacks[i] = spec.Stack{Rank: w.Rank, Worker: w.Name, Node: w.Node}
				switch {
				case err != nil:
					stacks[i].Text = "no stack: " + err.Error()
				case k < len(got.Stacks):
					stacks[i].Text = got.Stacks[k].Text
				}
			}
		})
	}
	all.Wait()
	return stacks
}

// cancelLeg has a worker end one call of its own.
func (h *Head) cancelLeg(c *call.Call, leg int, kill bool) {
	p := c.Data.(*pending)
	w := p.cluster.workers[c.Legs[leg].Worker.Rank]
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), h.opts.CancelGrace)
		defer cancel()
		// The leg's end comes as a Result, or as the worker's own end.
		_ = w.node.ask(ctx, "cancel", &wire.CancelLeg{Worker: w.Number, Call: uint64(c.ID), Kill: kill}, &wire.Cancelled{})
	}()
}

// overdueLater answers a cancelled call whose legs do not end.
func (h *Head) overdueLater(c *call.Call) {
	time.AfterFunc(h.opts.CancelGrace, func() {
		var b batch
		h.mu.Lock()
		h.ordersLocked(h.table.Overdue(c), &b)
		h.mu.Unlock()
		b.flush()
	})
}

// clear lifts the taint of workers into which an exception was injected.
func (h *Head) clear(ctx context.Context, workers []*worker) error {
	for _, w := range workers {
		if err := w.node.ask(ctx, "clear", &wire.CancelLeg{Worker: w.Number}, &wire.Cancelled{}); err != nil {
			return err
		}
	}
	return nil
}
