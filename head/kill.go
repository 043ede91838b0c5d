package head

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// doomedLocked are the workers that a cluster.kill means, and which stay dead if it
// says so: also under a next head, which is why that is written down before any of
// them is gone.
func (h *Head) doomedLocked(cl *cluster, ref wire.ClusterRef) ([]*worker, error) {
	workers, err := cl.meantLocked(ref, "kill")
	if err != nil {
		return nil, err
	}
	if ref.Final {
		for _, w := range workers {
			w.final = true
		}
		h.noteClusterLocked(cl)
	}
	return workers, nil
}

// meantLocked are the workers that a request names, to do something with: all, where it
// names none.
func (cl *cluster) meantLocked(ref wire.ClusterRef, to string) ([]*worker, error) {
	if len(ref.Ranks) == 0 {
		return slices.Clone(cl.workers), nil
	}
	var workers []*worker
	for _, rank := range ref.Ranks {
		if rank < 0 || rank >= len(cl.workers) {
			return nil, spec.Errorf(spec.CodeInvalid, "there is no rank %d to %s, cluster %s has ranks 0 to %d", rank, to, cl.Name, len(cl.workers)-1)
		}
		workers = append(workers, cl.workers[rank])
	}
	return workers, nil
}

// killedForGood says which of these ranks cannot be restarted, if so.
func killedForGood(workers []*worker) *spec.Error {
	for _, w := range workers {
		if w.final {
			return spec.Errorf(spec.CodeWorkerDied, "%s was killed for good", w.Name)
		}
	}
	return nil
}

// where says from where a caller asks, for those who read of it later.
func (c *caller) where() string {
	if c.worker != nil {
		return fmt.Sprintf(", by %s on %s", c.worker.Name, c.worker.Node)
	}
	return fmt.Sprintf(", by the script (process %d)", c.pid)
}

// kill ends the processes of workers as a crash would, and returns when they are
// gone: what comes of it is for their cluster's on_failure to say.
func (h *Head) kill(ctx context.Context, workers []*worker, why string) error {
	byNode := map[*node][]uint32{}
	for _, w := range workers {
		byNode[w.node] = append(byNode[w.node], w.Number)
	}
	var all sync.WaitGroup
	failed := make(chan error, len(byNode))
	for n, numbers := range byNode {
		all.Go(func() {
			failed <- n.ask(ctx, "stop", &wire.Stop{Workers: numbers, Why: why}, &wire.Empty{})
		})
	}
	all.Wait()
	close(failed)
	var b batch
	h.mu.Lock()
	for _, w := range workers { // what it said last is not waited for
		if w.exit != nil {
			h.lostLocked(w, w.endError(w.exit), &b)
		}
	}
	h.mu.Unlock()
	b.flush()
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}
