package head_test

import (
	"errors"
	"testing"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// states tells the nodes that are to be had, each with how it is.
func (r *rig) states(wait float64) ([]string, error) {
	var got wire.Nodes
	err := r.owner.ask("nodes", &wire.NodesRequest{WaitSec: wait}, &got)
	states := make([]string, 0, len(got.Nodes))
	for _, n := range got.Nodes {
		states = append(states, n.Node.Name+" "+n.State)
	}
	return states, err
}

// shown is the same as people are shown it.
func (r *rig) shown(unused bool) []string {
	r.t.Helper()
	var s wire.Status
	must(r.t, r.owner.ask("status", &wire.StatusRequest{Unused: unused}, &s))
	var states []string
	for _, n := range s.Nodes {
		states = append(states, n.Node.Name+" "+n.State)
	}
	return states
}

// Nodes that are starting are waited for, and told as joining where that is long.
func TestNodesThatAreStartingAreWaitedFor(t *testing.T) {
	release := make(chan struct{})
	r := newRig(t, setup{virtual: "2x0", script: fake.Script{Launch: func(join *backend.Join) error {
		if join.Node == 1 {
			<-release
		}
		return nil
	}}})
	eventually(t, "the first node to join", func() bool {
		got, err := r.states(0)
		must(t, err)
		return len(got) == 2 && got[0] == "node-0 up" && got[1] == "node-1 joining"
	})
	type answer struct {
		states []string
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		states, err := r.states(patience.Seconds())
		answered <- answer{states, err}
	}()
	close(release)
	got := within(t, answered, "the nodes")
	must(t, got.err)
	wantStates(t, got.states, "node-0 up", "node-1 up")
}

// Nodes of a backend's that no pool has had are there to be used, and so are those
// whose agents were let go.
func TestNodesThatNoPoolHasHad(t *testing.T) {
	r, _ := newReserving(t, []string{"node-2"})
	told := func(want ...string) {
		t.Helper()
		got, err := r.states(patience.Seconds())
		must(t, err)
		wantStates(t, got, want...)
		wantStates(t, r.shown(true), want...)
	}
	told("node-0 up", "node-1 unused", "node-2 unused")
	wantStates(t, r.shown(false), "node-0 up") // who does not ask is not kept waiting
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &p))
	told("node-0 up", "node-2 up", "node-1 unused")
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{}))
	within(t, r.fake.Agent(1).Done(), "the end of an agent whose node no pool has")
	told("node-0 up", "node-1 unused", "node-2 unused")
}

func TestWhyThereAreNoNodesIsTold(t *testing.T) {
	r := newRig(t, setup{backend: func(spec.Virtual, bool) (backend.Backend, error) {
		return nil, errors.New("no Ray at 10.0.0.1:6379")
	}})
	_, err := r.states(patience.Seconds())
	wantError(t, err, spec.CodeInternal, "no Ray at 10.0.0.1:6379")
}

func TestThePoolsNodeIsTheBackendsToFind(t *testing.T) {
	r, b := newReserving(t, []string{"node-1"})
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10, Node: "node-1"}, &spec.Pool{}))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.Node != "node-1" {
		t.Errorf("the backend was asked for %+v", b.last)
	}
}

func wantStates(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %v instead of %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v instead of %v", got, want)
		}
	}
}

var _ backend.Reserver = (*reserving)(nil)

// A worker names paths as they are on its node, where they may have been shipped
// to: what it makes is started from where they came from.
func TestWhatAWorkerNamesIsFoundWhereItCameFrom(t *testing.T) {
	r, b := newReserving(t, []string{"node-1"})
	b.mu.Lock()
	b.moved = map[string]string{"/cache/ab": "/project"}
	b.mu.Unlock()
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 2, Nodes: 1, Timeout: 10}, &p))
	info, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText, s.Runtime.Dir = "0", "/project/work" })
	must(t, err)
	_, err = r.create(r.inside(r.worker(info.Workers[0].Name)), p.ID, "b", 0, func(s *spec.Cluster) { s.MappingText, s.Runtime.Dir = "1", "/cache/ab/work" })
	must(t, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	wantStates(t, b.dirs, "/project/work", "/project/work")
}

// Of the ranks that go with a node, the first is the one that is told.
func TestTheFirstRankOfALostNodeIsTold(t *testing.T) {
	legs := make(chan *fake.Leg, 8)
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: func(leg *fake.Leg) { legs <- leg }}})
	info := r.cluster("a", 8)
	call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
	for range 8 {
		within(t, legs, "a leg")
	}
	r.fake.Agent(0).Kill()
	if e := r.owner.fails(call, spec.CodeNodeLost, "the agent of node-0 is gone"); e.Rank != 0 {
		t.Errorf("rank %d is told", e.Rank)
	}
}
