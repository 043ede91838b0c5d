package head_test

import (
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A start that hangs tells again and again who is missing, and at last that it
// is over.
func TestStartThatHangsIsToldAgain(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, setup{
		virtual: "1x0",
		options: head.Options{TellEvery: time.Millisecond},
		script: fake.Script{Begin: func(w *fake.Worker) {
			if w.Rank > 0 {
				<-release
			}
			w.Ready(nil)
		}},
	})
	events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	pool := r.pool(0, 1)
	created := make(chan error, 1)
	go func() {
		_, err := r.create(r.owner, pool, "a", 6)
		created <- err
	}()
	told := 0
	for told < 3 {
		p := notice[wire.Progress](t, events, "progress")
		if p.Subject != "cluster a" || p.Done != 1 {
			continue // the pool's, or from before rank 0 was ready
		}
		if p.Final || p.Total != 6 || p.Waiting != "a-1, a-2, a-3 and 2 more" {
			t.Fatalf("%+v", p)
		}
		told++
	}
	close(release)
	must(t, within(t, created, "the cluster"))
	for {
		if p := notice[wire.Progress](t, events, "progress"); p.Subject == "cluster a" && p.Final {
			if p.Doing != "ready" || p.Waiting != "" {
				t.Fatalf("%+v", p)
			}
			return
		}
	}
}

// So does a pool whose nodes do not come.
func TestPoolThatWaitsIsToldAgain(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, setup{
		virtual: "2x0",
		options: head.Options{TellEvery: time.Millisecond},
		script: fake.Script{Launch: func(join *backend.Join) error {
			if join.Node == 1 {
				<-release
			}
			return nil
		}},
	})
	events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	reserved := make(chan error, 1)
	go func() {
		reserved <- r.owner.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: patience.Seconds()}, &spec.Pool{})
	}()
	for told := 0; told < 3; {
		p := notice[wire.Progress](t, events, "progress")
		if p.Done != 1 {
			continue
		}
		if p.Subject != "pool" || p.Final || p.Total != 2 || p.Waiting != "the agent of node-1" {
			t.Fatalf("%+v", p)
		}
		told++
	}
	close(release)
	must(t, within(t, reserved, "the pool"))
	for {
		if p := notice[wire.Progress](t, events, "progress"); p.Final {
			return
		}
	}
}
