package head

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A service may say how many GPUs it takes and leave it to the head which: of a pool,
// or, as every service that names none, of a pool of its own. What is taken of a pool follows from
// the services that live on it; nothing is counted, so nothing is forgotten.

// errNoPool says that a service names no pool, and that one has to be made for it.
var errNoPool = errors.New("a pool has to be made")

// endedLocked says that all its processes have ended for good.
func (cl *cluster) endedLocked() bool {
	return !slices.ContainsFunc(cl.workers, func(w *worker) bool { return w.Dead == nil })
}

// usingLocked are the clusters that use a pool.
func (h *Head) usingLocked(p *pool) []*cluster {
	var users []*cluster
	for _, cl := range h.clusters {
		if cl.pool == p {
			users = append(users, cl)
		}
	}
	return users
}

// spentLocked says that a pool is left to services that have ended.
func (h *Head) spentLocked(p *pool) bool {
	lasts := func(cl *cluster) bool { return !cl.service() || !cl.endedLocked() }
	return p.released && p.clusters > 0 && !slices.ContainsFunc(h.usingLocked(p), lasts)
}

// takenLocked is what services have taken of a pool's devices, by id.
func (h *Head) takenLocked(p *pool) map[int]placement.Taken {
	taken := map[int]placement.Taken{}
	for _, cl := range h.usingLocked(p) {
		if cl.spec.GPUs == 0 || cl.endedLocked() {
			continue
		}
		for _, id := range cl.spec.Mapping {
			t := taken[id]
			taken[id] = placement.Taken{Share: t.Share + min(cl.spec.GPUs, 1), By: append(t.By, cl.Name)}
		}
	}
	return taken
}

// sharedLocked is a pool that was made for parts of a GPU and has room for one more; 0
// where there is none.
func (h *Head) sharedLocked(s spec.Cluster) int {
	if s.GPUs == 0 || s.GPUs >= 1 {
		return 0
	}
	for _, id := range slices.Sorted(maps.Keys(h.pools)) {
		p := h.pools[id]
		if !p.released || p.void || p.PerNode != 1 || len(p.Nodes) != 1 || h.spentLocked(p) {
			continue
		}
		whole := func(cl *cluster) bool { return cl.spec.GPUs == 0 || cl.spec.GPUs == 1 }
		if slices.ContainsFunc(h.usingLocked(p), whole) {
			continue
		}
		if _, err := placement.Choose(p.Pool, s, h.takenLocked(p)); err == nil {
			return id
		}
	}
	return 0
}

// freeLocked is how many devices of each node no pool holds, by the node's number.
func (h *Head) freeLocked() map[int]int {
	nodes := make([]spec.Node, 0, len(h.nodes))
	for _, n := range h.nodes {
		if n.lost == nil {
			nodes = append(nodes, n.info)
		}
	}
	return placement.Free(nodes, h.heldLocked())
}

// couldBe says that a pool was refused because of what others hold: the nodes that
// there are would have room for it.
func (h *Head) couldBe(ctx context.Context, req *wire.PoolCreate, err error) bool {
	if spec.AsError(err).Code != spec.CodeResources {
		return false
	}
	there, err := h.census(ctx)
	if err != nil {
		return false
	}
	var nodes []spec.Node
	for _, n := range there.Nodes {
		if n.State != "lost" {
			nodes = append(nodes, n.Node)
		}
	}
	if nodes, err = onlyNode(nodes, req.Node); err != nil {
		return false
	}
	_, err = pick(nodes, nil, req)
	return err == nil
}

// comesFree waits until something may have come free; of what others hold in the backend
// nobody tells, so that it is looked for now and then. False when the time is over.
func (h *Head) comesFree(ctx context.Context, changed <-chan struct{}) bool {
	again := time.NewTicker(h.opts.TellEvery)
	defer again.Stop()
	select {
	case <-changed:
	case <-again.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// deviceFreeLocked has those look again who wait for devices, when a service has ended.
func (h *Head) deviceFreeLocked(cl *cluster) {
	if !cl.service() || !cl.endedLocked() || len(cl.plan.Workers[0].Devices) == 0 {
		return
	}
	if h.spentLocked(cl.pool) {
		h.unreserveLocked(cl.pool.ID)
	}
	h.announceLocked()
}

// changing is closed when nodes or devices have changed.
func (h *Head) changing() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// letGo says of a pool that its owner has done so.
func (h *Head) letGo(id int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.pools[id]; p != nil {
		h.giveBackLocked(p)
	}
}

func (h *Head) giveBackLocked(p *pool) {
	p.released = true
	h.releaseLocked(p)
	h.notePoolLocked(p)
}

// endUsers ends the clusters that use a pool.
func (h *Head) endUsers(id int) {
	h.mu.Lock()
	var users []*cluster
	if p := h.pools[id]; p != nil {
		users = h.usingLocked(p)
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	for _, cl := range users {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), cl.grace()+h.opts.StopWait)
			defer cancel()
			_ = h.stopCluster(ctx, cl, "its pool was given back")
		})
	}
	all.Wait()
}

// seat is a request for a cluster on its way to its devices.
type seat struct {
	h      *Head
	owner  *caller
	origin uint64
	req    wire.ClusterCreate // with the pool that was made for it
	own    int                // that pool; 0: none
	ctx    context.Context    // until its patience is over
}

// seatFor has what was made for a request let go in the end: then the service has it,
// or nobody does.
func (h *Head) seatFor(ctx context.Context, owner *caller, origin uint64, req *wire.ClusterCreate) (*seat, func()) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(req.Patience, forEver)*float64(time.Second)))
	s := &seat{h: h, owner: owner, origin: origin, req: *req, ctx: ctx}
	return s, func() {
		cancel()
		if s.own != 0 {
			h.letGo(s.own)
		}
	}
}

// again says whether there is reason to try again: after a pool was made, or devices
// have come free. Else it leaves the error.
func (s *seat) again(changed <-chan struct{}, err *error) bool {
	held := s.req.Spec.GPUs > 0 && spec.AsError(*err).Code == spec.CodeResources
	if errors.Is(*err, errNoPool) {
		if held, *err = s.reserve(); *err == nil {
			return true
		}
	}
	return held && s.h.comesFree(s.ctx, changed)
}

// reserve makes a pool for the service, or says whether others hold what it needs.
func (s *seat) reserve() (held bool, err error) {
	h := s.h
	ask := &wire.PoolCreate{PerNode: int(math.Ceil(s.req.Spec.GPUs)), Nodes: 1, Node: s.req.Spec.Node}
	h.mu.Lock()
	chooses := h.launcher.reserver != nil
	h.mu.Unlock()
	if chooses && ask.PerNode > 0 {
		ask.Timeout = max(s.req.Patience, 0.01) // else it is for nodes that are starting
	}
	made, err := h.createPool(s.owner.ctx, s.owner, s.origin, ask)
	if err != nil {
		return ask.PerNode > 0 && h.couldBe(s.ctx, ask, err), err
	}
	s.req.Pool, s.own = made.ID, made.ID
	return false, nil
}
