package head_test

import (
	"testing"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// forEver is longer than any test.
const forEver = 1e12

func TestAClusterThatDrainsAnswersWhatItHas(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r := newRig(t, setup{virtual: "1x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 1), "a", 1)
		must(t, err)
		c, n := r.owner, info.Number
		first := c.send(callee{cluster: n, method: "one"}, args())
		second := c.send(callee{cluster: n, method: "one"}, args())
		leg := within(t, legs, "leg")
		stopped := make(chan error, 1)
		go func() {
			stopped <- c.asker.Ask(t.Context(), "cluster.stop", &wire.ClusterRef{Number: n, Drain: forEver}, &wire.Mark{})
		}()
		early := 0 // calls that came before the end did
		eventually(t, "a call to be refused", func() bool {
			id := c.send(callee{cluster: n, method: "one"}, args())
			must(t, c.ask("status", &wire.Empty{}, &wire.Status{})) // which is answered after it, if that is refused
			select {
			case f := <-c.answersOf(id):
				wantError(t, wire.ReadError(f.Body), spec.CodeNotFound, "a takes no more calls")
				return true
			default:
				early++
				return false
			}
		})
		select {
		case err := <-stopped:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		leg.Return(encode(nil, 1))
		same(t, c.value(first), "1")
		within(t, legs, "leg").Return(encode(nil, 2))
		same(t, c.value(second), "2")
		for range early {
			within(t, legs, "leg").Return(encode(nil, 3))
		}
		must(t, within(t, stopped, "the end of the cluster"))
		c.fails(c.send(callee{cluster: n, method: "one"}, args()), spec.CodeNotFound, "is no more")
	})
}

func TestADrainHasAnEnd(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0", script: script})
	pool := r.pool(0, 1)
	info, err := r.create(r.owner, pool, "a", 1)
	must(t, err)
	stuck := r.owner.send(callee{cluster: info.Number, method: "one"}, args())
	within(t, legs, "leg")
	must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number, Drain: 0.02}, &wire.Mark{}))
	r.owner.fails(stuck, spec.CodeWorkerDied, "a is no more: it was shut down")

	// Who asked for it is gone: nobody waits any more.
	c := r.attach()
	info, err = r.create(c, pool, "b", 1)
	must(t, err)
	r.owner.send(callee{cluster: info.Number, method: "one"}, args())
	within(t, legs, "leg")
	left := make(chan error, 1)
	go func() {
		left <- c.asker.Ask(t.Context(), "cluster.stop", &wire.ClusterRef{Number: info.Number, Drain: forEver}, &wire.Mark{})
	}()
	eventually(t, "the drain to begin", func() bool {
		id := r.owner.send(callee{cluster: info.Number, method: "one"}, args())
		must(t, r.owner.ask("status", &wire.Empty{}, &wire.Status{}))
		return len(r.owner.answersOf(id)) > 0
	})
	c.close()
	if err := within(t, left, "the end of the question"); err == nil {
		t.Error("a connection that is closed gave an answer")
	}
	eventually(t, "its end", func() bool {
		return r.owner.ask("cluster.describe", &wire.ClusterRef{Name: "b"}, &wire.ClusterInfo{}) != nil
	})
}

// A node that no pool has keeps its agent for as long as somebody knows of rows in
// its store.
func TestAnAgentStaysForWhatLiesInItsStore(t *testing.T) {
	b := &reserving{Backend: fake.New(3, fake.Script{Class: testClass(), Answer: func(leg *fake.Leg) {
		leg.ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(1, 7)}})
	}}), next: [][]string{{"node-1"}, {"node-1"}}}
	r := newRig(t, setup{virtual: "3x4", backend: func(spec.Virtual, bool) (backend.Backend, error) { return b, nil }})
	r.fake = b.Backend
	var p spec.Pool
	ask := &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}
	must(t, r.owner.ask("pool.create", ask, &p))
	info, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0" })
	must(t, err)
	r.owner.answer(r.owner.send(callee{cluster: info.Number, method: "one"}, args()))
	must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "a"}, &wire.Mark{}))
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{}))
	if n := r.nodes(); n[1].State != "up" {
		t.Fatalf("got %+v", n)
	}
	must(t, r.owner.ask("pool.create", ask, &p)) // and is there for the next
	if n := r.nodes(); len(n) != 2 || p.Nodes[0].Index != 1 {
		t.Fatalf("got %+v", n)
	}
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{}))
	r.owner.release(1, 7, 1)
	within(t, r.fake.Agent(1).Done(), "the end of an agent whose node has nothing any more")
}

func TestPoolsAreLookedAt(t *testing.T) {
	r := newRig(t, setup{})
	var got wire.PoolOutlook
	look := func(req wire.PoolCreate) error { return r.owner.ask("pool.look", &req, &got) }
	must(t, look(wire.PoolCreate{PerNode: 2, Nodes: 3, Strategy: "PACK"}))
	same(t, []any{got.Now, got.Waits, got.Text}, "[true false there is room: node-0 GPU 0-1, node-0 GPU 2-3, node-1 GPU 0-1]")
	must(t, look(wire.PoolCreate{PerNode: 5, Nodes: 1}))
	if got.Now || got.Waits || got.Text == "" {
		t.Errorf("got %+v", got)
	}
	wantError(t, look(wire.PoolCreate{PerNode: -1, Nodes: 1}), spec.CodeInvalid, "-1")
	wantError(t, look(wire.PoolCreate{Nodes: 1, Labels: map[string]string{"zone": "b"}}), spec.CodeInvalid, "MUSTER_BACKEND=ray")
}

func TestABackendThatChoosesIsAskedForAnOutlook(t *testing.T) {
	var got wire.PoolOutlook
	far, _ := newReserving(t, []string{"node-0"})
	must(t, far.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &spec.Pool{}))
	_, err := far.create(far.owner, 1, "holder", 0, func(s *spec.Cluster) { s.MappingText = "0" })
	must(t, err)
	must(t, far.owner.ask("pool.look", &wire.PoolCreate{PerNode: 8, Nodes: 1}, &got))
	same(t, []any{got.Now, got.Waits, got.Text}, "[false true pool 1 (holder) holds all]")
}
