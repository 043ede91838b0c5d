package head_test

import (
	"slices"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func bundles(strategy string, sizes ...int) *wire.PoolCreate {
	req := &wire.PoolCreate{Strategy: strategy, Timeout: 10}
	for _, size := range sizes {
		req.Bundles = append(req.Bundles, spec.Bundle{GPUs: size})
	}
	return req
}

// has is what the nodes of a pool have: the node's name and how many devices.
func has(p *spec.Pool) map[string][]int {
	found := map[string][]int{}
	for _, n := range p.Nodes {
		found[n.Name] = append(found[n.Name], len(n.Devices))
	}
	return found
}

func TestAPoolOfBundles(t *testing.T) {
	r := newRig(t, setup{virtual: "2x4"})
	var p, apart spec.Pool
	must(t, r.owner.ask("pool.create", bundles(placement.Pack, 1, 3), &p))
	if got := has(&p)["node-0"]; !slices.Equal(got, []int{1, 3}) || p.PerNode != 0 {
		t.Fatalf("got %+v", p)
	}
	info, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0-3" })
	must(t, err)
	if w := info.Workers[1]; w.Node != 1 || w.Devices[0].Device != 1 || w.Devices[0].Global != 1 {
		t.Errorf("got %+v", w)
	}
	err = r.owner.ask("pool.create", bundles("", 2, 1), &apart) // each on a node of its own
	wantError(t, err, spec.CodeResources, "wanted 2 bundles of 2 and 1 GPUs, each on a node of its own", "node-0: 4 GPUs, 0 free; pool 1 (a) holds 0-3", "what is held comes free")
	var outlook wire.PoolOutlook
	must(t, r.owner.ask("pool.look", bundles("", 2, 1), &outlook))
	if outlook.Now {
		t.Errorf("got %+v", outlook)
	}
	patient := bundles("", 2, 1)
	patient.Wait, patient.Timeout = true, 60
	waits := make(chan error, 1)
	go func() { waits <- r.owner.ask("pool.create", patient, &apart) }()
	must(t, r.owner.ask("pool.end", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{}))
	must(t, within(t, waits, "what was held"))
	if got := has(&apart); len(got) != 2 {
		t.Errorf("got %+v", apart)
	}
	mixed := bundles(placement.Pack, 1)
	mixed.PerNode = 1
	wantError(t, r.owner.ask("pool.create", mixed, &p), spec.CodeInvalid, "leave out")
	wantError(t, r.owner.ask("pool.create", bundles("TIGHT", 1), &p), spec.CodeInvalid, "STRICT_SPREAD")
	wantError(t, r.owner.ask("pool.create", bundles("", -1), &p), spec.CodeInvalid, "bundle 0 has -1 GPUs")
	wantError(t, r.owner.ask("pool.create", patientFor(9, 1), &p), spec.CodeResources, "wanted 2 bundles of 9 and 1 GPUs")
}

// patientFor waits, for what can never be.
func patientFor(sizes ...int) *wire.PoolCreate {
	req := bundles(placement.Pack, sizes...)
	req.Wait, req.Timeout = true, 60
	return req
}

// Which bundle is on which node is the backend's to say, where it chooses.
func TestABackendsBundles(t *testing.T) {
	r, b := newReserving(t, []string{"node-2", "node-0", "node-2"})
	var p spec.Pool
	req := bundles(placement.Pack, 2, 4, 0)
	req.Bundles[2].CPUs = 8
	must(t, r.owner.ask("pool.create", req, &p))
	if !slices.Equal(b.last.Bundles, req.Bundles) || b.last.Nodes != 3 || b.last.Strategy != placement.Pack {
		t.Errorf("it was asked for %+v", b.last)
	}
	if got := has(&p); !slices.Equal(got["node-2"], []int{2, 0}) || !slices.Equal(got["node-0"], []int{4}) {
		t.Fatalf("got %+v", p)
	}
	info, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "1-2" })
	must(t, err)
	if w := info.Workers; w[0].NodeName != "node-2" || w[0].Devices[0].Device != 3 || w[1].NodeName != "node-0" || w[1].Devices[0].Device != 0 {
		t.Errorf("got %+v", w)
	}
}

// The head that comes next knows a pool of bundles, and who sits where in it.
func TestBundlesOutliveHeads(t *testing.T) {
	s := newCrashes(t, "2x4", fake.Script{})
	c := s.controller()
	var p, more spec.Pool
	must(t, c.ask("pool.create", bundles(placement.StrictSpread, 3, 2), &p))
	ask := clusterSpec("c", 0)
	ask.MappingText = "0-4"
	var info, again wire.ClusterInfo
	must(t, c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: ask}, &info))
	s.crash()
	must(t, c.ask("pool.create", bundles(placement.Pack, 2, 1), &more)) // what is left, and no more
	must(t, c.ask("cluster.describe", &wire.ClusterRef{Name: "c"}, &again))
	for rank, w := range info.Workers {
		if now := again.Workers[rank]; now.Number != w.Number || now.Node != w.Node || !slices.Equal(now.Devices, w.Devices) {
			t.Errorf("rank %d: %+v, and before %+v", rank, now, w)
		}
	}
	if got := has(&more); len(got) != 2 {
		t.Errorf("got %+v", more)
	}
	var drawn wire.PlanAnswer
	must(t, c.ask("plan", &wire.PlanRequest{Pool: p.ID, Clusters: []spec.Cluster{ask}}, &drawn))
	if len(drawn.Clusters) != 1 || drawn.Clusters[0].Workers[3].Node != 1 {
		t.Errorf("got %+v", drawn)
	}
	must(t, s.end(c))
}
