package head

import (
	"slices"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// objectsOf appends the objects that bufs name, each once.
func objectsOf(dst []lease.Object, bufs []wire.Buf) []lease.Object {
	for i := range bufs {
		if o := lease.Object(bufs[i].Object); o != 0 && !slices.Contains(dst, o) {
			dst = append(dst, o)
		}
	}
	return dst
}

// arrivedLocked takes note of the references in a frame that a process sent: of
// what it made it holds a part itself, and the call that they belong to holds
// them all. A holder of 0 is one whose process has ended.
func (h *Head) arrivedLocked(from, call lease.Holder, bufs []wire.Buf) {
	for i := range bufs {
		b := &bufs[i]
		if b.Object == 0 {
			continue
		}
		o := lease.Object(b.Object)
		ref, _ := b.Ref()
		made := b.TakeNew()
		if made && from != 0 {
			h.leases.Add(from, o)
		}
		if call != 0 {
			h.leases.Once(call, o)
		}
		if made {
			h.leases.Place(o, ref.Segment)
		}
		if made && from == 0 && call == 0 && h.resuming == nil {
			// It is told again, of a call that nobody waits for: its store may have made it
			// while there was no head, and hears from nobody else that it can go. While
			// others are waited for, nobody knows yet who has it (countObjectsLocked).
			h.leases.Add(resumeHolder, o)
			h.leases.Release(resumeHolder, o, 1)
		}
	}
}

// namedLocked takes note of the references in a worker's result.
func (h *Head) namedLocked(w *worker, f *wire.Frame) {
	holder := lease.Holder(0)
	if c := h.table.Find(call.ID(f.ID)); c != nil && c.Unread() && c.LegOf(&w.Worker) >= 0 {
		c.Leased = true
		holder = lease.Call(f.ID)
	}
	from := w.holder()
	if f.Flags&wire.FlagAgain != 0 || h.resuming != nil {
		from = 0 // it has told what it knows of, or is lost and not counted
	}
	h.arrivedLocked(from, holder, f.Bufs)
}

// sentLocked takes note of the references in a frame that goes to a process.
func (h *Head) sentLocked(to lease.Holder, bufs []wire.Buf) {
	if !wire.HasRefs(bufs) {
		return
	}
	h.objects = objectsOf(h.objects[:0], bufs)
	for _, o := range h.objects {
		h.leases.Add(to, o)
	}
}

// lentLocked is sentLocked for a leg: its worker may read the objects where they
// lie, without a word with the store, until it gives that back.
func (h *Head) lentLocked(to lease.Holder, bufs []wire.Buf) {
	if !wire.HasRefs(bufs) {
		return
	}
	h.sentLocked(to, bufs)
	counted := h.objects // in the order of bufs; each is one count, and one loan
	for i := range bufs {
		b := &bufs[i]
		o := lease.Object(b.Object)
		first := len(counted) > 0 && counted[0] == o
		if first {
			counted = counted[1:]
		}
		switch {
		case o == 0 || !h.lendableLocked(to, o):
		case first:
			b.SetSegment(h.leases.Lend(to, o))
		default:
			b.SetSegment(h.leases.Where(o))
		}
	}
}

// movingLocked: a store is about to spill an object. Whoever was lent it is told
// to the store before this answer.
func (n *node) movingLocked(o lease.Object, b *batch) {
	n.h.leases.Move(o)
	n.h.tellLoansLocked(b)
	n.noticeLocked("objects", &wire.Objects{Moved: []uint64{uint64(o)}}, b)
}

// release takes a Notice of what a process does not know of any more.
func (h *Head) release(from lease.Holder, body []byte, b *batch) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.releasedLocked(from, body); err != nil {
		return err
	}
	h.tellStoresLocked(b)
	return nil
}

func (h *Head) releasedLocked(from lease.Holder, body []byte) error {
	var r wire.Releases
	if err := parse("release", &r, body); err != nil {
		return err
	}
	for _, o := range r.Lent {
		h.leases.Unlend(from, lease.Object(o.Object), o.Count)
	}
	for _, o := range r.Objects {
		h.leases.Release(from, lease.Object(o.Object), o.Count)
	}
	return nil
}

// endedLocked drops all that a process knew of, and what it made, in the store of
// its node, and told nobody of.
func (h *Head) endedLocked(holder lease.Holder, node int, b *batch) {
	if r := h.resuming; r != nil { // others may have what its store was never told to hold
		r.ended = append(r.ended, endedOn{holder, node})
		return
	}
	h.leases.End(holder)
	h.tellStoresLocked(b)
	if node < len(h.nodes) {
		h.nodes[node].noticeLocked("objects", &wire.Objects{Gone: []uint64{uint64(holder)}}, b)
	}
}

// loanWait is how long a loan may last before its store hears of it: a store needs
// to know of loans to show them, and asks before it spills what may be lent. Most
// end with a leg's answer, and cost it nothing.
const loanWait = 20 * time.Millisecond

// tellStoresLocked passes on what changed, loans after a while.
func (h *Head) tellStoresLocked(b *batch) {
	if h.leases.Changed() {
		h.tellLocked(nil, b)
	}
	if !h.leases.Lending() || h.lending {
		return
	}
	h.lending = true
	if b.lane != nil {
		b.lane.Later(loanWait, h.tellLoans)
	} else {
		time.AfterFunc(loanWait, h.tellLoans)
	}
}

func (h *Head) tellLoans() {
	var b batch
	h.mu.Lock()
	h.lending = false
	h.tellLoansLocked(&b)
	h.mu.Unlock()
	b.flush()
}

// tellLoansLocked passes on all that changed.
func (h *Head) tellLoansLocked(b *batch) {
	if loans := h.leases.Loans(); len(loans) > 0 || h.leases.Changed() {
		h.tellLocked(loans, b)
	}
}

func (h *Head) tellLocked(loans []lease.Lent, b *batch) {
	fresh, ended, freed := h.leases.Changes()
	idle := false // a node that stayed for what is freed
	for _, o := range fresh {
		if n := h.touchLocked(o); n != nil {
			n.told.Hold = append(n.told.Hold, uint64(o))
		}
	}
	for _, l := range ended {
		if n := h.touchLocked(l.Object); n != nil {
			n.told.Lent = append(n.told.Lent, wire.Lent{Object: uint64(l.Object), Holder: uint64(l.Holder), Count: -1})
		}
	}
	for _, l := range loans {
		if n := h.touchLocked(l.Object); n != nil {
			n.told.Lent = append(n.told.Lent, wire.Lent{Object: uint64(l.Object), Holder: uint64(l.Holder), Count: 1})
		}
	}
	for _, o := range freed {
		if n := h.touchLocked(o); n != nil {
			n.told.Drop = append(n.told.Drop, uint64(o))
		}
		h.dropCopiesLocked(o)
		idle = idle || o.Node() < len(h.nodes) && h.nodes[o.Node()].idle
	}
	if idle {
		h.letIdleGoLocked()
	}
	for i, n := range h.touched {
		n.noticeLocked("objects", &n.told, b)
		n.told.Hold, n.told.Lent, n.told.Drop = n.told.Hold[:0], n.told.Lent[:0], n.told.Drop[:0]
		h.touched[i] = nil
	}
	h.touched = h.touched[:0]
}

// touchLocked is the node of an object, which is to be told something.
func (h *Head) touchLocked(o lease.Object) *node { return h.tellingLocked(o.Node()) }

// tellingLocked is a node that is to be told something.
func (h *Head) tellingLocked(node int) *node {
	if node >= len(h.nodes) {
		return nil // of a name that no store gave
	}
	n := h.nodes[node]
	if len(n.told.Hold)+len(n.told.Lent)+len(n.told.Drop) == 0 {
		h.touched = append(h.touched, n)
	}
	return n
}

// noticeLocked queues a notice to an agent, if it is there.
func (n *node) noticeLocked(verb string, notice marshaler, b *batch) {
	if n.lost != nil {
		return
	}
	if n.conn == nil {
		if m, ok := notice.(*wire.Objects); ok { // the rest it is told anew when it is back
			n.owed.Drop = append(n.owed.Drop, m.Drop...)
			n.owed.Gone = append(n.owed.Gone, m.Gone...)
		}
		return
	}
	body, err := wire.AppendVerb(b.body[:0], verb, notice)
	if err != nil { // lists of numbers can be encoded
		return
	}
	b.body = body
	b.queue(n.conn, wire.Header{Kind: wire.KindNotice}, nil, body, nil)
}

// holder is the caller's process as leases know it; 0 when it has ended.
func (c *caller) holder() lease.Holder {
	if c.worker != nil {
		return c.worker.holder()
	}
	return lease.Caller(c.number)
}

func (w *worker) holder() lease.Holder {
	if w.state == "dead" {
		return 0 // what it still says is nobody's any more
	}
	return lease.Worker(w.Number)
}

// nodeIndex is the node of a worker's process, or of a script's.
func (w *worker) nodeIndex() int {
	if w == nil {
		return 0
	}
	return w.node.index
}

// storesOf fills in where a process finds its stores.
func (h *Head) storesOf(w *wire.Welcome, holder lease.Holder, node int) {
	w.Holder, w.StoreDir, w.StoreNode, w.StoreToken = uint64(holder), h.opts.Dir, node, h.tokenFor("store")
	w.StoreApart = h.apartLocked()
	if node < len(h.nodes) && h.nodes[node].storeDir != "" {
		w.StoreDir = h.nodes[node].storeDir
	}
}

// noNotice refuses a notice that nobody sends.
func noNotice(who, verb string) error {
	return spec.Errorf(spec.CodeProtocol, "%s sent an unknown notice %q", who, verb)
}
