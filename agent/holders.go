package agent

import (
	"context"
	"sync"
	"time"

	"github.com/muster-rl/muster/wire"
)

// holdersWait is how long a store that is full waits for the head to say who has
// handles: its error is of use without that, too.
const holdersWait = 2 * time.Second

// holders are questions to the head who has handles of objects.
type holders struct {
	mu     sync.Mutex
	last   uint64
	answer map[uint64]chan []wire.Held
}

// ask is nil where the head is not there, or does not answer soon.
func (h *holders) ask(ctx context.Context, head *uplink, objects []uint64) []wire.Held {
	if len(objects) == 0 {
		return nil
	}
	answer := make(chan []wire.Held, 1)
	h.mu.Lock()
	h.last++
	id := h.last
	if h.answer == nil {
		h.answer = map[uint64]chan []wire.Held{}
	}
	h.answer[id] = answer
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.answer, id)
		h.mu.Unlock()
	}()
	if head.notify("holders", &wire.HoldersAsk{ID: id, Objects: objects}) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdersWait)
	defer cancel()
	select {
	case held := <-answer:
		return held
	case <-ctx.Done():
		return nil
	}
}

// answered takes the head's answer, if anybody still waits for it.
func (h *holders) answered(m *wire.Holders) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if answer := h.answer[m.ID]; answer != nil {
		delete(h.answer, m.ID)
		answer <- m.Held
	}
}
