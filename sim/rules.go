package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
)

// Broken is a rule that did not hold.
type Broken struct {
	Rule string
	What string
	At   int64
	Head []string // what the last head was told, in the words of call/testdata
}

func (b *Broken) Error() string {
	return fmt.Sprintf("%s: %s (at %.3f ms)", b.Rule, b.What, float64(b.At)/float64(millisecond))
}

// rules look at everything that happens.
type rules struct {
	w    *world
	runs map[ran][]*process
	dead map[*cluster]map[int]bool // ranks of which a process has ended
}

type ran struct {
	origin uint64
	rank   int
}

// brk ends the run: a rule does not hold.
func (r *rules) brk(rule, format string, args ...any) {
	panic(&Broken{Rule: rule, What: fmt.Sprintf(format, args...)})
}

func (r *rules) must(err error) {
	if err != nil {
		r.brk("what is asked can be done", "%v", err)
	}
}

// placed looks at a plan: each rank where its device is.
func (r *rules) placed(p *placement.Plan, c spec.Cluster) {
	for rank, at := range p.Workers {
		if at.Rank != rank || len(at.Devices) != 1 || at.Devices[0].Global != c.Mapping[rank] || at.Node != c.Mapping[rank]/r.w.script.PerNode {
			r.brk("ranks are where their devices are", "rank %d of %s is %+v", rank, c.Name, at)
		}
	}
}

// began: a leg begins to run.
func (r *rules) began(p *process, g *leg) {
	r.w.tell("%s begins %d of caller %d", p.name(), g.inv.id, g.inv.caller.number)
	if r.runs == nil {
		r.runs = map[ran][]*process{}
	}
	key := ran{g.inv.origin(), p.rank}
	before := r.runs[key]
	if slices.Contains(before, p) {
		r.brk("a leg runs at most once", "%s runs call %d of caller %d twice", p.name(), g.inv.id, g.inv.caller.number)
	}
	if len(before) > 0 && (!g.inv.in.Idempotent || before[len(before)-1].alive) {
		r.brk("a leg runs at most once", "call %d of caller %d, which is not idempotent, runs again on a new process of %s", g.inv.id, g.inv.caller.number, p.name())
	}
	r.runs[key] = append(before, p)
	if g.inv.ranks != nil && !slices.Contains(g.inv.ranks, p.rank) || g.inv.cluster != p.cluster {
		r.brk("legs go to the ranks of their call", "%s runs call %d of caller %d", p.name(), g.inv.id, g.inv.caller.number)
	}
	if last := p.last[g.inv.caller.number]; last >= g.inv.id {
		r.brk("callers' order holds", "%s runs call %d of caller %d after %d", p.name(), g.inv.id, g.inv.caller.number, last)
	}
	p.last[g.inv.caller.number] = g.inv.id
	p.ran = append(p.ran, origin(g.inv.origin()))
}

func (r *rules) ended(p *process, g *leg) {
	if g.err != nil {
		r.w.tell("%s ends %d of caller %d: %s", p.name(), g.inv.id, g.inv.caller.number, g.err.Code)
	} else {
		r.w.tell("%s ends %d of caller %d", p.name(), g.inv.id, g.inv.caller.number)
	}
}

// dropped: a worker lets go of a result, for the caller has read the answer.
func (r *rules) dropped(p *process, g *leg) {
	inv := g.inv
	if inv.caller.alive && !inv.answered && !inv.told[p.rank] && r.w.lost[inv.origin()] == nil {
		r.brk("results are kept until they are read", "%s drops its result of call %d of caller %d, which is not answered", p.name(), inv.id, inv.caller.number)
	}
}

// died: a process has ended.
func (r *rules) died(p *process) {
	r.w.tell("%s ends", p.name())
	if r.dead == nil {
		r.dead = map[*cluster]map[int]bool{}
	}
	if r.dead[p.cluster] == nil {
		r.dead[p.cluster] = map[int]bool{}
	}
	r.dead[p.cluster][p.rank] = true
}

// heard: a caller reads an answer. It says whether that is news.
func (r *rules) heard(inv *invocation, rank int, value []int64, err *spec.Error) bool {
	r.w.tell("caller %d reads the answer to %d rank %d: %v %v", inv.caller.number, inv.id, rank, value, err)
	if inv.answered || inv.told[rank] {
		if inv.in.Split && r.w.epoch > 1 {
			return false // a new head tells all ranks'
		}
		r.brk("a call is answered once", "call %d of caller %d (rank %d)", inv.id, inv.caller.number, rank)
	}
	if late := r.w.now - inv.deadline; inv.deadline > 0 && late > lateMost {
		r.brk("deadlines hold", "call %d of caller %d is answered %d s after its own", inv.id, inv.caller.number, late/second)
	}
	if late := r.w.now - inv.cancelled; inv.cancelled > 0 && late > cancelGrace+lateMost {
		r.brk("cancels end calls", "call %d of caller %d is answered %d s after its cancel", inv.id, inv.caller.number, late/second)
	}
	if err != nil {
		if !r.explained(inv, err.Code, map[*invocation]bool{}) {
			r.brk("errors have a cause", "call %d of caller %d fails: %v", inv.id, inv.caller.number, err)
		}
		if rank >= 0 && err.Code == spec.CodeWorkerDied && inv.alone() && !r.dead[inv.cluster][rank] {
			r.brk("a rank's end is its own", "call %d of caller %d fails for rank %d, which lives: %v", inv.id, inv.caller.number, rank, err)
		}
		return true
	}
	if raises := inv.in.Raises; raises >= 0 && inv.parent == 0 && (rank == raises || rank < 0 && slices.Contains(inv.allRanks(), raises)) {
		r.brk("an error is told", "rank %d raised in call %d of caller %d, which succeeded", raises, inv.id, inv.caller.number)
	}
	if want := inv.expected(rank); !slices.Equal(value, want) {
		r.brk("answers are right", "call %d of caller %d (rank %d): %v; want %v", inv.id, inv.caller.number, rank, value, want)
	}
	return true
}

// alone says that no rank of a call fails for another's sake.
func (inv *invocation) alone() bool {
	in, cl := inv.in, inv.cluster
	return in.Apart && !in.Collective && in.Nest == "" && len(inv.futures) == 0 && !cl.gone && cl.in.OnFailure != "restart_cluster"
}

// explained says that something in the script can lead to such an error.
func (r *rules) explained(inv *invocation, code spec.Code, seen map[*invocation]bool) bool {
	if seen[inv] {
		return false
	}
	seen[inv] = true
	in := inv.in
	gone := inv.cluster.gone || inv.cluster.in.OnFailure == "restart_cluster" && len(r.dead[inv.cluster]) > 0
	for _, rank := range inv.allRanks() {
		gone = gone || r.dead[inv.cluster][rank]
	}
	switch {
	case code == spec.CodeUser && in.Raises >= 0 && inv.parent == 0,
		code == spec.CodeTimeout && inv.deadline > 0 && r.w.now >= inv.deadline,
		code == spec.CodeCancelled && (inv.cancelled > 0 || inv.parent != 0 || in.Collective),
		code == spec.CodeCancelled && inv.deadline > 0 && in.OnTimeout == "cancel",
		(code == spec.CodeWorkerDied || code == spec.CodeNodeLost) && gone,
		code == spec.CodeNotFound && inv.cluster.gone,
		// Its result went with a process and a head, or the word that it had ended with a head alone.
		code == spec.CodeHeadLost && r.w.epoch > 1 && (gone || inv.cancelled > 0 || inv.deadline > 0 && r.w.now >= inv.deadline),
		code == spec.CodeDeadlock && inv.parent != 0:
		return true
	}
	if in.Nest != "" && inv.parent == 0 {
		target := r.w.cluster(in.Nest)
		if (code == spec.CodeWorkerDied || code == spec.CodeNodeLost) && (target.gone || len(r.dead[target]) > 0) || code == spec.CodeNotFound && target.gone ||
			code == spec.CodeDeadlock || code == spec.CodeCancelled && gone {
			return true
		}
	}
	for _, f := range inv.futures {
		if r.explained(inv.caller.all[f.CallerID], code, seen) {
			return true
		}
	}
	return false
}

// answered: all that was asked was answered.
func (r *rules) answered() {
	for _, c := range r.w.callers {
		if !c.alive {
			continue
		}
		for _, inv := range c.open {
			state := "the head does not know it"
			if known := r.w.head.table.FindCaller(c.number, inv.id); known != nil {
				state = known.State.String()
			}
			r.brk("every call is answered", "call %d of caller %d is not: %s", inv.id, c.number, state)
		}
	}
}

// over: nothing is left.
func (r *rules) over() {
	h := r.w.head
	if n := h.table.Len(); n > 0 {
		r.brk("nothing is left", "%d calls in the table: %s", n, r.leftover())
	}
	if n := h.leases.Len(); n > 0 {
		r.brk("nothing is left", "%d objects that somebody is said to know of", n)
	}
	for _, who := range h.callers {
		if len(who.kept) > 0 || len(who.puts) > 0 {
			r.brk("nothing is left", "%d answers for caller %d", len(who.kept), who.caller.number)
		}
	}
	for _, c := range r.w.clusters {
		for _, s := range c.seats {
			if p := s.proc; p.alive && len(p.legs) > 2*64 {
				r.brk("nothing is left", "%d results at %s", len(p.legs), p.name())
			}
		}
		r.oneOrder(c)
	}
}

// leftover is the calls that are in the table.
func (r *rules) leftover() string {
	var all []string
	for _, c := range r.w.callers {
		for id := range c.all {
			if known := r.w.head.table.FindCaller(c.number, id); known != nil {
				all = append(all, fmt.Sprintf("%d of caller %d (%v, out %v)", id, c.number, known.State, known.Out()))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// oneOrder looks whether one order explains what all processes of a cluster saw.
func (r *rules) oneOrder(c *cluster) {
	after := map[origin][]origin{} // edges of each process's order
	degree := map[origin]int{}
	for _, s := range c.seats {
		for _, p := range append([]*process{s.proc}, s.past...) {
			if !p.alive && p.lastOf < r.w.epoch && c.in.OnFailure != "" {
				continue // what it alone knew of the order is gone with it
			}
			for i, o := range p.ran {
				if _, ok := degree[o]; !ok {
					degree[o] = 0
				}
				if i > 0 {
					after[p.ran[i-1]] = append(after[p.ran[i-1]], o)
					degree[o]++
				}
			}
		}
	}
	var free []origin
	for o, n := range degree {
		if n == 0 {
			free = append(free, o)
		}
	}
	left := len(degree)
	for len(free) > 0 {
		o := free[len(free)-1]
		free = free[:len(free)-1]
		left--
		for _, next := range after[o] {
			if degree[next]--; degree[next] == 0 {
				free = append(free, next)
			}
		}
	}
	if left > 0 {
		r.brk("all ranks see one order", "%d calls of %s are in a circle", left, c.in.Name)
	}
}

// probe makes a call to every cluster that is whole: nothing holds it up.
func (w *world) probe() {
	c := w.newCaller(nil)
	for i, target := range w.clusters {
		whole := !target.gone
		for _, s := range target.seats {
			whole = whole && s.proc.alive && s.lost == nil
		}
		if whole {
			c.invoke(&CallIn{Number: uint64(1_000_000 + i), To: target.in.Name, Method: "all", Rows: 1, Raises: -1, Hangs: -1}, target, 0, nil)
		}
	}
}

// leaveAll has every caller read, say so, and leave.
func (w *world) leaveAll() {
	for i, c := range w.callers {
		if c.alive {
			c.acknowledge()
			if i%2 == 0 {
				c.leave()
			}
		}
	}
}
