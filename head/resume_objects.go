package head

import (
	"slices"

	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/wire"
)

// resumeHolder knows of all that the stores had, until it is counted who else does.
const resumeHolder = lease.Comeback

// endedMakersLocked are the makers of objects that their store was not told to hold, as far as
// they are nobody any more: the head that knew of their end may have said so to nobody.
func (h *Head) endedMakersLocked(there []wire.ObjectAt) []uint64 {
	var gone []uint64
	for _, at := range there {
		if at.Held == 0 && !slices.Contains(gone, at.Maker) && !h.knownLocked(lease.Holder(at.Maker)) {
			gone = append(gone, at.Maker)
		}
	}
	return gone
}

// knownLocked says whether a process that makes objects is there, as far as is known.
func (h *Head) knownLocked(holder lease.Holder) bool {
	number := uint32(holder) //nolint:gosec // its low half
	if holder.IsWorker() {
		w := h.workers[number]
		return w != nil && w.state != "dead"
	}
	return holder != lease.Caller(number) || h.callers[number] != nil // else it is no process
}

// countedLocked: all who may have objects of before have said so. What nobody has
// goes.
func (h *Head) countedLocked(r *resuming, b *batch) {
	h.leases.End(resumeHolder)
	h.tellStoresLocked(b)
	for _, at := range r.ended {
		h.endedLocked(at.holder, at.node, b)
	}
	for n, there := range r.unheld {
		if gone := h.endedMakersLocked(there); len(gone) > 0 {
			n.noticeLocked("objects", &wire.Objects{Gone: gone}, b)
		}
	}
}

// cameOrWentLocked: a caller that the others did not wait for is back, or will not be.
func (h *Head) cameOrWentLocked(c *caller, b *batch) {
	r := h.uncounted
	if r == nil || !r.missing[c] {
		return
	}
	if delete(r.missing, c); len(r.missing) == 0 {
		h.uncounted = nil
		h.countedLocked(r, b)
	}
}

// countObjectsLocked counts who says that it knows of what, as far as a store still
// has it.
func (h *Head) countObjectsLocked(r *resuming) {
	for o, segment := range r.stored {
		h.leases.Add(resumeHolder, o)
		h.leases.Place(o, segment)
	}
	for _, cl := range h.clusters {
		h.holdSetupLocked(cl)
		for _, kept := range cl.begun {
			for _, o := range objectsOf(nil, kept.value.Bufs) {
				if h.leases.Has(o) {
					h.leases.Once(lease.Kept(kept.id), o)
				}
			}
		}
	}
	for holder, objects := range r.objects {
		if holder == 0 {
			continue
		}
		// Also what no store was told to hold: it may have been made since.
		h.leases.Replace(holder, countsOf(objects))
		switch lent, told := r.lent[holder]; {
		case told:
			h.leases.Borrows(holder, countsOf(lent))
		case holder.IsWorker():
			h.leases.Assume(holder)
		default: // a script is lent nothing
			h.leases.Borrows(holder, nil)
		}
	}
}
