package call

import (
	"fmt"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// Submit takes a new call and gives it its place in its cluster's order.
func (t *Table) Submit(r Request) (*Call, []Op) {
	t.ops = t.ops[:0]
	t.next += idStep
	c := &Call{Request: r, ID: t.next}
	t.calls[c.ID] = c
	t.byCaller[callerKey{c.Caller, c.CallerID}] = c
	t.place(c)
	return c, t.ops
}

// makeLegs says who takes part.
func (c *Call) makeLegs() {
	cl := c.Cluster
	if c.Ranks == nil {
		c.Legs = make([]Leg, len(cl.Workers))
		for i, w := range cl.Workers {
			c.Legs[i].Worker = w
		}
	} else {
		c.Legs = make([]Leg, len(c.Ranks))
		for i, r := range c.Ranks {
			c.Legs[i].Worker = cl.Workers[r]
		}
	}
	c.left = len(c.Legs)
}

func (t *Table) place(c *Call) {
	c.makeLegs()
	cl := c.Cluster
	if cl.gone != nil {
		t.refuse(c, cl.gone)
		return
	}
	if err := c.dead(); err != nil {
		t.refuseDead(c, err)
		return
	}
	t.loseDead(c)
	for _, f := range c.Futures {
		if err := t.need(c, f); err != nil {
			t.refuse(c, err)
			return
		}
	}
	if c.Waiting && c.ParentWorker != nil {
		if err := t.addWait(c.ParentWorker, c, c.Whole); err != nil {
			t.refuse(c, err)
			return
		}
	}
	if len(c.needs) > 0 || len(cl.held) > 0 || cl.full > 0 || c.Prepares || c.blocked() {
		c.State = Held
		cl.held = append(cl.held, c)
		if c.Paired != nil || c.Ranks != nil || c.Prepares {
			t.release(cl)
		}
		return
	}
	t.send(c)
}

// need makes c wait for a future, or fails with what the future failed with.
func (t *Table) need(c *Call, f Future) *spec.Error {
	dep := t.FindCaller(c.Caller, f.CallerID)
	switch {
	case dep == nil, dep.State == Answered && dep.Value == nil:
		return spec.Errorf(spec.CodeNotFound,
			"%s: an argument is the future of a call that the head does not know (any more): get its value and pass that", c.Title())
	case dep.gave(f) != nil:
		return dep.gave(f)
	case f.Rank >= 0 && dep.LegOfRank(f.Rank) < 0:
		return spec.Errorf(spec.CodeInvalid, "%s: an argument is the future of rank %d of %s, which that call is not made on", c.Title(), f.Rank, dep.Title())
	}
	dep.shared = true
	dep.users++ // its result must outlive its answer: a worker may come back without the leg
	c.deps = append(c.deps, dep)
	if dep.State == Answered {
		return nil
	}
	for _, n := range c.needs {
		if n == dep {
			return nil
		}
	}
	c.needs = append(c.needs, dep)
	dep.dependents = append(dep.dependents, c)
	return nil
}

// gave is the error that a call has given for a future, if so.
func (c *Call) gave(f Future) *spec.Error {
	if c.failed() {
		return c.Value.Err
	}
	if f.Rank < 0 || c.State != Answered {
		return nil
	}
	if leg := c.LegOfRank(f.Rank); leg >= 0 {
		return c.Legs[leg].Result.Err
	}
	return nil
}

// send lets a call go out, or what is left of it.
func (t *Table) send(c *Call) {
	whole := c.State == Held && c.Paired == nil && c.told == 0
	c.State = Running
	if whole {
		t.op(Send, c, -1, nil)
	}
	for i := range c.Legs {
		l := &c.Legs[i]
		if l.sent {
			continue
		}
		l.sent = true
		l.Worker.addOut(c)
		if !whole {
			t.op(SendLeg, c, i, nil)
		}
	}
	if len(c.Legs) == 0 {
		t.finish(c)
	}
}

// release sends what is first in a cluster's queue for all of its ranks, and waits no
// more.
func (t *Table) release(cl *Cluster) {
	for cl.full == 0 && cl.gone == nil && !t.paused {
		c := cl.first()
		if c == nil {
			return
		}
		if c.State == Held {
			if err := c.dead(); err != nil {
				t.unhold(c)
				t.refuseDead(c, err)
				continue
			}
			t.loseDead(c)
		}
		if c.Paired == nil && c.blocked() {
			return
		}
		if c.Prepares && !c.prepared && c.State == Held {
			if !c.preparing {
				c.preparing = true
				t.op(Prepare, c, -1, nil)
			}
			return
		}
		if c.Paired != nil && !t.sendSome(c) {
			return
		}
		t.unhold(c)
		if c.Paired == nil {
			t.send(c)
		}
	}
}

// Prepared says that the arguments of c are ready: the answer to a Prepare order.
// It means nothing where c has ended meanwhile.
func (t *Table) Prepared(c *Call) []Op {
	t.ops = t.ops[:0]
	if c.State == Held {
		c.prepared = true
		t.release(c.Cluster)
	}
	return t.ops
}

// first is the first call in the queue that does not wait for a future. It may pass
// those that do where it is for other ranks than they, and than those that wait behind
// them: so every rank sees the one order, and none waits for what is another's. What was
// looked at is not looked at again until something of it changes (recheck): there may be
// many thousands.
func (cl *Cluster) first() *Call {
	if cl.stuck == 0 {
		if cl.behind == nil {
			cl.behind = make([]bool, len(cl.Workers))
		}
		clear(cl.behind)
		cl.free = len(cl.behind)
	}
	for ; cl.stuck < len(cl.held) && cl.free > 0; cl.stuck++ {
		c := cl.held[cl.stuck]
		if c.stays || c.bare {
			return nil
		}
		waits := len(c.needs) > 0 && c.Paired == nil
		if !waits && (cl.stuck == 0 || !c.anyOf(cl.behind)) {
			return c
		}
		if c.Ranks == nil {
			return nil
		}
		for _, r := range c.Ranks {
			if !cl.behind[r] {
				cl.behind[r] = true
				cl.free--
			}
		}
	}
	return nil
}

// recheck says that something has changed with a call in the queue.
func (cl *Cluster) recheck() { cl.stuck = 0 }

// anyOf says that c is for one of these ranks at least, of which there is one.
func (c *Call) anyOf(ranks []bool) bool {
	return c.Ranks == nil || slices.ContainsFunc(c.Ranks, func(r int) bool { return ranks[r] })
}

// Refuse ends a call that could not be sent after all (its arguments cannot be
// cut, say): the answer to a Prepare, Send or SendLeg order that failed.
func (t *Table) Refuse(c *Call, err *spec.Error) []Op {
	t.ops = t.ops[:0]
	if (c.Paired != nil || c.partly()) && (c.State == Sending || c.State == Running) {
		for i := range c.Legs {
			if l := &c.Legs[i]; l.sent && !l.Out && !l.Done {
				l.Done = true
				l.Worker.removeOut(c)
				c.left--
			}
		}
		t.fail(c, err)
		return t.ops
	}
	switch c.State {
	case Held, Sending:
		t.unhold(c)
	case Running:
		for i := range c.Legs {
			c.Legs[i].Worker.removeOut(c)
		}
	case Expiring, Cancelling, Answered:
	}
	t.refuse(c, err)
	t.release(c.Cluster)
	return t.ops
}

// partly says that something of c has gone out.
func (c *Call) partly() bool {
	for i := range c.Legs {
		if c.Legs[i].Out {
			return true
		}
	}
	return false
}

// refuse answers a call of which nothing was sent.
func (t *Table) refuse(c *Call, err *spec.Error) {
	c.left = 0
	for i := range c.Legs {
		c.Legs[i].Done = true
	}
	t.answer(c, err)
	t.forget(c)
}

// Title is how errors name a call.
func (c *Call) Title() string { return c.Cluster.Name + "." + c.Method }

// about words a worker's end for one call.
func (c *Call) about(dead *spec.Error) *spec.Error {
	e := *dead
	e.Method = c.Method
	e.Message = fmt.Sprintf("%s: %s", c.Title(), dead.Message)
	return &e
}
