package sim

import (
	"fmt"
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
)

// node is a machine and its agent, which sees its workers end.
type node struct {
	w     *world
	index int
	alive bool
	told  bool // heads know that it is lost
	link  *link
	procs map[uint32]*process
	exits []uint32 // of workers, that heads are told of
}

// cluster is a group of seats for processes, as the journal has it.
type cluster struct {
	in     *ClusterIn
	index  int
	layout []spec.RankInfo
	seats  []*seat
	gone   bool
}

// seat is a rank's place.
type seat struct {
	node *node
	proc *process    // the one that has it
	lost *spec.Error // why nobody will, as heads know
	past []*process
}

// process is a worker.
type process struct {
	w       *world
	cluster *cluster
	rank    int
	number  uint32
	node    *node
	alive   bool
	link    *link  // nil: it has none
	lastOf  uint32 // the last head that knew what it had got

	received uint32
	mark     uint32
	legs     []*leg // got and not released, in order
	queue    []*leg // not begun
	running  int
	ran      []origin // in order
	last     map[uint32]uint64
	caller   *caller // itself as one
	ending   bool    // its cluster is gone, and so is the head that said so

	objects holding
}

type origin uint64

// leg is one rank's part of a call, at its worker.
type leg struct {
	seq      uint32
	id       call.ID
	inv      *invocation
	data     []int64
	named    []objectID // by its arguments
	made     []objectID // by its result
	begun    bool
	done     bool
	doomed   bool // cancelled before it began
	released bool
	value    []int64
	err      *spec.Error
	end      func(*spec.Error)
}

func (p *process) name() string { return fmt.Sprintf("%s-%d", p.cluster.in.Name, p.rank) }

// newProcess puts a process on a seat; it dials when it is up.
func (w *world) newProcess(c *cluster, rank int, number uint32) *process {
	n := c.seats[rank].node
	p := &process{w: w, cluster: c, rank: rank, number: number, node: n, alive: true, last: map[uint32]uint64{}, objects: holding{}}
	n.procs[number] = p
	return p
}

// dial has a process find the head, again and again as long as there is none.
func (p *process) dial(pause int64) {
	if !p.alive || p.link != nil {
		return
	}
	h := p.w.head
	if h == nil {
		p.w.after(pause, func() { p.dial(min(2*pause, 200*millisecond)) })
		return
	}
	l := p.w.newLink(uint64(p.number)<<8 | 1)
	p.link = l
	l.peerGone = func() {
		if p.link == l {
			p.link = nil
			p.dial(20 * millisecond)
		}
	}
	l.headGone = func() { h.workerGone(p.number, l) }
	back := p.snapshot()
	l.send(toHead, func() { h.workerBack(p, l, back) })
	for _, g := range p.legs {
		if g.done {
			p.sendResult(g, true)
		}
	}
	l.send(toHead, func() { h.workerResent(p) })
}

// workerBack is what a worker says when it comes back.
type workerBack struct {
	received uint32
	legs     []legBack
	objects  map[objectID]int
}

type legBack struct {
	seq    uint32
	id     call.ID
	origin uint64
}

func (p *process) snapshot() workerBack {
	b := workerBack{received: p.received, objects: p.objects.clone()}
	for _, g := range p.legs {
		b.legs = append(b.legs, legBack{g.seq, g.id, g.inv.origin()})
	}
	return b
}

// sendResult tells the head how a leg ended.
func (p *process) sendResult(g *leg, again bool) {
	if l := p.link; l != nil {
		h := p.w.head
		l.send(toHead, func() { h.result(p, g, again) })
	}
}

// receive takes a leg. Its link keeps the head's order.
func (p *process) receive(id call.ID, inv *invocation, data []int64, named []objectID, ack uint32) {
	p.w.rules.there(named, "a leg", inv)
	p.take(named)
	p.through(ack)
	p.received++
	g := &leg{seq: p.received, id: id, inv: inv, data: data, named: named}
	p.legs = append(p.legs, g)
	p.queue = append(p.queue, g)
	p.next()
}

// through drops the results that are acknowledged.
func (p *process) through(ack uint32) {
	if int32(ack-p.mark) <= 0 {
		return
	}
	p.mark = ack
	p.release(func(g *leg) bool { return int32(ack-g.seq) >= 0 })
}

func (p *process) release(which func(*leg) bool) {
	p.legs = slices.DeleteFunc(p.legs, func(g *leg) bool {
		if !which(g) {
			return false
		}
		if !g.done {
			g.released = true
			return false
		}
		p.w.rules.dropped(p, g)
		return true
	})
}

// next begins what may run.
func (p *process) next() {
	for p.alive && len(p.queue) > 0 && p.running < p.cluster.in.Limit {
		g := p.queue[0]
		p.queue = p.queue[1:]
		p.begin(g)
	}
}

// begin runs a leg.
func (p *process) begin(g *leg) {
	g.begun = true
	p.running++
	ended := false
	g.end = func(err *spec.Error) {
		if ended || !p.alive {
			return
		}
		ended = true
		p.running--
		p.finish(g, err)
		p.next()
	}
	if g.doomed {
		g.end(spec.Errorf(spec.CodeCancelled, "cancelled before it began"))
		return
	}
	p.w.rules.began(p, g)
	in := g.inv.in
	luck := p.w.luck(luckLeg, g.inv.origin(), uint64(p.rank))
	took := 50 + int64(luck>>16)%(3*millisecond)
	if luck%16 == 0 {
		took = int64(luck>>16) % (200 * millisecond)
	}
	switch {
	case in.Hangs == p.rank && g.inv.parent == 0: // far beyond any deadline
		p.w.after(hangs, func() { g.end(nil) })
	case in.Raises == p.rank && g.inv.parent == 0:
		p.w.after(took, func() { g.end(spec.Errorf(spec.CodeUser, "%s raised", p.name())) })
	case in.Nest != "" && g.inv.parent == 0:
		p.w.after(took, func() {
			if p.alive && !ended {
				p.nest(g)
			}
		})
	default:
		p.w.after(took, func() { g.end(nil) })
	}
}

// nest calls another cluster from within a leg, and waits for it.
func (p *process) nest(g *leg) {
	if p.caller == nil {
		p.caller = p.w.newCaller(p)
	}
	target := p.w.cluster(g.inv.in.Nest)
	inv := p.caller.invoke(&CallIn{
		Number: p.caller.next + 1, To: g.inv.in.Nest, Method: "all", Rows: 1, Raises: -1, Hangs: -1,
	}, target, g.id, p)
	inv.done = func() { g.end(inv.failed) }
}

// finish keeps a leg's result and tells it.
func (p *process) finish(g *leg, err *spec.Error) {
	g.done, g.err = true, err
	if err == nil {
		g.value = compute(g.inv.in.Method, p.rank, g.data)
		if p.rank < fewObjects { // every leg of a next call may name them all
			g.made = []objectID{p.w.makeObject(p.node)}
			p.take(g.made)
		}
	}
	p.w.rules.ended(p, g)
	if g.released {
		p.legs = slices.DeleteFunc(p.legs, func(o *leg) bool { return o == g })
	}
	p.sendResult(g, false)
	p.giveBack(append(g.made, g.named...))
}

// compute is what a rank makes of its arguments.
func compute(method string, rank int, data []int64) []int64 {
	if method == "rows" {
		out := make([]int64, len(data))
		for i, x := range data {
			out[i] = x*31 + 7
		}
		return out
	}
	digest := int64(rank + 1)
	for _, x := range data {
		digest = digest*1000003 + x
	}
	return []int64{digest}
}

// cancel ends a leg that listens to it.
func (p *process) cancel(id call.ID) {
	for _, g := range p.legs {
		switch {
		case g.id != id || g.done:
		case !g.begun:
			g.doomed = true
		case g.inv.in.Hangs == p.rank && g.inv.in.Deaf: // in C
		default:
			err := spec.Errorf(spec.CodeCancelled, "cancelled on %s", p.name())
			p.w.after(100, func() { g.end(err) })
		}
	}
}

// uncount takes back all that it knows of.
func (p *process) uncount() {
	for o, n := range p.objects {
		for range n {
			p.count([]objectID{o}, -1)
		}
	}
}

// die is the end of a process, which its agent sees.
func (p *process) die(told bool) {
	if !p.alive {
		return
	}
	p.alive, p.lastOf = false, p.w.epoch
	if h := p.w.head; h != nil && h.coming != nil && h.coming.backs[p.number] == nil {
		p.lastOf-- // what it had got is not known to this one
	}
	p.w.rules.died(p)
	delete(p.node.procs, p.number)
	p.uncount()
	p.link.hangUp()
	p.link = nil
	if p.caller != nil {
		p.caller.die()
	}
	if !told || !p.node.alive {
		return
	}
	p.node.exits = append(p.node.exits, p.number)
	if l := p.node.link; l != nil {
		h := p.w.head
		l.send(toHead, func() { h.exited(p.number, nil) })
	}
}

// die is the end of a node, with all that is on it; what the head is told comes
// from elsewhere.
func (n *node) die() {
	if !n.alive {
		return
	}
	n.alive = false
	for _, p := range sortedProcs(n.procs) {
		p.die(false)
	}
	n.link.hangUp()
	n.link = nil
	n.w.after(5*millisecond+int64(n.w.luck(luckNotice, uint64(n.index)))&0xffff, n.tellLost)
}

// tellLost is the backend's word that a node is no more.
func (n *node) tellLost() {
	if n.w.head == nil {
		n.w.after(50*millisecond, n.tellLost)
		return
	}
	n.told = true
	n.w.head.nodeLost(n)
}

// dial has an agent find the head.
func (n *node) dial(pause int64) {
	if !n.alive || n.link != nil {
		return
	}
	h := n.w.head
	if h == nil {
		n.w.after(pause, func() { n.dial(min(2*pause, 200*millisecond)) })
		return
	}
	l := n.w.newLink(uint64(n.index)<<8 | 2)
	n.link = l
	l.peerGone = func() {
		if n.link == l {
			n.link = nil
			n.dial(20 * millisecond)
		}
	}
	l.headGone = func() { h.agentGone(n, l) }
	exits, procs := slices.Clone(n.exits), sortedProcs(n.procs)
	l.send(toHead, func() { h.agentBack(n, l, procs, exits) })
}

func sortedProcs(procs map[uint32]*process) []*process {
	all := make([]*process, 0, len(procs))
	for _, p := range procs {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *process) int { return int(a.number) - int(b.number) })
	return all
}
