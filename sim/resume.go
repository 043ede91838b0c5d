package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
)

// coming is a head that was started after another, until all that the other knew
// have told it what they have.
type coming struct {
	nodes   map[int]bool // agents that are not back
	backs   map[uint32]*workerBack
	resent  map[uint32]bool // workers that have told all
	exits   map[uint32]*spec.Error
	callers []*caller    // that are waited for
	calls   []comingCall // as they came
	results []func()
}

// comingCall is a call that was sent again, or an answer that was given back.
type comingCall struct {
	who  *client
	inv  *invocation
	left int64
	put  func()
}

// drop forgets what a caller said, which says it again or is gone.
func (b *coming) drop(who *client) {
	b.calls = slices.DeleteFunc(b.calls, func(c comingCall) bool { return c.who == who })
}

// newHead starts a head: the first, or one that reads what the last one wrote down.
func (w *world) newHead() {
	w.epoch++
	h := &head{w: w, epoch: w.epoch, table: call.NewTable(w.epoch), workers: map[uint32]*worker{}, callers: map[uint32]*client{}}
	w.head = h
	w.tell("a head, number %d", h.epoch)
	for _, n := range w.nodes {
		h.nodes = append(h.nodes, &agentOf{node: n})
	}
	for _, c := range w.clusters {
		cl := &call.Cluster{Number: uint32(c.index), Name: c.in.Name}
		h.clusters = append(h.clusters, cl)
		h.note("cluster %s %d%s", cl.Name, len(c.seats), map[bool]string{true: " serial", false: ""}[c.in.Limit == 1])
		for rank, s := range c.seats {
			cw := h.seat(cl, s, s.proc)
			cl.Workers[rank].Dead = s.lost
			if w.epoch == 1 {
				s.proc.dialInto(h, cw)
			}
		}
		if c.gone {
			for _, s := range c.seats {
				if s.proc.alive {
					s.proc.uncount()
					s.proc.ending = true
				}
			}
			h.table.ClusterGone(cl, spec.Errorf(spec.CodeNotFound, "%s is no more", cl.Name))
		}
	}
	if w.epoch > 1 {
		h.coming = &coming{nodes: map[int]bool{}, backs: map[uint32]*workerBack{}, resent: map[uint32]bool{}, exits: map[uint32]*spec.Error{}}
		for _, n := range w.nodes {
			if n.alive {
				h.coming.nodes[n.index] = true
			} else if n.told {
				w.after(millisecond, func() { h.nodeLost(n) })
			}
		}
		for _, c := range w.callers {
			if c.joined && c.alive {
				h.coming.callers = append(h.coming.callers, c)
			}
		}
		w.after(headGrace, func() { h.settle(true) })
	}
	for _, n := range w.nodes {
		if w.epoch == 1 {
			n.dial(0)
		}
	}
}

// seat makes the worker of a rank, as calls see it.
func (h *head) seat(cl *call.Cluster, s *seat, p *process) *worker {
	w := &worker{seat: s, proc: p, Worker: &call.Worker{
		Rank: p.rank, Cluster: cl, Serial: p.cluster.in.Limit == 1, Number: p.number, Name: p.name(), Node: fmt.Sprint("node-", p.node.index),
	}}
	h.workers[p.number] = w
	if p.rank == len(cl.Workers) {
		cl.Workers = append(cl.Workers, w.Worker)
	}
	return w
}

// dialInto has a process begin its life with a head that waits for it.
func (p *process) dialInto(h *head, w *worker) {
	l := p.w.newLink(uint64(p.number)<<8 | 1)
	p.link, w.link = l, l
	l.peerGone = func() {
		if p.link == l {
			p.link = nil
			p.dial(20 * millisecond)
		}
	}
	l.headGone = func() { h.workerGone(p.number, l) }
}

// kill ends the head without a word, and starts another one later.
func (w *world) kill(later int64) {
	h := w.head
	if h == nil {
		return
	}
	w.tell("the head is killed")
	h.dead = true
	w.head = nil
	for _, c := range w.callers {
		c.link.end()
	}
	for _, n := range w.nodes {
		n.link.end()
		for _, p := range sortedProcs(n.procs) {
			p.link.end()
		}
	}
	w.after(later, w.newHead)
}

// settle puts the calls together when all are back, or the grace is over.
func (h *head) settle(late bool) {
	b := h.coming
	if b == nil || h.dead || !late && !h.complete() {
		return
	}
	for o, held := range h.w.stored {
		if held {
			h.leases.Add(resumer, o)
		}
	}
	back := h.table.Comeback()
	for _, cl := range h.clusters {
		for _, cw := range cl.Workers {
			told := b.backs[cw.Number]
			w := h.workers[cw.Number]
			ended := b.exits[cw.Number] != nil
			if ended {
				h.table.WorkerDying(cw)
			}
			if cw.Dead != nil || ended && told == nil {
				continue
			}
			if told == nil || w.link == nil && !ended {
				h.w.rules.brk("who lives comes back", "%s is not back after the grace", w.Name)
			}
			h.leases.Replace(lease.Worker(cw.Number), told.objects)
			back.Received(cw, told.received)
			h.note("received %s/%d %d", cl.Name, cw.Rank, told.received)
			for _, g := range told.legs {
				back.Got(cw, g.seq, g.id, g.origin)
				h.note("got %s/%d %d %d", cl.Name, cw.Rank, g.seq, g.origin&0xffffffff)
			}
		}
	}
	type deadline struct {
		call *call.Call
		left int64
	}
	type heldCall struct {
		call  *call.Call
		named []objectID
	}
	var held []heldCall
	var deadlines []deadline
	for _, c := range h.w.callers {
		if who := h.callers[c.number]; who != nil && !who.gone {
			h.leases.Replace(lease.Caller(c.number), who.told)
		}
	}
	for _, c := range b.calls {
		if c.put != nil {
			c.put()
			continue
		}
		r, _ := h.request(c.inv)
		if err := h.w.lost[c.inv.origin()]; err != nil {
			back.Refused(r)
			made := h.table.PutAnswer(r.Caller, r.CallerID, -1, call.Result{Err: err}) // for those that name it
			h.answer(c.who, answer{id: c.inv.id, rank: -1, err: err, call: made})
			continue
		}
		h.note("again %d %s", c.inv.label(), c.inv.words())
		made := back.Call(r)
		held = append(held, heldCall{made, c.inv.named})
		deadlines = append(deadlines, deadline{made, c.left})
	}
	h.coming = nil
	h.note("settle")
	h.w.tell("head %d settles: %d calls", h.epoch, len(b.calls))
	ops := slices.Clone(back.Prepare(func(number uint32) bool {
		who := h.callers[number]
		return who != nil && !who.gone
	}, func(c *call.Call) { c.Data = &pending{} }))
	for _, k := range held {
		h.holdFor(k.call, k.named)
	}
	h.orders(ops)
	for _, result := range b.results {
		result()
	}
	h.endCalls()
	for _, cl := range h.clusters {
		for _, cw := range slices.Clone(cl.Workers) {
			if why := b.exits[cw.Number]; why != nil {
				h.exited(cw.Number, why)
			}
		}
	}
	h.orders(back.Go())
	for _, d := range deadlines {
		h.deadline(d.call, d.left)
	}
	h.leases.End(resumer)
	defer h.tellStores()
	for _, c := range h.w.callers {
		who := h.callers[c.number]
		if who == nil {
			continue
		}
		if who.resent {
			h.unput(who)
		}
		late := who.late
		who.late = nil
		for _, l := range late {
			l.do()
		}
	}
}

// endCalls cancels what its caller wants no more, before anything is sent.
func (h *head) endCalls() {
	for _, c := range h.w.callers {
		who := h.callers[c.number]
		if who == nil {
			continue
		}
		who.late = slices.DeleteFunc(who.late, func(l late) bool {
			known := l.ends > 0 && h.table.FindCaller(c.number, l.ends) != nil
			if known {
				l.do()
			}
			return known
		})
	}
}

// complete says that everybody is back who lives.
func (h *head) complete() bool {
	b := h.coming
	if len(b.nodes) > 0 {
		return false
	}
	for _, cl := range h.clusters {
		for _, cw := range cl.Workers {
			if cw.Dead == nil && b.exits[cw.Number] == nil && (!b.resent[cw.Number] || h.workers[cw.Number].link == nil) {
				return false
			}
		}
	}
	for _, c := range b.callers {
		if who := h.callers[c.number]; who == nil || !who.gone && !who.resent {
			return false
		}
	}
	return true
}

// build makes what there is from the start.
func (w *world) build() {
	s := w.script
	var nodes []spec.Node
	for i := range s.Nodes {
		n := spec.Node{Index: i, Name: fmt.Sprint("node-", i)}
		for d := range s.PerNode {
			n.Devices = append(n.Devices, spec.Device{Index: d, Kind: "virtual"})
		}
		nodes = append(nodes, n)
		w.nodes = append(w.nodes, &node{w: w, index: i, alive: true, procs: map[uint32]*process{}})
	}
	pool, err := placement.Reserve(nodes, nil, placement.Ask{PerNode: s.PerNode, Nodes: s.Nodes})
	w.rules.must(err)
	for i := range s.Clusters {
		in := &s.Clusters[i]
		c := &cluster{in: in, index: i}
		ask := spec.Cluster{Name: in.Name, World: in.World, HasMapping: true, Shape: spec.Shape{TP: in.TP}, DevicesPerWorker: 1}
		for r := range in.World { // wherever the others are: devices may be shared
			ask.Mapping = append(ask.Mapping, int(w.luck(luckNotice, uint64(i)))&0xff%max(1, s.Nodes*s.PerNode-in.World+1)+r)
		}
		plan, err := placement.Place(pool, ask)
		w.rules.must(err)
		w.rules.placed(&plan, ask)
		for rank := range plan.Workers {
			at := &plan.Workers[rank]
			w.workers++
			st := &seat{node: w.nodes[at.Node]}
			c.seats = append(c.seats, st)
			c.layout = append(c.layout, at.Info)
			st.proc = w.newProcess(c, rank, w.workers)
		}
		w.clusters = append(w.clusters, c)
	}
	for range s.Callers {
		c := &caller{w: w, number: uint32(len(w.callers) + 1), alive: true, joined: true, all: map[uint64]*invocation{}, objects: holding{}, uses: map[objectID]int{}}
		w.callers = append(w.callers, c)
		w.after(0, func() { c.dial(20 * millisecond) })
	}
}

func (w *world) cluster(name string) *cluster {
	for _, c := range w.clusters {
		if c.in.Name == name {
			return c
		}
	}
	return nil
}

// input lets something happen from outside.
func (w *world) input(in *Input) {
	w.tell("%s", in.text())
	switch {
	case in.Do == "call":
		if c := w.callers[in.Call.By-1]; c.alive {
			c.invoke(&in.Call, w.cluster(in.Call.To), 0, nil)
		}
	case in.Do == "cancel":
		for _, c := range w.callers[:w.script.Callers] {
			if c.all[in.Call.Number] != nil {
				c.cancel(in.Call.Number, in.Kill)
			}
		}
	case in.What == "head":
		later, _ := strconv.ParseInt(in.Name, 10, 64)
		w.kill(later)
	case in.What == "cluster":
		w.stop(w.cluster(in.Name))
	case in.What == "worker":
		name, rank, _ := strings.Cut(in.Name, "/")
		n, _ := strconv.Atoi(rank)
		p := w.cluster(name).seats[n].proc
		if in.Do == "kill" {
			p.die(true)
		} else {
			p.link.end()
		}
	default:
		n, _ := strconv.Atoi(in.Name)
		switch in.Do + " " + in.What {
		case "cut node":
			w.nodes[n].cut()
		case "kill node":
			w.nodes[n].die()
		case "cut caller":
			w.callers[n-1].link.end()
		case "kill caller":
			w.callers[n-1].die()
		case "leave caller":
			w.callers[n-1].leave()
		}
	}
}

// cut cuts all that goes through a node's agent.
func (n *node) cut() {
	n.link.end()
	for _, p := range sortedProcs(n.procs) {
		p.link.end()
		if p.caller != nil {
			p.caller.link.end()
		}
	}
}

// stop ends a cluster in order.
func (w *world) stop(c *cluster) {
	h := w.head
	if h == nil || h.coming != nil || c.gone {
		return // asked again by its caller, in life
	}
	c.gone = true
	h.note("gone %s", c.in.Name)
	h.orders(h.table.ClusterGone(h.clusters[c.index], spec.Errorf(spec.CodeWorkerDied, "%s is no more", c.in.Name)))
	for _, s := range c.seats {
		p := s.proc
		s.lost = spec.Errorf(spec.CodeWorkerDied, "%s is no more", c.in.Name)
		h.agent(s.node, func() { p.die(true) })
	}
	h.tellStores()
}

func itoa(n int) string { return strconv.Itoa(n) }

func ranksOf(workers []*call.Worker) string {
	var ranks []int
	for _, w := range workers {
		ranks = append(ranks, w.Rank)
	}
	return list(ranks)
}
