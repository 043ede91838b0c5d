package head

import (
	"github.com/muster-rl/muster/lease"
)

// resumeHolder knows of all that the stores had, until it is counted who else does.
const resumeHolder = lease.Comeback

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
