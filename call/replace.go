package call

import (
	"cmp"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// A rank is down while its process has ended and another is on its way. What was
// out on it fails, but for legs of idempotent calls: those stay out, and go to the
// new process when it is there. Nothing is run twice that did not ask for it.

// WorkersDown says that the processes of these ranks of one cluster have ended, or
// are being ended, and that others will take their places: Replace, or WorkerLost
// for each where that fails. Where they are all ranks of the cluster, idempotent
// calls are run again as a whole: ranks that know nothing of each other's last run
// must not meet halfway.
func (t *Table) WorkersDown(workers []*Worker, err *spec.Error) []Op {
	t.ops = t.ops[:0]
	cl := workers[0].Cluster
	for _, w := range workers {
		if w.Dead == nil && w.Down == nil {
			w.here()
			w.Down = err
			cl.down++
		}
		w.waits = nil
	}
	calls := outOn(workers)
	if len(workers) == len(cl.Workers) && cl.down == len(workers) { // before anyone takes what is done of them
		for _, c := range calls {
			if c.again() {
				c.undo()
			}
		}
		for _, w := range workers {
			w.relist(calls)
		}
	}
	for _, c := range calls {
		if !c.again() {
			t.loseDown(c, c.about(err))
		}
	}
	t.release(cl)
	return t.ops
}

// Replace puts new workers in the places of those of their ranks that are down,
// sends what waited for them, and lets the cluster's calls go on.
func (t *Table) Replace(workers []*Worker) []Op {
	t.ops = t.ops[:0]
	cl := workers[0].Cluster
	for _, w := range workers {
		old := cl.Workers[w.Rank]
		if old.Down == nil {
			continue
		}
		cl.Workers[w.Rank] = w
		cl.down--
		w.legs, w.past = old.legs, old.past
		old.legs, old.past = nil, 0
		for _, c := range w.out() {
			l := &c.Legs[c.LegOfRank(w.Rank)]
			l.Worker, l.Out, l.seq = w, false, 0
		}
		for _, c := range cl.held {
			if leg := c.LegOfRank(w.Rank); leg >= 0 && !c.Legs[leg].Done {
				c.Legs[leg].Worker = w
			}
		}
	}
	waits := t.firstWaiting(workers)
	for _, w := range workers {
		for _, c := range slices.Clone(w.out()) {
			leg := c.LegOf(w)
			switch {
			case c.acked || c.State != Running && c.State != Sending: // its answer is settled, or for nobody
				t.legDone(c, leg, Result{Err: c.cancelled("")})
			case c.ID >= waits:
				t.takeBack(c, leg)
			default:
				t.op(SendAgain, c, leg, nil)
			}
		}
	}
	t.release(cl)
	return t.ops
}

// firstWaiting is the first call with a leg on one of these workers that cannot be
// sent yet: a head before this one may have sent it. What comes after it waits too.
func (t *Table) firstWaiting(workers []*Worker) ID {
	first := ^ID(0)
	for _, w := range workers {
		for _, c := range w.out() {
			if len(c.needs) > 0 && (c.Paired == nil || !c.fed(c.LegOf(w))) {
				first = min(first, c.ID)
			}
		}
	}
	return first
}

// takeBack has a leg wait once more until what it needs is there.
func (t *Table) takeBack(c *Call, leg int) {
	l := &c.Legs[leg]
	l.Worker.removeOut(c)
	l.sent = false
	if c.State == Running {
		c.State = Sending
		t.hold(c)
	}
}

// Began counts a leg that is no call's: the one that makes a new process what its
// rank was. Nobody waits for its result twice.
func (w *Worker) Began(id ID) {
	w.acks.sent++
	w.acks.ack(w.acks.sent, id)
}

// outOn are the calls with legs out on any of these workers, oldest first.
func outOn(workers []*Worker) []*Call {
	var calls []*Call
	for _, w := range workers {
		calls = append(calls, w.out()...)
	}
	slices.SortFunc(calls, func(a, b *Call) int { return cmp.Compare(a.ID, b.ID) })
	return slices.Compact(calls)
}

// again says that what of c was out on a rank that is down waits for the next
// process, where its arguments can be told to that: they are not there any more
// where a call has failed that had given it rows. A rank that has raised in the
// meantime most likely did because of the death, which is then what to tell.
func (c *Call) again() bool {
	return c.Idempotent && !c.acked && c.HasDeps() && c.needFailed() == nil && (c.State == Running || c.State == Sending) && (c.first == nil || c.Split)
}

// needFailed is what a call has failed with whose result c needs.
func (c *Call) needFailed() *spec.Error {
	for _, dep := range c.deps {
		if dep.failed() {
			return dep.Value.Err
		}
	}
	return nil
}

// failed says that c was answered with an error.
func (c *Call) failed() bool { return c.State == Answered && c.Value != nil && c.Value.Err != nil }

// undo takes back what was done of a call that is run again as a whole.
func (c *Call) undo() {
	for i := range c.Legs {
		if l := &c.Legs[i]; l.sent {
			if l.Done {
				c.left++
			}
			l.Done, l.gave = false, false
			if !l.told {
				l.Result = Result{}
			}
			l.Worker = c.Cluster.Workers[l.Worker.Rank] // it may have been replaced since
		}
	}
}

// relist puts on w, in their order, the legs that it has out of calls.
func (w *Worker) relist(calls []*Call) {
	if len(w.out()) >= w.Cluster.maxOut() {
		w.Cluster.full--
	}
	w.legs, w.past = nil, 0
	for _, c := range calls {
		if leg := c.LegOf(w); leg >= 0 && c.Legs[leg].sent && !c.Legs[leg].Done {
			w.addOut(c)
		}
	}
}

// loseDown fails a call that will not be run again on the ranks that are down. The
// others, which are needed again soon, are cancelled only where they cannot end by
// themselves: an exception raised in a worker leaves it unfit for use.
func (t *Table) loseDown(c *Call, err *spec.Error) {
	if !c.apart() {
		t.settle(c)
	}
	if c.State == Running && !c.Split {
		t.answer(c, err)
	}
	t.endDown(c, err)
	if c.Collective {
		t.cancelOthers(c)
	}
}

// endDown ends the legs of a call that wait for a rank to be there again.
func (t *Table) endDown(c *Call, err *spec.Error) {
	if c.Cluster.down == 0 {
		return
	}
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Done && l.sent && l.Worker.Down != nil {
			t.legDone(c, i, Result{Err: err})
		}
	}
}

// blocked says that a rank that c needs is down.
func (c *Call) blocked() bool { return c.downRank() >= 0 }

func (c *Call) downRank() int {
	if c.Cluster.down > 0 {
		for i := range c.Legs {
			if l := &c.Legs[i]; !l.Done && l.Worker.Down != nil {
				return l.Worker.Rank
			}
		}
	}
	return -1
}
