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

// joinedAndUnusedLocked puts the nodes of the session and those of the backend
// together, each once. Agents that were let go count as none: their nodes are as
// good as before. So are those that were lost and are there again.
func (h *Head) joinedAndUnusedLocked(there []spec.Node) []wire.NodeInfo {
	is := func(n *node) func(spec.Node) bool { return func(t spec.Node) bool { return t.Name == n.name } }
	all := []wire.NodeInfo{}
	living := map[string]bool{}
	free := h.freeLocked()
	for _, n := range h.nodes {
		if n.wanted < 0 || n.lost != nil && slices.ContainsFunc(there, is(n)) {
			continue
		}
		living[n.name] = n.lost == nil
		info := n.statusLocked()
		info.Free = free[n.index]
		all = append(all, info)
	}
	for _, t := range there {
		if !living[t.Name] {
			t.Index = -1
			all = append(all, wire.NodeInfo{Node: t, State: "unused", Free: len(t.Devices)})
		}
	}
	return all
}
