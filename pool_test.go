package muster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster"
)

// devicesOf tells each worker as node:device,device.
func devicesOf(c *muster.Cluster) []string {
	var all []string
	for _, w := range c.Workers() {
		var devices []int
		for _, d := range w.Devices {
			devices = append(devices, d.Device)
		}
		all = append(all, on(w.NodeName, devices))
	}
	return all
}

// nodesOf tells each node of a pool as name:device,device.
func nodesOf(p *muster.Pool) []string {
	var all []string
	for _, n := range p.Nodes() {
		var devices []int
		for _, d := range n.Devices {
			devices = append(devices, d.Index)
		}
		all = append(all, on(n.Name, devices))
	}
	return all
}

func on(node string, devices []int) string {
	return node + ":" + strings.Trim(strings.ReplaceAll(fmt.Sprint(devices), " ", ","), "[]")
}

// is compares lists.
func is(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPoolsOfBundles(t *testing.T) {
	s := start(t, muster.Options{Virtual: "2x4"})
	ctx := testContext(t)
	pool := get[*muster.Pool](t)(s.PoolOf(ctx, muster.PoolConfig{Bundles: []muster.Bundle{{GPUs: 1}, {GPUs: 3, CPUs: 2}}}))
	is(t, nodesOf(pool), "node-0:0", "node-0:1,2,3") // packed
	if first, second, none := pool.DeviceIDs(0), pool.DeviceIDs(1), pool.DeviceIDs(2); !slices.Equal(first, []int{0}) || !slices.Equal(second, []int{1, 2, 3}) || len(none) > 0 {
		t.Error(first, second, none)
	}
	// A cluster for each bundle, by a list of its devices.
	learner := s.cluster("learner", muster.ClusterConfig{Pool: pool, DeviceIDs: pool.DeviceIDs(0)})
	engines := s.cluster("engines", muster.ClusterConfig{Pool: pool, DeviceIDs: []int{3, 1}})
	is(t, devicesOf(learner), "node-0:0")
	is(t, devicesOf(engines), "node-0:3", "node-0:1") // in the order of the list
	if plan, err := pool.Plan(ctx, workers(t, "other", muster.ClusterConfig{DeviceIDs: []int{2}})); err != nil || plan == "" {
		t.Error(plan, err)
	}

	wide := muster.PoolConfig{Bundles: []muster.Bundle{{GPUs: 2}, {GPUs: 1}}, Strategy: muster.StrictSpread}
	_, err := s.PoolOf(ctx, wide)
	code(t, err, muster.CodeResources, "wanted 2 bundles of 2 and 1 GPUs, each on a node of its own", "node-0: 4 GPUs, 0 free", "learner")
	if outlook, err := s.Outlook(ctx, wide); err != nil || outlook.Now || outlook.Waits || outlook.Text == "" {
		t.Error(outlook, err)
	}
	// What others hold is waited for, where that is asked.
	wide.Wait = true
	type made struct {
		pool *muster.Pool
		err  error
	}
	waits := make(chan made, 1)
	go func() {
		p, err := s.PoolOf(ctx, wide)
		waits <- made{p, err}
	}()
	for range 2 { // it may be said again
		if err := pool.End(ctx); err != nil {
			t.Error(err)
		}
	}
	got := <-waits
	if got.err != nil {
		t.Fatal(got.err)
	}
	if nodes := got.pool.Nodes(); len(nodes) != 2 || nodes[0].Name == nodes[1].Name || len(nodes[0].Devices) != 2 {
		t.Error(nodesOf(got.pool))
	}
	_, err = muster.Call[any](ctx, learner, "who") // it ended with its pool
	code(t, err, muster.CodeNotFound, "learner", "no more")
}

func TestPoolsForWorkers(t *testing.T) {
	s := start(t, muster.Options{Virtual: "3x4"})
	ctx := testContext(t)
	few := get[*muster.Pool](t)(s.PoolOf(ctx, muster.PoolConfig{Workers: 3, GPUsPerWorker: 1, GPUsPerNode: 4}))
	is(t, nodesOf(few), "node-0:0,1,2") // no more than they take
	one := muster.PoolConfig{Workers: 1, GPUsPerWorker: 8, GPUsPerNode: 4}
	large := get[*muster.Pool](t)(s.PoolOf(ctx, one))
	is(t, nodesOf(large), "node-1:0,1,2,3", "node-2:0,1,2,3") // whole nodes
	c := s.cluster("large", muster.ClusterConfig{Pool: large, DeviceIDs: slices.Concat(large.DeviceIDs(0), large.DeviceIDs(1)), World: 1, SpanNodes: true})
	if c.World() != 1 || len(c.Workers()[0].Devices) != 8 {
		t.Error(devicesOf(c))
	}
	if outlook, err := s.Outlook(ctx, one); err != nil || outlook.Now {
		t.Error(outlook, err)
	}
	_, err := s.PoolOf(ctx, muster.PoolConfig{Workers: 5, GPUsPerWorker: 3, GPUsPerNode: 4})
	code(t, err, muster.CodeInvalid, "workers of 3 GPUs do not fill nodes of 4")
	// What is left, by number.
	last := get[*muster.Pool](t)(s.PoolOf(ctx, muster.PoolConfig{Devices: []int{3}}))
	is(t, nodesOf(last), "node-0:3")
	_, err = s.PoolOf(ctx, muster.PoolConfig{Devices: []int{3}})
	code(t, err, muster.CodeResources, "node-0", "0 free")
	// One that was released is free again, for who asks for these very devices of it.
	if err := few.Release(ctx); err != nil {
		t.Error(err)
	}
	named := get[*muster.Pool](t)(s.PoolOf(ctx, muster.PoolConfig{Devices: []int{2, 0}, Node: "node-0"}))
	is(t, nodesOf(named), "node-0:0,2")
	is(t, devicesOf(s.cluster("named", muster.ClusterConfig{Pool: named, Devices: "0-1"})), "node-0:0", "node-0:2")
	if outlook, err := s.Outlook(ctx, muster.PoolConfig{GPUsPerNode: 1}); err != nil || !outlook.Now || outlook.Text == "" {
		t.Error(outlook, err)
	}
}

func TestPoolsThatCannotBe(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x2"})
	ctx := testContext(t)
	bundles := []muster.Bundle{{GPUs: 1}}
	for words, config := range map[string]muster.PoolConfig{
		"give one of them":     {Bundles: bundles, Devices: []int{0}},
		"Workers, by Bundles":  {Bundles: bundles, Workers: 1},
		"Nodes is 2":           {Nodes: 2, Devices: []int{0}},
		"GPUsPerNode is 4":     {GPUsPerNode: 4, Bundles: bundles},
		"how many of them":     {GPUsPerWorker: 2},
		"Bundles is empty":     {Bundles: []muster.Bundle{}},
		"Devices is empty":     {Devices: []int{}},
		"CPUsPerNode is -1":    {CPUsPerNode: -1},
		"bundle 0 has -1 GPUs": {Bundles: []muster.Bundle{{GPUs: -1}}},
		"each once":            {Devices: []int{0, 0}},
		`strategy is "TIGHT"`:  {GPUsPerNode: 1, Strategy: "TIGHT"},
		"for 1 worker or more": {Workers: -1},
		"no negative number":   {GPUsPerNode: -1},
		"at least 1 node":      {Nodes: -1},
	} {
		_, err := s.PoolOf(ctx, config)
		code(t, err, muster.CodeInvalid, words)
		if _, err := s.Outlook(ctx, config); muster.CodeOf(err) != muster.CodeInvalid {
			t.Errorf("%s: the outlook says %v", words, err)
		}
	}
	_, err := s.PoolOf(ctx, muster.PoolConfig{GPUsPerNode: 1, Node: "node-7"})
	code(t, err, muster.CodeResources, "node-7")
	pool := get[*muster.Pool](t)(s.Pool(ctx, 1, 2))
	both := workers(t, "x", muster.ClusterConfig{Pool: pool, Devices: "0", DeviceIDs: []int{1}})
	_, err = s.Cluster(ctx, both)
	code(t, err, muster.CodeInvalid, "leave out one")
	_, err = pool.Plan(ctx, both)
	code(t, err, muster.CodeInvalid, "leave out one")
	_, err = s.Cluster(ctx, workers(t, "x", muster.ClusterConfig{DeviceIDs: []int{1}}))
	code(t, err, muster.CodeInvalid, "[1] are those of a Pool")
	_, err = s.Cluster(ctx, workers(t, "x", muster.ClusterConfig{Pool: pool, DeviceIDs: []int{}, World: 1}))
	code(t, err, muster.CodePlacement)
	_, err = s.Cluster(ctx, workers(t, "x", muster.ClusterConfig{Pool: pool, DeviceIDs: []int{5}}))
	code(t, err, muster.CodePlacement, "5")
}
