package head

import (
	"context"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// drainLook is how often a cluster that drains is looked at: calls end in many
// ways, and drains are rare.
const drainLook = 10 * time.Millisecond

// forEver is as many seconds as a Duration has room for, and some years less.
const forEver = 1e9

// drain has a cluster take no more calls, and returns when none is left, or when
// the time is over.
func (h *Head) drain(ctx context.Context, cl *cluster, seconds float64) {
	if seconds <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(seconds, forEver)*float64(time.Second)))
	defer cancel()
	look := time.NewTicker(drainLook)
	defer look.Stop()
	again := time.NewTicker(h.opts.TellEvery)
	defer again.Stop()
	total := 0
	for tell := false; ; {
		h.mu.Lock()
		cl.drains = true
		left := h.table.Busy(&cl.Cluster)
		total = max(total, left)
		gone := h.clusters[cl.Number] != cl || cl.stopping || h.isOver
		if over := left == 0 || gone; tell || over && total > 0 {
			h.progressLocked(wire.Progress{Subject: cl.title(), Doing: "waiting for its last calls", Done: total - left, Total: total, Final: over})
		}
		h.mu.Unlock()
		if left == 0 || gone {
			return
		}
		select {
		case <-look.C:
			tell = false
		case <-again.C:
			tell = true
		case <-ctx.Done():
			return
		}
	}
}

// drainingError refuses a call that comes too late.
func drainingError(p *pending) *spec.Error {
	e := spec.Errorf(spec.CodeNotFound, "cluster %s takes no more calls: it is being shut down, and ends when those that it has are answered", p.cluster.Name)
	e.Cluster, e.Method = p.cluster.Name, p.method.Name
	return e
}
