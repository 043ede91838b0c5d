package sim

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
)

// orders carries out what the table decided. What that leads to comes after it.
func (h *head) orders(ops []call.Op) {
	h.todo = append(h.todo, ops...)
	if h.doing {
		return
	}
	h.doing = true
	defer func() { h.doing = false }()
	for len(h.todo) > 0 {
		op := h.todo[0]
		h.todo = h.todo[1:]
		c := op.Call
		switch op.Do {
		case call.Prepare:
			h.prepare(c)
		case call.Send:
			h.send(c)
		case call.SendLeg:
			if !c.Legs[op.Leg].Done && c.State != call.Answered && h.sendLeg(c, op.Leg) {
				h.spent(c)
			}
		case call.SendAgain:
			h.sendLeg(c, op.Leg)
		case call.Answer, call.Fail, call.AnswerLeg, call.FailLeg:
			h.answerCall(op)
		case call.CancelLeg:
			h.steer(c, op.Leg, false)
		case call.KillLeg:
			h.steer(c, op.Leg, true)
		case call.Stacks:
			h.w.after(stacksTime, func() {
				if !h.dead {
					h.note("expired %d", c.CallerID)
					h.orders(h.table.Expired(c, "its time", nil))
				}
			})
		case call.Again:
			if who := h.callers[c.Caller]; who != nil && who.link != nil {
				id := c.CallerID
				who.link.send(toPeer, func() { who.caller.again(id) })
			}
		case call.Release:
			h.released(c.Legs[op.Leg].Worker)
		case call.Forget:
			h.leases.End(lease.Call(uint64(c.ID)))
		}
	}
}

// prepare makes the arguments of a call ready: of some at once, of others later.
func (h *head) prepare(c *call.Call) {
	many := int64(c.CallerID % 3)
	if many == 0 {
		h.orders(h.table.Prepared(c))
		return
	}
	h.w.after(many*cutTime, func() {
		if !h.dead {
			h.note("prepared %d", c.CallerID)
			h.orders(h.table.Prepared(c))
		}
	})
}

// released tells a worker which results it may drop.
func (h *head) released(cw *call.Worker) {
	w := h.workers[cw.Number]
	through, calls := cw.TakeAcks()
	if w == nil || w.link == nil {
		return
	}
	p := w.proc
	w.link.send(toPeer, func() {
		p.through(through)
		if len(calls) > 0 {
			p.release(func(g *leg) bool { return slices.Contains(calls, g.id) })
		}
	})
}

// send sends all legs of a call.
func (h *head) send(c *call.Call) {
	for i := range c.Legs {
		if !h.sendLeg(c, i) {
			return
		}
	}
	h.spent(c)
}

// spent drops the arguments of a call whose legs are out.
func (h *head) spent(c *call.Call) {
	p := c.Data.(*pending)
	if p.keep {
		return
	}
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Out && !l.Done {
			return
		}
	}
	p.have, p.data = false, nil
}

// sendLeg queues one leg, unless the call cannot be sent after all.
func (h *head) sendLeg(c *call.Call, leg int) bool {
	p := c.Data.(*pending)
	if !p.have {
		h.w.rules.brk("the head sends what it has", "leg %d of call %d, whose arguments are not here", leg, c.CallerID)
	}
	if who := h.callers[c.Caller]; who != nil && who.gone {
		h.w.rules.brk("nothing is sent for who is gone", "leg %d of call %d of caller %d", leg, c.CallerID, c.Caller)
	}
	data, err := h.share(c, p, leg)
	named := h.named(c, p)
	h.holdFor(c, named)
	if err != nil {
		h.note("refuse %d", c.CallerID)
		h.orders(h.table.Refuse(c, err))
		return false
	}
	c.Sent(leg)
	w := h.workers[c.Legs[leg].Worker.Number]
	ack := w.Mark()
	if w.link == nil {
		h.w.rules.brk("nothing is sent to who is away", "leg %d of call %d to %s", leg, c.CallerID, w.Name)
	}
	id, inv, proc := c.ID, p.inv, w.proc
	named = h.sent(lease.Worker(proc.number), named)
	w.link.send(toPeer, func() { proc.receive(id, inv, data, named, ack) })
	return true
}

// share is what a leg gets of the arguments.
func (h *head) share(c *call.Call, p *pending, leg int) ([]int64, *spec.Error) {
	if p.pair {
		dep := c.Dep(0)
		return rowsOf(&dep.Legs[c.Paired[0][leg]].Result), nil
	}
	if p.data == nil {
		if len(p.inv.rows) > 0 || len(p.inv.futures) == 0 {
			p.data = append(p.data, p.inv.rows)
		}
		for i, f := range p.inv.futures {
			value, err := h.valueOf(c.Dep(i), f)
			if err != nil {
				p.data = nil
				return nil, err
			}
			p.data = append(p.data, value)
		}
		h.plan(p)
	}
	if p.plan.Cast {
		return slices.Concat(p.data...), nil
	}
	var data []int64
	for i, s := range p.plan.Slices(p.plan.Leg(leg).Part) {
		if s.Take == dispatch.TakeRows {
			data = append(data, p.data[i][s.From:s.To]...)
		} else {
			data = append(data, p.data[i]...)
		}
	}
	return data, nil
}

// named is what the arguments of a call name.
func (h *head) named(c *call.Call, p *pending) []objectID {
	all := slices.Clone(p.inv.named)
	for i := range c.Futures {
		if !c.HasDeps() {
			break
		}
		dep := c.Dep(i)
		if r := dep.Value; r != nil {
			all = append(all, objectsOf(r)...)
		}
		for k := range dep.Legs {
			all = append(all, objectsOf(&dep.Legs[k].Result)...)
		}
	}
	return all
}

// valueOf is the result of a call that another needs.
func (h *head) valueOf(dep *call.Call, f call.Future) ([]int64, *spec.Error) {
	from := dep.Value
	if f.Rank >= 0 {
		from = &dep.Legs[dep.LegOfRank(f.Rank)].Result
	}
	if from == nil {
		h.w.rules.brk("what is needed is kept", "the value of call %d", dep.CallerID)
	}
	return rowsOf(from), from.Err
}

// answerCall gives a caller what it waits for.
func (h *head) answerCall(op call.Op) {
	c := op.Call
	who := h.callers[c.Caller]
	a := answer{id: c.CallerID, rank: -1, err: op.Err}
	if op.Do == call.AnswerLeg || op.Do == call.FailLeg {
		a.rank = c.Legs[op.Leg].Worker.Rank
		a.value, a.objects = rowsOf(&c.Legs[op.Leg].Result), objectsOf(&c.Legs[op.Leg].Result)
	} else if op.Err == nil {
		a.value, a.objects = h.joined(c)
	}
	if c.State == call.Answered && !c.Split && c.Wanted() {
		c.Value = &call.Result{Bufs: value{a.value, a.objects}, Err: op.Err}
	}
	if c.State == call.Answered {
		a.call = c
	}
	if who != nil {
		h.answer(who, a)
	}
}

// joined makes one value of the legs' results.
func (h *head) joined(c *call.Call) (all []int64, objects []objectID) {
	p := c.Data.(*pending)
	if ranks := p.plan.Collect.Ranks; ranks != nil && p.inv.in.Method == "rows" {
		for _, rank := range ranks {
			r := &c.Legs[c.LegOfRank(rank)].Result
			all, objects = append(all, rowsOf(r)...), append(objects, objectsOf(r)...)
		}
		return all, objects
	}
	for i := range c.Legs {
		r := &c.Legs[i].Result
		all, objects = append(all, rowsOf(r)...), append(objects, objectsOf(r)...)
	}
	return all, objects
}

// answer keeps an answer until it is acknowledged, and sends it.
func (h *head) answer(who *client, a answer) {
	if who.gone {
		if a.call != nil {
			h.orders(h.table.Acked(a.call))
		}
		return
	}
	if a.call != nil { // the last of its answers is what ends it
		for i := range who.kept {
			if who.kept[i].call == a.call {
				who.kept[i].call = nil
			}
		}
	}
	a.objects = h.sent(lease.Caller(who.caller.number), a.objects)
	who.answers++
	a.seq = who.answers
	who.kept = append(who.kept, a)
	h.sendAnswer(who, a)
}

func (h *head) sendAnswer(who *client, a answer) {
	if who.link != nil {
		c := who.caller
		who.link.send(toPeer, func() { c.hear(a.id, a) })
	}
}
