package sim

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
)

// Every result lies in the store of its node. Who is told of it is counted by the
// head, and gives it back when done with it.

// objectID is where the result of a leg lies.
type objectID = lease.Object

// resumer holds everything until a new head knows who has what.
const resumer = lease.Holder(1<<62 | 1)

// fewObjects is how many ranks of a cluster make objects.
const fewObjects = 16

// makeObject puts a result into the store of a node.
func (w *world) makeObject(n *node) objectID {
	w.objects++
	o := objectID(uint64(n.index)<<48 | w.objects)
	w.stored[o] = false
	return o
}

// holding is what a process knows of, as often as the head counts it.
type holding map[objectID]int

func (h holding) add(objects []objectID) {
	for _, o := range objects {
		h[o]++
	}
}

func (h holding) clone() map[lease.Object]int {
	all := make(map[lease.Object]int, len(h))
	for o, n := range h {
		all[o] = n
	}
	return all
}

// drop takes one count of each object back and says which those were.
func (h holding) drop(objects []objectID) []objectID {
	var given []objectID
	for _, o := range objects {
		if h[o] > 0 {
			given = append(given, o)
			if h[o]--; h[o] == 0 {
				delete(h, o)
			}
		}
	}
	return given
}

// take has a worker know of objects.
func (p *process) take(objects []objectID) {
	p.objects.add(objects)
	p.count(objects, 1)
}

// count is for the rules: what a process that is being ended knows of counts for
// nothing to a head that did not see it begin to end.
func (p *process) count(objects []objectID, by int) {
	for _, o := range objects {
		if !p.ending {
			p.w.inHand[o] += by
		}
	}
}

// giveBack tells the head what a worker does not know of any more.
func (p *process) giveBack(objects []objectID) {
	given := p.objects.drop(objects)
	p.count(given, -1)
	if l := p.link; l != nil && len(given) > 0 {
		h := p.w.head
		l.send(toHead, func() { h.workerReleases(p, given) })
	}
}

// keepFor has a caller hold what an answer named for a while, and as long as calls
// that name it are not answered.
func (c *caller) keepFor(objects []objectID, luck uint64) {
	c.objects.add(objects)
	c.use(objects, 1)
	c.w.after(int64(luck%uint64(100*millisecond)), func() { c.use(objects, -1) })
}

// use counts what a caller still needs.
func (c *caller) use(objects []objectID, by int) {
	var given []objectID
	for _, o := range objects {
		if c.uses[o] += by; c.uses[o] == 0 {
			delete(c.uses, o)
			for range c.objects[o] {
				given = append(given, o)
			}
			delete(c.objects, o)
		}
	}
	if l := c.link; l != nil && c.alive && len(given) > 0 {
		h, ack := c.w.head, c.read
		l.send(toHead, func() { h.callerReleases(c, given, ack) })
	}
}

func (h *head) workerReleases(p *process, given []objectID) {
	if h.coming != nil {
		h.coming.results = append(h.coming.results, func() { h.workerReleases(p, given) })
		return
	}
	for _, o := range given {
		h.leases.Release(lease.Worker(p.number), o, 1)
	}
	h.tellStores()
}

func (h *head) callerReleases(c *caller, given []objectID, ack uint32) {
	who := h.callers[c.number]
	if who == nil || who.gone {
		return
	}
	if h.coming != nil {
		who.late = append(who.late, late{do: func() { h.callerReleases(c, given, ack) }})
		return
	}
	h.acked(c, ack)
	for _, o := range given {
		h.leases.Release(lease.Caller(c.number), o, 1)
	}
	h.tellStores()
}

// holdFor has a call hold objects until it is forgotten.
func (h *head) holdFor(c *call.Call, objects []objectID) {
	for _, o := range objects {
		c.Leased = true
		h.leases.Once(lease.Call(uint64(c.ID)), o)
	}
}

// sent counts objects for who is told of them, each once a frame.
func (h *head) sent(to lease.Holder, objects []objectID) []objectID {
	objects = slices.Compact(slices.Sorted(slices.Values(objects)))
	for _, o := range objects {
		h.leases.Add(to, o)
	}
	return objects
}

// tellStores frees what nobody knows of any more.
func (h *head) tellStores() {
	if h.coming != nil || !h.leases.Changed() {
		return
	}
	fresh, _, freed := h.leases.Changes()
	for _, o := range fresh {
		if _, there := h.w.stored[o]; there {
			h.w.stored[o] = true
		}
	}
	for _, o := range freed {
		h.w.rules.freed(o)
		delete(h.w.stored, o)
	}
}

// freed: an object is let go of.
func (r *rules) freed(o objectID) {
	for _, c := range r.w.callers {
		if c.alive && c.objects[o] > 0 {
			r.brk("objects stay while somebody knows of them", "%x, which caller %d has", uint64(o), c.number)
		}
	}
	if r.w.inHand[o] > 0 {
		r.brk("objects stay while somebody knows of them", "%x, which a worker has", uint64(o))
	}
	delete(r.w.inHand, o)
}

// there: what a leg or an answer names can be read, unless its node is gone.
func (r *rules) there(objects []objectID, what string, inv *invocation) {
	for _, o := range objects {
		if _, there := r.w.stored[o]; !there && r.w.nodes[o.Node()].alive {
			r.brk("what is named is there", "%s of call %d of caller %d names %x", what, inv.id, inv.caller.number, uint64(o))
		}
	}
}
