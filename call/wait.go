package call

import (
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Wait says that the leg which runs on w now waits for c; whole, that all others on w
// stand still meanwhile, though it runs several. A wait that closes a cycle fails c
// at once.
func (t *Table) Wait(w *Worker, c *Call, whole bool) []Op {
	t.ops = t.ops[:0]
	if c.State == Answered {
		return nil
	}
	if err := t.addWait(w, c, whole); err != nil {
		sent := c.State != Held
		if !sent {
			t.unhold(c)
			t.refuse(c, err)
			t.release(c.Cluster)
			return t.ops
		}
		t.settle(c)
		t.answer(c, err)
		t.cancelOthers(c)
		t.release(c.Cluster)
	}
	return t.ops
}

func (t *Table) addWait(w *Worker, c *Call, whole bool) *spec.Error {
	parent := t.calls[c.Parent]
	whole = whole || w.Serial
	if whole {
		parent = nil // the worker is what waits, with all that it has
	}
	if !whole && (parent == nil || parent.State == Answered || slices.Contains(parent.waits, c)) || slices.Contains(w.waits, c) {
		return nil
	}
	if chain := findCycle(w, parent, c); chain != nil {
		what := "Make the class asynchronous (async def), give it max_concurrency > 1, or do not wait inside the call"
		switch {
		case parent != nil:
			what = "Do not wait inside the call, or make the call that needs its result later"
		case !w.Serial:
			what = "Await it there (await ref), as a wait that blocks holds up all that the worker runs"
		}
		e := spec.Errorf(spec.CodeDeadlock, "%s: waiting for it would never end, because %s. %s", c.Title(), strings.Join(chain, "; "), what)
		e.Cluster, e.Method, e.Rank, e.Worker, e.Node = c.Cluster.Name, c.Method, w.Rank, w.Name, w.Node
		return e
	}
	if parent != nil {
		parent.waits = append(parent.waits, c)
		return nil
	}
	w.waits = append(w.waits, c)
	c.waiters = append(c.waiters, w)
	return nil
}

// unwait ends every wait for c.
func (t *Table) unwait(c *Call) {
	for _, w := range c.waiters {
		w.waits = slices.DeleteFunc(w.waits, func(o *Call) bool { return o == c })
	}
	c.waiters = nil
	if parent := t.calls[c.Parent]; parent != nil {
		parent.waits = slices.DeleteFunc(parent.waits, func(o *Call) bool { return o == c })
	}
}

// findCycle looks for a way from call c back to who waits for it, and words it:
// worker w, which runs nothing else meanwhile, or else the call parent, of which w
// has a leg beside others.
func findCycle(w *Worker, parent, c *Call) []string {
	s := search{w: w, parent: parent, answer: map[*Call]bool{}, need: map[*Call]bool{}}
	if s.answers(c) {
		return s.path
	}
	return nil
}

// search follows what calls wait for: to be answered, and before that to be sent.
type search struct {
	w            *Worker
	parent       *Call
	answer, need map[*Call]bool // whose were looked at
	path         []string
}

// step goes on to a call, in these words.
func (s *search) step(words string, look func(*Call) bool, next *Call) bool {
	s.path = append(s.path, words+next.Title())
	if look(next) {
		return true
	}
	s.path = s.path[:len(s.path)-1]
	return false
}

// answers looks at what the answer of c waits for: it finds who waits there.
func (s *search) answers(c *Call) bool {
	if s.answer[c] {
		return false
	}
	s.answer[c] = true
	if s.parent != nil && c == s.parent {
		s.path = append(s.path, c.Title()+" is the one that waits")
		return true
	}
	for _, next := range c.waits {
		if s.step(c.Title()+" waits for ", s.answers, next) {
			return true
		}
	}
	for i := range c.Legs {
		v := c.Legs[i].Worker
		self := v == s.w && s.parent == nil
		if c.Legs[i].Done || !v.Serial && len(v.waits) == 0 && !self {
			continue // it runs others meanwhile
		}
		needs := c.Title() + " needs " + v.Name + " on " + v.Node + ", which "
		if self {
			s.path = append(s.path, needs+"is the one that waits")
			return true
		}
		for _, next := range v.waits {
			if s.step(needs+"waits for ", s.answers, next) {
				return true
			}
		}
	}
	return s.sends(c)
}

// sends looks at what the sending of c waits for. Those before it must be sent, not
// answered: what a worker has got waits there.
func (s *search) sends(c *Call) bool {
	if c.State != Held && c.State != Sending && !c.blocked() {
		return false
	}
	if s.needs(c) {
		return true
	}
	for _, before := range c.before() {
		if s.step(c.Title()+" comes after ", s.needs, before) {
			return true
		}
	}
	return false
}

// needs looks at the results without which something of c cannot be sent.
func (s *search) needs(c *Call) bool {
	if s.need[c] {
		return false
	}
	s.need[c] = true
	if !c.lacks() {
		return false
	}
	for _, next := range c.needs {
		if s.step(c.Title()+" needs the result of ", s.answers, next) {
			return true
		}
	}
	return false
}

// lacks says that something of c waits for its needs.
func (c *Call) lacks() bool {
	if c.Paired == nil || !c.HasDeps() {
		return len(c.needs) > 0
	}
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Done && (!l.sent || l.Worker.Down != nil) && !c.fed(i) {
			return true
		}
	}
	return false
}

// before are the calls that go out before c: those in front of it in the queue of
// its cluster that it cannot pass, or that one of these cannot; and those that are sent
// again to ranks that are down.
func (c *Call) before() []*Call {
	cl := c.Cluster
	var calls []*Call
	if c.State == Held || c.State == Sending {
		at, _ := cl.place(c)                   // the last, where it comes just now
		after := make([]bool, len(cl.Workers)) // by rank: c, or one that it comes after, is for it
		for last := c; ; last = calls[len(calls)-1] {
			last.mark(after)
			for at--; at >= 0 && !cl.held[at].keeps(after); at-- {
			}
			if at < 0 {
				break
			}
			calls = append(calls, cl.held[at])
		}
		slices.Reverse(calls)
	}
	if cl.down == 0 {
		return calls
	}
	for _, w := range cl.Workers {
		if w.Down == nil {
			continue
		}
		for _, o := range w.out() {
			if o.ID < c.ID {
				calls = append(calls, o)
			}
		}
	}
	return calls
}

// keeps says that a call behind c that is for one of these ranks cannot pass it: it is
// for one of them too, or does not wait for a future alone.
func (c *Call) keeps(ranks []bool) bool {
	return c.stays || c.bare || c.Paired != nil || c.anyOf(ranks)
}

// mark adds the ranks that c is for.
func (c *Call) mark(ranks []bool) {
	if c.Ranks == nil {
		for r := range ranks {
			ranks[r] = true
		}
	}
	for _, r := range c.Ranks {
		ranks[r] = true
	}
}
