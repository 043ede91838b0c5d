package sim

import (
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
)

// callerBack: a caller is there, new or again.
func (h *head) callerBack(c *caller, l *link, answers uint32, objects map[objectID]int) {
	who := h.callers[c.number]
	if who == nil {
		who = &client{caller: c}
		h.callers[c.number] = who
	}
	if who.gone {
		return
	}
	who.link = l
	if h.coming != nil {
		if who.resent { // it was cut again meanwhile
			who.resent, who.late = false, nil
		}
		h.coming.drop(who)
		who.answers, who.told = answers, objects
		return
	}
	h.acked(c, answers)
	for _, a := range who.kept {
		for _, o := range a.objects {
			objects[o]++
		}
		h.sendAnswer(who, a)
	}
	h.leases.Replace(lease.Caller(c.number), objects)
	h.tellStores()
}

// put takes an answer that a caller gives back, for calls that name it.
func (h *head) put(c *caller, id uint64, a answer) {
	who := h.callers[c.number]
	if who == nil || who.gone {
		return
	}
	if h.coming != nil && who.resent {
		who.late = append(who.late, late{do: func() { h.put(c, id, a) }})
		return
	}
	if h.coming != nil {
		h.coming.calls = append(h.coming.calls, comingCall{who: who, put: func() { h.putNow(who, id, a) }})
		return
	}
	h.putNow(who, id, a)
}

func (h *head) putNow(who *client, id uint64, a answer) {
	r := call.Result{Bufs: value{a.value, a.objects}, Err: a.err}
	if made := h.table.PutAnswer(who.caller.number, id, a.rank, r); made != nil {
		var there []objectID // of what was let go of, the rows are all there is here
		for _, o := range a.objects {
			if h.leases.Has(o) {
				there = append(there, o)
			}
		}
		h.holdFor(made, there)
		who.puts = append(who.puts, made)
	}
}

// callerResent: a caller that came back has sent all that it keeps.
func (h *head) callerResent(c *caller) {
	who := h.callers[c.number]
	if who == nil || who.gone {
		return
	}
	if h.coming != nil {
		who.resent = true
		h.settle(false)
		return
	}
	h.unput(who)
}

// unput lets go of answers that were given back, once those are here that name
// them.
func (h *head) unput(who *client) {
	puts := who.puts
	who.puts = nil
	for _, made := range puts {
		h.orders(h.table.Acked(made))
	}
}

// callerCut: its connection has ended, and it may be back.
func (h *head) callerCut(c *caller, l *link) {
	if who := h.callers[c.number]; who != nil && who.link == l {
		who.link = nil
	}
}

// callerGone: it is not coming back.
func (h *head) callerGone(c *caller) {
	if h.dead {
		return
	}
	who := h.callers[c.number]
	if who == nil {
		who = &client{caller: c}
		h.callers[c.number] = who
	}
	if who.gone {
		return
	}
	c.over = true
	who.gone, who.kept, who.link = true, nil, nil
	if h.coming != nil {
		h.coming.drop(who)
		h.settle(false)
		return
	}
	h.note("callergone")
	who.puts = nil
	h.orders(h.table.CallerGone(c.number))
	h.leases.End(lease.Caller(c.number))
	h.tellStores()
}

// workerBack: a worker is there, new or again.
func (h *head) workerBack(p *process, l *link, back workerBack) {
	w := h.workers[p.number]
	if h.dead || w == nil || w.Dead != nil || w.Down != nil {
		return
	}
	if w.link != nil && h.coming == nil {
		h.table.WorkerDying(w.Worker) // the old connection's end was not seen yet
	}
	w.link = l
	if h.coming != nil {
		h.coming.backs[p.number] = &back
		return
	}
	h.leases.Replace(lease.Worker(p.number), back.objects)
	h.note("returned %s/%d %d", w.Cluster.Name, w.Rank, back.received)
	h.orders(h.table.Returned(w.Worker, back.received))
	h.tellStores()
}

// workerResent: a worker that came back has told all that it has.
func (h *head) workerResent(p *process) {
	if h.coming != nil && h.workers[p.number] != nil {
		h.coming.resent[p.number] = true
		h.settle(false)
	}
}

// workerGone: its connection has ended.
func (h *head) workerGone(number uint32, l *link) {
	w := h.workers[number]
	if h.dead || w == nil || w.link != l {
		return
	}
	w.link = nil
	if h.coming != nil {
		delete(h.coming.resent, number)
		return
	}
	h.note("dying %s/%d", w.Cluster.Name, w.Rank)
	h.table.WorkerDying(w.Worker)
}

// exited is an agent's word on a worker's end.
func (h *head) exited(number uint32, why *spec.Error) {
	w := h.workers[number]
	if h.dead || w == nil {
		return
	}
	if h.coming == nil {
		defer h.tellStores()
		defer h.leases.End(lease.Worker(number))
	}
	if w.Dead != nil || w.Down != nil {
		return
	}
	if why == nil {
		why = spec.Errorf(spec.CodeWorkerDied, "%s died", w.Name)
	}
	w.link = nil
	switch {
	case h.coming != nil: // it is lost once all is settled; what it has told counts
		h.coming.exits[number] = why
		h.settle(false)
	case h.restarts(w):
		h.restart(w, why)
	default:
		w.seat.lost = why
		h.note("lost %s/%d", w.Cluster.Name, w.Rank)
		h.orders(h.table.WorkerLost(w.Worker, why))
	}
}

// nodeLost is the word on a node's end.
func (h *head) nodeLost(n *node) {
	if h.dead {
		return
	}
	h.nodes[n.index].link = nil
	for _, cl := range h.clusters {
		for _, cw := range cl.Workers {
			if w := h.workers[cw.Number]; w != nil && w.seat.node == n {
				h.exitedFor(w, spec.Errorf(spec.CodeNodeLost, "node-%d is lost, with %s", n.index, w.Name))
			}
		}
	}
	if h.coming != nil {
		delete(h.coming.nodes, n.index)
		h.settle(false)
	}
}

// exitedFor is exited for a worker whose seat nobody can take any more.
func (h *head) exitedFor(w *worker, why *spec.Error) {
	if w.Down != nil { // its next process would have been there
		w.seat.lost = why
		h.note("lost %s/%d", w.Cluster.Name, w.Rank)
		h.orders(h.table.WorkerLost(w.Worker, why))
		return
	}
	h.exited(w.Number, why)
}

// agentBack: an agent is there, new or again.
func (h *head) agentBack(n *node, l *link, procs []*process, exits []uint32) {
	a := h.nodes[n.index]
	a.link = l
	for _, e := range a.box {
		a.ask(e)
	}
	for _, number := range exits {
		h.exited(number, nil)
	}
	if h.coming == nil {
		return
	}
	delete(h.coming.nodes, n.index)
	for _, p := range procs {
		if h.workers[p.number] == nil || p.cluster.gone {
			h.agent(n, func() { p.die(true) }) // it was being started, or ended
		}
	}
	h.settle(false)
}

// agentGone: an agent's connection has ended; it may be back.
func (h *head) agentGone(n *node, l *link) {
	if a := h.nodes[n.index]; a.link == l {
		a.link = nil
	}
}

// restarts says that another process is to take a worker's place.
func (h *head) restarts(w *worker) bool {
	c := w.seat
	return h.w.clusters[w.Cluster.Number].in.OnFailure != "" && c.node.alive && !h.w.clusters[w.Cluster.Number].gone
}

// restart has other processes take the places of one, or of all of its cluster.
func (h *head) restart(w *worker, why *spec.Error) {
	c := h.w.clusters[w.Cluster.Number]
	down := []*call.Worker{w.Worker}
	name := "one"
	if c.in.OnFailure == "restart_cluster" {
		down, name = nil, "all"
		for _, cw := range w.Cluster.Workers {
			other := h.workers[cw.Number]
			if cw.Dead != nil || !other.seat.node.alive { // it cannot be whole again
				w.seat.lost = why
				h.note("lost %s/%d", w.Cluster.Name, w.Rank)
				h.orders(h.table.WorkerLost(w.Worker, why))
				return
			}
			if cw.Down == nil {
				down = append(down, cw)
			}
		}
	}
	// Whoever asks for one of these again, of the next head, is to be told the same.
	known := h.table.Open()
	for _, c := range h.w.callers {
		if who := h.callers[c.number]; who != nil {
			for _, a := range who.kept {
				if a.call != nil {
					known = append(known, a.call)
				}
			}
		}
	}
	for _, cw := range down {
		for _, c := range known {
			if leg := c.LegOf(cw); leg >= 0 && c.Legs[leg].Out && !c.Idempotent {
				h.w.lost[c.Origin()] = why
			}
		}
	}
	h.note("down %s/%s", w.Cluster.Name, map[bool]string{true: "all", false: itoa(w.Rank)}[name == "all"])
	h.orders(h.table.WorkersDown(down, why))
	var fresh []*process
	for _, cw := range down {
		old := h.workers[cw.Number]
		old.link = nil
		p := old.proc
		h.agent(old.seat.node, func() { p.die(true) })
		h.w.workers++
		fresh = append(fresh, h.w.newProcess(c, cw.Rank, h.w.workers))
	}
	h.w.after(30*millisecond, func() { h.replace(w.Cluster, down, fresh) })
}

// replace seats new processes when they are up, and their ranks still free.
func (h *head) replace(cl *call.Cluster, down []*call.Worker, fresh []*process) {
	if h.dead {
		return
	}
	for _, old := range down { // a rank has one process at a time
		if h.workers[old.Number].proc.alive {
			h.w.after(5*millisecond, func() { h.replace(cl, down, fresh) })
			return
		}
	}
	var seated []*call.Worker
	for i, p := range fresh {
		if down[i].Down == nil || !p.alive {
			p.die(false)
			continue
		}
		seat := h.w.clusters[cl.Number].seats[p.rank]
		seat.past = append(seat.past, seat.proc)
		seat.proc = p
		w := h.seat(cl, seat, p)
		seated = append(seated, w.Worker)
		p.dialInto(h, w)
	}
	if len(seated) == 0 {
		return
	}
	h.note("replace %s/%s", cl.Name, ranksOf(seated))
	h.orders(h.table.Replace(seated))
}
