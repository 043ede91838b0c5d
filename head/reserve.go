package head

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Where the backend has more nodes than the session uses (backend.Reserver), it
// decides which of them a pool gets. Agents are launched on nodes that have none
// yet, and let go when no pool has their node any more. A node that comes again
// gets a new agent and a new number.

// explainBound is what a backend may take beyond the pool's timeout to say why
// there is no pool.
const explainBound = 15 * time.Second

// joinLeast is what the agents of a pool that is reserved may take to join, also
// where the pool itself was to be had at once: as long as Ray may take to start a
// process on a node that is busy.
const joinLeast = 60 * time.Second

// reservePool has the backend reserve a pool within the timeout, and the agents of
// its nodes join within as long again.
func (h *Head) reservePool(ctx context.Context, owner *caller, origin uint64, req *wire.PoolCreate, timeout time.Duration) (*spec.Pool, error) {
	if len(req.Devices) > 0 {
		return nil, spec.Errorf(spec.CodeInvalid, "devices names GPUs of this machine's nodes, and those of a Ray cluster are chosen by Ray: say how many (num_gpus_per_node)")
	}
	h.mu.Lock()
	if p := h.madeLocked(origin); p != nil {
		defer h.mu.Unlock()
		return &p.Pool, nil
	}
	if h.backendErr != nil {
		defer h.mu.Unlock()
		return nil, spec.AsError(h.backendErr)
	}
	h.nextPool++
	id := h.nextPool
	h.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, timeout+explainBound)
	defer cancel()
	want := h.want(id, req)
	want.Patience, want.Tell = timeout, h.tellPool
	grant, err := h.launcher.reserver.Reserve(asking, want)
	if err != nil {
		return nil, spec.AsError(err)
	}
	h.fault("granted")
	nodes, err := h.granted(grant)
	if err == nil {
		patience := max(timeout, joinLeast)
		joining, stop := context.WithTimeout(ctx, patience)
		err = h.awaitNodes(joining, nodes, patience)
		stop()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range nodes {
		n.wanted--
	}
	var got *pool
	if err == nil {
		got, err = h.grantLocked(ctx, owner, origin, id, req, grant, nodes)
	}
	if err != nil {
		h.unreserveLocked(id)
		return nil, err
	}
	return &got.Pool, nil
}

// want is a pool as the backend is asked for it.
func (h *Head) want(id int, req *wire.PoolCreate) backend.Want {
	h.mu.Lock()
	defer h.mu.Unlock()
	users := map[int]string{}
	for other, p := range h.pools {
		users[other] = h.usersLocked(p)
	}
	return backend.Want{
		ID: id, Nodes: req.Nodes, Devices: req.PerNode, CPUs: req.CPUs, Bundles: req.Bundles, Strategy: req.Strategy, Labels: req.Labels,
		Accelerator: req.Accelerator, Node: req.Node, Users: users,
	}
}

// tellPool tells whoever waits for a pool why.
func (h *Head) tellPool(why string) {
	first, _, _ := strings.Cut(why, "\n")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progressLocked(wire.Progress{Subject: "pool", Doing: "waiting for nodes", Waiting: first})
}

// madeLocked is the pool that an earlier sending of the same request led to.
func (h *Head) madeLocked(origin uint64) *pool {
	for _, p := range h.pools {
		if p.origin == origin {
			return p
		}
	}
	return nil
}

// granted finds the nodes of a grant, in its order, and launches agents on those
// that have none. They are wanted until their pool is made.
func (h *Head) granted(grant backend.Grant) ([]*node, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isOver {
		return nil, spec.Errorf(spec.CodeHeadLost, "the head is ending: %s", h.overWhy)
	}
	var nodes []*node
	for _, g := range grant.Nodes {
		at := slices.IndexFunc(h.nodes, func(n *node) bool { return n.name == g.Name && n.lost == nil && n.wanted >= 0 })
		if at < 0 {
			at = len(h.nodes)
			h.nodes = append(h.nodes, newNode(h, at, g.Name))
			h.launches.Add(1)
			go func() {
				defer h.launches.Done()
				h.launch(context.Background(), h.nodeAt(at))
			}()
		}
		n := h.nodes[at]
		n.wanted++
		n.address = g.Address
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func (h *Head) nodeAt(i int) *node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes[i]
}

// awaitNodes returns when the agents of all nodes have joined, or one is lost.
func (h *Head) awaitNodes(ctx context.Context, nodes []*node, timeout time.Duration) error {
	again := time.NewTicker(h.opts.TellEvery)
	defer again.Stop()
	for told := false; ; {
		h.mu.Lock()
		joined, waiting := 0, ""
		for _, n := range nodes {
			switch {
			case n.lost != nil:
				defer h.mu.Unlock()
				return n.lost
			case n.ready:
				joined++
			case waiting == "":
				waiting = n.unjoinedLocked()
			}
		}
		if waiting != "" || told {
			h.progressLocked(wire.Progress{Subject: "pool", Doing: "waiting for nodes", Done: joined, Total: len(nodes), Waiting: waiting, Final: waiting == ""})
			told = true
		}
		changed := h.changed
		h.mu.Unlock()
		if waiting == "" {
			return nil
		}
		select {
		case <-changed:
		case <-again.C: // without news, that it still waits is news
		case <-ctx.Done():
			return spec.Errorf(spec.CodeResources, "after %v still waiting for %s", timeout, waiting)
		}
	}
}

// grantLocked makes the pool of a grant.
func (h *Head) grantLocked(ctx context.Context, owner *caller, origin uint64, id int, req *wire.PoolCreate, grant backend.Grant, nodes []*node) (*pool, error) {
	if err := unwanted(ctx, owner); err != nil {
		return nil, err
	}
	if len(grant.Nodes) != req.Nodes {
		return nil, spec.Errorf(spec.CodeInternal, "%d nodes were asked for, and the reservation has %d", req.Nodes, len(grant.Nodes))
	}
	made := spec.Pool{ID: id, PerNode: req.PerNode, Env: grant.Env}
	if len(req.Bundles) > 0 {
		made.PerNode = placement.PerNode(req.Bundles)
	}
	for i, g := range grant.Nodes {
		n := nodes[i]
		if n.lost != nil {
			return nil, n.lost
		}
		info := n.info
		info.Address = n.address
		var err error
		if info.Devices, err = devicesOf(&n.info, g, devicesAt(req, i)); err != nil {
			return nil, err
		}
		made.Nodes = append(made.Nodes, info)
	}
	p := &pool{Pool: made, owner: owner, origin: origin}
	h.pools[id] = p
	h.notePoolLocked(p)
	return p, nil
}

// devicesAt is how many devices a node of a pool shall have.
func devicesAt(req *wire.PoolCreate, node int) int {
	if len(req.Bundles) > 0 {
		return req.Bundles[node].GPUs
	}
	return req.PerNode
}

// devicesOf are the devices of a node that a grant names: by number, UUID, or
// whatever CUDA_VISIBLE_DEVICES takes.
func devicesOf(n *spec.Node, g backend.Granted, perNode int) ([]spec.Device, error) {
	if g.All && len(n.Devices) == perNode {
		return n.Devices, nil
	}
	if g.All {
		return nil, spec.Errorf(spec.CodeResources, "%s: all of %d GPUs were reserved, and its agent finds %d; %s", n.Name, perNode, len(n.Devices), withoutGPUs(n, perNode))
	}
	if len(g.Devices) != perNode {
		return nil, spec.Errorf(spec.CodeResources, "%s: %d GPUs were reserved, and the reservation has %d: %s", n.Name, perNode, len(g.Devices), strings.Join(g.Devices, ", "))
	}
	devices := make([]spec.Device, 0, perNode)
	for _, id := range g.Devices {
		at := slices.IndexFunc(n.Devices, func(d spec.Device) bool {
			return id == strconv.Itoa(d.Index) || id == d.ID && id != "" || id == d.Visible && id != ""
		})
		if at < 0 {
			return nil, spec.Errorf(spec.CodeResources, "GPU %s of %s was reserved, and its agent finds %d GPUs and not that one; %s", id, n.Name, len(n.Devices), withoutGPUs(n, perNode))
		}
		devices = append(devices, n.Devices[at])
	}
	slices.SortStableFunc(devices, func(a, b spec.Device) int { return a.Index - b.Index })
	return devices, nil
}

// withoutGPUs says why a node does not have what was reserved, or what to do.
func withoutGPUs(n *spec.Node, perNode int) string {
	if n.Trouble != "" {
		return n.Trouble
	}
	return "for stand-ins say MUSTER_VIRTUAL=" + spec.Virtual{Nodes: 1, Devices: max(1, perNode)}.String()
}

// unreserveLocked gives back what a pool had, and lets agents go that no pool
// needs any more.
func (h *Head) unreserveLocked(id int) {
	r := h.launcher.reserver
	if r == nil || h.isOver || h.crashed.Load() { // it all goes with the backend
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), h.opts.StopWait)
		defer cancel()
		if err := r.Release(ctx, id); err != nil {
			h.opts.Log.Warn("a reservation could not be given back", "pool", id, "err", err)
		}
	}()
	h.letIdleGoLocked()
}

// letIdleGoLocked lets agents go whose node no pool has. One with rows in its
// store that somebody knows of stays until nobody does.
func (h *Head) letIdleGoLocked() {
	if h.isOver || h.crashed.Load() {
		return
	}
	used := map[int]bool{0: true} // the script's own
	for _, p := range h.pools {
		for _, n := range p.Nodes {
			used[n.Index] = true
		}
	}
	for _, n := range h.nodes {
		n.idle = !used[n.index] && n.wanted == 0 && n.ready && n.lost == nil
		if n.idle && !h.leases.Any(n.index) {
			n.idle = false
			h.letGoLocked(n)
		}
	}
}

// letGoLocked ends the agent of a node that no pool has.
func (h *Head) letGoLocked(n *node) {
	n.wanted = -1 // nobody takes it for a new pool
	h.launches.Add(1)
	go func() {
		defer h.launches.Done()
		const why = "no pool has its node any more"
		n.lose(spec.Errorf(spec.CodeNodeLost, "the agent of %s was let go: %s", n.name, why))
		ctx, cancel := context.WithTimeout(context.Background(), h.opts.StopWait)
		defer cancel()
		_ = n.stop(ctx, 0, why)
	}()
}

// reconcile gives back what the head before this one had reserved and did not
// write down, and takes note of pools whose reservation is gone.
func (h *Head) reconcile(ctx context.Context, r backend.Reserver) error {
	if h.opts.Resume == nil {
		return nil
	}
	kept, err := r.Kept(ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	var strays []int
	for _, id := range kept {
		if h.pools[id] == nil {
			strays = append(strays, id)
		}
	}
	for id, p := range h.pools {
		p.void = !slices.Contains(kept, id)
	}
	h.mu.Unlock()
	for _, id := range strays {
		err = errors.Join(err, r.Release(ctx, id))
	}
	return err
}

// checkReserved sees to it that a pool's reservation is still there: it goes when
// what keeps it in the backend is killed.
func (h *Head) checkReserved(ctx context.Context, id int) {
	r := h.launcher.reserver
	if r == nil {
		return
	}
	kept, err := r.Kept(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.pools[id]; p != nil {
		p.void = err != nil || !slices.Contains(kept, id)
	}
}

// startOn has an agent start workers, once its node has what their runtime names.
func (h *Head) startOn(ctx context.Context, n *node, s *wire.Start) error {
	if r := h.launcher.reserver; r != nil {
		fitted, err := r.Fit(ctx, n.index, s.Runtime)
		if err != nil {
			e := *spec.AsError(err)
			e.Node = n.name
			return &e
		}
		n.took(fitted.Moved)
		s.Runtime, s.Setup.Main = fitted.Runtime, fitted.Main
	}
	s.Runtime = s.Runtime.InFront()
	return n.ask(ctx, "start", s, &wire.Empty{})
}

// took takes note of what a node got, so that what its workers name by where it is
// there can be found for other nodes.
func (n *node) took(moved map[string]string) {
	if len(moved) == 0 {
		return
	}
	h := n.h
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(n.moved)
	if n.moved == nil {
		n.moved = map[string]string{}
	}
	maps.Copy(n.moved, moved)
	if len(n.moved) > before {
		h.noteNodeLocked(n, 0)
	}
}
