package call

import (
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Wait says that the leg which runs on w now waits for c. A wait that closes a
// cycle fails c at once.
func (t *Table) Wait(w *Worker, c *Call) []Op {
	t.ops = t.ops[:0]
	if c.State == Answered {
		return nil
	}
	if err := t.addWait(w, c); err != nil {
		sent := c.State != Held
		if !sent {
			t.unhold(c)
			t.refuse(c, err)
			t.release(c.Cluster)
			return t.ops
		}
		t.answer(c, err)
		t.cancelOthers(c)
	}
	return t.ops
}

func (t *Table) addWait(w *Worker, c *Call) *spec.Error {
	parent := t.calls[c.Parent]
	if w.Serial {
		parent = nil // the worker is what waits, with all that it has
	}
	if !w.Serial && (parent == nil || parent.State == Answered || slices.Contains(parent.waits, c)) || slices.Contains(w.waits, c) {
		return nil
	}
	if chain := findCycle(w, parent, c); chain != nil {
		what := "Make the class asynchronous (async def), give it max_concurrency > 1, or do not wait inside the call"
		if parent != nil {
			what = "Do not wait inside the call, or make the call that needs its result later"
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
// worker w, which runs one call at a time, or else the call parent, of which w
// has a leg beside others.
func findCycle(w *Worker, parent, c *Call) []string {
	seen := map[*Call]bool{}
	var path []string
	var visit func(c *Call) bool
	visit = func(c *Call) bool {
		if seen[c] {
			return false
		}
		seen[c] = true
		if parent != nil && c == parent {
			path = append(path, c.Title()+" is the one that waits")
			return true
		}
		for _, next := range c.waits {
			path = append(path, c.Title()+" waits for "+next.Title())
			if visit(next) {
				return true
			}
			path = path[:len(path)-1]
		}
		for i := range c.Legs {
			v := c.Legs[i].Worker
			if c.Legs[i].Done || !v.Serial {
				continue
			}
			if v == w && parent == nil {
				path = append(path, c.Title()+" needs "+v.Name+" on "+v.Node+", which is the one that waits")
				return true
			}
			for _, next := range v.waits {
				path = append(path, c.Title()+" needs "+v.Name+" on "+v.Node+", which waits for "+next.Title())
				if visit(next) {
					return true
				}
				path = path[:len(path)-1]
			}
		}
		if c.State == Held || len(c.needs) > 0 {
			for _, next := range c.needs {
				path = append(path, c.Title()+" needs the result of "+next.Title())
				if visit(next) {
					return true
				}
				path = path[:len(path)-1]
			}
			for _, before := range c.Cluster.held {
				if before == c {
					break
				}
				if seen[before] {
					continue
				}
				path = append(path, c.Title()+" comes after "+before.Title())
				if visit(before) {
					return true
				}
				path = path[:len(path)-1]
			}
		}
		return false
	}
	if visit(c) {
		return path
	}
	return nil
}
