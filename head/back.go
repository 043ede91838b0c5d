package head

import (
	"bytes"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// comeback is what is known of a process that is back while the head waits for
// others: see resume.go.
type comeback struct {
	said  bool         // it has told what it has
	all   bool         // and sent all that it keeps
	early []earlyFrame // what it has sent, in order
}

// earlyFrame is a frame that was put aside.
type earlyFrame struct {
	wire.Frame
	end lineEnd // that it came by, of a caller's
}

// takesLocked says whether a frame of a caller is to be handled now. While others
// are waited for, frames are put aside, and after all that it keeps the caller is
// not read any more.
func (c *callerConn) takesLocked(f *wire.Frame, verb string, b *batch) (bool, error) {
	switch {
	case c.lineEnd.gen != c.line.gen, c.late:
		return false, errReplaced
	case c.drains, c.h.resuming == nil && !c.draining, verb == "leave", verb == "status":
		return true, nil
	case c.h.resuming != nil && (verb == "back" || verb == "resent"):
		return true, nil
	}
	f.Keep()
	c.early = append(c.early, earlyFrame{*f, c.lineEnd})
	if c.all && c.lineEnd.conn != nil && b.lane != nil {
		b.held = c.caller
	}
	return false, nil
}

// returned takes a caller's word on what it has.
func (c *callerConn) returned(rest []byte, b *batch) error {
	var m wire.CallerBack
	if err := parse("back", &m, rest); err != nil {
		return err
	}
	h := c.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if !c.lineEnd.back {
		return spec.Errorf(spec.CodeProtocol, "a controller says that it is back and did not when it came")
	}
	h.fault("caller back")
	c.backLocked(&c.lineEnd)
	if h.resuming != nil {
		c.comeback = comeback{said: true}
		c.answers.sent = m.Answers
		if _, told := h.resuming.objects[c.holder()]; !told || c.worker == nil { // else by its call connection
			h.resuming.objects[c.holder()] = m.Objects
		}
		return nil
	}
	c.ackLocked(m.Answers, b)
	c.had = map[uint64]bool{}
	counts := countsOf(m.Objects)
	for _, k := range c.answers.open() {
		c.had[k.head.ID] = true
		for _, o := range objectsOf(nil, k.bufs) {
			counts[o]++
		}
		b.queue(c.line.port, k.head, nil, k.body, k.bufs)
	}
	if c.worker == nil {
		h.leases.Replace(c.holder(), counts)
	} else if to := c.holder(); to != 0 { // its call connection has its own in flight
		h.leases.Raise(to, counts)
	}
	h.cameOrWentLocked(c.caller, b)
	h.tellStoresLocked(b)
	return nil
}

func countsOf(objects []wire.Released) map[lease.Object]int {
	counts := make(map[lease.Object]int, len(objects))
	for _, o := range objects {
		counts[lease.Object(o.Object)] += o.Count
	}
	return counts
}

// put takes an answer that the caller has read, and that its calls name.
func (c *callerConn) put(f *wire.Frame) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.had == nil {
		return spec.Errorf(spec.CodeProtocol, "a controller that is not coming back sent an answer")
	}
	c.putLocked(f)
	return nil
}

func (c *caller) putLocked(f *wire.Frame) {
	f.Keep()
	rank := -1
	if f.Flags&wire.FlagRank != 0 {
		rank = int(f.Ack)
	}
	parts, err := takeParts(f)
	r := call.Result{Body: f.Body, Bufs: f.Bufs}
	if f.Flags&wire.FlagError != 0 {
		r = call.Result{Err: wire.ReadError(f.Body)}
	}
	if err != nil {
		r = call.Result{Err: spec.AsError(err)}
	}
	put := c.h.table.PutAnswer(c.number, f.ID, rank, r)
	if put == nil {
		return
	}
	if len(parts) > 0 {
		c.h.table.PutParts(put, parts)
	}
	if put.Data == nil {
		put.Data = &pending{caller: c, put: true}
	}
	if !put.Leased && wire.HasRefs(f.Bufs) {
		put.Leased = true
	}
	if put.Leased {
		c.h.arrivedLocked(0, lease.Call(uint64(put.ID)), f.Bufs)
	}
	c.puts = append(c.puts, put)
}

// takeParts finds what an answer was joined of, for calls that take it part by part.
func takeParts(f *wire.Frame) ([]call.Result, error) {
	if f.Flags&(wire.FlagError|wire.FlagRank) != 0 || f.Ack == 0 {
		return nil, nil
	}
	var parts []wire.Part
	var err error
	v := wire.Value{Raw: f.Body, Bufs: f.Bufs}
	if n := len(f.Bufs); f.Flags&wire.FlagParts != 0 && n > 0 {
		v.Bufs = f.Bufs[: n-1 : n-1]
		parts, err = wire.ReadParts(f.Bufs[n-1].Data)
		f.Bufs = v.Bufs
	} else if lens, ok := wire.Lens([]wire.Value{v}); ok && f.Ack <= maxParts {
		parts = wire.EvenParts(lens[0], int(f.Ack))
	}
	var values []wire.Value
	if err == nil && len(parts) > 0 {
		values, err = v.Parts(parts)
	}
	if err != nil {
		return nil, err
	}
	results := make([]call.Result, len(values))
	for i := range values {
		results[i] = call.Result{Body: values[i].Raw, Bufs: values[i].Bufs}
	}
	return results, nil
}

// maxParts bounds what a number in an Answer can make the head allocate.
const maxParts = 1 << 16

// resent: a caller that is back has sent all that it keeps.
func (c *callerConn) resent(b *batch) error {
	h := c.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.resuming != nil {
		c.all = true
		h.settleSoonLocked()
		return nil
	}
	c.unputLocked(b)
	h.tellStoresLocked(b)
	return nil
}

// unputLocked lets go of the answers that the caller gave back: those that need
// them have them.
func (c *caller) unputLocked(b *batch) {
	puts := c.puts
	c.puts, c.had = nil, nil
	for _, put := range puts {
		c.h.ordersLocked(c.h.table.Acked(put), b)
	}
}

// againLocked asks for the bytes of a call once more. Who is away sends them anyway
// when it is back.
func (c *caller) againLocked(of *call.Call, b *batch) {
	if c.port == nil {
		return
	}
	body, err := wire.AppendVerb(nil, "again", &wire.Again{Calls: []uint64{of.CallerID}})
	if err != nil { // numbers can be encoded
		return
	}
	b.queue(c.port, wire.Header{Kind: wire.KindNotice}, nil, body, nil)
}

// knownLocked takes a Call that was sent before, if the head had got it: it lacks
// at most the bytes.
func (c *callerConn) knownLocked(f *wire.Frame, payload []byte, b *batch) bool {
	h := c.h
	known := h.table.FindCaller(c.number, f.ID)
	if known == nil {
		// One that was asked for again, or that was answered while its caller came
		// back, has its answer on the way. Only then is it new: it never got here.
		return c.had == nil || c.had[f.ID]
	}
	p := known.Data.(*pending)
	if !known.Bare() || p.put {
		return true
	}
	if known.Leased {
		h.arrivedLocked(0, lease.Call(uint64(known.ID)), f.Bufs)
	}
	if err := p.refill(known, f, payload); err != nil {
		h.ordersLocked(h.table.Refuse(known, err), b)
	} else {
		h.ordersLocked(h.table.Resent(known), b)
	}
	h.tellStoresLocked(b)
	return true
}

// refill gives a call its arguments back. It keeps its plan: legs that are out have
// been cut by it.
func (p *pending) refill(c *call.Call, f *wire.Frame, payload []byte) *spec.Error {
	f.Keep()
	p.payload, p.bufs = bytes.Clone(payload), f.Bufs
	p.spliced = false
	if !p.reads() {
		return nil
	}
	err := p.args.Parse(p.payload, p.bufs)
	switch {
	case err != nil:
	case c.Paired != nil:
		p.parts = make([]wire.Value, p.plan.Parts)
	case len(c.Futures) == 0 && (!p.plan.Cast || p.marked):
		err = p.cutParts()
	}
	if err != nil {
		return spec.AsError(err)
	}
	return nil
}

// returned takes a worker's word on what it has got.
func (w *workerConn) returned(rest []byte, b *batch) error {
	var m wire.WorkerBack
	if err := parse("back", &m, rest); err != nil {
		return err
	}
	if err := checkLegs(w.Name, &m); err != nil {
		return err
	}
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if !w.lineEnd.back {
		return spec.Errorf(spec.CodeProtocol, "%s says that it is back and did not when it came", w.Name)
	}
	h.fault("worker back")
	w.backLocked(&w.lineEnd)
	w.closed = false
	w.cluster.direct, w.cluster.fans = nil, nil
	if m.Ready.Pid != 0 {
		w.pid, w.engines = m.Ready.Pid, m.Ready.Engines
		h.readyLocked(w.worker, m.Ready)
	}
	if h.resuming != nil && h.resuming.waits[w.worker] {
		w.comeback = comeback{said: true}
		h.table.Returned(&w.Worker, m.Received) // nothing was sent to it yet
		h.resuming.legs[w.worker] = &m
		h.resuming.objects[w.holder()] = m.Objects
		if m.Lent != nil {
			h.resuming.lent[w.holder()] = m.Lent
		}
		return nil
	}
	counts := countsOf(m.Objects)
	for _, c := range h.callers {
		if c.worker != w.worker {
			continue
		}
		for _, k := range c.answers.open() { // on their way, by another connection
			for _, o := range objectsOf(nil, k.bufs) {
				counts[o]++
			}
		}
	}
	if to := w.holder(); to != 0 && h.resuming == nil { // else it is lost: the others are counted first
		h.leases.Replace(to, counts)
		if m.Lent != nil {
			h.leases.Borrows(to, countsOf(m.Lent))
		} else {
			h.leases.Assume(to)
		}
	}
	ops := h.table.Returned(&w.Worker, m.Received)
	for _, l := range m.Legs { // it may not have heard that they can go
		w.Remind(l.Seq, call.ID(l.Call))
	}
	h.ordersLocked(ops, b)
	if t := w.try; t != nil && t.begun && t.waits[w.worker] && m.Received == 0 {
		h.sendBeginningLocked(w.worker, w.cluster.begun[w.Rank], b)
	}
	w.releaseLocked(b)
	h.tellStoresLocked(b)
	return nil
}

// maxLegsBack bounds what one worker can claim to have got and not be released of.
const maxLegsBack = 1 << 24

func checkLegs(name string, m *wire.WorkerBack) error {
	last := uint32(0)
	for i, l := range m.Legs {
		if ahead := m.Received - l.Seq; ahead > maxLegsBack || (i > 0 && l.Seq-last-1 > maxLegsBack) {
			return spec.Errorf(spec.CodeProtocol, "%s tells of a leg %d of %d, out of order", name, l.Seq, m.Received)
		}
		last = l.Seq
	}
	return nil
}

// takesLocked says whether a frame of a worker is to be handled now.
func (w *workerConn) takesLocked(f *wire.Frame, verb string) (bool, error) {
	h := w.h
	switch {
	case w.lineEnd.gen != w.line.gen:
		return false, errReplaced
	case h.resuming == nil || !h.resuming.takesOf(w.worker), verb == "back", verb == "resent":
		return true, nil
	}
	f.Keep()
	w.early = append(w.early, earlyFrame{Frame: *f})
	return false, nil
}

// returned takes an agent's word on what there is on its node.
func (n *nodeConn) returned(rest []byte, b *batch) error {
	var m wire.AgentBack
	if err := parse("back", &m, rest); err != nil {
		return err
	}
	h := n.h
	h.mu.Lock()
	if n.lineEnd.gen != n.line.gen {
		h.mu.Unlock()
		return errReplaced
	}
	h.fault("agent back")
	n.backLocked(&n.lineEnd)
	n.node.asker, n.ready = n.asker, true
	if h.resuming != nil {
		h.nodeBackLocked(n.node, &m)
	} else {
		n.tellStoreLocked(m.Objects, b)
		for _, w := range h.workers { // cancels may have been lost
			if w.node == n.node {
				h.ordersLocked(h.table.Ending(&w.Worker), b)
			}
		}
	}
	h.announceLocked()
	h.mu.Unlock()
	for _, e := range m.Exits {
		h.exited(n.node, e)
	}
	return nil
}

// tellStoreLocked tells the store of an agent that was away all that it needs to
// know, as some of it may have been lost on the way.
func (n *node) tellStoreLocked(there []wire.ObjectAt, b *batch) {
	h := n.h
	h.tellStoresLocked(b)
	objects, lent := h.leases.On(n.index)
	m := wire.Objects{All: true, Gone: append(n.owed.Gone, h.endedMakersLocked(there)...)}
	for _, o := range n.owed.Drop {
		if !h.leases.Has(lease.Object(o)) {
			m.Drop = append(m.Drop, o)
		}
	}
	n.owed = wire.Objects{}
	for _, o := range objects {
		m.Hold = append(m.Hold, uint64(o))
	}
	for _, l := range lent {
		m.Lent = append(m.Lent, wire.Lent{Object: uint64(l.Object), Holder: uint64(l.Holder), Count: 1})
	}
	for _, at := range there {
		if at.Held != 0 && !h.leases.Has(lease.Object(at.Object)) {
			m.Drop = append(m.Drop, at.Object)
		}
	}
	n.noticeLocked("objects", &m, b)
}
