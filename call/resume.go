package call

import (
	"cmp"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// Comeback puts the calls of a head that is gone together again, from those who
// hold them: workers, which tell what they have got, and callers, which send again
// what was not answered. Every worker has got a part of the order from its front,
// so a call that any of them knows keeps its number, and one that none knows is
// put where its caller's order has it: below the caller's next known call of the
// same cluster, above all that its own workers have got.
type Comeback struct {
	t     *Table
	legs  map[uint64]*gotCall // by origin
	none  map[*Worker][]*Call // of workers that told nothing, what they may have got
	seqs  map[*Worker]*gotLegs
	calls []*Call // as they were put: those of each caller in its order
	order []*Call // the same, with those that do not go on
}

// gotCall is a call that workers have got legs of.
type gotCall struct {
	id      ID
	origin  uint64
	cluster *Cluster
	legs    []gotLeg
	claimed bool
}

type gotLeg struct {
	w   *Worker
	seq uint32
}

// gotLegs is what one worker has got and was not released of, oldest first.
type gotLegs struct {
	received uint32
	calls    []*gotCall
	seqs     []uint32
	last     ID
}

// Comeback begins; Prepare and then Go end it. The table must be new.
func (t *Table) Comeback() *Comeback {
	return &Comeback{t: t, legs: map[uint64]*gotCall{}, none: map[*Worker][]*Call{}, seqs: map[*Worker]*gotLegs{}}
}

// Received says how many legs w has got, ever. Got tells of each that it was not
// released of. A worker that tells nothing must be lost before Go: what was for
// it counts as sent, as it may have been.
func (b *Comeback) Received(w *Worker, received uint32) {
	b.seqs[w] = &gotLegs{received: received}
}

// Got tells of a leg that w has got, in the order of their numbers.
func (b *Comeback) Got(w *Worker, seq uint32, id ID, origin uint64) {
	mine := b.seqs[w]
	g := b.legs[origin]
	if g == nil || g.id != id || g.cluster != w.Cluster {
		g = &gotCall{id: id, origin: origin, cluster: w.Cluster}
		b.legs[origin] = g
	}
	g.legs = append(g.legs, gotLeg{w, seq})
	mine.calls, mine.seqs = append(mine.calls, g), append(mine.seqs, seq)
	mine.last = max(mine.last, id)
}

// Call takes a call that its caller sent again; nil: it is here already.
func (b *Comeback) Call(r Request) *Call {
	if b.t.FindCaller(r.Caller, r.CallerID) != nil {
		return nil
	}
	c := &Call{Request: r}
	c.makeLegs()
	if g := b.legs[r.Origin()]; g != nil && g.cluster == r.Cluster {
		g.claimed = true
		c.ID = g.id
		for _, got := range g.legs {
			if leg := c.LegOf(got.w); leg >= 0 {
				l := &c.Legs[leg]
				l.sent, l.Out, l.seq = true, true, got.seq
			}
		}
	}
	for i := range c.Legs { // a worker that does not come back may have got it
		l := &c.Legs[i]
		switch {
		case b.seqs[l.Worker] != nil:
		case l.Worker.Dead != nil:
			l.sent, l.Done = true, true
			c.left--
		default:
			l.sent, l.Out = true, true
			b.none[l.Worker] = append(b.none[l.Worker], c)
		}
	}
	b.calls, b.order = append(b.calls, c), append(b.order, c)
	b.t.byCaller[callerKey{c.Caller, c.CallerID}] = c
	return c
}

// Refused takes a call that its caller sent again and that does not go on: those
// that the caller made before it still come before it.
func (b *Comeback) Refused(r Request) {
	if g := b.legs[r.Origin()]; g != nil && g.cluster == r.Cluster {
		b.order = append(b.order, &Call{Request: r, ID: g.id})
	}
}

// PutAnswer takes the answer, or with a rank that of one rank, of a call that its
// caller has read: later calls name it as a Future. It is kept until Acked.
func (t *Table) PutAnswer(caller uint32, id uint64, rank int, r Result) *Call {
	key := callerKey{caller, id}
	c := t.byCaller[key]
	switch {
	case c == nil:
		c = &Call{Request: Request{Caller: caller, CallerID: id, Cluster: &Cluster{}, Ranks: []int{}, Keep: true}, State: Answered, put: true}
		t.next += idStep
		c.ID = t.next
		c.Value = &Result{}
		t.calls[c.ID], t.byCaller[key] = c, c
	case c.State != Answered:
		return nil // it cannot have been read
	case !c.put: // others still use it
		c.Keep = true
		if c.Value == nil && rank < 0 {
			c.Value = &r
		}
		return c
	}
	if rank < 0 {
		c.Value = &r
		return c
	}
	c.Split = true
	c.Ranks = append(c.Ranks, rank)
	c.Legs = append(c.Legs, Leg{Done: true, Result: r})
	return c
}

// PutParts says what an answer that was put was joined of: calls that take it part
// by part find each in the leg of that number.
func (t *Table) PutParts(c *Call, parts []Result) {
	if !c.put || c.Split || len(c.Legs) > 0 {
		return
	}
	for i, r := range parts {
		c.Ranks = append(c.Ranks, i)
		c.Legs = append(c.Legs, Leg{Done: true, Result: r})
	}
}

// Prepare gives calls their places; results count from now on, but nothing is sent
// before Go, so that what has failed is known by then. What workers have got of
// calls that nobody sent again runs on where its caller is back, and so has its
// answer; else it is cancelled. made is told of each such call, before orders name it.
func (b *Comeback) Prepare(back func(caller uint32) bool, made func(*Call)) []Op {
	t := b.t
	t.ops = t.ops[:0]
	t.paused = true
	b.number()
	for _, w := range b.workers() {
		mine := b.seqs[w]
		w.acks.returned(mine.received, mine.seqs)
	}
	var orphans []*Call
	for _, g := range b.unclaimed() {
		orphans = append(orphans, b.orphan(g, made))
	}
	b.list()
	slices.SortStableFunc(b.calls, func(a, c *Call) int { return cmp.Compare(a.ID, c.ID) })
	for _, c := range b.calls {
		t.calls[c.ID] = c
		b.giveUpLegs(c)
		t.putBack(c)
	}
	for _, c := range orphans {
		if !back(c.Caller) {
			t.cancelOthers(c)
		}
	}
	for _, c := range b.calls {
		if c.misplaced && len(c.needs) == 0 {
			t.refuseMisplaced(c)
		}
	}
	return t.ops
}

// Go sends what workers lack, and what waited.
func (b *Comeback) Go() []Op {
	t := b.t
	t.ops = t.ops[:0]
	for _, c := range b.calls { // unless what it was refused for is known by now
		t.refuseMisplaced(c)
	}
	t.paused = false
	for _, c := range b.calls {
		t.release(c.Cluster)
	}
	return t.ops
}

// refuseMisplaced answers a call whose place in the order is past, before later ones
// are: a next head would not know that they were.
func (t *Table) refuseMisplaced(c *Call) {
	if !c.misplaced || c.State != Held {
		return
	}
	err := spec.Errorf(spec.CodeHeadLost, "%s: it was not sent before the head ended, and its place in the order is past: make the call again", c.Title())
	for i := range c.Legs {
		if dead := c.Legs[i].Worker.Dead; dead != nil {
			err = c.about(dead)
			break
		}
	}
	for i, dep := range c.deps {
		if gave := dep.gave(c.Futures[i]); gave != nil {
			err = gave
			break
		}
	}
	t.unhold(c)
	t.refuse(c, err)
}

// workers are those that told what they have got, in order.
func (b *Comeback) workers() []*Worker {
	workers := make([]*Worker, 0, len(b.seqs))
	for w := range b.seqs {
		workers = append(workers, w)
	}
	slices.SortFunc(workers, func(a, c *Worker) int { return cmp.Compare(a.Number, c.Number) })
	return workers
}

// unclaimed are the calls that workers have legs of and nobody sent again.
func (b *Comeback) unclaimed() []*gotCall {
	var found []*gotCall
	for _, w := range b.workers() {
		for _, g := range b.seqs[w].calls {
			if !g.claimed {
				g.claimed = true
				found = append(found, g)
			}
		}
	}
	slices.SortFunc(found, func(a, c *gotCall) int { return cmp.Compare(a.id, c.id) })
	return found
}

// orphan is a call that is answered, as far as anyone cares, and of which legs
// are still at workers.
func (b *Comeback) orphan(g *gotCall, made func(*Call)) *Call {
	c := &Call{
		Request: Request{Caller: uint32(g.origin >> 32), CallerID: g.origin & 0xffffffff, Cluster: g.cluster, Ranks: []int{}}, //nolint:gosec // so it was put together
		ID:      g.id, State: Answered, acked: true,
	}
	for _, got := range g.legs {
		c.Ranks = append(c.Ranks, got.w.Rank)
		c.Legs = append(c.Legs, Leg{Worker: got.w, sent: true, Out: true, seq: got.seq})
	}
	c.left = len(c.Legs)
	b.t.calls[c.ID] = c
	made(c)
	return c
}

// list puts on each worker the legs that it has, in its order.
func (b *Comeback) list() {
	byID := map[ID]*Call{}
	for _, c := range b.calls {
		byID[c.ID] = c
	}
	for _, w := range b.workers() {
		for _, g := range b.seqs[w].calls {
			c := byID[g.id]
			if c == nil || c.LegOf(w) < 0 {
				c = b.t.calls[g.id]
			}
			if c != nil && c.LegOf(w) >= 0 {
				w.addOut(c)
			}
		}
	}
	for w, calls := range b.none {
		slices.SortFunc(calls, func(a, c *Call) int { return cmp.Compare(a.ID, c.ID) })
		for _, c := range calls {
			w.addOut(c)
		}
	}
}

// number gives every call that no worker knows its number. Those for which there
// is no room were refused before, as later ones went out without them, or heads
// before this one have filled the gap: they are not sent any more.
func (b *Comeback) number() {
	type line struct {
		caller  uint32
		cluster *Cluster
	}
	taken := map[ID]bool{}
	lines := map[line][]*Call{}
	var order []line
	for _, g := range b.legs {
		taken[g.id] = true
	}
	for _, c := range b.order {
		l := line{c.Caller, c.Cluster}
		if lines[l] == nil {
			order = append(order, l)
		}
		lines[l] = append(lines[l], c)
	}
	late := map[*Call]bool{} // they come after all that is known
	for _, l := range order {
		var run []*Call
		floor := ID(0)
		for _, c := range lines[l] {
			if c.ID == 0 {
				run = append(run, c)
				continue
			}
			fits := run[:0]
			for _, r := range run {
				if last := b.floor(r); last < c.ID {
					floor = max(floor, last)
					fits = append(fits, r)
				} else {
					late[r], r.misplaced = true, true
				}
			}
			floor = max(floor, (c.ID-1)&^(idStep-1)) // numbers that were given in order end there
			for _, r := range between(floor, c.ID, fits, taken) {
				late[r], r.misplaced = true, true
			}
			floor, run = c.ID, nil
		}
		for _, c := range run {
			late[c] = true
		}
	}
	for _, c := range b.calls { // in the order that they came in, as far as there is one
		if late[c] {
			b.t.next += idStep
			c.ID = b.t.next
		}
	}
}

// floor is the last call that any worker of c has got.
func (b *Comeback) floor(c *Call) ID {
	last := ID(0)
	for i := range c.Legs {
		if mine := b.seqs[c.Legs[i].Worker]; mine != nil {
			last = max(last, mine.last)
		}
	}
	return last
}

// between numbers a run of calls above floor and below top, evenly, so that there
// is room left. It returns those that did not fit.
func between(floor, top ID, run []*Call, taken map[ID]bool) []*Call {
	for i, c := range run {
		step := max(1, (top-floor)/ID(len(run)-i+1))
		id := floor + step
		for id < top && taken[id] {
			id++
		}
		if id >= top {
			for id = floor + 1; id < top && taken[id]; id++ {
			}
		}
		if id >= top {
			return run[i:]
		}
		c.ID, floor = id, id
		taken[id] = true
	}
	return nil
}

// giveUpLegs ends the legs that their workers did not get while they got later
// ones: the answer was settled without them.
func (b *Comeback) giveUpLegs(c *Call) {
	for i := range c.Legs {
		l := &c.Legs[i]
		if mine := b.seqs[l.Worker]; !l.sent && !c.misplaced && mine != nil && mine.last > c.ID {
			l.sent, l.Done = true, true
			l.Result.Err = spec.Errorf(spec.CodeHeadLost, "%s: it was given up for %s before the head ended", c.Title(), l.Worker.Name)
			c.skipped++
			c.left--
		}
	}
}

// putBack gives a call its place: as far as its legs are out, it goes on.
func (t *Table) putBack(c *Call) {
	cl := c.Cluster
	fresh, rest := true, false
	for i := range c.Legs {
		if c.Legs[i].sent {
			fresh = false
		} else {
			rest = true
		}
	}
	switch {
	case fresh:
		c.State = Held
		cl.held = append(cl.held, c)
	case rest:
		c.State = Sending
		cl.held = append(cl.held, c)
	default:
		c.State = Running
	}
	if err := t.putBackError(c); err != nil {
		t.giveUp(c, err)
	} else if c.State == Running && c.left == 0 {
		t.finish(c)
	}
}

// putBackError is why a call cannot go on, if so.
func (t *Table) putBackError(c *Call) *spec.Error {
	if c.Cluster.gone != nil {
		return c.Cluster.gone
	}
	if err := c.dead(); err != nil {
		return err
	}
	t.loseDead(c)
	for _, f := range c.Futures {
		if c.State == Running && !c.Idempotent {
			t.lookAt(c, f)
			continue
		}
		if err := t.need(c, f); err != nil && c.State != Running {
			return err
		}
	}
	if c.Waiting && c.ParentWorker != nil {
		return t.addWait(c.ParentWorker, c, c.Whole)
	}
	return nil
}

// lookAt keeps what a future gives for a call that does not wait for it any more:
// it says how the results are joined.
func (t *Table) lookAt(c *Call, f Future) {
	if dep := t.FindCaller(c.Caller, f.CallerID); dep != nil {
		dep.shared = true
		dep.users++
		c.deps = append(c.deps, dep)
	}
}

// giveUp fails a call that was put back, whatever of it is out.
func (t *Table) giveUp(c *Call, err *spec.Error) {
	switch c.State {
	case Held:
		t.unhold(c)
		t.refuse(c, err)
	case Sending:
		t.fail(c, err)
		t.cancelOthers(c)
	case Running:
		t.answer(c, err)
		t.cancelOthers(c)
		t.forget(c)
	case Expiring, Cancelling, Answered:
	}
}
