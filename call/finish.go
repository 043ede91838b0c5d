package call

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Result takes a leg's result from worker w.
func (t *Table) Result(w *Worker, id ID, r Result) (*Call, []Op) {
	t.ops = t.ops[:0]
	c := t.calls[id]
	if c == nil {
		return nil, nil
	}
	leg := c.LegOf(w)
	if w.Down != nil {
		return nil, nil // what it still says is of no use
	}
	if leg < 0 || c.Legs[leg].Done {
		return c, nil
	}
	t.legDone(c, leg, r)
	return c, t.ops
}

func (t *Table) legDone(c *Call, leg int, r Result) {
	l := &c.Legs[leg]
	l.Done, l.gave = true, r.Err == nil
	if w := l.Worker; len(w.waits) > 0 { // of what runs next it may have been told already
		w.waits = slices.DeleteFunc(w.waits, func(o *Call) bool { return o.Parent == c.ID })
	}
	full := c.Cluster.full > 0
	l.Worker.removeOut(c)
	c.left--
	if c.acked && l.Out {
		t.ackLeg(c, leg)
	}
	if r.Err != nil && c.first == nil {
		c.first = r.Err
	}
	switch {
	case c.State == Answered:
	case c.Split:
		if r.Err != nil {
			r.Err = c.cause(r.Err) // for those that name it, too
		}
		if !l.told { // else it was run again: what its caller was told stands
			l.Result = r
		}
		if c.State == Running && !l.told {
			l.told = true
			c.told++
			if r.Err != nil {
				t.op(FailLeg, c, leg, r.Err)
			} else {
				t.op(AnswerLeg, c, leg, nil)
			}
		}
		if c.told == len(c.Legs) { // legs that are run again may still be out
			t.answer(c, nil)
		}
		if r.Err != nil && c.Collective {
			t.cancelOthers(c)
		}
	case c.State != Running && c.State != Sending: // expiring or cancelling: the answer is settled
	case r.Err != nil && c.State == Sending:
		t.fail(c, r.Err)
	case r.Err != nil:
		if dying := c.dyingPeer(); dying != nil && r.Err.Code == spec.CodeUser {
			l.Result = r // most likely a consequence: the death is told first, soon
			break
		}
		t.answer(c, r.Err)
		if c.Collective {
			t.cancelOthers(c)
		}
	default:
		l.Result = r
	}
	for _, d := range c.dependents { // a shard of theirs may be there
		if d.Paired != nil && r.Err == nil {
			t.release(d.Cluster)
		}
	}
	if c.left == 0 {
		t.finish(c)
	}
	if full {
		t.release(c.Cluster)
	}
}

// cause is what to tell for a leg's error: a leg that was cancelled because of
// another's end tells of that.
func (c *Call) cause(err *spec.Error) *spec.Error {
	if err.Code == spec.CodeCancelled && c.first != nil && !c.apart() {
		return c.first
	}
	return err
}

// dyingPeer is a worker of c whose end is seen but not explained yet.
func (c *Call) dyingPeer() *Worker {
	for i := range c.Legs {
		if w := c.Legs[i].Worker; !c.Legs[i].Done && w.Dying && w.Down == nil {
			return w
		}
	}
	return nil
}

// finish ends a call whose last leg is done.
func (t *Table) finish(c *Call) {
	switch c.State {
	case Running:
		t.answer(c, c.firstUntold())
	case Cancelling:
		t.answer(c, c.cancelled(""))
		t.release(c.Cluster)
	case Held, Sending, Expiring, Answered:
	}
	t.forget(c)
}

// firstUntold is an error that was held back for a dying peer which then did
// answer after all.
func (c *Call) firstUntold() *spec.Error {
	if c.Split {
		return nil
	}
	for i := range c.Legs {
		if err := c.Legs[i].Result.Err; err != nil {
			return err
		}
	}
	return nil
}

// answer gives the caller its one answer and lets those go on that waited for it.
func (t *Table) answer(c *Call, err *spec.Error) {
	if c.State == Answered {
		return
	}
	if err != nil && c.left > 0 && c.partly() { // what was ordered just now is not sent any more
		t.skip(c)
	}
	c.State = Answered
	if c.stays {
		c.stays = false
		t.unhold(c)
	}
	if err != nil || (c.Split && c.Wanted()) { // of a Split call the legs hold the values
		c.Value = &Result{Err: err}
	}
	switch {
	case c.Split:
		for i := range c.Legs {
			if l := &c.Legs[i]; !l.told {
				l.told = true
				c.told++
				switch {
				case err != nil:
					t.op(FailLeg, c, i, err)
				case !l.Out && c.first != nil: // it was given up before it was sent
					l.Result.Err = c.first
					t.op(FailLeg, c, i, c.first)
				default:
					t.op(AnswerLeg, c, i, l.Result.Err)
				}
			}
		}
	case err != nil:
		t.op(Fail, c, -1, err)
	default:
		t.op(Answer, c, -1, nil)
	}
	t.unwait(c)
	t.unuse(c)
	for _, d := range c.dependents {
		t.depReady(d, c, err)
	}
	c.dependents = nil
}

func (t *Table) depReady(d, dep *Call, err *spec.Error) {
	for i, n := range d.needs {
		if n == dep {
			d.needs = append(d.needs[:i], d.needs[i+1:]...)
			d.Cluster.recheck()
			break
		}
	}
	if err != nil && (d.State == Sending || d.State == Running && d.blocked()) { // which a head before this one may have sent
		t.fail(d, err)
		t.endDown(d, err)
		return
	}
	if d.State != Held && d.State != Sending {
		return
	}
	if err != nil {
		t.unhold(d)
		t.refuse(d, err)
	}
	t.release(d.Cluster)
}

func (t *Table) unhold(c *Call) {
	cl := c.Cluster
	at, found := cl.place(c)
	switch {
	case !found:
		return
	case at == 0: // most are: those behind it stay where they are
		cl.held[0] = nil
		cl.held = cl.held[1:]
	default:
		cl.held = slices.Delete(cl.held, at, at+1)
	}
	if at < cl.stuck {
		cl.recheck()
	}
}

// WorkerLost fails every call that needs w, now and later.
func (t *Table) WorkerLost(w *Worker, err *spec.Error) []Op {
	t.ops = t.ops[:0]
	if w.Dead != nil {
		return nil
	}
	if w.Down != nil { // nobody takes its place after all
		w.Down = nil
		w.Cluster.down--
	}
	w.here()
	w.Dead, w.Dying = err, true
	w.waits = nil
	var rest []*Call // whose legs on w were still to be sent
	for _, c := range append([]*Call(nil), w.Cluster.held...) {
		leg := c.LegOf(w)
		if c.State != Sending || leg < 0 || c.Legs[leg].Done {
			continue
		}
		if !c.Legs[leg].sent {
			rest = append(rest, c)
		}
		if !c.apart() {
			t.settle(c) // all of them, before anything goes on
		}
	}
	for _, c := range append([]*Call(nil), w.out()...) {
		leg := c.LegOf(w)
		about := c.about(err)
		if c.State == Running && !c.Split {
			t.answer(c, about)
		}
		t.legDone(c, leg, Result{Err: about})
		if !c.apart() {
			t.cancelOthers(c)
		}
	}
	for _, c := range rest {
		if c.apart() {
			t.loseLeg(c, c.LegOf(w), c.about(err))
		} else if c.State != Answered {
			t.fail(c, c.about(err))
			t.cancelOthers(c)
		}
	}
	t.release(w.Cluster)
	return t.ops
}

// ClusterGone fails whatever is left of a cluster's calls.
func (t *Table) ClusterGone(cl *Cluster, err *spec.Error) []Op {
	t.ops = t.ops[:0]
	cl.gone = err
	for _, c := range append([]*Call(nil), cl.held...) {
		if c.State != Held {
			t.settle(c)
			t.answer(c, err)
			continue
		}
		t.unhold(c)
		t.refuse(c, err)
	}
	for _, w := range cl.Workers {
		for _, c := range append([]*Call(nil), w.out()...) {
			t.answer(c, err)
			t.legDone(c, c.LegOf(w), Result{Err: err})
		}
	}
	return t.ops
}

// CallerGone drops what a caller that is gone would have been told.
func (t *Table) CallerGone(caller uint32) []Op {
	t.ops = t.ops[:0]
	mine := t.sorted(func(c *Call) bool { return c.Caller == caller })
	sending := map[*Call]bool{}
	for _, c := range mine { // all of those that wait, before anything goes on
		switch c.State {
		case Held:
			t.unhold(c)
		case Sending:
			t.settle(c)
			sending[c] = true
		case Running, Expiring, Cancelling, Answered:
		}
	}
	for _, c := range mine {
		c.Keep = false
		t.unwait(c)
		t.ackLegs(c)
		switch {
		case sending[c]:
			t.fail(c, spec.Errorf(spec.CodeCancelled, "%s: its caller is gone", c.Title()))
		case c.State == Held:
			t.refuse(c, spec.Errorf(spec.CodeCancelled, "%s: its caller is gone", c.Title()))
			t.release(c.Cluster)
		default:
			t.forget(c)
		}
	}
	return t.ops
}

// Cancel ends a call for its caller's sake, and what it called in turn. With
// kill, the workers of legs that do not end in time are killed.
func (t *Table) Cancel(c *Call, kill bool) []Op {
	t.ops = t.ops[:0]
	c.asked, c.kill = true, c.kill || kill
	t.cancel(c)
	return t.ops
}

func (t *Table) cancel(c *Call) {
	switch c.State {
	case Held:
		t.unhold(c)
		t.refuse(c, c.cancelled(" before it was sent"))
		t.release(c.Cluster)
	case Sending:
		c.State = Cancelling
		t.stay(c)
		t.cancelOthers(c)
		if c.left == 0 {
			t.finish(c)
		}
		t.release(c.Cluster)
	case Running:
		c.State = Cancelling
		t.cancelOthers(c)
	case Expiring, Cancelling, Answered:
	}
}

// cancelOthers has the legs that are out ended, with the calls they made.
func (t *Table) cancelOthers(c *Call) {
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Done && !l.ending && l.Worker.Dead == nil && l.Worker.Down == nil {
			l.ending = true // once, also where many workers are lost together
			t.op(CancelLeg, c, i, nil)
		}
	}
	t.endDown(c, c.cancelled(""))
	if c.left == 0 {
		return
	}
	for _, child := range t.sorted(func(o *Call) bool { return o.Parent == c.ID && o.ParentWorker != nil }) {
		t.cancel(child)
	}
}

// sorted picks calls in the order of their numbers, so that the same events
// always give the same orders.
func (t *Table) sorted(pick func(*Call) bool) []*Call {
	var picked []*Call
	for _, c := range t.calls {
		if pick(c) {
			picked = append(picked, c)
		}
	}
	slices.SortFunc(picked, func(a, b *Call) int { return cmp.Compare(a.ID, b.ID) })
	return picked
}

// Overdue answers a cancelled call some of whose legs did not end in time, with
// the stacks of those.
func (t *Table) Overdue(c *Call, stacks []spec.Stack) []Op {
	t.ops = t.ops[:0]
	if c.State != Cancelling {
		return nil
	}
	what := "; still in C, or in other code that cannot be interrupted: "
	if c.kill {
		what = "; killed, because still in C, or in other code that cannot be interrupted: "
	}
	e := c.cancelled(what + c.Missing())
	c.tellStacks(e, stacks)
	t.answer(c, e)
	if c.kill {
		for _, i := range c.Out() {
			t.op(KillLeg, c, i, nil)
		}
	}
	t.forget(c)
	t.release(c.Cluster)
	return t.ops
}

// tellStacks gives an error of c what its ranks were doing. Of those that have
// answered since it is known where they are, not what they are asked for.
func (c *Call) tellStacks(e *spec.Error, stacks []spec.Stack) {
	e.TellStacks(stacks, func(rank int) bool {
		leg := c.LegOfRank(rank)
		return leg < 0 || c.Legs[leg].Done
	})
}

// Expire is the deadline of a call: its caller is told after Expired.
func (t *Table) Expire(c *Call) []Op {
	t.ops = t.ops[:0]
	switch c.State {
	case Held:
		t.unhold(c)
		why := "there was no head to send it"
		if !t.paused {
			why = c.heldBy()
		}
		t.refuse(c, spec.Errorf(spec.CodeTimeout, "%s: the deadline passed before it was sent: %s", c.Title(), why))
		t.release(c.Cluster)
	case Sending:
		c.State = Expiring
		t.stay(c)
		t.op(Stacks, c, -1, nil)
	case Running:
		c.State = Expiring
		t.op(Stacks, c, -1, nil)
	case Expiring, Cancelling, Answered:
	}
	return t.ops
}

// Expired answers a call whose deadline passed, with the stacks of those that
// had not answered. after says how long was waited, for people.
func (t *Table) Expired(c *Call, after string, stacks []spec.Stack) []Op {
	t.ops = t.ops[:0]
	if c.State != Expiring {
		return nil
	}
	e := spec.Errorf(spec.CodeTimeout, "%s: no answer within %s from %s", c.Title(), after, c.Missing())
	switch {
	case c.skipped > 0:
		why := "still waited for the rows of an argument"
		if c.Paired == nil {
			why = "had not got it, as a connection was lost,"
		}
		e.Message = fmt.Sprintf("%s: %d of %d ranks %s at its deadline of %s", c.Title(), c.skipped, len(c.Legs), why, after)
		if c.left > 0 {
			e.Message += ", and there was no answer from " + c.Missing()
		}
	case c.left == 0:
		e.Message = fmt.Sprintf("%s: the answer came after its deadline of %s", c.Title(), after)
	}
	e.Cluster, e.Method = c.Cluster.Name, c.Method
	c.tellStacks(e, stacks)
	if out := c.Out(); len(out) == 1 {
		w := c.Legs[out[0]].Worker
		e.Rank, e.Worker, e.Node = w.Rank, w.Name, w.Node
	}
	t.answer(c, e)
	t.endDown(c, e)
	for _, i := range c.Out() {
		switch c.OnTimeout {
		case "cancel":
			t.op(CancelLeg, c, i, nil)
		case "kill":
			t.op(KillLeg, c, i, nil)
		}
	}
	t.forget(c)
	t.release(c.Cluster)
	return t.ops
}

// Missing names the legs that are out: all of a few, else how many.
func (c *Call) Missing() string {
	var names []string
	out := c.Out()
	for _, i := range out {
		w := c.Legs[i].Worker
		names = append(names, w.Name+" on "+w.Node)
		if len(names) == 8 && len(out) > 8 {
			names = append(names, fmt.Sprintf("and %d more", len(out)-8))
			break
		}
	}
	return fmt.Sprintf("%d of %d ranks (%s)", len(out), len(c.Legs), strings.Join(names, ", "))
}

// heldBy says what a call that is not sent yet waits for.
func (c *Call) heldBy() string {
	switch {
	case len(c.needs) > 0:
		return "it waits for the result of " + c.needs[0].Title()
	case c.blocked():
		return fmt.Sprintf("rank %d is being restarted", c.downRank())
	case c.bare:
		return "a worker lost its connection, and the arguments are to be sent to it again"
	case c.Cluster.away() != nil:
		w := c.Cluster.away()
		return "the connection to " + w.Name + " on " + w.Node + " was lost and is not back"
	case c.preparing && !c.prepared:
		return "its arguments are being cut"
	}
	at, _ := c.Cluster.place(c)
	for _, o := range c.Cluster.held[:at] {
		switch {
		case o.stays:
			return "the deadline of " + o.Title() + ", which comes before it, has passed, or it was cancelled, and it is not answered yet"
		case o.preparing && !o.prepared:
			return "the arguments of " + o.Title() + ", which comes before it, are being cut"
		}
	}
	if c.Cluster.full > 0 {
		return fmt.Sprintf("a worker has %d calls queued already", c.Cluster.maxOut())
	}
	return "the calls before it wait for results of others"
}

func (c *Call) cancelled(more string) *spec.Error {
	e := spec.Errorf(spec.CodeCancelled, "%s was cancelled%s", c.Title(), more)
	e.Cluster, e.Method = c.Cluster.Name, c.Method
	return e
}
