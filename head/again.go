package head

import (
	"strings"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// initialize is the method that makes a worker what it is: a new process of a rank
// runs it again, with the arguments that it last succeeded with.
const initialize = "initialize"

// beginning is one rank's leg of an initialize that succeeded. Its objects stay
// leased in the name of that call.
type beginning struct {
	id, parent, origin uint64
	flags              wire.Flags
	value              wire.Value
}

// spent lets go of what the legs of a call were made of, unless they may have to
// be sent again.
func (p *pending) spent() {
	p.args = wire.Payload{}
	if !p.again {
		p.payload, p.bufs, p.parts = nil, nil, nil
	}
}

// legAgain is the payload of a leg that was sent before, and its flags.
func (p *pending) legAgain(c *call.Call, leg int) (wire.Value, wire.Flags) {
	flags := muted(p.wanted(c), leg)
	switch {
	case p.parts == nil:
		return wire.Value{Raw: p.payload, Bufs: p.bufs}, flags | wire.FlagCast
	case len(p.parts) == 1:
		return p.parts[0], flags | wire.FlagCast
	}
	return p.parts[p.plan.Leg(leg).Part], flags
}

// sendAgainLocked sends a leg to the process that took its rank's place.
func (h *Head) sendAgainLocked(c *call.Call, leg int, p *pending, b *batch) {
	w := p.cluster.workers[c.Legs[leg].Worker.Rank]
	err := p.completeLocked(c) // a head before this one may have sent it
	if c.Paired != nil {
		_, err = p.pairedPart(c, leg)
	}
	if err != nil {
		h.ordersLocked(h.table.Refuse(c, err), b)
		return
	}
	v, flags := p.legAgain(c, leg)
	b.scratch = appendLegHead(b.scratch[:0], p.method.Name, p.parent, c.Origin())
	h.lentLocked(lease.Worker(w.Number), v.Bufs)
	w.sendLocked(c, leg, wire.Header{Kind: wire.KindLeg, ID: uint64(c.ID), Flags: flags}, &v, b)
}

// begunLocked keeps what ranks were initialized with, of a call that succeeded or,
// with a leg, of that alone.
func (h *Head) begunLocked(op call.Op, p *pending) {
	c := op.Call
	if p.method.Name != initialize || op.Err != nil || p.layout != nil {
		return
	}
	cl := p.cluster
	if cl.begun == nil {
		cl.begun = map[int]*beginning{}
	}
	for leg := range c.Legs {
		if op.Do == call.AnswerLeg && leg != op.Leg {
			continue
		}
		v, flags := p.legAgain(c, leg)
		kept := &beginning{id: uint64(c.ID), parent: p.parent, origin: c.Origin(), flags: flags | wire.FlagMute, value: v}
		h.objects = objectsOf(h.objects[:0], v.Bufs)
		for _, o := range h.objects {
			h.leases.Once(lease.Kept(kept.id), o)
		}
		rank := c.Legs[leg].Worker.Rank
		before := cl.begun[rank]
		cl.begun[rank] = kept
		h.unkeepLocked(cl, before)
	}
	h.noteBegunLocked(cl)
}

// unkeepLocked ends the leases of an initialize that no rank would run again.
func (h *Head) unkeepLocked(cl *cluster, old *beginning) {
	if old == nil {
		return
	}
	for _, kept := range cl.begun {
		if kept.id == old.id {
			return
		}
	}
	h.leases.End(lease.Kept(old.id))
}

// unkeepAllLocked is for a cluster that is no more.
func (h *Head) unkeepAllLocked(cl *cluster) {
	begun := cl.begun
	cl.begun = nil
	for _, old := range begun {
		h.unkeepLocked(cl, old)
	}
}

// sendBeginningLocked has a new process of a rank initialize. One that is cut off
// is told when it is back.
func (h *Head) sendBeginningLocked(w *worker, k *beginning, b *batch) {
	if w.port == nil {
		return
	}
	b.scratch = appendLegHead(b.scratch[:0], initialize, k.parent, k.origin)
	h.lentLocked(lease.Worker(w.Number), k.value.Bufs)
	w.Began(call.ID(k.id))
	b.queue(w.port, wire.Header{Kind: wire.KindLeg, ID: k.id, Flags: k.flags}, b.scratch, k.value.Raw, k.value.Bufs)
}

// triedLocked takes the result of an initialize that was run again.
func (h *Head) triedLocked(w *worker, f *wire.Frame, err *spec.Error, b *batch) error {
	h.arrivedLocked(w.holder(), 0, f.Bufs)
	var report *spec.RankInfo
	if f.Flags&wire.FlagInfo != 0 {
		info, _, err := w.readReport(f.Body)
		if err != nil {
			return err
		}
		report = &info
	}
	w.try.resultLocked(w, report, err)
	h.tellStoresLocked(b)
	return nil
}

// firstLine is a message without what follows its first line.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
