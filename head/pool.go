package head

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// pool is a reservation.
type pool struct {
	spec.Pool
	owner    *caller
	origin   uint64 // of the request that made it
	clusters int    // that use it
	released bool   // its owner let go
	void     bool   // its reservation is gone
}

// checkPool refuses what no pool could be, shapes one that is for workers, and says how
// long it may take.
func checkPool(req *wire.PoolCreate) (time.Duration, error) {
	if req.Workers != 0 {
		ask, err := placement.Shape(req.Workers, req.PerWorker, req.PerNode)
		if err != nil {
			return 0, err
		}
		req.PerNode, req.Nodes, req.Workers = ask.PerNode, ask.Nodes, 0
	}
	if len(req.Devices) > 0 {
		req.PerNode, req.Nodes = len(req.Devices), 1
	}
	if len(req.Bundles) > 0 {
		if len(req.Devices) > 0 || req.PerNode != 0 || req.CPUs != 0 {
			return 0, spec.Errorf(spec.CodeInvalid, "bundles say what each node of a pool has: leave out what else says so")
		}
		if err := placement.CheckBundles(req.Bundles, cmp.Or(req.Strategy, placement.StrictSpread)); err != nil {
			return 0, err
		}
		req.Nodes = len(req.Bundles)
	}
	if req.Nodes < 1 || req.PerNode < 0 {
		return 0, spec.Errorf(spec.CodeInvalid, "a resource manager needs at least 1 node and no negative number of GPUs, got num_nodes=%d, num_gpus_per_node=%d", req.Nodes, req.PerNode)
	}
	if req.Timeout <= 0 {
		return 30 * time.Second, nil
	}
	return time.Duration(req.Timeout * float64(time.Second)), nil
}

// lookForPool says whether a pool could be had, once the nodes have joined that
// there are from the start. It makes none.
func (h *Head) lookForPool(ctx context.Context, req *wire.PoolCreate) (*wire.PoolOutlook, error) {
	timeout, err := checkPool(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		h.mu.Lock()
		waiting, changed := h.joiningLocked(), h.changed
		reserver, broken := h.launcher.reserver, h.backendErr
		h.mu.Unlock()
		switch {
		case waiting == "" && (reserver == nil || broken != nil):
			return h.pickable(req)
		case waiting == "":
			got, err := reserver.Look(ctx, h.want(0, req))
			return &wire.PoolOutlook{Now: got.Now, Waits: got.Waits, Text: got.Text}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeResources, "after %v still waiting for %s", timeout, waiting)
		}
	}
}

// pickable says whether the nodes of this session have room for a pool.
func (h *Head) pickable(req *wire.PoolCreate) (*wire.PoolOutlook, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	got, err := h.pickLocked(req)
	var e *spec.Error
	switch {
	case err == nil:
		return &wire.PoolOutlook{Now: true, Text: "there is room: " + placement.Describe(got)}, nil
	case errors.As(err, &e) && e.Code == spec.CodeResources && h.backendErr == nil:
		return &wire.PoolOutlook{Text: e.Message}, nil
	}
	return nil, err
}

// createPool waits for the nodes to have joined and reserves, or says what is
// missing.
func (h *Head) createPool(ctx context.Context, owner *caller, origin uint64, req *wire.PoolCreate) (*spec.Pool, error) {
	timeout, err := checkPool(req)
	if err != nil {
		return nil, err
	}
	asked := ctx // until it is given up
	ctx, cancel := context.WithTimeout(asked, timeout)
	defer cancel()
	began := time.Now()
	again := time.NewTicker(h.opts.TellEvery)
	defer again.Stop()
	for told := false; ; {
		h.mu.Lock()
		waiting := h.joiningLocked()
		changed := h.changed
		if waiting == "" {
			if told {
				h.progressLocked(wire.Progress{Subject: "pool", Doing: "nodes have joined", Done: len(h.nodes), Total: len(h.nodes), Final: true})
				told = false
			}
			h.mu.Unlock()
			p, err := h.reserve(asked, owner, origin, req, timeout)
			if err != nil && req.Wait && h.couldBe(ctx, req, err) && h.comesFree(ctx, changed) {
				continue
			}
			return p, err
		}
		if len(h.nodes) > 0 || time.Since(began) >= h.opts.TellEvery {
			h.progressLocked(wire.Progress{Subject: "pool", Doing: "waiting for nodes", Done: h.joinedLocked(), Total: len(h.nodes), Waiting: waiting})
			told = true
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-again.C: // without news, that it still waits is news
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeResources, "after %v still waiting for %s", timeout, waiting)
		}
	}
}

// joiningLocked names what is waited for before pools can be made, if anything.
func (h *Head) joiningLocked() string {
	if !h.nodesKnown {
		return "the list of nodes"
	}
	for _, n := range h.nodes {
		if !n.ready && n.lost == nil && (h.launcher.reserver == nil || n.index == 0) {
			return n.unjoinedLocked()
		}
	}
	return ""
}

func (h *Head) joinedLocked() int {
	joined := 0
	for _, n := range h.nodes {
		if n.ready {
			joined++
		}
	}
	return joined
}

// reserve makes a pool of what is free now, by way of the backend where that chooses.
func (h *Head) reserve(ctx context.Context, owner *caller, origin uint64, req *wire.PoolCreate, timeout time.Duration) (*spec.Pool, error) {
	h.mu.Lock()
	if h.launcher.reserver != nil {
		h.mu.Unlock()
		return h.reservePool(ctx, owner, origin, req, timeout)
	}
	p, err := h.reserveLocked(ctx, owner, origin, req)
	h.mu.Unlock()
	h.fault("pool reserved")
	return p, err
}

func (h *Head) reserveLocked(ctx context.Context, owner *caller, origin uint64, req *wire.PoolCreate) (*spec.Pool, error) {
	if err := unwanted(ctx, owner); err != nil {
		return nil, err
	}
	if p := h.madeLocked(origin); p != nil { // it was asked for twice
		return &p.Pool, nil
	}
	got, err := h.pickLocked(req)
	if err != nil {
		return nil, err
	}
	h.nextPool++
	got.ID = h.nextPool
	h.pools[got.ID] = &pool{Pool: got, owner: owner, origin: origin}
	h.notePoolLocked(h.pools[got.ID])
	return &got, nil
}

// unwanted says why nobody wants a pool any more that was asked for; nil where somebody does.
func unwanted(ctx context.Context, owner *caller) error {
	switch {
	case owner.left:
		return spec.Errorf(spec.CodeCancelled, "whoever asked for the pool is gone")
	case ctx.Err() != nil:
		return spec.Errorf(spec.CodeCancelled, "whoever asked for the pool has given it up")
	}
	return nil
}

// heldLocked is what pools hold. One that is left to services that have ended holds
// nothing any more.
func (h *Head) heldLocked() []placement.Held {
	held := make([]placement.Held, 0, len(h.pools))
	for _, p := range h.pools {
		if !h.spentLocked(p) {
			held = append(held, placement.Held{Pool: p.Pool, By: h.usersLocked(p)})
		}
	}
	slices.SortFunc(held, func(a, b placement.Held) int { return a.Pool.ID - b.Pool.ID })
	return held
}

// pickLocked chooses nodes and devices for a pool, or says what is missing.
func (h *Head) pickLocked(req *wire.PoolCreate) (spec.Pool, error) {
	if len(req.Labels) > 0 || req.Accelerator != "" {
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "labels and accelerator_type choose among the nodes of a Ray cluster, and the nodes here are this machine's: leave them out, or say MUSTER_BACKEND=ray")
	}
	if h.backendErr != nil {
		return spec.Pool{}, spec.Errorf(spec.CodeResources, "%v", h.backendErr)
	}
	var nodes []spec.Node
	var lost *spec.Error
	for _, n := range h.nodes {
		if n.ready {
			nodes = append(nodes, n.info)
		} else if lost == nil {
			lost = n.lost
		}
	}
	if len(nodes) == 0 && lost != nil {
		return spec.Pool{}, lost
	}
	nodes, err := onlyNode(nodes, req.Node)
	if err != nil {
		return spec.Pool{}, err
	}
	return pick(nodes, h.heldLocked(), req)
}

// pick chooses a pool among nodes.
func pick(nodes []spec.Node, held []placement.Held, req *wire.PoolCreate) (spec.Pool, error) {
	switch {
	case len(req.Devices) > 0:
		return placement.ReserveNamed(nodes, held, req.Devices)
	case len(req.Bundles) > 0:
		return placement.ReserveBundles(nodes, held, req.Bundles, req.Strategy)
	}
	return placement.Reserve(nodes, held, placement.Ask{PerNode: req.PerNode, Nodes: req.Nodes, Strategy: req.Strategy})
}

// onlyNode is the node of that name, or all where it is empty.
func onlyNode(nodes []spec.Node, name string) ([]spec.Node, error) {
	if name == "" {
		return nodes, nil
	}
	names := make([]string, len(nodes))
	for i := range nodes {
		if names[i] = nodes[i].Name; names[i] == name {
			return nodes[i : i+1], nil
		}
	}
	return nil, spec.Errorf(spec.CodeResources, "there is no node %q that is up; there are %s", name, strings.Join(names, ", "))
}

// usersLocked names the clusters that use a pool.
func (h *Head) usersLocked(p *pool) string {
	var names []string
	for _, cl := range h.clusters {
		if cl.pool == p {
			names = append(names, cl.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// releaseLocked gives a pool back once its owner let go and no cluster uses it.
func (h *Head) releaseLocked(p *pool) {
	if p.released && p.clusters == 0 {
		delete(h.pools, p.ID)
		h.opts.Journal.Delete(&journal.Pool{Pool: p.Pool})
		h.unreserveLocked(p.ID)
		h.announceLocked()
	}
}

// plan says who would sit where, without starting anything.
func (h *Head) plan(req *wire.PlanRequest) (*wire.PlanAnswer, error) {
	h.mu.Lock()
	p := h.pools[req.Pool]
	h.mu.Unlock()
	if p == nil {
		return nil, spec.Errorf(spec.CodeNotFound, "there is no pool %d (any more)", req.Pool)
	}
	return Plan(p.Pool, req.Clusters)
}

// Plan says who would sit where in a pool; its errors are those of a start.
func Plan(pool spec.Pool, clusters []spec.Cluster) (*wire.PlanAnswer, error) {
	a := &wire.PlanAnswer{Pool: pool}
	var plans []placement.Plan
	for _, s := range clusters {
		pl, err := placement.Place(pool, s)
		if err != nil {
			return nil, err
		}
		info := wire.ClusterInfo{Name: s.Name, Pool: pool.ID}
		for _, w := range pl.Workers {
			info.Workers = append(info.Workers, workerInfo(&w))
			info.Ranks = append(info.Ranks, w.Info)
		}
		a.Clusters = append(a.Clusters, info)
		plans = append(plans, pl)
	}
	a.Text = placement.Draw(pool, plans)
	return a, nil
}

// CheckFiles says whether a head can work at all under this process's limit of
// open files. With fewer it fails somewhere else, in one of many ways.
func CheckFiles() error {
	if limit, need := openFiles(), uint64(FilesFor(1)); limit > 0 && limit < need {
		return spec.Errorf(spec.CodeLimit, "the limit of open files is %d, and a head with one worker needs up to %d: raise it before the script starts (ulimit -n 65536)", limit, need)
	}
	return nil
}

// openFiles is how many files this process may open; 0 if it cannot be told.
func openFiles() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return r.Cur
}
