package head

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// recovery is what a cluster keeps to bring back ranks that die.
type recovery struct {
	budget   budget
	restarts int
	under    []*restart         // under way
	begun    map[int]*beginning // by rank, the initialize that made it what it is
	lost     []uint64           // origins of calls that are not to be run again: see lost.go
}

// restart brings back ranks of a cluster, from the death of one until they are
// replaced, or until its budget is used up.
type restart struct {
	cl     *cluster
	ranks  []int
	cause  *spec.Error // the death
	old    []*worker   // whose processes have to be gone before others start
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{}
}

// try is one attempt at a restart: a new process for each of its ranks.
type try struct {
	workers []*worker
	cause   *spec.Error      // the death that it is to make good
	waits   map[*worker]bool // not ready yet; then: not initialized yet
	reports map[int]spec.RankInfo
	failed  *spec.Error
	begun   bool          // they were told to initialize
	settled chan struct{} // closed when nobody is waited for, or the first has failed
}

// restartLocked begins to bring back a rank that died, or its whole cluster, where
// the cluster says so and its budget allows. It says whether it did.
func (h *Head) restartLocked(w *worker, about *spec.Error, b *batch) bool {
	cl := w.cluster
	if !cl.up || !cl.spec.Restarts() || w.final || h.isOver || h.clusters[cl.Number] != cl || w.node.lost != nil {
		return false
	}
	r := &restart{cl: cl, ranks: []int{w.Rank}, old: []*worker{w}, cause: about, over: make(chan struct{})}
	what := "it"
	if cl.spec.OnFailure == spec.OnFailureCluster {
		r.ranks, r.old, what = nil, cl.workers, "the cluster"
		for rank := range cl.workers {
			r.ranks = append(r.ranks, rank)
		}
	}
	if killed := killedForGood(r.old); killed != nil {
		about.Message += "; the cluster is not restarted: " + killed.Message
		return false
	}
	count, wait, ok := cl.budget.take(time.Now())
	if !ok {
		about.Message += fmt.Sprintf("; it is not restarted: %s (max_restarts)", cl.used(count))
		return false
	}
	down := make([]*call.Worker, len(r.old))
	for i, old := range r.old {
		old.replaced = true
		if old.state != "dead" {
			old.state = "stopping"
		}
		down[i] = &old.Worker
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	cl.under = append(cl.under, r)
	h.loseCallsLocked(cl, down)
	h.ordersLocked(h.table.WorkersDown(down, about), b)
	h.sayLocked(cl, fmt.Sprintf("rank %d died (%s); restarting %s, %s", w.Rank, shortly(about), what, cl.used(count)))
	h.serving.Go(func() { h.restart(r, wait) })
	return true
}

// causeOf is the death for which a rank is restarted.
func (cl *cluster) causeOf(rank int) *spec.Error {
	for _, r := range cl.under {
		if slices.Contains(r.ranks, rank) {
			return r.cause
		}
	}
	return nil
}

// used tells of a budget: "1 of 3 within 10 min".
func (cl *cluster) used(count int) string {
	window := cl.budget.window
	unit := window.String()
	if window >= time.Minute && window%time.Minute == 0 {
		unit = fmt.Sprintf("%d min", window/time.Minute)
	}
	return fmt.Sprintf("%d of %d within %s", count, cl.budget.most, unit)
}

// shortly is how a worker ended, in a word.
func shortly(e *spec.Error) string {
	switch {
	case e.Signal != "":
		return e.Signal
	case e.Code == spec.CodeWorkerDied && e.ExitCode != 0:
		return fmt.Sprintf("exit code %d", e.ExitCode)
	case e.Code == spec.CodeWorkerDied:
		return "it ended"
	}
	return string(e.Code)
}

// restart tries until the ranks are there again.
func (h *Head) restart(r *restart, wait time.Duration) {
	defer close(r.over)
	defer r.cancel()
	defer h.overLater(r)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.ctx.Done():
			timer.Stop()
			return
		}
		failed := h.attempt(r)
		if failed == nil || r.ctx.Err() != nil {
			return
		}
		var b batch
		h.mu.Lock()
		count, next, ok := r.cl.budget.take(time.Now())
		ok = ok && failed.Code != spec.CodeNodeLost && r.ctx.Err() == nil && killedForGood(r.old) == nil
		if ok {
			h.sayLocked(r.cl, fmt.Sprintf("restarting %s failed (%s); trying again, %s", ranksText(r.ranks), firstLine(failed.Message), r.cl.used(count)))
		} else {
			h.giveUpLocked(r, failed, count, &b)
		}
		h.mu.Unlock()
		b.flush()
		if !ok {
			_ = h.endWorkers(r, 0) // nobody will call them
			return
		}
		wait = next
	}
}

func (h *Head) overLater(r *restart) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.cl.under = slices.DeleteFunc(r.cl.under, func(o *restart) bool { return o == r })
}

// giveUpLocked leaves the ranks dead, with what they first died of.
func (h *Head) giveUpLocked(r *restart, last *spec.Error, count int, b *batch) {
	e := *r.cause
	e.Message += fmt.Sprintf("; restarting %s failed, %s (max_restarts): %s", ranksText(r.ranks), r.cl.used(count), firstLine(last.Message))
	if last.Code == spec.CodeUser && e.Traceback == "" {
		e.Traceback = last.Traceback
	}
	for _, rank := range r.ranks {
		h.ordersLocked(h.table.WorkerLost(r.cl.Workers[rank], &e), b)
	}
	h.deviceFreeLocked(r.cl)
	h.noteClusterLocked(r.cl)
	h.sayLocked(r.cl, fmt.Sprintf("restarting %s failed, %s: %s", ranksText(r.ranks), r.cl.used(count), firstLine(last.Message)))
	h.progressLocked(wire.Progress{Subject: r.cl.title(), Doing: ranksText(r.ranks) + " could not be restarted", Final: true})
}

// attempt gives each rank a new process, has it initialize again, and puts it in
// its place.
func (h *Head) attempt(r *restart) *spec.Error {
	grace := min(r.cl.grace(), 2*time.Second) // their work is lost already
	if err := h.endWorkers(r, grace); err != nil {
		return err
	}
	if err := h.setupLost(r.cl); err != nil {
		return err
	}
	t, err := h.startAgain(r)
	if t == nil {
		return err
	}
	timeout := time.Duration(r.cl.spec.StartupSeconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	var all sync.WaitGroup
	for n, s := range h.startsOf(r.cl, t.workers) {
		all.Go(func() {
			if err := h.startOn(ctx, n, s); err != nil && ctx.Err() == nil {
				h.mu.Lock()
				t.failLocked(spec.AsError(err))
				h.mu.Unlock()
			}
		})
	}
	defer all.Wait()
	defer cancel()
	select {
	case <-t.settled:
	case <-ctx.Done():
		return spec.Errorf(spec.CodeTimeout, "the new processes were not ready after %v (startup_timeout)", timeout)
	}
	h.beginAgain(r, t)
	select {
	case <-t.settled:
	case <-r.ctx.Done():
		return spec.Errorf(spec.CodeCancelled, "its cluster has ended")
	}
	return h.replace(r, t)
}

// endWorkers has the processes of the last try, or of those that died, gone.
func (h *Head) endWorkers(r *restart, grace time.Duration) *spec.Error {
	ctx, cancel := context.WithTimeout(r.ctx, grace+h.opts.StopWait)
	defer cancel()
	byNode := map[*node][]uint32{}
	for _, w := range r.old {
		byNode[w.node] = append(byNode[w.node], w.Number)
	}
	var all sync.WaitGroup
	failed := make(chan error, len(byNode))
	for n, numbers := range byNode {
		all.Go(func() {
			stop := &wire.Stop{Workers: numbers, GraceSeconds: grace.Seconds(), Why: "its rank is restarted"}
			failed <- n.ask(ctx, "stop", stop, &wire.Empty{})
		})
	}
	all.Wait()
	close(failed)
	var b batch
	h.mu.Lock()
	for _, w := range r.old {
		h.lostLocked(w, r.cause, &b)
	}
	h.mu.Unlock()
	b.flush()
	for err := range failed {
		if err != nil {
			return spec.AsError(err)
		}
	}
	return nil
}

// startAgain makes the workers of a try; none where the restart was given up, or
// one of its ranks killed for good, since it was begun.
func (h *Head) startAgain(r *restart) (*try, *spec.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cl := r.cl
	if r.ctx.Err() != nil {
		return nil, nil
	}
	if killed := killedForGood(r.old); killed != nil {
		return nil, killed
	}
	t := &try{cause: r.cause, waits: map[*worker]bool{}, reports: map[int]spec.RankInfo{}, settled: make(chan struct{})}
	workers := slices.Clone(cl.workers) // who reads the old list goes on with that
	for _, rank := range r.ranks {
		old := workers[rank]
		delete(h.workers, old.Number)
		w := h.newWorkerLocked(cl, old.place, old.node)
		w.restarts, w.try = old.restarts+1, t
		workers[rank] = w
		t.workers = append(t.workers, w)
		t.waits[w] = true
	}
	cl.workers, r.old = workers, t.workers
	h.noteClusterLocked(cl)
	h.progressLocked(wire.Progress{Subject: cl.title(), Doing: "restarting " + ranksText(r.ranks), Total: len(r.ranks)})
	return t, nil
}

// beginAgain has the new processes do what their ranks were initialized with.
func (h *Head) beginAgain(r *restart, t *try) {
	var b batch
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.failed != nil {
		return
	}
	t.begun, t.settled = true, make(chan struct{})
	for _, w := range t.workers {
		if begun := r.cl.begun[w.Rank]; begun != nil {
			t.waits[w] = true
			h.sendBeginningLocked(w, begun, &b)
		}
	}
	if len(t.waits) == 0 {
		close(t.settled)
	}
	h.tellStoresLocked(&b)
	b.flush()
}

// replace puts the new processes in their ranks' places.
func (h *Head) replace(r *restart, t *try) *spec.Error {
	var b batch
	h.mu.Lock()
	defer b.flush()
	defer h.mu.Unlock()
	cl := r.cl
	if t.failed == nil && len(t.reports) > 0 {
		t.failed = cl.adoptLocked(t.reports)
	}
	if t.failed != nil || r.ctx.Err() != nil {
		return t.failed
	}
	fresh := make([]*call.Worker, len(t.workers))
	for i, w := range t.workers {
		w.try, w.state = nil, "ready"
		fresh[i] = &w.Worker
	}
	cl.restarts++
	cl.direct, cl.fans = nil, nil
	cl.toldOthers = false
	h.noteClusterLocked(cl)
	h.ordersLocked(h.table.Replace(fresh), &b)
	h.tellStoresLocked(&b)
	h.progressLocked(wire.Progress{Subject: cl.title(), Doing: ranksText(r.ranks) + " restarted", Done: len(r.ranks), Total: len(r.ranks), Final: true})
	return nil
}

// readyLocked: a new process can be called.
func (t *try) readyLocked(w *worker, ready wire.Ready) {
	if t.begun { // it says so again, as it was cut off and is back
		return
	}
	if ready.Info != nil {
		t.reports[w.Rank] = *ready.Info
	}
	t.doneLocked(w)
}

// resultLocked: a new process is done with what its rank was initialized with.
func (t *try) resultLocked(w *worker, info *spec.RankInfo, err *spec.Error) {
	if err != nil {
		t.failLocked(err)
		return
	}
	if info != nil {
		t.reports[w.Rank] = *info
	}
	t.doneLocked(w)
}

func (t *try) doneLocked(w *worker) {
	if !t.waits[w] {
		return
	}
	delete(t.waits, w)
	if len(t.waits) == 0 && t.failed == nil { // else it is settled: one that was done has died
		close(t.settled)
	}
}

func (t *try) failLocked(err *spec.Error) {
	if t.failed != nil {
		return
	}
	t.failed = err
	select {
	case <-t.settled:
	default:
		close(t.settled)
	}
}

// endRestarts has the restarts of a cluster given up, and waits until they are.
func (h *Head) endRestarts(cl *cluster) {
	h.mu.Lock()
	under := slices.Clone(cl.under)
	h.mu.Unlock()
	for _, r := range under {
		r.cancel()
		<-r.over
	}
}

// sayLocked tells what happened to a cluster, on a line of its own.
func (h *Head) sayLocked(cl *cluster, text string) {
	line := wire.Log{Lines: []wire.LogLine{{Worker: cl.title(), Text: text}}}
	if body, err := wire.AppendVerb(nil, "log", &line); err == nil {
		h.events.noticeLocked(body)
	}
	h.opts.Log.Info(text, "cluster", cl.Name)
}

func ranksText(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + spec.Spans(ranks)
}
