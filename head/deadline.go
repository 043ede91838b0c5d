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

// expired collects the stacks of those that did not answer, then tells.
func (h *Head) expired(c *call.Call) {
	h.mu.Lock()
	p := c.Data.(*pending)
	var late []*worker
	for _, leg := range c.Out() {
		late = append(late, p.cluster.workers[c.Legs[leg].Worker.Rank])
	}
	h.mu.Unlock()
	stacks := h.stacksOf(late)
	after := "the time its caller waited"
	if p.timeout > 0 {
		after = p.timeout.String()
	}
	var b batch
	h.mu.Lock()
	h.ordersLocked(h.table.Expired(c, after, stacks), &b)
	h.mu.Unlock()
	b.flush()
}

// maxStacks bounds how many ranks' stacks one error carries.
const maxStacks = 64

// stacksOf asks the agents what workers are doing, within two seconds.
func (h *Head) stacksOf(workers []*worker) []spec.Stack {
	if len(workers) > maxStacks {
		workers = workers[:maxStacks]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
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
			err := n.ask(ctx, "stacks", &req, &got)
			for k, i := range indices {
				w := workers[i]
				stacks[i] = spec.Stack{Rank: w.Rank, Worker: w.Name, Node: w.Node}
				switch {
				case err != nil:
					stacks[i].Text = "no stack: " + err.Error()
				case k < len(got.Stacks):
					stacks[i].Text = got.Stacks[k].Text
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
		var b batch
		h.mu.Lock()
		h.ordersLocked(h.table.Overdue(c), &b)
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
