package head

import (
	"bytes"

	"github.com/tinylib/msgp/msgp"

	rows "github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// result takes a worker's Result frame. It leaves the head locked, for the next
// of a burst: a node's workers answer together.
func (h *Head) result(w *workerConn, f *wire.Frame, b *batch) error {
	h.fault("result")
	b.lock(h)
	if w.lineEnd.gen != w.line.gen || h.resuming != nil {
		if now, err := w.takesLocked(f, ""); !now || err != nil {
			return err
		}
	}
	return h.resultLocked(w.worker, f, b)
}

// resultLocked is a leg's end. Of a result that comes twice, the second is dropped.
func (h *Head) resultLocked(w *worker, f *wire.Frame, b *batch) error {
	r := call.Result{Body: f.Body, Bufs: f.Bufs}
	if f.Flags&wire.FlagError != 0 {
		e := wire.ReadError(f.Body)
		if e.Worker == "" { // else it came from further away, and this one passed it on
			e.Cluster, e.Rank, e.Worker, e.Node = w.cluster.Name, w.Rank, w.Name, w.Node
		}
		r = call.Result{Err: e}
	}
	if w.try != nil {
		return h.triedLocked(w, f, r.Err, b)
	}
	if len(f.Bufs) > 0 && wire.HasRefs(f.Bufs) {
		h.namedLocked(w, f)
	}
	if f.Flags&wire.FlagInfo != 0 {
		rest, err := h.reportedLocked(w, call.ID(f.ID), f.Body)
		if err != nil {
			return err
		}
		r.Body = rest
	}
	c, ops := h.table.Result(&w.Worker, call.ID(f.ID), r)
	if c != nil && c.Collective {
		h.progressedLocked(c)
	}
	if c != nil && c.Ended() {
		if p := c.Data.(*pending); p.reports != nil {
			if p.layout = p.cluster.adoptLocked(p.reports); p.layout == nil {
				h.noteClusterLocked(p.cluster)
			}
		}
	}
	h.ordersLocked(ops, b)
	if c != nil && r.Err == nil && (c.State == call.Running || c.State == call.Sending || c.Wanted()) {
		keepLeg(c, w, f) // the next frame overwrites the buffer it lies in
	}
	h.tellStoresLocked(b)
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
	l.Result.Body = c.Data.(*pending).keep(l.Result.Body, len(c.Legs))
	if len(f.Bufs) > 0 {
		f.Keep()
		l.Result.Bufs = f.Bufs
	}
}

// maxStore bounds what is set aside for results of which none has come yet.
const maxStore = 64 << 10

// keep copies a result to where it outlives its frame: those of many legs lie
// side by side, in memory for as many as the first one leads to expect.
func (p *pending) keep(b []byte, legs int) []byte {
	if len(b) > cap(p.store)-len(p.store) {
		p.store = make([]byte, 0, max(len(b), min(len(b)*legs, maxStore)))
	}
	start := len(p.store)
	p.store = append(p.store, b...)
	return p.store[start:len(p.store):len(p.store)]
}

// readReport takes `[rank_info, value]` apart.
func (w *worker) readReport(body []byte) (info spec.RankInfo, value []byte, err error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(body)
	if err == nil && n == 2 {
		rest, err = info.UnmarshalMsg(rest)
	}
	if err != nil || n != 2 {
		return info, nil, spec.Errorf(spec.CodeProtocol, "%s: a rank report that cannot be read: %v", w.Name, err)
	}
	return info, rest, nil
}

// reportedLocked takes note of a rank's report and returns the value's bytes.
func (h *Head) reportedLocked(w *worker, id call.ID, body []byte) ([]byte, error) {
	info, rest, err := w.readReport(body)
	if err != nil {
		return nil, err
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

// bufsOf are the buffers of a result.
func bufsOf(r *call.Result) []wire.Buf {
	bufs, _ := r.Bufs.([]wire.Buf)
	return bufs
}

// answerLocked gives a caller what it waits for.
func (h *Head) answerLocked(op call.Op, p *pending, b *batch) {
	c := op.Call
	if c.State == call.Answered { // of a Split call: with its last leg
		if p.timer != nil {
			p.timer.Stop()
		}
		p.caller.bytes -= p.size
		p.size = 0
		if c.Collective && op.Err == nil {
			h.finishedLocked(p)
		}
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
	var parts []wire.Part
	if err == nil {
		v, parts, err = p.joined(c, op)
	}
	if err != nil {
		hd.Flags |= wire.FlagError
		v = wire.Value{Raw: wire.AppendError(nil, err)}
	}
	p.unread++
	h.fault("answering")
	bufs := v.Bufs
	if parts != nil {
		hd.Ack = uint32(len(parts)) //nolint:gosec // one per rank
		if !even(parts) {
			hd.Flags |= wire.FlagParts
			bufs = append(bufs[:len(bufs):len(bufs)], wire.Buf{Data: wire.AppendParts(nil, parts)})
		}
	}
	p.caller.answerLocked(c, hd, v.Raw, bufs, b)
	if !c.Wanted() || c.State != call.Answered {
		return
	}
	if op.Do == call.Answer {
		c.Value = &call.Result{Body: bytes.Clone(v.Raw), Bufs: v.Bufs, Err: err}
	}
}

// joined makes one value of the legs' results. Where calls can take it part by
// part, it says which rows each part has: a head that comes after this one must
// know.
func (p *pending) joined(c *call.Call, op call.Op) (v wire.Value, from []wire.Part, told *spec.Error) {
	if op.Do == call.AnswerLeg {
		r := c.Legs[op.Leg].Result
		return wire.Value{Raw: r.Body, Bufs: bufsOf(&r)}, nil, nil
	}
	if !p.planned && p.paired == nil { // it was sent by a head before this one
		if err := p.planAgainLocked(c); err != nil {
			return v, nil, err
		}
	}
	collect := &p.plan.Collect
	value := func(leg int) wire.Value {
		r := &c.Legs[leg].Result
		return wire.Value{Raw: r.Body, Bufs: bufsOf(r)}
	}
	if collect.Join == dispatch.JoinOne {
		return value(c.LegOfRank(collect.Rank)), nil, nil
	}
	h := p.caller.h
	parts := h.parts[:0] // under the lock, so one for all calls
	if collect.Ranks != nil {
		for _, rank := range collect.Ranks {
			parts = append(parts, value(c.LegOfRank(rank)))
		}
	} else {
		for i := range c.Legs {
			parts = append(parts, value(i))
		}
	}
	h.parts = parts
	defer clear(parts)
	size := 0
	for i := range parts {
		size += len(parts[i].Raw)
	}
	v.Raw = make([]byte, 0, size+8)
	var err error
	chained := false
	if collect.Join == dispatch.JoinChain {
		chained, err = v.Chain(parts, p.plan.Partition())
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
		return v, nil, &e
	}
	if chained && c.Keep && partsOf(c) > 1 {
		from = partsFrom(parts, p.plan.Partition())
	}
	return v, from, nil
}

// partsFrom says which rows of a joined value each of its parts has.
func partsFrom(values []wire.Value, shards [][]uint32) []wire.Part {
	lens, ok := wire.Lens(values)
	if !ok {
		return nil
	}
	parts := make([]wire.Part, len(lens))
	for i, n := range lens {
		parts[i].Rows = n
	}
	if shards == nil {
		return parts
	}
	order, each := rows.Restore(shards, lens)
	if order == nil {
		return parts
	}
	for i, shard := range shards {
		index := make([]uint32, 0, lens[i])
		for _, row := range shard {
			for k := range each {
				index = append(index, row*uint32(each)+uint32(k)) //nolint:gosec // a row of a frame
			}
		}
		parts[i].Index = index
	}
	return parts
}

// even says that parts are what cutting the whole evenly gives.
func even(parts []wire.Part) bool {
	total := 0
	for _, p := range parts {
		if p.Index != nil {
			return false
		}
		total += p.Rows
	}
	for i, p := range wire.EvenParts(total, len(parts)) {
		if parts[i].Rows != p.Rows {
			return false
		}
	}
	return true
}
