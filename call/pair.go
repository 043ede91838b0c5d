package call

import "github.com/muster-rl/muster/spec"

// A paired call takes its arguments, part by part, from the legs of other calls
// that are still running. It stays at the front of its cluster's queue until its
// last leg is sent, so that every rank sees the same order.

// sendSome sends the legs of a paired call whose rows are there. It says whether
// all are sent.
func (t *Table) sendSome(c *Call) bool {
	waiting := 0
	for i := range c.Legs {
		l := &c.Legs[i]
		if l.sent {
			continue
		}
		if !c.fed(i) || l.Worker.Down != nil {
			waiting++
			continue
		}
		l.sent = true
		c.State = Sending
		l.Worker.addOut(c)
		t.op(SendLeg, c, i, nil)
	}
	if waiting > 0 {
		return false
	}
	c.State = Running
	return true
}

// fed says that what a leg of a paired call needs is there. What still comes for a
// call that is expiring or cancelled is no result.
func (c *Call) fed(leg int) bool {
	for i, dep := range c.deps {
		from := &dep.Legs[c.Paired[i][leg]]
		if !from.Done || from.Result.Err != nil || dep.failed() || dep.State == Held || dep.State == Expiring || dep.State == Cancelling {
			return false
		}
	}
	return true
}

// settle gives up the legs of a call that still wait to be sent, or were ordered
// to be just now: something has happened to it. What is out goes on as of any
// other call.
func (t *Table) settle(c *Call) {
	if c.State != Sending {
		return
	}
	t.unhold(c)
	c.State = Running
	t.skip(c)
}

// stay gives up the legs of a call that are not out, as it is being ended, and has
// those behind it wait until it is answered. A next head must not hear of it again
// and of them no more: to that one it would be a call that comes after them. One
// that was cancelled with the call that made it is answered at once: nobody waits
// for it, and nobody tells when its legs are overdue.
func (t *Table) stay(c *Call) {
	t.skip(c)
	t.unhold(c)
	if c.State == Cancelling && !c.asked {
		t.answer(c, c.cancelled(""))
		return
	}
	c.stays = true
	t.hold(c)
}

// skip gives up the legs of a call that are not out.
func (t *Table) skip(c *Call) {
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Out && !l.Done {
			if l.sent {
				l.Worker.removeOut(c)
			}
			l.sent, l.Done = true, true
			c.skipped++
			c.left--
		}
	}
}

// fail answers a call of which some legs are out.
func (t *Table) fail(c *Call, err *spec.Error) {
	t.settle(c)
	t.answer(c, err)
	if c.Collective {
		t.cancelOthers(c)
	}
	t.forget(c)
	t.release(c.Cluster)
}
