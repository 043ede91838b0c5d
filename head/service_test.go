package head_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// service asks for a service by its name.
func (r *rig) service(c *controller, name string, reuse bool) (*wire.ClusterInfo, error) {
	var p spec.Pool
	if err := c.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &p); err != nil {
		return nil, err
	}
	s := clusterSpec(name, 0)
	s.Kind = spec.KindService
	info := &wire.ClusterInfo{}
	err := c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: s, Reuse: reuse}, info)
	return info, err
}

func (r *rig) services() []string {
	r.t.Helper()
	var names wire.Names
	must(r.t, r.owner.ask("service.list", &wire.Empty{}, &names))
	return names.Names
}

// Of many who ask at once one makes it, and all get the same.
func TestServiceIsMadeOnce(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		gate := make(chan struct{})
		r := newRig(t, setup{virtual: "2x4" + relay, script: fake.Script{Begin: func(w *fake.Worker) {
			go func() {
				<-gate
				w.Ready(nil)
			}()
		}}})
		const many = 16
		asked := make([]*controller, many)
		for i := range asked {
			asked[i] = r.attach()
		}
		var all sync.WaitGroup
		numbers := make([]uint32, many)
		for i := range asked {
			all.Go(func() {
				info, err := r.service(asked[i], "one", true)
				if err != nil {
					t.Error(err)
					return
				}
				numbers[i] = info.Number
			})
		}
		r.worker("one")
		if got := r.services(); len(got) != 0 {
			t.Errorf("services before one is there: %v", got)
		}
		_, err := r.service(r.owner, "one", false) // it may yet live
		wantError(t, err, spec.CodeTaken, `living service named "one"`)
		close(gate)
		all.Wait()
		for _, n := range numbers {
			if n != numbers[0] || n == 0 {
				t.Fatalf("several were made: %v", numbers)
			}
		}
		if got := r.services(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("services: %v", got)
		}
	})
}

// One whose start fails is not what others get: the next makes its own.
func TestServiceStartFails(t *testing.T) {
	var mu sync.Mutex
	made := 0
	r := newRig(t, setup{script: fake.Script{Begin: func(w *fake.Worker) {
		mu.Lock()
		made++
		first := made == 1
		mu.Unlock()
		if first {
			w.Fail(&spec.Error{Code: spec.CodeUser, Message: "not today", Rank: -1})
			return
		}
		w.Ready(nil)
	}}})
	var all sync.WaitGroup
	errs := make([]error, 2)
	for i, c := range []*controller{r.attach(), r.attach()} {
		all.Go(func() { _, errs[i] = r.service(c, "one", true) })
	}
	all.Wait()
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) != 1 {
		t.Fatalf("errors: %v", failed)
	}
	wantError(t, failed[0], spec.CodeUser, "not today")
	if got := r.services(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("services: %v", got)
	}
}

// The name of one that has died is free, and its callers are told why.
func TestServiceDies(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x4" + relay})
		old, err := r.service(r.owner, "one", true)
		must(t, err)
		r.worker("one").Die(wire.Exited{Signal: "SIGKILL"})
		eventually(t, "the death", func() bool { return len(r.services()) == 0 })
		to := callee{cluster: old.Number, method: "plain", how: 2, ranks: []int{0}}
		r.owner.fails(r.owner.send(to, args()), spec.CodeWorkerDied, "one", "SIGKILL")
		var info wire.ClusterInfo
		err = r.owner.ask("cluster.describe", &wire.ClusterRef{Name: "one", Kind: spec.KindService}, &info)
		wantError(t, err, spec.CodeNotFound, `no service "one"`)
		fresh, err := r.service(r.owner, "one", false)
		must(t, err)
		if fresh.Number == old.Number {
			t.Error("the dead one was given out")
		}
		r.owner.fails(r.owner.send(to, args()), spec.CodeNotFound, "service one is no more")
		r.worker("one").Die(wire.Exited{Signal: "SIGKILL"})
		eventually(t, "the death", func() bool { return len(r.services()) == 0 })
		_, err = r.create(r.owner, r.pool(0, 1), "one", 2) // a cluster may have the name, too
		must(t, err)
		_, err = r.service(r.owner, "one", true)
		wantError(t, err, spec.CodeInvalid, `live cluster named "one"`)
	})
}

// One that a worker makes goes with the script, not with the worker.
func TestServiceBelongsToTheScript(t *testing.T) {
	r := newRig(t, setup{})
	script := r.attach()
	info, err := r.create(script, r.pool(0, 1), "maker", 1)
	must(t, err)
	inside := r.inside(r.worker("maker-0"))
	_, err = r.service(inside, "one", true)
	must(t, err)
	inside.close()
	must(t, script.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
	if got := r.services(); !slices.Equal(got, []string{"one"}) {
		t.Fatalf("services after its maker is gone: %v", got)
	}
	script.close()
	eventually(t, "the end with its script", func() bool { return r.fake.Worker("one") == nil })
}

// A method of an engine is passed on; which there are, its worker knows.
func TestEngineCalls(t *testing.T) {
	class := testClass()
	class.Engines = true
	r := newRig(t, setup{script: fake.Script{Class: class, Answer: func(leg *fake.Leg) {
		leg.Return(encode(nil, leg.Method))
	}}})
	info := r.cluster("actor", 2)
	to := callee{cluster: info.Number, method: "role/0/step", how: 2, ranks: []int{1}}
	if got := r.owner.value(r.owner.send(to, args(1))); got != "role/0/step" {
		t.Errorf("the worker was asked for %v", got)
	}
	for _, name := range []string{"/step", "engine/", "/", "step"} {
		to.method = name
		r.owner.fails(r.owner.send(to, args()), spec.CodeNotFound, name)
	}
	to.method, to.how, to.ranks = "engine/step", 0, nil
	r.owner.fails(r.owner.send(to, args()), spec.CodeNotFound, "not registered")
}

func TestServiceSpecs(t *testing.T) {
	r := newRig(t, setup{})
	s := clusterSpec("two", 2)
	s.Kind = spec.KindService
	err := r.owner.ask("cluster.create", &wire.ClusterCreate{Pool: r.pool(0, 1), Spec: s}, &wire.ClusterInfo{})
	wantError(t, err, spec.CodeInvalid, "service two: world_size is 2", "one process")
	s = clusterSpec("there", 0)
	s.Kind, s.Node = spec.KindService, "node-1"
	s.Env = map[string]string{"RANK": "3"}
	info := &wire.ClusterInfo{}
	must(t, r.owner.ask("cluster.create", &wire.ClusterCreate{Pool: r.pool(0, 2), Spec: s}, info))
	if w := info.Workers[0]; w.NodeName != "node-1" || w.Name != "there" || r.worker("there").Env["RANK"] != "3" {
		t.Errorf("it runs as %+v", w)
	}
	s.Name, s.Node = "nowhere", "node-9"
	err = r.owner.ask("cluster.create", &wire.ClusterCreate{Pool: r.pool(0, 2), Spec: s}, info)
	wantError(t, err, spec.CodePlacement, `node="node-9" is not in the pool`, "node-0, node-1")
	err = r.owner.ask("pool.create", &wire.PoolCreate{Nodes: 1, Node: "node-9", Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, `no node "node-9"`)
	s.Kind = "thing"
	err = r.owner.ask("cluster.create", &wire.ClusterCreate{Pool: r.pool(0, 2), Spec: s}, info)
	wantError(t, err, spec.CodeInvalid, `kind is "thing"`)
}
