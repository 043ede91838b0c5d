package head_test

import (
	"errors"
	"testing"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestPoolsAreAllOrNothing(t *testing.T) {
	r := newRig(t, setup{})
	var p spec.Pool
	ask := func(perNode, nodes int) error {
		return r.owner.ask("pool.create", &wire.PoolCreate{PerNode: perNode, Nodes: nodes, Timeout: 10}, &p)
	}
	wantError(t, ask(5, 1), spec.CodeResources, "wanted 1 node with 5 GPUs", "node-0: 4 GPUs", "virtual")
	wantError(t, ask(1, 3), spec.CodeResources, "2 nodes have that")
	wantError(t, ask(-1, 1), spec.CodeInvalid, "num_gpus_per_node=-1")
	wantError(t, ask(1, 0), spec.CodeInvalid, "num_nodes=0")
	must(t, ask(3, 2))
	if p.PerNode != 3 || len(p.Nodes) != 2 || len(p.Nodes[1].Devices) != 3 {
		t.Fatalf("got %+v", p)
	}
	held := p.ID
	wantError(t, ask(2, 1), spec.CodeResources, "pool 1 holds 0-2")
	must(t, ask(1, 2)) // what is left of each
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: held}, &wire.Empty{}))
	must(t, ask(3, 2))
}

func TestPoolGoesWithItsClustersAndItsOwner(t *testing.T) {
	r := newRig(t, setup{virtual: "1x2"})
	c := r.attach()
	var p spec.Pool
	must(t, c.ask("pool.create", &wire.PoolCreate{PerNode: 2, Nodes: 1, Timeout: 10}, &p))
	info, err := r.create(c, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0-1" })
	must(t, err)
	if info.Workers[1].Name != "a-1-G1" || info.Workers[1].NodeName != "node-0" {
		t.Fatalf("workers: %+v", info.Workers)
	}
	must(t, c.ask("pool.release", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{}))
	err = r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, "(a) holds 0-1")
	_, err = r.create(c, p.ID, "late", 1)
	must(t, err) // its own clusters still use it
	c.close()
	eventually(t, "the pool's end", func() bool {
		return r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 2, Nodes: 1, Timeout: 10}, &spec.Pool{}) == nil
	})
	_, err = r.create(r.owner, p.ID, "later", 1)
	wantError(t, err, spec.CodeNotFound, "released")
}

func TestPoolNamesAnAgentThatDoesNotJoin(t *testing.T) {
	r := newRig(t, setup{virtual: "3x1", script: fake.Script{Launch: func(j *backend.Join) error {
		if j.Node == 1 {
			return errors.New("no such machine")
		}
		return nil
	}}})
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 2, Timeout: 10}, &p))
	if p.Nodes[0].Name != "node-0" || p.Nodes[1].Name != "node-2" {
		t.Fatalf("nodes: %+v", p.Nodes)
	}
	err := r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 3, Timeout: 10}, &p)
	wantError(t, err, spec.CodeResources, "wanted 3 nodes")
}

func TestNoNodesAtAll(t *testing.T) {
	r := newRig(t, setup{virtual: "1x1", script: fake.Script{Launch: func(*backend.Join) error {
		return errors.New("no such machine")
	}}})
	err := r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 0, Nodes: 1, Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeNodeLost, "node-0", "no such machine")
}

func TestBackendThatFails(t *testing.T) {
	r := newRig(t, setup{backend: func(spec.Virtual, bool) (backend.Backend, error) {
		return nil, errors.New("the scheduler is down")
	}})
	err := r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 0, Nodes: 1, Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, "the scheduler is down")
}

func TestPoolDoesNotWaitForEver(t *testing.T) {
	agents := make(chan *silentAgent, 1)
	r := newRig(t, setup{backend: func(spec.Virtual, bool) (backend.Backend, error) {
		return silent{agents}, nil
	}})
	err := r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 0, Nodes: 1, Timeout: 0.05}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, "still waiting for", "node-0")
	r.owner.close()
	within(t, within(t, agents, "launch").done, "kill of an agent that never joined")
}

func TestPlanStartsNothing(t *testing.T) {
	r := newRig(t, setup{})
	pool := r.pool(4, 2)
	s := clusterSpec("a", 0)
	s.MappingText, s.Shape.TP = "0-7", 2
	var plan wire.PlanAnswer
	must(t, r.owner.ask("plan", &wire.PlanRequest{Pool: pool, Clusters: []spec.Cluster{s}}, &plan))
	if w := plan.Clusters[0].Workers; len(w) != 8 || w[5].NodeName != "node-1" || w[5].Name != "a-5-G1" {
		t.Fatalf("workers: %+v", w)
	}
	if plan.Text == "" || plan.Clusters[0].Ranks[5].TPRank != 1 {
		t.Fatalf("plan: %+v", plan)
	}
	s.MappingText = "0-8"
	err := r.owner.ask("plan", &wire.PlanRequest{Pool: pool, Clusters: []spec.Cluster{s}}, &plan)
	_, started := r.create(r.owner, pool, "a", 0, func(s *spec.Cluster) { s.MappingText, s.Shape.TP = "0-8", 2 })
	if err == nil || started == nil || err.Error() != started.Error() {
		t.Fatalf("the plan says %v, the start %v", err, started)
	}
	if r.fake.Agent(0).Live()+r.fake.Agent(1).Live() != 0 {
		t.Fatal("workers were started")
	}
}
