package call

import (
	"cmp"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// A worker whose connection ended may come back. Until then its cluster's calls
// are held. What was on its way to it when the connection was cut it has not got,
// and says so: that is sent once more, to nobody else, and before anything new.

// WorkerDying says that w's connection ended: Returned or WorkerLost comes next.
func (t *Table) WorkerDying(w *Worker) {
	if !w.Dying {
		w.Dying = true
		w.Cluster.full++
	}
}

// here takes back that w is away.
func (w *Worker) here() {
	if w.Dying && w.Dead == nil {
		w.Dying = false
		w.Cluster.full--
	}
}

// away is a worker of cl whose connection has ended; nil: there is none.
func (cl *Cluster) away() *Worker {
	for _, w := range cl.Workers {
		if w.Dying && w.Dead == nil {
			return w
		}
	}
	return nil
}

// Returned says that w is back, and how many legs it has got, ever. What it did
// not get is asked for Again from those who made the calls.
func (t *Table) Returned(w *Worker, received uint32) []Op {
	t.ops = t.ops[:0]
	w.acks.sent = received
	for _, c := range slices.Clone(w.out()) {
		leg := c.LegOf(w)
		if l := &c.Legs[leg]; l.Out && int32(l.seq-received) > 0 { //nolint:gosec // sequence arithmetic
			t.unsend(c, leg)
		}
	}
	w.here()                                  // from now on calls may go out, in their order
	for _, c := range slices.Clone(w.out()) { // errors that waited for the word on its end
		if err := c.firstUntold(); err != nil && c.State == Running && c.dyingPeer() == nil {
			t.answer(c, err)
			if c.Collective {
				t.cancelOthers(c)
			}
		}
	}
	t.release(w.Cluster)
	return t.ops
}

// unsend takes back a leg that its worker did not get.
func (t *Table) unsend(c *Call, leg int) {
	l := &c.Legs[leg]
	l.Worker.removeOut(c)
	l.Out = false
	switch {
	case c.State != Running && c.State != Sending: // the answer is settled: it is not needed
		l.Done = true
		c.skipped++
		c.left--
		if c.left == 0 {
			t.finish(c)
		}
		if c.State != Answered {
			t.stay(c)
		}
		return
	case c.State == Running:
		c.State = Sending
		t.hold(c)
	}
	l.sent = false
	if c.acked {
		t.fail(c, spec.Errorf(spec.CodeCancelled, "%s: its caller is gone", c.Title()))
		return
	}
	if err := c.needFailed(); err != nil { // since it was sent: the rows are not there any more
		t.fail(c, err)
		return
	}
	if !c.bare {
		c.bare = true
		c.Cluster.recheck()
		t.op(Again, c, leg, nil)
	}
}

// hold puts a call back into its cluster's queue, at its place.
func (t *Table) hold(c *Call) {
	cl := c.Cluster
	at, _ := cl.place(c)
	cl.held = slices.Insert(slices.Clone(cl.held), at, c)
	cl.recheck()
}

// place is where c is in the queue, or belongs.
func (cl *Cluster) place(c *Call) (at int, found bool) {
	return slices.BinarySearchFunc(cl.held, c.ID, func(h *Call, id ID) int { return cmp.Compare(h.ID, id) })
}

// Bare says that c waits for its arguments to come again.
func (c *Call) Bare() bool { return c.bare }

// Resent says that the arguments of c are here again.
func (t *Table) Resent(c *Call) []Op {
	t.ops = t.ops[:0]
	if c.bare {
		c.bare = false
		t.release(c.Cluster)
	}
	return t.ops
}

// Ending orders once more the cancels of legs that are out on w: the word may have
// been lost.
func (t *Table) Ending(w *Worker) []Op {
	t.ops = t.ops[:0]
	for _, c := range w.out() {
		if leg := c.LegOf(w); leg >= 0 && c.Legs[leg].ending {
			t.op(CancelLeg, c, leg, nil)
		}
	}
	return t.ops
}
