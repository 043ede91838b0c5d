package head

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// cluster is one named group of workers, from its creation to its end.
type cluster struct {
	call.Cluster // what calls see
	spec         spec.Cluster
	setup        *setup // what spec's Config names; nil: nothing
	plan         placement.Plan
	pool         *pool
	owner        *caller
	workers      []*worker
	methods      map[string]*method
	engines      map[string]*method // methods of engines that were called, "engine/method"
	desc         spec.Description
	ranks        []spec.RankInfo       // the layout in force; replaced, never changed
	reports      map[int]spec.RankInfo // what ranks told and is not in force yet
	ready        int
	settled      chan struct{} // closed when all are ready or the first failed
	started      chan struct{} // closed when it is up, or is being cleared
	failed       *spec.Error
	up           bool
	stopping     bool
	drains       bool          // it takes no more calls
	noting       bool          // it is written down soon
	origin       uint64        // of the request that made it
	ended        chan struct{} // closed when nothing of it is left
	master       placement.Master

	direct []*worker // where a broadcast goes: those with connections of their own,
	fans   []fan     // and those behind agents

	recovery        // of ranks that die
	toldOthers bool // what the others did when one died; once, until it is replaced
}

// method is a method with what dispatch needs to know of it.
type method struct {
	spec.Method
	mode  dispatch.Mode
	title string // cluster.method, for people
	took  durations
}

func (cl *cluster) grace() time.Duration {
	return time.Duration(cl.spec.GraceSeconds * float64(time.Second))
}

// createCluster starts a cluster and returns when every worker is ready.
func (h *Head) createCluster(ctx context.Context, owner *caller, origin uint64, req *wire.ClusterCreate, given *setup) (*wire.ClusterInfo, error) {
	if info, err := h.createdBefore(ctx, origin); info != nil || err != nil {
		return info, err
	}
	h.checkReserved(ctx, req.Pool)
	cl, living, err := h.register(ctx, owner, origin, req, given)
	if living != nil || err != nil {
		return living, err
	}
	h.fault("cluster registered")
	err = h.startCluster(ctx, cl)
	close(cl.started)
	if err != nil {
		stopCtx, cancel := context.WithTimeout(context.Background(), cl.grace()+h.opts.StopWait)
		defer cancel()
		_ = h.stopCluster(stopCtx, cl, "its start failed")
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return cl.infoLocked(), nil
}

// registerCluster checks, places and names a cluster, all before anything starts.
// Where a service has the name, what follows is for yields to say.
func (h *Head) registerCluster(ctx context.Context, owner *caller, origin uint64, req *wire.ClusterCreate, given *setup) (made, taken *cluster, err error) {
	s := req.Spec
	if s.Runtime.Python == "" && len(s.Runtime.Command) == 0 {
		s.Runtime = owner.runtime
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil { // under the lock, in which it is given up
		return nil, nil, spec.Errorf(spec.CodeCancelled, "%s %s: its start was given up: %v", cmp.Or(s.Kind, spec.KindCluster), s.Name, context.Cause(ctx))
	}
	if owner.worker != nil {
		s.Runtime = s.Runtime.Back(owner.worker.node.moved)
	}
	if h.isOver {
		return nil, nil, spec.Errorf(spec.CodeHeadLost, "the head is ending: %s", h.overWhy)
	}
	if other := h.names[s.Name]; other != nil {
		if other.service() && (s.Kind == spec.KindService || !other.livesLocked()) || other.up && other.endedLocked() {
			return nil, other, nil
		}
		return nil, nil, spec.Errorf(spec.CodeInvalid, "there is a live %s named %q already, of %d workers: shut it down first, or use another name", other.spec.Kind, s.Name, len(other.workers))
	}
	number := req.Pool
	if number == 0 && s.Kind == spec.KindService {
		if err := s.Check(); err != nil {
			return nil, nil, err
		}
		if number = h.sharedLocked(s); number == 0 {
			return nil, nil, errNoPool
		}
	}
	p := h.pools[number]
	if p == nil {
		return nil, nil, spec.Errorf(spec.CodeNotFound, "cluster %s: its resource manager (pool %d) was released already", s.Name, req.Pool)
	}
	if p.void {
		return nil, nil, spec.Errorf(spec.CodeResources, "cluster %s: the reservation of its pool %d is gone: make a new ResourceManager", s.Name, p.ID)
	}
	if s.GPUs > 0 {
		if s, err = placement.Choose(p.Pool, s, h.takenLocked(p)); err != nil {
			return nil, nil, err
		}
	}
	plan, err := placement.Place(p.Pool, s)
	if err != nil {
		return nil, nil, err
	}
	s = plan.Cluster // as it was checked, with what follows from it
	if s.Runtime.RuntimeEnv != "" && h.launcher.reserver == nil {
		return nil, nil, spec.Errorf(spec.CodeInvalid,
			"cluster %s: runtime_env has %s, which Ray sets up, and the nodes here are this machine's: install what is needed for an interpreter and name it by WorkerConfig(python=...), or say MUSTER_BACKEND=ray",
			s.Name, strings.Join(s.Runtime.RuntimeKeys(), ", "))
	}
	if s.Kind == spec.KindService {
		if owner, err = owner.scriptLocked(s.Name); err != nil {
			return nil, nil, err
		}
	}
	cl := newCluster(s, plan, p, owner, origin)
	cl.Number, cl.Name = h.numberLocked(), s.Name
	if err := h.checkFilesLocked(cl); err != nil {
		return nil, nil, err
	}
	for _, place := range plan.Workers {
		if n := h.nodes[p.Nodes[place.Node].Index]; n.lost != nil {
			return nil, nil, n.lost
		}
	}
	for _, place := range plan.Workers {
		n := h.nodes[p.Nodes[place.Node].Index]
		w := h.newWorkerLocked(cl, place, n)
		cl.workers = append(cl.workers, w)
		cl.Workers = append(cl.Workers, &w.Worker)
		cl.ranks = append(cl.ranks, place.Info)
	}
	h.clusters[cl.Number], h.names[cl.Name] = cl, cl
	p.clusters++
	cl.takeSetup(given)
	h.noteClusterLocked(cl)
	return cl, nil, nil
}

func newCluster(s spec.Cluster, plan placement.Plan, p *pool, owner *caller, origin uint64) *cluster {
	return &cluster{
		Cluster: call.Cluster{Most: s.MaxConcurrency}, spec: s, plan: plan, pool: p, owner: owner, origin: origin, settled: make(chan struct{}), started: make(chan struct{}), ended: make(chan struct{}),
		recovery: recovery{budget: budget{most: s.MaxRestarts, window: time.Duration(s.RestartWindowSeconds * float64(time.Second))}},
	}
}

// createdBefore finds what an earlier sending of the same request led to: a cluster
// that is up is the answer; one that is being cleared has to be gone first.
func (h *Head) createdBefore(ctx context.Context, origin uint64) (*wire.ClusterInfo, error) {
	for {
		h.mu.Lock()
		found := h.startedLocked(origin)
		if found == nil || found.up {
			defer h.mu.Unlock()
			if found == nil {
				return nil, nil
			}
			return found.infoLocked(), nil
		}
		h.mu.Unlock()
		select {
		case <-found.ended:
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeCancelled, "%s: its start was given up: %v", found.title(), context.Cause(ctx))
		}
	}
}

// startedLocked is the cluster that a request has led to, if there is one.
func (h *Head) startedLocked(origin uint64) *cluster {
	for _, cl := range h.clusters {
		if cl.origin == origin {
			return cl
		}
	}
	return nil
}

// newWorkerLocked makes a worker that is about to be started.
func (h *Head) newWorkerLocked(cl *cluster, place placement.Worker, n *node) *worker {
	w := &worker{h: h, cluster: cl, node: n, place: place, state: "starting"}
	w.Worker = call.Worker{Number: h.numberLocked(), Rank: place.Rank, Name: place.Name, Node: n.name, Cluster: &cl.Cluster}
	w.token = h.tokenFor("worker " + strconv.Itoa(int(w.Number)))
	h.workers[w.Number] = w
	return w
}

// FilesFor is how many open files a head needs at most for so many workers: a
// call connection each, and one more where it calls others.
func FilesFor(workers int) int { return workers*2 + 64 }

// checkFilesLocked refuses what the head's own open files cannot carry.
func (h *Head) checkFilesLocked(cl *cluster) error {
	if h.virtual.Relay {
		return nil // they come over their agents' connections
	}
	limit := openFiles()
	need := uint64(FilesFor(len(h.workers) + len(cl.plan.Workers)))
	if limit > 0 && need > limit {
		return spec.Errorf(spec.CodeLimit, "cluster %s: %d workers need up to %d open files, the limit is %d: raise it (ulimit -n %d) and start again",
			cl.Name, len(h.workers)+len(cl.plan.Workers), need, limit, need)
	}
	return nil
}

// startCluster has the agents start the workers and waits for them.
func (h *Head) startCluster(ctx context.Context, cl *cluster) error {
	timeout := time.Duration(cl.spec.StartupSeconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	h.tell(cl, "starting workers", false)
	if err := h.holdMaster(ctx, cl); err != nil {
		h.tell(cl, "could not start", true)
		return err
	}
	var all sync.WaitGroup
	for n, s := range h.startsOf(cl, cl.workers) {
		all.Go(func() {
			if err := h.startOn(ctx, n, s); err != nil && ctx.Err() == nil {
				h.mu.Lock()
				e := *spec.AsError(err)
				e.Cluster = cl.Name
				if e.Node == "" {
					e.Node = n.name
				}
				cl.failLocked(&e)
				h.mu.Unlock()
			}
		})
	}
	defer all.Wait()
	if !h.awaitStart(ctx, cl) {
		cancel()
		return h.startTimeout(cl, timeout, ctx)
	}
	var b batch
	h.mu.Lock()
	failed := cl.failed
	cl.up = failed == nil
	if !cl.spec.Restarts() {
		cl.spec.Config = nil // nothing is made of it again; it may be large
		h.endSetupLocked(cl)
		h.tellStoresLocked(&b)
	}
	h.noteClusterLocked(cl)
	h.mu.Unlock()
	b.flush()
	h.fault("cluster up")
	if failed != nil {
		h.tell(cl, "could not start", true)
		cancel()
		return failed
	}
	h.tell(cl, "ready", true)
	return nil
}

// awaitStart waits until all workers are ready or the first failed, and tells
// now and then who is missing; false when ctx ended before.
func (h *Head) awaitStart(ctx context.Context, cl *cluster) bool {
	again := time.NewTicker(h.opts.TellEvery)
	defer again.Stop()
	for {
		select {
		case <-cl.settled:
			return true
		case <-ctx.Done():
			return false
		case <-again.C:
			h.tell(cl, "starting workers", false)
		}
	}
}

// startTimeout words a start that took too long, with what the late ones do.
func (h *Head) startTimeout(cl *cluster, timeout time.Duration, ctx context.Context) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		h.tell(cl, "given up", true)
		return spec.Errorf(spec.CodeCancelled, "%s: its start was given up: %v", cl.title(), context.Cause(ctx))
	}
	h.tell(cl, "not ready in time", true)
	h.mu.Lock()
	var late []*worker
	for _, w := range cl.workers {
		if w.state == "starting" {
			late = append(late, w)
		}
	}
	h.mu.Unlock()
	stacks := h.stacksOf(late)
	e := spec.Errorf(spec.CodeTimeout, "%s: %d of %d workers were not ready after %v (startup_timeout)", cl.title(), len(late), len(cl.workers), timeout)
	e.Cluster = cl.Name
	e.TellStacks(stacks, nil)
	return e
}

// holdMaster has a port held on rank 0's node for the workers' own rendezvous.
func (h *Head) holdMaster(ctx context.Context, cl *cluster) error {
	first := cl.workers[0].node
	var ports wire.Ports
	if err := first.ask(ctx, "hold_ports", &wire.HoldPorts{Cluster: cl.Number, Count: 1}, &ports); err != nil {
		return fmt.Errorf("%s: no port could be held on %s: %w", cl.title(), first.name, err)
	}
	if len(ports.Ports) != 1 {
		return spec.Errorf(spec.CodeProtocol, "the agent of %s held %d ports instead of 1", first.name, len(ports.Ports))
	}
	h.mu.Lock()
	cl.master = placement.Master{Addr: first.whereLocked(), Port: ports.Ports[0]}
	h.mu.Unlock()
	h.fault("port held")
	return nil
}

// startsOf is what the agents are asked for, to start these workers of a cluster.
func (h *Head) startsOf(cl *cluster, workers []*worker) map[*node]*wire.Start {
	starts := map[*node]*wire.Start{}
	for _, w := range workers {
		s := starts[w.node]
		if s == nil {
			s = h.startOf(cl, w.node)
			starts[w.node] = s
		}
		s.Workers = append(s.Workers, wire.WorkerStart{
			Number: w.Number, Rank: w.Rank, Name: w.Name, Token: w.token,
			Env: cl.plan.Env(w.Rank, cl.master), Info: w.place.Info,
		})
	}
	return starts
}

func (h *Head) startOf(cl *cluster, n *node) *wire.Start {
	s := &cl.spec
	return &wire.Start{
		Cluster: s.Name, Number: cl.Number, Start: s.Start, Runtime: s.Runtime,
		Setup: wire.WorkerSetup{
			Kind: s.Kind, Class: s.Class, Main: s.Runtime.Main, Config: s.Config, ConfigBufs: cl.setup.buffers(), Pickle: s.Pickle,
			MaxConcurrency: s.MaxConcurrency, Cluster: s.Name, ClusterNumber: cl.Number,
			CallAddress: h.address, Node: n.name, LogDir: h.opts.LogDir,
		},
	}
}

// readyLocked: a worker can be called.
func (h *Head) readyLocked(w *worker, r wire.Ready) {
	cl := w.cluster
	if w.state != "starting" {
		return
	}
	w.Serial = r.Description.Serial
	w.engines = r.Engines
	if w.try != nil {
		w.try.readyLocked(w, r)
		return
	}
	h.fault("worker ready")
	w.state = "ready"
	if cl.methods == nil {
		if err := cl.describe(r.Description); err != nil {
			cl.failLocked(err)
			return
		}
	}
	if r.Info != nil {
		if cl.reports == nil {
			cl.reports = map[int]spec.RankInfo{}
		}
		cl.reports[w.Rank] = *r.Info
	}
	cl.ready++
	if cl.ready < len(cl.workers) {
		if step := max(1, len(cl.workers)/16); cl.ready%step == 0 {
			h.progressLocked(cl.progress("starting workers", false))
		}
		return
	}
	if cl.reports != nil { // by constructors
		if err := cl.adoptLocked(cl.reports); err != nil {
			cl.failLocked(err)
			return
		}
	}
	if cl.failed == nil {
		cl.settle()
	}
}

// failLocked records the first cause of why a cluster cannot be started.
func (cl *cluster) failLocked(e *spec.Error) {
	if cl.failed == nil && !cl.up {
		cl.failed = e
		cl.settle()
	}
}

func (cl *cluster) settle() {
	select {
	case <-cl.settled:
	default:
		close(cl.settled)
	}
}

// describe keeps what the class offers.
func (cl *cluster) describe(d spec.Description) *spec.Error {
	cl.desc = d
	cl.methods = make(map[string]*method, len(d.Methods))
	for _, m := range d.Methods {
		mode, ok := dispatch.Lookup(m.Dispatch)
		if m.Registered && !ok {
			return spec.Errorf(spec.CodeInvalid, "%s.%s is registered with an unknown mode %q: there are %s", cl.Name, m.Name, m.Dispatch, strings.Join(dispatch.Names(), ", "))
		}
		if m.Registered && m.Collective && cl.spec.OnFailure == spec.OnFailureWorker {
			return spec.Errorf(spec.CodeInvalid,
				"cluster %s: on_failure=%q cannot be, as %s.%s is registered collective=True: a new process cannot join the group that the others have formed. Use on_failure=%q, which starts all of them anew",
				cl.Name, cl.spec.OnFailure, d.Class, m.Name, spec.OnFailureCluster)
		}
		cl.methods[m.Name] = &method{Method: m, mode: mode, title: cl.Name + "." + m.Name}
	}
	return nil
}

// goneLocked ends a cluster's part in calls.
func (h *Head) goneLocked(cl *cluster, why string) {
	var b batch
	for _, w := range cl.workers {
		if w.state != "dead" {
			w.state = "stopping"
		}
	}
	for _, r := range cl.under {
		r.cancel()
	}
	e := spec.Errorf(spec.CodeWorkerDied, "%s is no more: %s", cl.title(), why)
	e.Cluster = cl.Name
	cl.failLocked(e)
	h.ordersLocked(h.table.ClusterGone(&cl.Cluster, e), &b)
	b.flush()
}

// stopCluster ends every process of a cluster and gives back what it held.
func (h *Head) stopCluster(ctx context.Context, cl *cluster, why string) error {
	h.mu.Lock()
	if h.clusters[cl.Number] != cl || h.crashed.Load() {
		h.mu.Unlock()
		return nil
	}
	h.goneLocked(cl, why)
	cl.stopping = true
	h.noteClusterLocked(cl)
	h.mu.Unlock()
	h.fault("cluster stopping")
	h.endRestarts(cl) // or they would start what is not stopped below
	h.mu.Lock()
	byNode := map[*node][]uint32{}
	for _, w := range cl.workers {
		byNode[w.node] = append(byNode[w.node], w.Number)
	}
	h.mu.Unlock()

	var all sync.WaitGroup
	for n, numbers := range byNode {
		all.Go(func() {
			// A node that is lost has nothing left to stop.
			_ = n.ask(ctx, "stop", &wire.Stop{Workers: numbers, GraceSeconds: cl.spec.GraceSeconds, Why: why}, &wire.Empty{})
			if n == cl.workers[0].node { // which holds the master's
				_ = n.ask(ctx, "release_ports", &wire.HoldPorts{Cluster: cl.Number}, &wire.Empty{})
			}
		})
	}
	all.Wait()
	h.fault("workers stopped")

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.clusters[cl.Number] != cl || h.crashed.Load() {
		return nil
	}
	delete(h.clusters, cl.Number)
	close(cl.ended)
	h.noteEndLocked(cl)
	h.gone[cl.Number] = cl.title()
	if h.names[cl.Name] == cl {
		delete(h.names, cl.Name)
	}
	var b batch
	for _, w := range cl.workers { // also those whose exits the agent told a head before this one
		h.lostLocked(w, spec.Errorf(spec.CodeWorkerDied, "%s is no more: %s", cl.title(), why), &b)
		delete(h.workers, w.Number)
	}
	h.unkeepAllLocked(cl)
	h.endSetupLocked(cl)
	h.tellStoresLocked(&b)
	b.flush()
	cl.pool.clusters--
	h.releaseLocked(cl.pool)
	if cl.spec.GPUs > 0 {
		h.announceLocked()
	}
	if err := ctx.Err(); err != nil {
		return spec.Errorf(spec.CodeTimeout, "%s: not all of it was gone in time: %v", cl.title(), err)
	}
	return nil
}

// infoLocked describes the cluster as it is now.
func (cl *cluster) infoLocked() *wire.ClusterInfo {
	info := &wire.ClusterInfo{
		Number: cl.Number, Name: cl.Name, Kind: cl.spec.Kind, Pool: cl.pool.ID,
		MasterAddr: cl.master.Addr, MasterPort: cl.master.Port,
		Ranks: cl.ranks, Description: cl.desc, OnFailure: cl.spec.OnFailure, Restarts: cl.restarts, Draining: cl.drains,
	}
	for _, w := range cl.workers {
		wi := workerInfo(&w.place)
		wi.Number, wi.Address, wi.Pid, wi.State = w.Number, w.node.whereLocked(), w.pid, w.state
		wi.Restarts, wi.Engines = w.restarts, w.engines
		wi.LogFile = filepath.Join(w.h.opts.LogDir, cl.Name, w.Name+".log")
		info.Workers = append(info.Workers, wi)
	}
	return info
}

func workerInfo(p *placement.Worker) wire.WorkerInfo {
	wi := wire.WorkerInfo{Rank: p.Rank, Name: p.Name, Node: p.Node, NodeName: p.NodeName}
	for _, d := range p.Devices {
		wi.Devices = append(wi.Devices, wire.DeviceAt{Node: d.Node, Device: d.Device, Global: d.Global})
	}
	return wi
}

func (cl *cluster) progress(doing string, final bool) wire.Progress {
	p := wire.Progress{Subject: cl.title(), Doing: doing, Done: cl.ready, Total: len(cl.workers), Final: final}
	if !final {
		p.Waiting = cl.missing()
	}
	return p
}

// missing names the first of the workers that are not ready.
func (cl *cluster) missing() string {
	const most = 3
	var names []string
	for _, w := range cl.workers {
		if len(names) == most {
			break
		}
		if w.state == "starting" {
			names = append(names, w.Name)
		}
	}
	text := strings.Join(names, ", ")
	if more := len(cl.workers) - cl.ready - len(names); len(names) == most && more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (h *Head) tell(cl *cluster, doing string, final bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progressLocked(cl.progress(doing, final))
}
