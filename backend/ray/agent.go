package ray

import (
	"context"
	"errors"
	"sync"

	"github.com/muster-rl/muster/backend"
)

// agent is a warden on another node, and all below it, as the bridge tells of it.
type agent struct {
	b      *Backend
	node   int
	handle backend.Handle
	bridge *bridge
	done   chan struct{}
	once   sync.Once

	mu     sync.Mutex
	killed bool
	err    error
}

func newAgent(b *Backend, node int, via *bridge) *agent {
	return &agent{b: b, node: node, bridge: via, done: make(chan struct{})}
}

// watch ends the agent with its bridge: Ray ends the bridge's actors, and they
// their agents.
func (a *agent) watch() {
	select {
	case <-a.done:
	case <-a.bridge.done:
		a.end(a.bridge.why().Error())
	}
}

// end is the agent's end; why is empty after an orderly one.
func (a *agent) end(why string) {
	a.once.Do(func() {
		a.mu.Lock()
		if why == "" && a.killed {
			why = "it was killed"
		}
		if why != "" {
			a.err = errors.New(why)
		}
		a.mu.Unlock()
		close(a.done)
	})
}

func (a *agent) Done() <-chan struct{} { return a.done }

func (a *agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *agent) Handle() backend.Handle { return a.handle }

func (a *agent) Kill() {
	a.mu.Lock()
	again := a.killed
	a.killed = true
	a.mu.Unlock()
	if again {
		return
	}
	go func() {
		err := a.bridge.ask(context.Background(), "kill", map[string]int{"node": a.node}, nil, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			<-a.bridge.done // it did not get it, so it is gone
		}
	}()
}
