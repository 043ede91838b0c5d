package head

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// caller is a controller: a script, or a worker that calls others.
type caller struct {
	line
	h       *Head
	number  uint32
	worker  *worker // whose process it is in, nil for scripts
	pid     int
	runtime spec.Runtime
	leaving bool // it says that it does not come back
	left    bool // it is gone for good
	dead    bool // its process is known to be gone

	ctx    context.Context // ends when it is gone
	cancel context.CancelFunc
	busy   sync.WaitGroup                // requests being worked on
	asked  map[uint64]context.CancelFunc // what gives one up, by id

	bytes   int // of arguments of its unanswered calls
	answers keeping
	had     map[uint64]bool // calls that were answered and that it may send again, while it is coming back
	puts    []*call.Call    // answers that it gave back, as long
	comeback
	late     bool // others went on without what it has at workers: it must not send that again
	draining bool // early is being handled; what comes is put behind
}

// callerConn is one connection of a caller.
type callerConn struct {
	*caller
	lineEnd
	drains bool  // its frames are those that were put aside
	route  route // reused by its one reader
}

// addCaller registers a controller. Called with mu held.
func (h *Head) addCaller(w *worker, pid int) *caller {
	c := &caller{h: h, number: h.numberLocked(), worker: w, pid: pid, asked: map[uint64]context.CancelFunc{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	h.callers[c.number] = c
	return c
}

func (c *callerConn) handle(f *wire.Frame, b *batch) error {
	if f.Kind == wire.KindCall {
		return c.call(f, b)
	}
	verb, rest := "", []byte(nil)
	if f.Kind == wire.KindNotice || f.Kind == wire.KindRequest {
		var err error
		if verb, rest, err = wire.ReadVerb(f.Body); err != nil {
			return err
		}
	}
	c.h.mu.Lock()
	now, err := c.takesLocked(f, verb, b)
	c.h.mu.Unlock()
	if !now || err != nil {
		return err
	}
	return c.take(f, verb, rest, b)
}

// take handles a frame that is no Call.
func (c *callerConn) take(f *wire.Frame, verb string, rest []byte, b *batch) error {
	switch f.Kind {
	case wire.KindRequest:
		return c.request(f, verb, rest, b)
	case wire.KindNotice:
		return c.notice(f, verb, rest, b)
	case wire.KindAnswer:
		return c.put(f)
	case wire.KindCancel, wire.KindExpire, wire.KindWait:
		return c.steer(f, b)
	}
	return spec.Errorf(spec.CodeProtocol, "a controller sent a frame of kind %d", f.Kind)
}

func (c *callerConn) notice(f *wire.Frame, verb string, rest []byte, b *batch) error {
	switch verb {
	case "release":
		c.acked(f.Ack, b)
		return c.h.release(c.holder(), rest, b)
	case "back":
		return c.returned(rest, b)
	case "resent":
		return c.resent(b)
	case "leave":
		c.h.mu.Lock()
		c.leaving = true
		c.h.mu.Unlock()
		return nil
	}
	return noNotice("a controller", verb)
}

// request works on a Request beside the reader: it may take long.
func (c *callerConn) request(f *wire.Frame, verb string, rest []byte, b *batch) error {
	id, body := f.ID, append([]byte(nil), rest...)
	if verb == "pool.release" { // quick, and before what its sender asks for next
		c.respond(c.ctx, id, verb, body, nil)
		return nil
	}
	c.h.mu.Lock()
	_, under := c.asked[id]
	ctx, cancel := context.WithCancel(c.ctx)
	if !under {
		c.asked[id] = cancel
	}
	given := c.givenLocked(f, under, b)
	c.h.mu.Unlock()
	if under { // it was cut off while it waited: it is answered once, where it is by then
		cancel()
		return nil
	}
	c.busy.Add(1)
	go func() {
		defer c.busy.Done()
		defer cancel()
		c.respond(ctx, id, verb, body, given)
	}()
	return nil
}

// respond answers one request, which may have come with buffers.
func (c *caller) respond(ctx context.Context, id uint64, verb string, body []byte, given *setup) {
	resp, err := c.serve(ctx, id, verb, body, given)
	c.h.dropUnused(given)
	if err == nil {
		body, err = resp.MarshalMsg(nil)
	}
	hd := wire.Header{Kind: wire.KindResponse, ID: id}
	if err != nil {
		hd.Flags, body = wire.FlagError, wire.AppendError(nil, spec.AsError(err))
	}
	c.h.fault("responding")
	c.h.mu.Lock()
	delete(c.asked, id)
	to := c.port
	if to != nil { // else it asks again when it is back
		to.Queue(hd, nil, body, nil)
	}
	c.h.mu.Unlock()
	if to != nil {
		to.Flush()
	}
	c.h.fault("responded")
	// Only who all this is for may end it; others just leave.
	if verb == "shutdown" && (c == c.h.owner || c.h.owner == nil) {
		c.h.end("its owner asked for it")
	}
}

// serve answers one request; of those that may take long, one for a pool or a cluster can be given up.
func (c *caller) serve(ctx context.Context, id uint64, verb string, body []byte, given *setup) (marshaler, error) {
	h := c.h
	origin := c.origin(id)
	switch verb {
	case "pool.create":
		var req wire.PoolCreate
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.createPool(ctx, c, origin, &req))
	case "pool.look":
		var req wire.PoolCreate
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.lookForPool(c.ctx, &req))
	case "pool.release", "pool.end":
		var req wire.PoolRelease
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		if verb == "pool.end" {
			h.endUsers(req.Pool)
		}
		h.letGo(req.Pool)
		return &wire.Empty{}, nil
	case "cluster.create":
		var req wire.ClusterCreate
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.createCluster(ctx, c, origin, &req, given))
	case "cluster.describe", "cluster.stop", "cluster.clear", "cluster.kill":
		return c.serveCluster(verb, body)
	case "plan":
		var req wire.PlanRequest
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.plan(&req))
	case "status":
		var req wire.StatusRequest
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return h.statusWith(c.ctx, req), nil
	case "nodes":
		var req wire.NodesRequest
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.allNodes(c.ctx, &req))
	case "service.list":
		return h.services(), nil
	case "store":
		return orError(h.stores(c.ctx))
	case "cluster.stacks":
		var req wire.ClusterStacks
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.clusterStacks(&req))
	case "worker.env":
		var req wire.WorkerEnv
		if err := parse(verb, &req, body); err != nil {
			return nil, err
		}
		return orError(h.workerEnv(c.ctx, &req))
	case "shutdown":
		h.mu.Lock()
		mark := h.events.markLocked()
		h.mu.Unlock()
		return &wire.Mark{Mark: mark}, nil
	}
	return nil, spec.Errorf(spec.CodeProtocol, "unknown request %q", verb)
}

func (c *caller) serveCluster(verb string, body []byte) (marshaler, error) {
	h := c.h
	var ref wire.ClusterRef
	if err := parse(verb, &ref, body); err != nil {
		return nil, err
	}
	h.mu.Lock()
	cl := h.clusters[ref.Number]
	if ref.Number == 0 {
		cl = h.names[ref.Name]
	}
	if cl != nil && ref.Name != "" && cl.Name != ref.Name {
		cl = nil // who asks means one of an earlier session, which had this number
	}
	if cl != nil && ref.Kind != "" && (cl.spec.Kind != ref.Kind || cl.service() && !cl.livesLocked()) {
		cl = nil
	}
	if cl == nil || (verb == "cluster.describe" && !cl.up) {
		defer h.mu.Unlock()
		if verb == "cluster.stop" {
			return &wire.Mark{Mark: h.events.markLocked()}, nil // gone already
		}
		return nil, h.noClusterLocked(ref)
	}
	defer h.mu.Unlock()
	switch verb {
	case "cluster.describe":
		return cl.infoLocked(), nil
	case "cluster.clear":
		workers, err := cl.meantLocked(ref, "clear")
		if err != nil {
			return nil, err
		}
		h.mu.Unlock()
		err = h.clear(c.ctx, workers)
		h.mu.Lock()
		return &wire.Empty{}, err
	case "cluster.kill":
		workers, err := h.doomedLocked(cl, ref)
		if err != nil {
			return nil, err
		}
		h.mu.Unlock()
		err = h.kill(c.ctx, workers, cmp.Or(ref.Why, "killed, as it was asked for")+c.where())
		h.mu.Lock()
		return &wire.Empty{}, err
	}
	h.mu.Unlock()
	h.drain(c.ctx, cl, ref.Drain)
	ctx, cancel := context.WithTimeout(context.Background(), cl.grace()+h.opts.StopWait)
	err := h.stopCluster(ctx, cl, "it was shut down")
	cancel()
	h.mu.Lock()
	return &wire.Mark{Mark: h.events.markLocked()}, err
}

func (h *Head) noClusterLocked(ref wire.ClusterRef) error {
	if ref.Number != 0 {
		return spec.Errorf(spec.CodeNotFound, "cluster %s is no more: it was shut down, or its controller ended", ref.Name)
	}
	var names []string
	for name, cl := range h.names {
		if ref.Kind == "" || cl.spec.Kind == ref.Kind && cl.livesLocked() {
			names = append(names, name)
		}
	}
	kind := cmp.Or(ref.Kind, spec.KindCluster)
	if near := spec.NearestName(ref.Name, names); near != "" {
		return spec.Errorf(spec.CodeNotFound, "there is no %s %q; did you mean %q?", kind, ref.Name, near)
	}
	return spec.Errorf(spec.CodeNotFound, "there is no %s %q; there are %d others", kind, ref.Name, len(names))
}

func parse(verb string, m unmarshaler, body []byte) error {
	if _, err := m.UnmarshalMsg(body); err != nil {
		return spec.Errorf(spec.CodeProtocol, "the request %s cannot be read: %v", verb, err)
	}
	return nil
}

func orError[T marshaler](m T, err error) (marshaler, error) { return m, err }

// mtrue is true in msgpack: a Cancel that also kills.
const mtrue = 0xc3

// steer takes Cancel, Expire and Wait.
func (c *caller) steer(f *wire.Frame, b *batch) error {
	h := c.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.Kind == wire.KindWait {
		if c.worker == nil {
			return nil // only a wait inside a call can close a cycle
		}
		ids, err := readIDs(f.Body)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if cl := h.table.FindCaller(c.number, id); cl != nil {
				h.ordersLocked(h.table.Wait(&c.worker.Worker, cl, f.Flags&wire.FlagWhole != 0), b)
			}
		}
		return nil
	}
	if !c.endLocked(f, b) && f.Kind == wire.KindCancel {
		c.giveUpLocked(f.ID)
	}
	return nil
}

// giveUpLocked ends a request for a pool or a cluster: nothing is reserved for it any
// more, and what was, of which its asker has not heard, is free again; what has been
// started for it is stopped.
func (c *caller) giveUpLocked(id uint64) {
	if cancel := c.asked[id]; cancel != nil {
		cancel()
	}
	if p := c.h.madeLocked(c.origin(id)); p != nil {
		c.h.giveBackLocked(p)
	}
	// Of a service others may have heard.
	if cl := c.h.startedLocked(c.origin(id)); cl != nil && cl.up && !cl.service() {
		c.h.serving.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), cl.grace()+c.h.opts.StopWait)
			defer cancel()
			_ = c.h.stopCluster(ctx, cl, "its start was given up")
		})
	}
}

// origin names a request of its in all that comes of it.
func (c *caller) origin(id uint64) uint64 { return uint64(c.number)<<32 | id&0xffffffff }

// endLocked takes Cancel and Expire, and says whether there is such a call.
func (c *caller) endLocked(f *wire.Frame, b *batch) bool {
	h := c.h
	target := h.table.FindCaller(c.number, f.ID)
	if target == nil {
		return false // answered already
	}
	if f.Kind == wire.KindCancel {
		kill := len(f.Body) == 1 && f.Body[0] == mtrue
		h.ordersLocked(h.table.Cancel(target, kill), b)
		h.overdueLater(target)
		return true
	}
	h.ordersLocked(h.table.Expire(target), b)
	return true
}

// gone: the connection ended. Its process may come back on another.
func (c *callerConn) gone(err error) {
	h := c.h
	h.mu.Lock()
	if !c.endedLocked(&c.lineEnd) {
		h.mu.Unlock()
		return
	}
	if !c.leaving && !c.dead && !hungUp(err) && !h.isOver {
		c.awayLocked(h, h.opts.Grace, func() { c.leave(errAwayTooLong) })
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	c.leave(err)
}

// errAwayTooLong is the end of the grace.
var errAwayTooLong = errors.New("its connection was lost, and it did not come back in time")

// leave: the caller does not come back, and with it goes what was only for it.
func (c *caller) leave(err error) {
	h := c.h
	c.cancel()
	if h.crashed.Load() {
		return
	}
	var b batch
	h.mu.Lock()
	if c.left {
		h.mu.Unlock()
		return
	}
	c.left = true
	c.hereLocked()
	if to := c.port; to != nil && c.late {
		go func() { _ = to.Close() }()
	}
	h.free.Broadcast()
	delete(h.callers, c.number)
	h.noteLeftLocked(c)
	for _, k := range c.answers.open() {
		if k.call != nil {
			h.ordersLocked(h.table.Acked(k.call), &b)
		}
	}
	h.ordersLocked(h.table.CallerGone(c.number), &b)
	if c.worker == nil {
		h.endedLocked(lease.Caller(c.number), c.worker.nodeIndex(), &b)
	}
	h.cameOrWentLocked(c, &b)
	isOwner := h.owner == c
	var mine []*cluster
	for _, cl := range h.clusters {
		if cl.owner == c {
			mine = append(mine, cl)
		}
	}
	for _, p := range h.pools {
		if p.owner == c {
			p.released = true
			h.releaseLocked(p)
			h.notePoolLocked(p)
		}
	}
	h.settleSoonLocked()
	h.mu.Unlock()
	b.flush()
	if isOwner {
		why := "its owner has left"
		if err != nil {
			why += " (" + err.Error() + ")"
		}
		h.end(why)
		return
	}
	for _, cl := range mine {
		go func() {
			c.busy.Wait() // a create may still be under way
			ctx, cancel := context.WithTimeout(context.Background(), cl.grace()+h.opts.StopWait)
			defer cancel()
			_ = h.stopCluster(ctx, cl, "its controller is gone")
		}()
	}
}
