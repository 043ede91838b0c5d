package head

import (
	"context"
	"sync"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// expire is a call's deadline.
func (h *Head) expire(c *call.Call) {
	var b batch
	h.mu.Lock()
	h.ordersLocked(h.table.Expire(c), &b)
	h.mu.Unlock()
	b.flush()
}

// tooLate is the answer to a call that comes after its deadline for the first time.
func (p *pending) tooLate() *spec.Error {
	e := spec.Errorf(spec.CodeTimeout, "%s: its deadline passed while there was no connection to its caller, and it was not sent before", p.method.title)
	e.Cluster, e.Method = p.cluster.Name, p.method.Name
	return e
}

// expired collects what the ranks are doing, then tells.
func (h *Head) expired(c *call.Call) {
	stacks := h.stacksOfCall(c)
	p := c.Data.(*pending)
	after := "the time its caller waited"
	switch {
	case p.over:
		after = "its time, which passed while there was no connection to its caller"
	case p.timeout > 0:
		after = p.timeout.String()
	}
	var b batch
	h.mu.Lock()
	h.ordersLocked(h.table.Expired(c, after, stacks), &b)
	h.mu.Unlock()
	b.flush()
}

// stacksOfCall says what every rank of a call is doing: one that has answered may
// be the one that the others wait for.
func (h *Head) stacksOfCall(c *call.Call) []spec.Stack {
	h.mu.Lock()
	p := c.Data.(*pending)
	var workers []*worker
	for i := range c.Legs {
		workers = append(workers, p.cluster.workers[c.Legs[i].Worker.Rank])
	}
	h.mu.Unlock()
	return h.stacksOf(workers)
}

// stacksBound is how long agents may take to tell stacks: longer than py-spy has.
const stacksBound = 4500 * time.Millisecond

// stacksOf asks the agents what workers are doing.
func (h *Head) stacksOf(workers []*worker) []spec.Stack {
	ctx, cancel := context.WithTimeout(context.Background(), stacksBound)
	defer cancel()
	byNode := map[*node][]int{}
	for i, w := range workers {
		byNode[w.node] = append(byNode[w.node], i)
	}
	stacks := make([]spec.Stack, len(workers))
	var all sync.WaitGroup
	for n, indices := range byNode {
		all.Go(func() {
			req := wire.StacksRequest{}
			for _, i := range indices {
				req.Workers = append(req.Workers, workers[i].Number)
			}
			var got wire.StacksAnswer
			err := n.silentError()
			if err == nil {
				err = n.ask(ctx, "stacks", &req, &got)
			}
			for k, i := range indices {
				w := workers[i]
				if k < len(got.Stacks) && err == nil {
					stacks[i] = got.Stacks[k]
				}
				stacks[i].Rank, stacks[i].Worker, stacks[i].Node = w.Rank, w.Name, w.Node
				if err != nil {
					stacks[i].Text = "no stack: " + err.Error()
				}
			}
		})
	}
	all.Wait()
	return stacks
}

// cancelLegLocked has a worker end one call of its own. What comes of it is
// told by a Result, or by the worker's own end.
func (h *Head) cancelLegLocked(c *call.Call, leg int, kill bool, b *batch) {
	p := c.Data.(*pending)
	w := p.cluster.workers[c.Legs[leg].Worker.Rank]
	w.node.tellLocked("cancel", &wire.CancelLeg{Worker: w.Number, Call: uint64(c.ID), Kill: kill}, b)
}

// overdueLater answers a cancelled call whose legs do not end.
func (h *Head) overdueLater(c *call.Call) {
	time.AfterFunc(h.opts.CancelGrace, func() {
		h.mu.Lock()
		over := c.State != call.Cancelling
		h.mu.Unlock()
		if over {
			return
		}
		stacks := h.stacksOfCall(c)
		var b batch
		h.mu.Lock()
		h.ordersLocked(h.table.Overdue(c, stacks), &b)
		h.mu.Unlock()
		b.flush()
	})
}

// clear lifts the taint of workers into which an exception was injected.
func (h *Head) clear(ctx context.Context, workers []*worker) error {
	for _, w := range workers {
		if err := w.node.ask(ctx, "clear", &wire.CancelLeg{Worker: w.Number}, &wire.Cancelled{}); err != nil {
			return err
		}
	}
	return nil
}
