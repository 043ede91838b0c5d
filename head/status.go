package head

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// maxCallsShown bounds the answer of a busy head.
const maxCallsShown = 1000

// status is all that the head knows, for people.
func (h *Head) status() *wire.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &wire.Status{
		Session: h.opts.Session, Release: wire.Release, Pid: os.Getpid(), Owner: h.ownerPid,
		UpSec: time.Since(h.begun).Seconds(), LogDir: h.opts.LogDir,
	}
	if h.owner != nil {
		s.Script = cmp.Or(h.owner.runtime.Main.Path, h.owner.runtime.Main.Module)
	}
	if h.virtual.Nodes > 0 {
		s.Virtual = h.virtual.String()
	}
	for _, n := range h.nodes {
		s.Nodes = append(s.Nodes, n.statusLocked())
	}
	for _, p := range h.pools {
		s.Pools = append(s.Pools, p.Pool)
	}
	slices.SortFunc(s.Pools, func(a, b spec.Pool) int { return a.ID - b.ID })
	for _, cl := range h.clusters {
		s.Clusters = append(s.Clusters, *cl.infoLocked())
	}
	slices.SortFunc(s.Clusters, func(a, b wire.ClusterInfo) int { return cmp.Compare(a.Number, b.Number) })
	for _, c := range h.table.Open() {
		if len(s.Calls) == maxCallsShown {
			break
		}
		p := c.Data.(*pending)
		info := wire.CallInfo{
			Number: uint64(c.ID), Cluster: c.Cluster.Name, Method: c.Method, State: c.State.String(),
			AgeSec: time.Since(p.begun).Seconds(), Legs: len(c.Legs), Caller: "the script", Warning: p.watch.text,
		}
		if w := p.caller.worker; w != nil {
			info.Caller = w.Name
		}
		for _, leg := range c.Out() {
			info.Out = append(info.Out, c.Legs[leg].Worker.Rank)
		}
		s.Calls = append(s.Calls, info)
	}
	return s
}

func (n *node) statusLocked() wire.NodeInfo {
	info := wire.NodeInfo{Node: n.info, State: "joining"}
	info.Node.Index, info.Node.Name = n.index, n.name
	switch {
	case n.lost != nil:
		info.State, info.Why = "lost", n.lost.Message
	case n.ready && n.conn == nil:
		info.State, info.Why = "away", "its connection was lost; it may come back"
		if n.silence.suspect {
			info.Why = n.silence.text(n.name) + "; " + info.Why
		}
	case n.ready && n.silence.suspect:
		info.State, info.Why = "suspect", n.silence.text(n.name)
	case n.ready:
		info.State, info.Why = "up", n.slowLocked()
	}
	info.Load, info.Far = n.load, n.far
	info.SilentSec, info.TripSec = n.silence.since.Seconds(), n.silence.trip.Seconds()
	return info
}

// workerEnv reads and changes a worker's environment by way of its agent, so that it
// does not wait for what the worker runs.
func (h *Head) workerEnv(ctx context.Context, req *wire.WorkerEnv) (*wire.Environment, error) {
	h.mu.Lock()
	cl := h.clusters[req.Cluster]
	switch {
	case cl == nil:
		defer h.mu.Unlock()
		return nil, spec.Errorf(spec.CodeNotFound, "cluster %d is no more: it was shut down, or its controller ended", req.Cluster)
	case req.Rank < 0 || req.Rank >= len(cl.workers):
		defer h.mu.Unlock()
		return nil, spec.Errorf(spec.CodeInvalid, "cluster %s has ranks 0 to %d, not %d", cl.Name, len(cl.workers)-1, req.Rank)
	}
	w := cl.workers[req.Rank]
	h.mu.Unlock()
	asked, answer := *req, &wire.Environment{}
	asked.Worker = w.Number
	return answer, w.node.ask(ctx, "env", &asked, answer)
}

// clusterStacks says what workers of a cluster are doing.
func (h *Head) clusterStacks(req *wire.ClusterStacks) (*wire.StacksAnswer, error) {
	h.mu.Lock()
	cl := h.names[req.Name]
	if cl == nil {
		defer h.mu.Unlock()
		return nil, h.noClusterLocked(wire.ClusterRef{Name: req.Name})
	}
	workers := cl.workers
	if len(req.Ranks) > 0 {
		workers = nil
		for _, rank := range req.Ranks {
			if rank < 0 || rank >= len(cl.workers) {
				defer h.mu.Unlock()
				return nil, spec.Errorf(spec.CodeInvalid, "cluster %s has ranks 0 to %d, not %d", cl.Name, len(cl.workers)-1, rank)
			}
			workers = append(workers, cl.workers[rank])
		}
	}
	h.mu.Unlock()
	return &wire.StacksAnswer{Stacks: h.stacksOf(workers)}, nil
}
