package head

import (
	"context"
	"slices"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// allNodes tells of the nodes that are to be had. It waits for those that are
// starting; one that takes longer is told as joining.
func (h *Head) allNodes(ctx context.Context, req *wire.NodesRequest) (*wire.Nodes, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.WaitSec*float64(time.Second)))
	defer cancel()
	for {
		h.mu.Lock()
		waiting, changed := h.joiningLocked(), h.changed
		h.mu.Unlock()
		if waiting == "" {
			break
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		break
	}
	return h.census(context.WithoutCancel(ctx))
}

// census is the nodes of the session and those that the backend has beside them.
func (h *Head) census(ctx context.Context) (*wire.Nodes, error) {
	h.mu.Lock()
	reserver, broken := h.launcher.reserver, h.backendErr
	h.mu.Unlock()
	var there []spec.Node
	if reserver != nil && broken == nil {
		asking, cancel := context.WithTimeout(ctx, explainBound)
		defer cancel()
		there, broken = reserver.Census(asking)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.nodes) == 0 && broken != nil {
		return nil, spec.AsError(broken)
	}
	return &wire.Nodes{Nodes: h.joinedAndUnusedLocked(there)}, nil
}

// statusBound is what a backend may take to tell its nodes to who looks at a
// session, and sees the rest in any case.
const statusBound = 3 * time.Second

// statusWith is status and, where that is asked for, the nodes that the backend
// has beside those of the session. Those that were lost are told all the same.
func (h *Head) statusWith(ctx context.Context, req wire.StatusRequest) *wire.Status {
	s := h.status()
	h.mu.Lock()
	reserver := h.launcher.reserver
	h.mu.Unlock()
	if !req.Unused || reserver == nil {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, statusBound)
	defer cancel()
	there, err := reserver.Census(ctx)
	if err != nil {
		s.Unknown = err.Error()
		return s
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Nodes = nil
	for _, n := range h.nodes {
		if n.wanted >= 0 { // else its agent was let go
			s.Nodes = append(s.Nodes, n.statusLocked())
		}
	}
	s.Nodes = h.unusedLocked(s.Nodes, there)
	return s
}

// joinedAndUnusedLocked puts the nodes of the session and those of the backend
// together, each once. Agents that were let go count as none: their nodes are as
// good as before. So are those that were lost and are there again.
func (h *Head) joinedAndUnusedLocked(there []spec.Node) []wire.NodeInfo {
	is := func(n *node) func(spec.Node) bool { return func(t spec.Node) bool { return t.Name == n.name } }
	all := []wire.NodeInfo{}
	free := h.freeLocked()
	for _, n := range h.nodes {
		if n.wanted < 0 || n.lost != nil && slices.ContainsFunc(there, is(n)) {
			continue
		}
		info := n.statusLocked()
		info.Free = free[n.index]
		all = append(all, info)
	}
	return h.unusedLocked(all, there)
}

// unusedLocked appends those of the backend that have no agent.
func (h *Head) unusedLocked(all []wire.NodeInfo, there []spec.Node) []wire.NodeInfo {
	living := map[string]bool{}
	for _, n := range h.nodes {
		living[n.name] = living[n.name] || n.lost == nil && n.wanted >= 0
	}
	for _, t := range there {
		if !living[t.Name] {
			t.Index = -1
			all = append(all, wire.NodeInfo{Node: t, State: "unused", Free: len(t.Devices)})
		}
	}
	return all
}
