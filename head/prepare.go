package head

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
)

// cutInPlace is how many bytes of arguments are cut under the lock: about as many
// as a lane reads in place. More take long, and others go on meanwhile.
const cutInPlace = 64 << 10

// beginCutLocked puts the results that a call waited for in their places and cuts
// its arguments. Until that is done the call is first in its cluster's queue, and is
// cancelled, expires or fails as any that is not sent yet.
func (h *Head) beginCutLocked(c *call.Call, p *pending, b *batch) {
	if c.State != call.Held {
		return // it has ended since the order was given
	}
	all, err := p.givenLocked(c)
	if err != nil {
		h.ordersLocked(h.table.Refuse(c, err), b)
		return
	}
	size := len(p.payload)
	for _, g := range all {
		size += len(g.body)
	}
	// Of its own: others look at p meanwhile.
	cut := &pending{cluster: p.cluster, method: p.method, how: p.how, marked: p.marked, ownRows: p.ownRows, args: p.args}
	cut.args.Args = slices.Clone(p.args.Args)
	layout := p.cluster.ranks
	if size <= cutInPlace {
		h.endCutLocked(c, p, cut, cut.cutAll(all, layout, c.Ranks), b)
		return
	}
	h.serving.Go(func() {
		h.fault("cutting")
		err := cut.cutAll(all, layout, c.Ranks)
		var b batch
		h.mu.Lock()
		if !h.crashed.Load() {
			h.endCutLocked(c, p, cut, err, &b)
			h.tellStoresLocked(&b)
		}
		h.mu.Unlock()
		b.flush()
	})
}

// cutAll plans a call and cuts its arguments, once it is known what they are.
func (p *pending) cutAll(all []given, layout []spec.RankInfo, ranks []int) *spec.Error {
	if err := p.splice(all); err != nil {
		return err
	}
	return p.prepare(layout, ranks)
}

// endCutLocked has a call go on whose arguments are cut.
func (h *Head) endCutLocked(c *call.Call, p, cut *pending, err *spec.Error, b *batch) {
	switch {
	case c.State != call.Held: // it has ended meanwhile
	case err != nil:
		h.ordersLocked(h.table.Refuse(c, err), b)
	default:
		p.args, p.plan, p.planned, p.parts, p.spliced = cut.args, cut.plan, true, cut.parts, true
		h.ordersLocked(h.table.Prepared(c), b)
	}
}
