package head

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// resuming is a head that takes the place of one that is gone, until all who were
// there are back, or are not waited for any more.
//
//	who      comes back with                     is not waited for any more when
//	agent    its workers, exits and objects      its process is gone
//	worker   the legs it has got, the results    its agent does not know it, or tells
//	         that it keeps                       of its exit
//	caller   its unanswered calls and requests   its process is gone; after a moment,
//	                                             if no worker has anything of it
//
// Nobody is waited for longer than the grace. Then, in one step, calls are put
// together (call.Comeback), results that were kept are taken, those who did not
// come back are lost, and objects that nobody knows of are dropped: as long as a
// caller may still come, those of before are kept for it.
type resuming struct {
	nodes   map[*node]bool
	waits   map[*worker]bool
	callers map[*caller]bool
	legs    map[*worker]*wire.WorkerBack
	objects map[lease.Holder][]wire.Released
	lent    map[lease.Holder][]wire.Released // of workers that say so
	stored  map[lease.Object]uint32          // what stores have and were told to hold, and where
	unheld  map[*node][]wire.ObjectAt        // what they have besides
	ended   []endedOn                        // processes that were not waited for, or not any more
	missing map[*caller]bool                 // those that may still come back, and have objects
	copied  []copiedAt                       // what stores have of others' objects
	lost    map[*worker]*spec.Error
	made    []putCall
	expired []*call.Call // whose deadlines passed meanwhile
	halves  []*cluster   // that were being started, or stopped
	grace   *time.Timer
	idle    *time.Timer // for callers that no worker has anything of
	late    bool        // the grace is over
	calm    bool        // idle has passed
	over    bool
}

// endedOn is a process that has ended, and its node.
type endedOn struct {
	holder lease.Holder
	node   int
}

// putCall is a call that was sent again, with the objects that it came with.
type putCall struct {
	call *call.Call // nil: it was refused
	bufs []wire.Buf
}

// idleWait is how long a caller is waited for that no worker has anything of: it
// may not have noticed yet, being busy with something else.
const idleWait = 500 * time.Millisecond

// restore makes of a journal what the head before this one knew.
func (h *Head) restore(s *journal.State) error {
	r := &resuming{
		nodes: map[*node]bool{}, waits: map[*worker]bool{}, callers: map[*caller]bool{},
		legs: map[*worker]*wire.WorkerBack{}, objects: map[lease.Holder][]wire.Released{}, lent: map[lease.Holder][]wire.Released{},
		stored: map[lease.Object]uint32{}, unheld: map[*node][]wire.ObjectAt{}, missing: map[*caller]bool{}, lost: map[*worker]*spec.Error{},
	}
	h.resuming = r
	h.begun = time.Unix(0, int64(s.Meta.Begun*float64(time.Second)))
	h.nextNumber = (h.epoch - 1) << 22
	h.nextPool = int(h.epoch-1) << 16
	h.ownerPid = s.Meta.Owner.Pid
	for _, kept := range s.Nodes {
		for i := len(h.nodes); i < kept.Index; i++ { // which was never launched
			n := newNode(h, i, "node-"+strconv.Itoa(i))
			n.lost = spec.Errorf(spec.CodeNodeLost, "the agent of %s was never started", n.name)
			h.nodes = append(h.nodes, n)
		}
		if kept.Index != len(h.nodes) {
			return fmt.Errorf("the journal knows of node %d twice", kept.Index)
		}
		n := newNode(h, kept.Index, kept.Name)
		n.handle = &backend.Handle{Pid: kept.Warden.Pid, Started: kept.Warden.Started}
		n.moved = kept.Moved
		h.nodes = append(h.nodes, n)
		r.nodes[n] = true
	}
	inside := map[*caller]uint32{}
	for _, kept := range s.Callers {
		c := &caller{h: h, number: kept.Number, pid: kept.Proc.Pid, asked: map[uint64]context.CancelFunc{}, dead: !lives(kept.Proc)}
		c.ctx, c.cancel = context.WithCancel(context.Background())
		h.callers[c.number] = c
		inside[c] = kept.Worker
		r.callers[c] = true
		if kept.Owner {
			h.owner = c
		}
	}
	for _, kept := range s.Pools {
		for _, n := range kept.Pool.Nodes {
			if n.Index < len(h.nodes) {
				h.nodes[n.Index].address = n.Address
			}
		}
		h.pools[kept.Pool.ID] = &pool{Pool: kept.Pool, owner: h.callers[kept.Owner], origin: kept.Origin, released: kept.Released}
	}
	for i := range s.Clusters {
		if err := h.restoreCluster(&s.Clusters[i]); err != nil {
			return err
		}
	}
	for i := range s.Begun {
		cl := h.clusters[s.Begun[i].Cluster]
		if cl == nil {
			continue
		}
		if err := cl.restoreBegun(&s.Begun[i]); err != nil {
			return err
		}
	}
	for c, number := range inside {
		if number != 0 {
			if c.worker = h.workers[number]; c.worker == nil {
				c.dead = true
			}
		}
	}
	return nil
}

func (h *Head) restoreCluster(kept *journal.Cluster) error {
	p := h.pools[kept.Pool]
	if p == nil {
		return fmt.Errorf("the journal knows of cluster %s and not of its pool", kept.Spec.Name)
	}
	plan, err := placement.Place(p.Pool, kept.Spec)
	if err != nil || len(plan.Workers) != len(kept.Workers) {
		return fmt.Errorf("cluster %s cannot be placed as it was: %w", kept.Spec.Name, err)
	}
	cl := newCluster(plan.Cluster, plan, p, h.callers[kept.Owner], kept.Origin)
	cl.Number, cl.Name, cl.ranks = kept.Number, kept.Spec.Name, kept.Ranks
	cl.master = placement.Master{Addr: kept.MasterAddr, Port: kept.MasterPort}
	cl.up, cl.stopping = kept.Up && !kept.Stopping, kept.Stopping
	cl.budget.note(kept.Restarts)
	cl.lost = kept.Lost
	if err := cl.restoreSetup(kept); err != nil {
		return err
	}
	for i, place := range plan.Workers {
		k := &kept.Workers[i]
		w := &worker{h: h, cluster: cl, node: h.nodes[p.Nodes[place.Node].Index], place: place, state: k.State, pid: k.Pid, final: k.Final}
		w.Worker = call.Worker{Number: k.Number, Rank: place.Rank, Name: place.Name, Node: w.node.name, Cluster: &cl.Cluster, Serial: kept.Description.Serial, Dead: k.Why}
		w.token = h.tokenFor("worker " + strconv.Itoa(int(w.Number)))
		w.gen, w.closed = 1, true
		h.workers[w.Number] = w
		cl.workers, cl.Workers = append(cl.workers, w), append(cl.Workers, &w.Worker)
		switch {
		case !cl.up:
			w.state = "stopping"
		case w.state == "ready":
			h.resuming.waits[w] = true
			cl.ready++
		case w.state != "dead": // stateDown
			w.Dead, w.state = nil, "starting" // so that it is lost as one that restarts
			if h.resuming.lost[w] = k.Why; k.Why == nil {
				h.resuming.lost[w] = spec.Errorf(spec.CodeWorkerDied, "%s on %s was being started when the head ended", w.Name, w.Node)
			}
		}
	}
	h.clusters[cl.Number], h.names[cl.Name] = cl, cl
	p.clusters++
	if !cl.up {
		h.resuming.halves = append(h.resuming.halves, cl)
		return nil
	}
	cl.settle()
	close(cl.started)
	if err := cl.describe(kept.Description); err != nil {
		return err
	}
	return nil
}

// resume begins to wait for who was there.
func (h *Head) resume(s *journal.State) {
	v, err := parseVirtual(s.Meta.Virtual)
	if err != nil {
		h.end("its journal tells of nodes that cannot be: " + err.Error())
		return
	}
	h.watchOwnerOf(s.Meta.Owner)
	h.mu.Lock()
	r := h.resuming
	r.grace = time.AfterFunc(h.opts.Grace, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.late = true
		h.settleSoonLocked()
	})
	for c := range r.callers {
		switch {
		case c.dead:
			go c.leave(errAwayTooLong)
		case c.worker == nil && c != h.owner:
			go c.watchProcess()
		}
	}
	h.settleSoonLocked()
	for _, cl := range r.halves {
		why := "the head ended while it was being started"
		if cl.stopping {
			why = "it was shut down"
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), h.opts.Grace+cl.grace()+h.opts.StopWait)
			defer cancel()
			_ = h.stopCluster(ctx, cl, why)
		}()
	}
	h.mu.Unlock()
	go h.startNodes(v, s.Meta.Virtual != "", s.Meta.Owner.Pid, spec.Runtime{})
}

// nodeBackLocked: an agent is back. Workers that it does not have do not come.
func (h *Head) nodeBackLocked(n *node, m *wire.AgentBack) {
	r := h.resuming
	delete(r.nodes, n)
	has := map[uint32]bool{}
	for _, at := range m.Workers {
		has[at.Number] = true
	}
	for _, e := range m.Exits {
		has[e.Worker] = true // it is told why below
	}
	for w := range r.waits {
		if w.node == n && !has[w.Number] {
			h.loseLaterLocked(w, spec.Errorf(spec.CodeWorkerDied, "%s on %s ended while there was no head", w.Name, w.Node))
		}
	}
	for _, at := range m.Objects {
		if at.Held != 0 {
			r.stored[lease.Object(at.Object)] = at.Segment
		} else {
			r.unheld[n] = append(r.unheld[n], at)
		}
	}
	h.settleSoonLocked()
}

// loseLaterLocked: a worker does not come back, or has ended since. Its calls are
// told when they are put together.
func (h *Head) loseLaterLocked(w *worker, why *spec.Error) {
	r := h.resuming
	delete(r.waits, w)
	if r.lost[w] == nil {
		r.lost[w] = why
	}
	h.endCallersLocked(w)
	h.settleSoonLocked()
}

// takesOf says that what a worker has to tell is put together with the rest: it is
// waited for, or was until it ended.
func (r *resuming) takesOf(w *worker) bool { return r.waits[w] || r.legs[w] != nil }

// losses are the workers that are lost, those first whose own end it is that is to
// be told: where one takes its cluster along, the others are replaced with it.
func (r *resuming) losses() []*worker {
	own := func(w *worker) int {
		if r.lost[w].Worker == w.Name {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(maps.Keys(r.lost), func(a, b *worker) int {
		return cmp.Or(cmp.Compare(own(a), own(b)), cmp.Compare(a.Number, b.Number))
	})
}

// settleSoonLocked looks whether everybody is back.
func (h *Head) settleSoonLocked() {
	r := h.resuming
	if r == nil || r.over || r.grace == nil || !h.togetherLocked() {
		return
	}
	r.over = true
	go h.settle()
}

// togetherLocked says that nobody is waited for any more.
func (h *Head) togetherLocked() bool {
	r := h.resuming
	if r.late {
		return true
	}
	for n := range r.nodes {
		if n.lost == nil {
			return false
		}
	}
	for w := range r.waits {
		if !w.all {
			return false
		}
	}
	busy, idle := h.absentLocked()
	if idle && !busy && !r.calm && r.idle == nil {
		r.idle = time.AfterFunc(idleWait, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			r.calm = true
			h.settleSoonLocked()
		})
	}
	return !busy && (!idle || r.calm)
}

// absentLocked says whether callers are waited for that workers have legs of, and
// whether there are others that are not back.
func (h *Head) absentLocked() (busy, idle bool) {
	at := h.resuming.origins()
	for c := range h.resuming.callers {
		switch {
		case c.all || c.left:
		case at[c.number] || c.said:
			busy = true
		default:
			idle = true
		}
	}
	return busy, idle
}

// origins are the callers that workers have legs of.
func (r *resuming) origins() map[uint32]bool {
	at := map[uint32]bool{}
	for _, m := range r.legs {
		for _, l := range m.Legs {
			at[uint32(l.Origin>>32)] = true //nolint:gosec // so it was put together
		}
	}
	return at
}

// settle puts together what all have told, and goes on from there.
func (h *Head) settle() {
	var b batch
	h.mu.Lock()
	r := h.resuming
	if !h.togetherLocked() { // somebody was cut off again in this moment, and is on its way
		r.over = false
		h.mu.Unlock()
		return
	}
	r.grace.Stop()
	at := r.origins()
	for w := range r.waits {
		if !w.all {
			h.loseLaterLocked(w, spec.Errorf(spec.CodeWorkerDied, "%s on %s did not come back within %v after the head ended", w.Name, w.Node, h.opts.Grace))
		}
	}
	for _, c := range h.callers { // those who came for the first time had to wait as well
		r.callers[c] = true
	}
	callers := slices.SortedFunc(maps.Keys(r.callers), func(a, b *caller) int { return cmp.Compare(a.number, b.number) })
	h.countObjectsLocked(r)
	together := h.table.Comeback()
	workers := slices.SortedFunc(maps.Keys(r.legs), func(a, b *worker) int { return cmp.Compare(a.Number, b.Number) })
	for _, w := range workers {
		m := r.legs[w]
		together.Received(&w.Worker, m.Received)
		for _, l := range m.Legs {
			together.Got(&w.Worker, l.Seq, call.ID(l.Call), l.Origin)
		}
		if w.port == nil {
			h.table.WorkerDying(&w.Worker)
		}
	}
	for w := range r.lost {
		h.table.WorkerDying(&w.Worker)
	}
	for _, c := range callers {
		c.draining = true
		if c.late = !c.all && (c.said || at[c.number]); c.late {
			c.early = nil
		}
		if c.all {
			h.putCallsLocked(c, together, &b)
		}
	}
	h.resuming = nil
	back := func(number uint32) bool { return h.callers[number] != nil && h.callers[number].all }
	ops := together.Prepare(back, h.orphanLocked)
	for _, put := range r.made {
		switch {
		case put.call == nil:
			h.arrivedLocked(0, 0, put.bufs)
		case put.call.Leased:
			h.arrivedLocked(0, lease.Call(uint64(put.call.ID)), put.bufs)
		}
	}
	h.ordersLocked(ops, &b)
	h.replayLocked(workers, &b)
	for _, c := range callers {
		c.early = slices.DeleteFunc(c.early, func(e earlyFrame) bool {
			return (e.Kind == wire.KindCancel || e.Kind == wire.KindExpire) && c.endLocked(&e.Frame, &b)
		})
	}
	for _, late := range r.expired { // after the results that were kept, before anything is sent
		h.ordersLocked(h.table.Expire(late), &b)
	}
	for _, w := range r.losses() {
		h.lostLocked(w, r.lost[w], &b)
	}
	h.ordersLocked(together.Go(), &b)
	for _, w := range workers {
		w.releaseLocked(&b)
	}
	for _, c := range callers {
		c.unputLocked(&b)
	}
	for _, c := range callers {
		if c.worker == nil && c.port == nil && !c.left && !c.goesLocked() {
			r.missing[c] = true
		}
	}
	if len(r.missing) == 0 {
		h.countedLocked(r, &b)
	} else {
		h.uncounted = r
	}
	h.tellStoresLocked(&b)
	h.settledLocked(r, &b)
	h.announceLocked()
	h.free.Broadcast()
	h.mu.Unlock()
	b.flush()
	h.fault("settled")
	for _, c := range callers {
		c.drain()
	}
	h.opts.Log.Info("resumed", "epoch", h.epoch, "workers", len(workers), "callers", len(callers), "lost", len(r.lost))
}

// orphanLocked makes room for what the head keeps of a call that nobody claims.
func (h *Head) orphanLocked(c *call.Call) {
	cl := h.clusters[c.Cluster.Number]
	c.Method = "a call of before"
	c.Data = &pending{cluster: cl, method: &method{}, begun: time.Now()}
}

// putCallsLocked takes the calls and answers that a caller has sent again. The rest
// of what it has sent stays, in order.
func (h *Head) putCallsLocked(c *caller, together *call.Comeback, b *batch) {
	var rest []earlyFrame
	for i := range c.early {
		f := &c.early[i].Frame
		switch {
		case f.Kind == wire.KindAnswer:
			c.putLocked(f)
		case f.Kind == wire.KindCall && f.Flags&wire.FlagAgain != 0:
			h.putCallLocked(c, f, together, b)
		default:
			rest = append(rest, c.early[i])
		}
	}
	c.early = rest
}

func (h *Head) putCallLocked(c *caller, f *wire.Frame, together *call.Comeback, b *batch) {
	var rt route
	payload, err := rt.read(f.Body)
	if err != nil {
		c.failLocked(nil, f.ID, spec.AsError(err), b)
		return
	}
	p, refused := h.resolveLocked(c, &rt)
	if refused == nil {
		refused = p.prepareArgs(p.cluster.ranks, &rt, payload, f)
	}
	if refused == nil && len(p.waits) > 0 {
		h.pairLocked(p, p.cluster.ranks)
	}
	var req call.Request
	if refused == nil {
		req = h.requestOf(c, f.ID, &rt, p)
		if refused = p.cluster.lostCall(&req); refused != nil {
			together.Refused(req)
		}
	}
	if refused != nil {
		h.resuming.made = append(h.resuming.made, putCall{nil, f.Bufs})
		c.refuseAgainLocked(f.ID, refused, b)
		return
	}
	req.Leased = wire.HasRefs(f.Bufs)
	made := together.Call(req)
	if made == nil {
		return
	}
	p.size = wire.Size(nil, payload, f.Bufs) + callBytes
	c.bytes += p.size
	h.resuming.made = append(h.resuming.made, putCall{made, f.Bufs})
	switch {
	case rt.over():
		p.over = true
		h.resuming.expired = append(h.resuming.expired, made)
	case p.timeout > 0:
		p.timer = time.AfterFunc(p.timeout, func() { h.expire(made) })
	}
}

// replayLocked takes the results that workers kept, in the order of calls: what is
// an argument comes before what it is one of.
func (h *Head) replayLocked(workers []*worker, b *batch) {
	type kept struct {
		w *worker
		f *wire.Frame
	}
	var all, released []kept
	for _, w := range workers {
		for i := range w.early {
			f := &w.early[i].Frame
			if f.Kind == wire.KindResult {
				all = append(all, kept{w, f})
			} else {
				released = append(released, kept{w, f})
			}
		}
		w.comeback = comeback{}
	}
	slices.SortStableFunc(all, func(a, b kept) int { return cmp.Compare(a.f.ID, b.f.ID) })
	for _, k := range all {
		_ = h.resultLocked(k.w, k.f, b) // what cannot be read is as good as lost
	}
	for _, k := range released { // which may be of what a result has just named
		if verb, rest, err := wire.ReadVerb(k.f.Body); err == nil && verb == "release" {
			_ = h.releasedLocked(lease.Worker(k.w.Number), rest)
		}
	}
}

// goesLocked says that a caller is not to come back any more.
func (c *caller) goesLocked() bool {
	return c.late || (!c.all && (c.dead || c.h.opts.Grace <= 0))
}

// drain handles what a caller has sent while others were waited for, and then
// whatever comes. One that did not come back has the rest of the grace, unless
// workers had something of it: that was not claimed, and must not come now.
func (c *caller) drain() {
	h := c.h
	for {
		h.mu.Lock()
		early := c.early
		c.early = nil
		if len(early) == 0 {
			c.draining = false
			gone := c.goesLocked()
			if !c.all && !gone && c.port == nil {
				c.awayLocked(h, h.opts.Grace, func() { c.leave(errAwayTooLong) })
			}
			c.comeback = comeback{}
			h.free.Broadcast()
			h.mu.Unlock()
			if gone {
				c.leave(errAwayTooLong)
			}
			return
		}
		h.mu.Unlock()
		var b batch
		for i := range early {
			from := callerConn{caller: c, lineEnd: early[i].end, drains: true}
			if err := from.handle(&early[i].Frame, &b); err != nil {
				h.opts.Log.Warn("a frame of before cannot be handled", "err", err)
			}
		}
		b.unlock(h)
		b.flush()
	}
}
