package placement

import (
	"errors"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// randomPool makes a pool whose devices are not simply 0..n-1.
func randomPool(r *rand.Rand) spec.Pool {
	perNode, count := r.Intn(9), 1+r.Intn(6)
	pool := spec.Pool{PerNode: perNode}
	for _, node := range makeNodes("nvidia", 1+r.Intn(64), make([]int, count)...) {
		first := r.Intn(4)
		for d := range perNode {
			node.Devices = append(node.Devices, spec.Device{Index: first + 2*d, Kind: "nvidia"})
		}
		pool.Nodes = append(pool.Nodes, node)
	}
	return pool
}

func randomCluster(r *rand.Rand, pool spec.Pool) spec.Cluster {
	c := spec.Cluster{Name: "role"}
	if r.Intn(4) == 0 || pool.PerNode == 0 {
		c.World = 1 + r.Intn(20)
	} else {
		size := pool.PerNode * len(pool.Nodes)
		c.DevicesPerWorker = 1 + r.Intn(min(4, pool.PerNode))
		for range 1 + r.Intn(12) {
			c.Mapping = append(c.Mapping, r.Perm(size)[:c.DevicesPerWorker]...)
		}
		c.World = len(c.Mapping) / c.DevicesPerWorker
		c.SpanNodes = r.Intn(2) == 0
	}
	for _, size := range []*int{&c.Shape.TP, &c.Shape.PP, &c.Shape.CP} {
		*size = 1 + r.Intn(2)
	}
	if r.Intn(2) == 0 {
		c.VisibleDevices = "node"
	}
	return c
}

// TestPlansAreSound: every rank exactly once, nothing outside the pool, names
// unique, the same input the same plan, environments in agreement with it.
func TestPlansAreSound(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	placed := 0
	for range 4000 {
		pool := randomPool(r)
		c := randomCluster(r, pool)
		plan, err := Place(pool, c)
		again, errAgain := Place(pool, c)
		if !reflect.DeepEqual(plan, again) || !reflect.DeepEqual(err, errAgain) {
			t.Fatalf("two plans for one input:\n%+v %v\n%+v %v", plan, err, again, errAgain)
		}
		if err != nil {
			if !errors.Is(err, &spec.Error{Code: spec.CodePlacement}) {
				t.Fatal(err)
			}
			continue
		}
		placed++
		checkPlan(t, pool, plan)
		checkEnvironments(t, plan)
		if text := Draw(pool, []Plan{plan, plan}); !strings.Contains(text, "role") {
			t.Fatal(text)
		}
	}
	if placed < 1000 {
		t.Errorf("only %d of the random clusters could be placed: the test tests little", placed)
	}
}

func checkPlan(t *testing.T, pool spec.Pool, plan Plan) {
	t.Helper()
	c := plan.Cluster
	names := map[string]bool{}
	locals := map[int]int{}
	if len(plan.Workers) != c.World {
		t.Fatalf("%d workers for world %d", len(plan.Workers), c.World)
	}
	infos := make([]spec.RankInfo, 0, c.World)
	for i, w := range plan.Workers {
		infos = append(infos, w.Info)
		if w.Rank != i || names[w.Name] || w.Node < 0 || w.Node >= len(pool.Nodes) {
			t.Fatalf("worker %d: %+v", i, w)
		}
		names[w.Name] = true
		if w.LocalRank != locals[w.Node] || plan.Nodes[w.NodeRank] != w.Node {
			t.Fatalf("worker %d: local rank or node rank is off: %+v", i, w)
		}
		locals[w.Node]++
		if len(w.Devices) != c.DevicesPerWorker {
			t.Fatalf("worker %d has %d devices", i, len(w.Devices))
		}
		for j, d := range w.Devices {
			if d.Global != c.Mapping[i*c.DevicesPerWorker+j] || d.Global < 0 || d.Global >= pool.PerNode*len(pool.Nodes) {
				t.Fatalf("worker %d: device %+v", i, d)
			}
			if pool.Nodes[d.Node].Devices[d.Global%pool.PerNode].Index != d.Device || d.Node != d.Global/pool.PerNode {
				t.Fatalf("worker %d: device %+v is another", i, d)
			}
			if d.Node != w.Node && (j == 0 || !c.SpanNodes) {
				t.Fatalf("worker %d on node %d has %+v", i, w.Node, d)
			}
		}
	}
	for _, w := range plan.Workers {
		if w.LocalWorld != locals[w.Node] {
			t.Fatalf("%s: local world %d, want %d", w.Name, w.LocalWorld, locals[w.Node])
		}
	}
	if err := spec.CheckLayout(infos); err != nil {
		t.Fatal(err)
	}
}

func checkEnvironments(t *testing.T, plan Plan) {
	t.Helper()
	for _, w := range plan.Workers {
		env := plan.Env(w.Rank, Master{Addr: "127.0.0.1", Port: 1})
		visible := strings.Split(env["CUDA_VISIBLE_DEVICES"], ",")
		if len(w.Devices) == 0 {
			if value, ok := env["CUDA_VISIBLE_DEVICES"]; !ok || value != "" || env["LOCAL_RANK"] != "0" {
				t.Fatalf("CPU worker sees %v", env)
			}
			continue
		}
		local := number(env["LOCAL_RANK"])
		if local < 0 || local >= len(visible) {
			t.Fatalf("LOCAL_RANK %d of %v", local, visible)
		}
		if plan.Cluster.VisibleDevices == "node" && number(visible[local]) != w.Devices[0].Device {
			t.Fatalf("LOCAL_RANK %d of %v is not device %d", local, visible, w.Devices[0].Device)
		}
		if number(env["OMP_NUM_THREADS"]) < 1 {
			t.Fatal("no threads")
		}
	}
}

// TestPoolsNeverShareDevices reserves and releases at random.
func TestPoolsNeverShareDevices(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	for range 300 {
		counts := make([]int, 1+r.Intn(6))
		for i := range counts {
			counts[i] = r.Intn(9)
		}
		nodes := makeNodes("nvidia", 8, counts...)
		var held []Held
		for id := range 30 {
			perNode, count := r.Intn(6), 1+r.Intn(4)
			pool, err := Reserve(nodes, held, Ask{PerNode: perNode, Nodes: count})
			if again, errAgain := Reserve(nodes, held, Ask{PerNode: perNode, Nodes: count}); !reflect.DeepEqual(pool, again) || !reflect.DeepEqual(err, errAgain) {
				t.Fatal("two answers for one input")
			}
			if err != nil {
				if !errors.Is(err, &spec.Error{Code: spec.CodeResources}) {
					t.Fatal(err)
				}
				held = held[min(len(held), r.Intn(3)):]
				continue
			}
			pool.ID = id
			held = append(held, Held{Pool: pool})
			checkPool(t, pool, perNode, count)
			seen := map[deviceKey]bool{}
			for _, h := range held {
				for _, node := range h.Pool.Nodes {
					for _, d := range node.Devices {
						if seen[deviceKey{node.Index, d.Index}] {
							t.Fatalf("device %d of %s is held twice", d.Index, node.Name)
						}
						seen[deviceKey{node.Index, d.Index}] = true
					}
				}
			}
		}
	}
}

func checkPool(t *testing.T, pool spec.Pool, perNode, count int) {
	t.Helper()
	if pool.PerNode != perNode || len(pool.Nodes) != count {
		t.Fatalf("wanted %d x %d, got %+v", count, perNode, pool)
	}
	for i, node := range pool.Nodes {
		if len(node.Devices) != perNode || i > 0 && pool.Nodes[i-1].Index >= node.Index {
			t.Fatalf("node %+v", node)
		}
	}
}

// TestStrategies: each keeps its word, and what one can have, weaker ones can.
func TestStrategies(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	for range 3000 {
		counts := make([]int, 1+r.Intn(5))
		for i := range counts {
			counts[i] = r.Intn(9)
		}
		nodes := makeNodes("nvidia", 8, counts...)
		ask := Ask{PerNode: r.Intn(4), Nodes: 1 + r.Intn(6)}
		on := map[string]int{} // nodes in truth; 0: refused
		for _, strategy := range Strategies() {
			ask.Strategy = strategy
			pool, err := Reserve(nodes, nil, ask)
			if err != nil {
				continue
			}
			apart, seen := map[int]bool{}, map[deviceKey]bool{}
			for i, node := range pool.Nodes {
				apart[node.Index] = true
				if len(node.Devices) != ask.PerNode || i > 0 && pool.Nodes[i-1].Index > node.Index {
					t.Fatalf("%+v: %+v", ask, pool)
				}
				for _, d := range node.Devices {
					if seen[deviceKey{node.Index, d.Index}] {
						t.Fatalf("%+v: device %d of %s twice", ask, d.Index, node.Name)
					}
					seen[deviceKey{node.Index, d.Index}] = true
				}
			}
			if len(pool.Nodes) != ask.Nodes {
				t.Fatalf("%+v: %+v", ask, pool)
			}
			on[strategy] = len(apart)
		}
		switch {
		case on[StrictSpread] > 0 && (on[StrictSpread] != ask.Nodes || on[Spread] != ask.Nodes),
			on[StrictPack] > 0 && (on[StrictPack] != 1 || on[Pack] != 1),
			(on[Pack] > 0) != (on[Spread] > 0), on[Pack] > on[Spread]:
			t.Fatalf("%+v on %v: %v", ask, counts, on)
		}
	}
}

func TestReserveRefusesSizesThatCannotBe(t *testing.T) {
	for _, size := range [][2]int{{-1, 1}, {8, 0}, {0, -3}} {
		if _, err := Reserve(makeNodes("virtual", 1, 8), nil, Ask{PerNode: size[0], Nodes: size[1]}); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
			t.Errorf("Reserve(%v): %v", size, err)
		}
	}
}

func TestReserveLeavesItsInputAlone(t *testing.T) {
	nodes := makeNodes("virtual", 1, 4)
	nodes[0].Devices[0], nodes[0].Devices[3] = nodes[0].Devices[3], nodes[0].Devices[0]
	pool, err := Reserve(nodes, nil, Ask{PerNode: 2, Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if nodes[0].Devices[0].Index != 3 || pool.Nodes[0].Devices[0].Index != 0 {
		t.Errorf("nodes %+v, pool %+v", nodes, pool)
	}
}

func TestNamesFitFiles(t *testing.T) {
	pool, err := Reserve(makeNodes("virtual", 1, 1024), nil, Ask{PerNode: 1024, Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Place(pool, spec.Cluster{Name: strings.Repeat("x", 100), MappingText: "0-1023", World: 1})
	if err != nil {
		t.Fatal(err)
	}
	if name := plan.Workers[0].Name; len(name) > 200 || !strings.HasSuffix(name, "-0-G0..1023x1024") {
		t.Error(name)
	}
}

func TestDrawStaysShort(t *testing.T) {
	pool, c := large(t)
	var plans []Plan
	for _, name := range []string{"actor_train", "actor_infer", "reference", "critic", "reward"} {
		c.Name = name
		plan, err := Place(pool, c)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, plan)
	}
	text := Draw(pool, plans)
	if lines := strings.Count(text, "\n"); lines > 60 {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{"node-0 ", "… 1242 more nodes\nnode-1249 ", "10000 shared"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func large(b testing.TB) (spec.Pool, spec.Cluster) {
	b.Helper()
	counts := make([]int, 1250)
	for i := range counts {
		counts[i] = 8
	}
	pool, err := Reserve(makeNodes("virtual", 64, counts...), nil, Ask{PerNode: 8, Nodes: 1250})
	if err != nil {
		b.Fatal(err)
	}
	return pool, spec.Cluster{Name: "actor_train", MappingText: "0-9999", Shape: spec.Shape{TP: 8, PP: 2}}
}

func BenchmarkReserve1250Nodes(b *testing.B) {
	pool, _ := large(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Reserve(pool.Nodes, nil, Ask{PerNode: 8, Nodes: 1250}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPlace10000(b *testing.B) {
	pool, c := large(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Place(pool, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnv10000(b *testing.B) {
	pool, c := large(b)
	plan, err := Place(pool, c)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		for rank := range plan.Workers {
			plan.Env(rank, Master{Addr: "10.0.0.1", Port: 29500})
		}
	}
}

func BenchmarkDraw10000(b *testing.B) {
	pool, c := large(b)
	plan, err := Place(pool, c)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		Draw(pool, []Plan{plan, plan, plan})
	}
}
