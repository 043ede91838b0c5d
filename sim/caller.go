package sim

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
)

// caller is a controller: one of the script's, or a worker that calls others.
type caller struct {
	w      *world
	number uint32
	proc   *process // whose it is; nil for a script's
	alive  bool
	left   bool // in order
	joined bool // heads know it
	over   bool // and know that it is gone
	link   *link
	next   uint64
	open   []*invocation // not answered, in order
	all    map[uint64]*invocation
	read   uint32 // answers

	objects holding
	uses    map[objectID]int
}

// invocation is a call as its caller knows it.
type invocation struct {
	caller  *caller
	id      uint64
	in      *CallIn
	cluster *cluster
	ranks   []int // nil: all
	rows    []int64
	futures []call.Future
	named   []objectID // by rows that came with an answer
	kept    []objectID // named by answers to what it needs
	parent  call.ID
	proc    *process // whose leg makes it

	deadline  int64 // 0: none
	cancelled int64 // when; 0: not
	kill      bool
	told      map[int]bool // ranks that are answered, of a Split call
	answers   []answer     // as they came
	answered  bool
	failed    *spec.Error
	done      func()
}

func (inv *invocation) origin() uint64 { return uint64(inv.caller.number)<<32 | inv.id }

func (w *world) newCaller(p *process) *caller {
	c := &caller{w: w, number: uint32(len(w.callers) + 1), proc: p, alive: true, all: map[uint64]*invocation{}, objects: holding{}, uses: map[objectID]int{}}
	w.callers = append(w.callers, c)
	c.dial(20 * millisecond)
	return c
}

// invoke makes a call and sends it, where there is somebody to send it to.
func (c *caller) invoke(in *CallIn, target *cluster, parent call.ID, p *process) *invocation {
	inv := &invocation{caller: c, id: in.Number, in: in, cluster: target, ranks: in.Ranks, parent: parent, proc: p, told: map[int]bool{}}
	c.next = max(c.next, inv.id)
	for i := range in.Rows {
		inv.rows = append(inv.rows, int64(inv.id)*1000+int64(i))
	}
	for _, id := range in.Needs {
		dep := c.all[id]
		if dep == nil || dep.answered && dep.failed != nil {
			continue // left out of the script, or of no use
		}
		f := call.Future{CallerID: id, Rank: -1}
		if dep.in.Split {
			f.Rank = dep.someRank()
		}
		if dep.answered { // its value is here: it goes along
			inv.rows = append(inv.rows, dep.expected(f.Rank)...)
			inv.name(dep)
			continue
		}
		inv.futures = append(inv.futures, f)
	}
	if in.Timeout > 0 {
		inv.deadline = c.w.now + in.Timeout
	}
	c.all[inv.id] = inv
	c.open = append(c.open, inv)
	c.sendCall(inv, false)
	return inv
}

// name has a call name what an answer did, as far as its caller still has it.
func (inv *invocation) name(dep *invocation) {
	for _, a := range dep.answers {
		for _, o := range a.objects {
			if inv.caller.objects[o] > 0 {
				inv.named = append(inv.named, o)
				inv.caller.use([]objectID{o}, 1)
			}
		}
	}
}

func (inv *invocation) someRank() int {
	if inv.ranks != nil {
		return inv.ranks[0]
	}
	return 0
}

// expected is what its answer, or that of a rank, must be: what the arguments
// lead to.
func (inv *invocation) expected(rank int) []int64 {
	data := slices.Clone(inv.rows)
	for _, f := range inv.futures {
		data = append(data, inv.caller.all[f.CallerID].expected(f.Rank)...)
	}
	if inv.in.Method == "rows" {
		return compute("rows", 0, data)
	}
	if rank >= 0 {
		return compute(inv.in.Method, rank, data)
	}
	var all []int64
	for _, r := range inv.allRanks() {
		all = append(all, compute(inv.in.Method, r, data)...)
	}
	return all
}

func (inv *invocation) allRanks() []int {
	if inv.ranks != nil {
		return inv.ranks
	}
	ranks := make([]int, inv.cluster.in.World)
	for r := range ranks {
		ranks[r] = r
	}
	return ranks
}

func (c *caller) sendCall(inv *invocation, again bool) {
	if l := c.link; l != nil {
		h, ack := c.w.head, c.read
		left := int64(0)
		if inv.deadline > 0 {
			left = max(1, inv.deadline-c.w.now)
		}
		l.send(toHead, func() { h.call(c, inv, left, again, ack) })
	}
}

func (c *caller) cancel(id uint64, kill bool) {
	inv := c.all[id]
	if inv == nil || inv.answered || !c.alive {
		return
	}
	inv.cancelled, inv.kill = max(1, c.w.now), inv.kill || kill
	c.sendCancel(inv)
}

func (c *caller) sendCancel(inv *invocation) {
	if l := c.link; l != nil {
		h := c.w.head
		kill := inv.kill
		l.send(toHead, func() { h.cancel(c, inv.id, kill) })
	}
}

// dial finds the head; one that was here before tells it what is not answered.
func (c *caller) dial(pause int64) {
	if !c.alive || c.link != nil {
		return
	}
	h := c.w.head
	if h == nil {
		c.w.after(pause, func() { c.dial(min(2*pause, 200*millisecond)) })
		return
	}
	l := c.w.newLink(uint64(c.number)<<8 | 3)
	c.link = l
	l.peerGone = func() {
		if c.left && !c.over {
			c.tellDead() // its word was lost
		}
		if c.link == l {
			c.link = nil
			c.dial(20 * millisecond)
		}
	}
	l.headGone = func() { h.callerCut(c, l) }
	answers, objects := c.read, c.objects.clone()
	c.joined = true
	l.send(toHead, func() { h.callerBack(c, l, answers, objects) })
	put := map[uint64]bool{}
	for _, inv := range c.open {
		for _, f := range inv.futures {
			if dep := c.all[f.CallerID]; dep.answered && !put[f.CallerID] {
				put[f.CallerID] = true
				c.putAnswers(dep)
			}
		}
		c.sendCall(inv, true)
		if inv.cancelled > 0 {
			c.sendCancel(inv)
		}
	}
	l.send(toHead, func() { h.callerResent(c) })
}

// putAnswers sends the answers of a call that later ones name, as they came.
func (c *caller) putAnswers(dep *invocation) {
	h := c.w.head
	for _, a := range dep.answers {
		c.link.send(toHead, func() { h.put(c, dep.id, a) })
	}
}

// hear takes an answer; rank -1: for all of it.
func (c *caller) hear(id uint64, a answer) {
	if !c.alive {
		return // it has left
	}
	rank, value, err := a.rank, a.value, a.err
	c.read++
	inv := c.all[id]
	c.keepFor(a.objects, c.w.luck(luckRelease, uint64(c.number), uint64(c.read)))
	fresh := c.w.rules.heard(inv, rank, value, err)
	if !fresh {
		return
	}
	c.w.rules.there(a.objects, "an answer", inv)
	inv.answers = append(inv.answers, a)
	for _, other := range c.open { // a next head may have to be told it
		if slices.ContainsFunc(other.futures, func(f call.Future) bool { return f.CallerID == id }) {
			other.kept = append(other.kept, a.objects...)
			c.use(a.objects, 1)
		}
	}
	if err != nil && inv.failed == nil {
		inv.failed = err
	}
	if rank >= 0 {
		inv.told[rank] = true
		if len(inv.told) < len(inv.allRanks()) {
			return
		}
	}
	inv.answered = true
	c.use(inv.named, -1)
	c.use(inv.kept, -1)
	c.open = slices.DeleteFunc(c.open, func(o *invocation) bool { return o == inv })
	if c.read%7 == 0 { // now and then it has nothing else to say
		c.acknowledge()
	}
	if inv.done != nil {
		inv.done()
	}
}

// acknowledge tells the head what was read when nothing else does.
func (c *caller) acknowledge() {
	if l := c.link; l != nil {
		h, ack := c.w.head, c.read
		l.send(toHead, func() { h.acked(c, ack) })
	}
}

// again sends a call once more that the head needs the arguments of.
func (c *caller) again(id uint64) {
	if inv := c.all[id]; inv != nil && !inv.answered {
		c.sendCall(inv, true)
	}
}

// leave is the end of a caller that says so.
func (c *caller) leave() {
	if !c.alive {
		return
	}
	if c.link == nil {
		c.die()
		return
	}
	c.alive, c.left = false, true
	l, h := c.link, c.w.head
	l.send(toHead, func() { h.callerGone(c) })
}

// die is its end without a word; its pid is watched.
func (c *caller) die() {
	if !c.alive {
		return
	}
	c.alive = false
	c.link.hangUp()
	c.link = nil
	c.tellDead()
}

func (c *caller) tellDead() {
	c.w.after(millisecond, func() {
		if c.w.head == nil {
			c.tellDead()
			return
		}
		c.w.head.callerGone(c)
	})
}
