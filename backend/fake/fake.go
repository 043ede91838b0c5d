package fake

import (
	"context"
	"fmt"
	"sync"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Script says what the agents and workers of a Backend do. Every part may be
// left out. The functions are called by whoever reads a connection, one at a
// time for a worker, and must not block: a leg that is to be answered later is
// kept and answered from elsewhere. They may be called concurrently for
// different workers.
type Script struct {
	// Node reports a node; by default it has 8 cores and the virtual devices
	// that it is told to have (none where it should look for real ones).
	Node func(join backend.Join) spec.Node
	// Launch can refuse to launch an agent, or change what it is told.
	Launch func(join *backend.Join) error
	// Class is what workers say they are.
	Class spec.Description
	// Begin is a worker's start, once its call connection is welcomed; by
	// default it is ready.
	Begin func(w *Worker)
	// Answer answers a leg; by default with None.
	Answer func(leg *Leg)
	// Lost says that a leg never arrives, as when the head ends before it is
	// written; the head must end then. By default all do.
	Lost func(leg *Leg) bool
	// Cancel is asked to end a leg that is out, or was, and returns the state of
	// wire.Cancelled; by default the leg fails as cancelled, "interrupted".
	Cancel func(w *Worker, leg *Leg) string
	// Stack says what a worker is doing; by default which leg it holds.
	Stack func(w *Worker) string
	// Objects is told what the head tells a node's store.
	Objects func(node int, o wire.Objects)
	// Sources is told whom the head sends a node's store to.
	Sources func(node int, s wire.Sources)
	// Holders is told who has handles, as a node's store asked.
	Holders func(node int, m wire.Holders)
	// Holds is what a worker that comes back says it knows of, Lent how much of that
	// is loans (nil: it does not say), Stored what the store of a node has; by
	// default nothing.
	Holds  func(w *Worker) []wire.Released
	Lent   func(w *Worker) []wire.Released
	Stored func(node int) []wire.ObjectAt
	// Unordered: legs may come in another order than that of their numbers, as an
	// initialize that is run again does.
	Unordered bool
	// Stop is told before a worker is stopped on the head's request.
	Stop func(w *Worker)
	// Spared says that a request to stop a worker never arrives, as when the head ends
	// before it is written; the head must end then. By default all do.
	Spared func(w *Worker) bool
}

// Backend is nodes that are not there. It implements backend.Backend.
type Backend struct {
	nodes  int
	script Script
	net    bool

	mu     sync.Mutex
	agents map[int]*Agent
}

// New makes a backend of so many nodes.
func New(nodes int, s Script) *Backend {
	return &Backend{nodes: nodes, script: s, agents: map[int]*Agent{}}
}

// OverNet has the agents join as those of other machines do, over the loopback
// device.
func (b *Backend) OverNet() *Backend {
	b.net = true
	return b
}

// Far says that agents join over the network.
func (b *Backend) Far() bool { return b.net }

// Host is where they find the head.
func (b *Backend) Host() string { return "127.0.0.1" }

// Nodes names the nodes node-0 and so on.
func (b *Backend) Nodes(context.Context) ([]string, error) {
	names := make([]string, b.nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	return names, nil
}

// Launch starts the agent of a node.
func (b *Backend) Launch(ctx context.Context, join backend.Join) (backend.Agent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.script.Launch != nil {
		if err := b.script.Launch(&join); err != nil {
			return nil, err
		}
	}
	if old := b.Agent(join.Node); old != nil { // of a head that did not come to write it down
		old.Kill()
		<-old.Done()
	}
	a := newAgent(join, &b.script)
	b.mu.Lock()
	b.agents[join.Node] = a
	b.mu.Unlock()
	go a.run()
	return a, nil
}

// Adopt finds the agent that was launched for a node.
func (b *Backend) Adopt(_ context.Context, join backend.Join, handle backend.Handle) (backend.Agent, error) {
	a := b.Agent(join.Node)
	if a == nil || a.Handle() != handle {
		return nil, backend.ErrGone
	}
	select {
	case <-a.done:
		return nil, backend.ErrGone
	default:
		return a, nil
	}
}

// Agent is the agent last launched for a node; nil if none was.
func (b *Backend) Agent(node int) *Agent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[node]
}

// Worker finds a worker that has not ended by its name; nil if there is none.
func (b *Backend) Worker(name string) *Worker {
	b.mu.Lock()
	agents := make([]*Agent, 0, len(b.agents))
	for _, a := range b.agents {
		agents = append(agents, a)
	}
	b.mu.Unlock()
	for _, a := range agents {
		for _, w := range a.live(nil) {
			if w.Name == name {
				return w
			}
		}
	}
	return nil
}
