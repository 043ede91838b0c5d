package head

import (
	"fmt"
	"slices"

	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// setup is the buffers that a cluster's config names: arrays in a worker_config, or
// in the arguments of a service's constructor. Large ones are objects in stores,
// leased in its own name from the request that brought them until no worker can be
// made with them any more.
type setup struct {
	holder lease.Holder
	bufs   []wire.Buf
	taken  bool        // a cluster has it
	lost   *spec.Error // of one that another head had: a store has not all of it any more
}

// givenLocked takes note of the buffers of a request. They are held for it at once,
// as who sent them may let go of them before it is worked on; not for one that is
// under way already.
func (c *callerConn) givenLocked(f *wire.Frame, under bool, b *batch) *setup {
	if len(f.Bufs) == 0 {
		return nil
	}
	h := c.h
	f.Keep()
	s := &setup{holder: lease.Setup(h.numberLocked()), bufs: f.Bufs}
	from, holder := c.holder(), s.holder
	if f.Flags&wire.FlagAgain != 0 {
		from = 0 // it has told what it knows of
	}
	if under {
		holder = 0
	}
	h.arrivedLocked(from, holder, s.bufs)
	h.tellStoresLocked(b)
	return s
}

// dropUnused lets go of what no cluster was made with.
func (h *Head) dropUnused(s *setup) {
	if s == nil {
		return
	}
	var b batch
	h.mu.Lock()
	if !s.taken {
		h.leases.End(s.holder)
		h.tellStoresLocked(&b)
	}
	h.mu.Unlock()
	b.flush()
}

func (cl *cluster) takeSetup(s *setup) {
	if s != nil {
		s.taken, cl.setup = true, s
	}
}

// endSetupLocked: no worker of the cluster is made any more.
func (h *Head) endSetupLocked(cl *cluster) {
	if cl.setup != nil {
		h.leases.End(cl.setup.holder)
		cl.setup = nil
	}
}

// buffers is it as workers are told it.
func (s *setup) buffers() []wire.Buffer {
	if s == nil {
		return nil
	}
	told := make([]wire.Buffer, len(s.bufs))
	for i, b := range s.bufs {
		told[i] = wire.Buffer(b)
	}
	return told
}

// giveSetupLocked: a new process is there, which may name what it is made with.
func (h *Head) giveSetupLocked(w *worker) {
	if w.cluster.setup == nil {
		return
	}
	for _, o := range objectsOf(nil, w.cluster.setup.bufs) {
		h.leases.Once(lease.Worker(w.Number), o)
	}
}

// restoreSetup takes back what the head before this one had.
func (cl *cluster) restoreSetup(kept *journal.Cluster) error {
	bufs, ok := restoredBufs(kept.Bufs, kept.Objects)
	if !ok {
		return fmt.Errorf("the journal tells of the config of %s, and not all of it", cl.Name)
	}
	if len(bufs) > 0 {
		cl.takeSetup(&setup{holder: lease.Setup(cl.Number), bufs: bufs})
	}
	return nil
}

// holdSetupLocked holds what is restored, as far as a store still has it. The rest
// is missed when a rank is to be restarted; it is told now.
func (h *Head) holdSetupLocked(cl *cluster) {
	s := cl.setup
	if s == nil {
		return
	}
	var missing []string
	for _, o := range objectsOf(nil, s.bufs) {
		if h.leases.Has(o) {
			h.leases.Once(s.holder, o)
		} else if name := h.homeLocked(o); !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return
	}
	s.lost = spec.Errorf(spec.CodeNodeLost,
		"%s cannot be restarted: %s lay in the store of %s, and was lost while there was no head. Make the %s anew",
		cl.title(), cl.madeWith(), missing[0], cl.spec.Kind)
	s.lost.Cluster, s.lost.Node = cl.Name, missing[0]
	h.sayLocked(cl, s.lost.Message)
}

// setupLost says that no worker of a cluster can be made any more.
func (h *Head) setupLost(cl *cluster) *spec.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cl.setup == nil {
		return nil
	}
	return cl.setup.lost
}

// madeWith is what its config is called.
func (cl *cluster) madeWith() string {
	if cl.service() {
		return "a part of the arguments of its constructor"
	}
	return "a part of its worker_config"
}

func (h *Head) homeLocked(o lease.Object) string {
	if o.Node() < len(h.nodes) {
		return h.nodes[o.Node()].name
	}
	return fmt.Sprintf("node %d", o.Node())
}
