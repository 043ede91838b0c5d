package head_test

import (
	"context"
	"errors"
	"sync"

	"github.com/muster-rl/muster/backend"
)

// silent is a backend of one node whose agent never joins.
type silent struct{ launched chan *silentAgent }

type silentAgent struct {
	once sync.Once
	done chan struct{}
}

func (silent) Nodes(context.Context) ([]string, error) { return []string{"node-0"}, nil }

func (s silent) Launch(context.Context, backend.Join) (backend.Agent, error) {
	a := &silentAgent{done: make(chan struct{})}
	s.launched <- a
	return a, nil
}

func (silent) Adopt(context.Context, backend.Join, backend.Handle) (backend.Agent, error) {
	return nil, backend.ErrGone
}

func (a *silentAgent) Handle() backend.Handle { return backend.Handle{} }
func (a *silentAgent) Done() <-chan struct{}  { return a.done }
func (a *silentAgent) Err() error             { return errors.New("killed") }
func (a *silentAgent) Kill()                  { a.once.Do(func() { close(a.done) }) }
