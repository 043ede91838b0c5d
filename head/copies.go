package head

import (
	"net"

	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Where stores are apart, a process reads objects of other nodes in the store of
// its own node, which gets them there. The head knows who has which chunks
// (lease.Copies), tells a store whom to ask, and has copies dropped together with
// what they are copies of.

// sharing is what the head knows of objects that are on several nodes.
type sharing struct {
	copies   lease.Copies
	fetching []fetching // what cannot be answered yet
}

// fetching is a store's question that has to wait: for the node of the object to
// say where it listens, or for everybody to be back.
type fetching struct {
	node  *node
	fetch wire.Fetch
}

// fetchLocked answers a store that asks where chunks are to be had.
func (h *Head) fetchLocked(n *node, m wire.Fetch, b *batch) {
	o := lease.Object(m.Object)
	if h.resuming != nil || o.Node() < len(h.nodes) && h.nodes[o.Node()].awaitedLocked() {
		h.sharing.fetching = append(h.sharing.fetching, fetching{n, m})
		return
	}
	answer := wire.Sources{ID: m.ID, Sources: []wire.Source{}}
	if err := h.sourcesLocked(n, o, &m, &answer); err != nil {
		answer.Error = wire.AppendError(nil, err)
	}
	n.noticeLocked("sources", &answer, b)
}

// awaitedLocked: it is there and has not said yet where its store listens.
func (n *node) awaitedLocked() bool { return n.lost == nil && n.serving == "" }

func (h *Head) sourcesLocked(n *node, o lease.Object, m *wire.Fetch, answer *wire.Sources) *spec.Error {
	if !h.leases.Has(o) || o.Node() >= len(h.nodes) {
		return spec.Errorf(spec.CodeNotFound, "object %x is not known any more: everything that named it was released", o)
	}
	runs := make([]lease.Run, len(m.Runs))
	for i, r := range m.Runs {
		runs[i] = lease.Run{From: r.From, To: r.To}
	}
	up := func(node int) bool {
		return node < len(h.nodes) && h.nodes[node].lost == nil && h.nodes[node].serving != ""
	}
	sources, missing := h.sharing.copies.Want(o, n.index, runs, m.Avoid, up)
	if len(missing) > 0 {
		home := h.nodes[o.Node()]
		why := "its store does not serve other nodes"
		if home.lost != nil {
			why = home.lost.Message
		}
		e := spec.Errorf(spec.CodeNodeLost, "rows that were made on %s are lost with it, and no other node has all of them: %s", home.name, why)
		e.Node = home.name
		return e
	}
	for _, s := range sources {
		from := h.nodes[s.Node]
		answer.Sources = append(answer.Sources, wire.Source{From: s.From, To: s.To, Node: s.Node, Name: from.name, Address: from.addressFor(n)})
	}
	return nil
}

// copiedLocked takes a store's word on what has arrived there. Of what nobody
// knows any more it has to let go: a head before this one may have told it to, or
// not.
func (h *Head) copiedLocked(n *node, m *wire.Copied, b *batch) {
	o := lease.Object(m.Object)
	switch {
	case m.Gone:
		h.sharing.copies.Gone(o, n.index)
	case h.resuming != nil:
		h.resuming.copied = append(h.resuming.copied, copiedAt{n, *m})
	case !h.leases.Has(o):
		n.noticeLocked("objects", &wire.Objects{Drop: []uint64{m.Object}}, b)
	default:
		runs := make([]lease.Run, len(m.Runs))
		for i, r := range m.Runs {
			runs[i] = lease.Run{From: r.From, To: r.To}
		}
		h.sharing.copies.Got(o, n.index, runs)
	}
}

// copiedAt is what a store told while others were waited for.
type copiedAt struct {
	node   *node
	copied wire.Copied
}

// servingLocked takes a node's word on where its store is to be found.
func (h *Head) servingLocked(n *node, m *wire.Serving, b *batch) {
	h.sharing.copies.Lost(n.index) // it tells of them again
	n.serving, n.storeDir = m.Address, m.Dir
	h.fetchAgainLocked(b)
}

// addressFor is where a node reaches the store of another. One on the head's
// machine is reached where the head is.
func (n *node) addressFor(who *node) string {
	host, port, err := net.SplitHostPort(n.serving)
	if err != nil || host != "" {
		return n.serving
	}
	if who.conn != nil {
		host = who.conn.LocalHost()
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// fetchAgainLocked answers those that had to wait.
func (h *Head) fetchAgainLocked(b *batch) {
	if len(h.sharing.fetching) == 0 {
		return
	}
	waiting := h.sharing.fetching
	h.sharing.fetching = nil
	for _, f := range waiting {
		h.fetchLocked(f.node, f.fetch, b)
	}
}

// settledLocked goes on with what was told and asked while others were waited
// for.
func (h *Head) settledLocked(r *resuming, b *batch) {
	for i := range r.copied {
		h.copiedLocked(r.copied[i].node, &r.copied[i].copied, b)
	}
	h.fetchAgainLocked(b)
}

// lostCopiesLocked: what a node had is gone, and who waits for it is told.
func (h *Head) lostCopiesLocked(n *node, b *batch) {
	h.sharing.copies.Lost(n.index)
	h.fetchAgainLocked(b)
}

// dropCopiesLocked has all that have something of an object let go of it.
func (h *Head) dropCopiesLocked(o lease.Object) {
	for _, at := range h.sharing.copies.At(o) {
		if n := h.tellingLocked(at); n != nil {
			n.told.Drop = append(n.told.Drop, uint64(o))
		}
	}
	h.sharing.copies.Free(o)
}

// storeNotice takes a notice of an agent about copies and handles; false: it is
// about something else.
func (n *node) storeNotice(verb string, rest []byte, b *batch) (bool, error) {
	var err error
	h := n.h
	switch verb {
	case "fetch":
		var m wire.Fetch
		if _, err = m.UnmarshalMsg(rest); err == nil {
			h.mu.Lock()
			h.fetchLocked(n, m, b)
			h.mu.Unlock()
		}
	case "copied":
		var m wire.Copied
		if _, err = m.UnmarshalMsg(rest); err == nil {
			h.mu.Lock()
			h.copiedLocked(n, &m, b)
			h.mu.Unlock()
		}
	case "holders":
		var m wire.HoldersAsk
		if _, err = m.UnmarshalMsg(rest); err == nil {
			h.mu.Lock()
			n.holdersLocked(&m, b)
			h.mu.Unlock()
		}
	case "serving":
		var m wire.Serving
		if _, err = m.UnmarshalMsg(rest); err == nil {
			h.mu.Lock()
			h.servingLocked(n, &m, b)
			h.mu.Unlock()
		}
	default:
		return false, nil
	}
	if err != nil {
		return true, spec.Errorf(spec.CodeProtocol, "a notice %s of %s that cannot be read: %v", verb, n.name, err)
	}
	return true, nil
}

// apartLocked says that no process reaches another store than that of its node.
func (h *Head) apartLocked() bool { return h.far != nil || h.virtual.Net || h.opts.Apart }

// lendableLocked says that a worker can map an object where it lies.
func (h *Head) lendableLocked(to lease.Holder, o lease.Object) bool {
	if !h.apartLocked() {
		return true
	}
	w := h.workers[uint32(to)] //nolint:gosec // legs go to workers, whose holders are their numbers
	return w != nil && w.node.index == o.Node()
}
