package call

import "github.com/muster-rl/muster/spec"

// The legs of a call that is Apart stand each for itself: a rank that is dead fails
// its own leg, and the others are sent, and run on.

// apart says that c is such a call. Ranks that meet in a collective need each other,
// and what has lost its place in the order is refused as a whole.
func (c *Call) apart() bool { return c.Split && c.Apart && !c.Collective && !c.misplaced }

// dead is what to refuse c for, as a rank that it needs is dead; nil: it goes on.
func (c *Call) dead() *spec.Error {
	first, living := (*spec.Error)(nil), false
	for i := range c.Legs {
		if dead := c.Legs[i].Worker.Dead; dead == nil {
			living = true
		} else if first == nil {
			first = dead
		}
	}
	if first == nil || living && c.apart() {
		return nil
	}
	return c.about(first)
}

// loseDead ends the legs of dead ranks, of a call that goes on without them.
func (t *Table) loseDead(c *Call) {
	if !c.apart() {
		return
	}
	for i := range c.Legs {
		if dead := c.Legs[i].Worker.Dead; dead != nil && !c.Legs[i].told {
			t.loseLeg(c, i, c.about(dead))
		}
	}
}

// refuseDead refuses a call for err, what dead has found; each leg tells its own
// rank's end where it stands for itself.
func (t *Table) refuseDead(c *Call, err *spec.Error) {
	for i := range c.Legs {
		if dead := c.Legs[i].Worker.Dead; dead != nil && c.apart() {
			t.tellLost(c, i, c.about(dead))
		}
	}
	t.refuse(c, err)
}

// tellLost tells of the end of a rank, for its leg alone.
func (t *Table) tellLost(c *Call, leg int, err *spec.Error) {
	if l := &c.Legs[leg]; !l.told && c.State != Answered {
		l.told, l.Result = true, Result{Err: err}
		c.told++
		t.op(FailLeg, c, leg, err)
	}
}

// loseLeg ends a leg with its rank, whether it was sent or not.
func (t *Table) loseLeg(c *Call, leg int, err *spec.Error) {
	t.tellLost(c, leg, err)
	l := &c.Legs[leg]
	if !l.sent {
		l.sent = true
		if c.State == Sending && c.allSent() { // nothing of it waits any more
			t.unhold(c)
			c.State, c.bare = Running, false
		}
	}
	if !l.Done {
		t.legDone(c, leg, Result{Err: err})
	}
}

func (c *Call) allSent() bool {
	for i := range c.Legs {
		if !c.Legs[i].sent {
			return false
		}
	}
	return true
}
