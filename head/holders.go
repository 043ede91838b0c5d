package head

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/wire"
)

// Who has handles of what, for people: muster store, and the error of a store that
// is full.

// holderNameLocked is who knows of an object.
func (h *Head) holderNameLocked(holder lease.Holder) string {
	number := uint32(holder) //nolint:gosec // the low half is the number
	switch {
	case holder == lease.Call(uint64(holder)):
		if c := h.table.Find(call.ID(holder &^ lease.Call(0))); c != nil {
			return "the call " + c.Title()
		}
		return "a call"
	case holder == lease.Comeback:
		return "who has not come back yet"
	case holder == lease.Kept(uint64(holder)):
		return "a call that is made again on a new process"
	case holder == lease.Setup(number):
		for _, cl := range h.clusters {
			if cl.setup != nil && cl.setup.holder == holder {
				return "what workers of " + cl.Name + " are made with"
			}
		}
		return "what workers are made with"
	case holder == lease.Caller(number):
		if c := h.callers[number]; c != nil {
			return fmt.Sprintf("the script (process %d)", c.pid)
		}
		return "a script that is gone"
	}
	if w := h.workers[number]; w != nil {
		return w.Name
	}
	return "a worker that is gone"
}

// holdersLocked answers a store that is full.
func (n *node) holdersLocked(m *wire.HoldersAsk, b *batch) {
	h := n.h
	asked := make(map[lease.Object]bool, len(m.Objects))
	for _, o := range m.Objects {
		asked[lease.Object(o)] = true
	}
	now := h.leases.Clock()
	answer := wire.Holders{ID: m.ID, Held: []wire.Held{}}
	for o, shares := range h.leases.Holders(func(o lease.Object) bool { return asked[o] }) {
		for _, s := range shares {
			answer.Held = append(answer.Held, wire.Held{Object: uint64(o), Holder: h.holderNameLocked(s.Holder), Seconds: (now - s.Since).Seconds()})
		}
	}
	n.noticeLocked("holders", &answer, b)
}

// stores tells what lies in all stores, and who the holders are.
func (h *Head) stores(ctx context.Context) (*wire.StoreReport, error) {
	report := &wire.StoreReport{Nodes: []wire.StoreStatus{}, Holders: []wire.HolderName{}}
	var b batch
	h.mu.Lock()
	h.tellLoansLocked(&b)
	var nodes []*node
	for _, n := range h.nodes {
		if n.ready && n.lost == nil {
			nodes = append(nodes, n)
		}
	}
	h.mu.Unlock()
	b.flush()
	for _, n := range nodes {
		var status wire.StoreStatus
		if err := n.ask(ctx, "store", &wire.Empty{}, &status); err != nil {
			return nil, fmt.Errorf("the store of %s: %w", n.name, err)
		}
		report.Nodes = append(report.Nodes, status)
	}
	h.nameHolders(report)
	return report, nil
}

// nameHolders adds who has handles, and the names of all that a report speaks of.
func (h *Head) nameHolders(report *wire.StoreReport) {
	makers := map[uint64]uint64{} // of what has copies, as its own store has it
	there := map[lease.Object]bool{}
	eachObject(report, func(o *wire.StoreObject) {
		there[lease.Object(o.Object)] = true
		if o.Maker != 0 {
			makers[o.Object] = o.Maker
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	names := map[lease.Holder]bool{}
	for _, w := range h.workers {
		names[lease.Worker(w.Number)] = true
	}
	for _, c := range h.callers {
		if c.worker == nil {
			names[lease.Caller(c.number)] = true
		}
	}
	now := h.leases.Clock()
	holders := h.leases.Holders(func(o lease.Object) bool { return there[o] })
	eachObject(report, func(o *wire.StoreObject) {
		o.Maker = cmp.Or(o.Maker, makers[o.Object])
		for _, s := range holders[lease.Object(o.Object)] {
			o.Handles = append(o.Handles, wire.StoreHandle{Holder: uint64(s.Holder), Count: s.Count, Seconds: max(0, now-s.Since).Seconds()})
			names[s.Holder] = true
		}
	})
	for holder := range names {
		report.Holders = append(report.Holders, wire.HolderName{Holder: uint64(holder), Name: h.holderNameLocked(holder)})
	}
	slices.SortFunc(report.Holders, func(a, b wire.HolderName) int { return cmp.Compare(a.Holder, b.Holder) })
}

func eachObject(report *wire.StoreReport, do func(o *wire.StoreObject)) {
	for i := range report.Nodes {
		for j := range report.Nodes[i].Objects {
			do(&report.Nodes[i].Objects[j])
		}
	}
}

// sinceThen is a clock for leases, which runs on whatever the time of day does.
func sinceThen() func() time.Duration {
	then := time.Now()
	return func() time.Duration { return time.Since(then) }
}
