package placement

import (
	"errors"
	"math"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"github.com/muster-rl/muster/spec"
)

func bundlesOf(sizes ...int) []spec.Bundle {
	bundles := make([]spec.Bundle, len(sizes))
	for i, size := range sizes {
		bundles[i].GPUs = size
	}
	return bundles
}

// ways says on how few and on how many nodes bundles can lie, all ways tried; 0: on none.
func ways(free []int, bundles []spec.Bundle) (fewest, most int) {
	left, there := slices.Clone(free), make([]int, len(free))
	var from func(i int)
	from = func(i int) {
		if i == len(bundles) {
			used := 0
			for _, n := range there {
				used += min(n, 1)
			}
			if fewest == 0 || used < fewest {
				fewest = used
			}
			most = max(most, used)
			return
		}
		for n := range left {
			if left[n] >= bundles[i].GPUs {
				left[n] -= bundles[i].GPUs
				there[n]++
				from(i + 1)
				left[n] += bundles[i].GPUs
				there[n]--
			}
		}
	}
	from(0)
	return fewest, most
}

// checkBundles: every bundle once and in its place, with as many devices as it asks
// for, none of them held before or given twice. It returns how many nodes there are in truth.
func checkBundles(t *testing.T, pool spec.Pool, held []Held, bundles []spec.Bundle) int {
	t.Helper()
	if len(pool.Nodes) != len(bundles) || pool.PerNode != PerNode(bundles) {
		t.Fatalf("%v: %+v", bundles, pool)
	}
	seen, apart := takenDevices(held), map[int]bool{}
	for i, node := range pool.Nodes {
		apart[node.Index] = true
		if len(node.Devices) != bundles[i].GPUs {
			t.Fatalf("bundle %d of %v has %d devices", i, bundles, len(node.Devices))
		}
		for _, d := range node.Devices {
			if seen[deviceKey{node.Index, d.Index}] {
				t.Fatalf("%v: device %d of %s twice", bundles, d.Index, node.Name)
			}
			seen[deviceKey{node.Index, d.Index}] = true
		}
	}
	return len(apart)
}

// TestBundles: each strategy keeps its word, and what it refuses there is no way for.
func TestBundles(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	for range 4000 {
		counts := make([]int, 1+r.Intn(4))
		for i := range counts {
			counts[i] = r.Intn(9)
		}
		nodes := makeNodes("nvidia", 8, counts...)
		var held []Held
		if pool, err := Reserve(nodes, nil, Ask{PerNode: 1 + r.Intn(3), Nodes: 1}); err == nil && r.Intn(2) == 0 {
			pool.ID = 1
			held = append(held, Held{Pool: pool})
		}
		bundles := make([]spec.Bundle, 1+r.Intn(5))
		for i := range bundles {
			bundles[i].GPUs = r.Intn(6)
		}
		free := make([]int, len(nodes))
		for i, n := range Free(nodes, held) {
			free[i] = n
		}
		fewest, most := ways(free, bundles)
		want := map[string]int{Pack: fewest, Spread: most}
		if fewest == 1 {
			want[StrictPack] = 1
		}
		if most == len(bundles) {
			want[StrictSpread] = most
		}
		for _, strategy := range Strategies() {
			pool, err := ReserveBundles(nodes, held, bundles, strategy)
			again, errAgain := ReserveBundles(nodes, held, bundles, strategy)
			if !reflect.DeepEqual(pool, again) || !reflect.DeepEqual(err, errAgain) {
				t.Fatal("two answers for one input")
			}
			on := 0
			if err == nil {
				on = checkBundles(t, pool, held, bundles)
			} else if !errors.Is(err, &spec.Error{Code: spec.CodeResources}) || len(pool.Nodes) > 0 {
				t.Fatalf("%+v, %v", pool, err)
			}
			if on != want[strategy] {
				t.Fatalf("%s of %v on %v: on %d nodes, and not %d: %v", strategy, bundles, free, on, want[strategy], err)
			}
		}
	}
}

// TestLargeBundles: what there is no time to try all ways for is placed, if not as
// tightly as can be.
func TestLargeBundles(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	counts := slices.Repeat([]int{8}, 1250)
	nodes := makeNodes("nvidia", 8, counts...)
	bundles := make([]spec.Bundle, 1000)
	sum := 0
	for i := range bundles {
		bundles[i].GPUs = r.Intn(9)
		sum += bundles[i].GPUs
	}
	for _, strategy := range Strategies() {
		pool, err := ReserveBundles(nodes, nil, bundles, strategy)
		if strategy == StrictPack {
			if err == nil {
				t.Error("all of it on one node")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		on := checkBundles(t, pool, nil, bundles)
		switch {
		case strategy == Pack && on > parts(sum, 8)+parts(sum, 80):
			t.Errorf("%d GPUs on %d nodes of 8", sum, on)
		case strategy != Pack && on != len(bundles):
			t.Errorf("%s of %d bundles: on %d nodes", strategy, len(bundles), on)
		}
	}
}

// TestBundlesHaveIDs: ids count on from bundle to bundle, also over those without devices.
func TestBundlesHaveIDs(t *testing.T) {
	pool, err := ReserveBundles(makeNodes("nvidia", 8, 8, 8), nil, bundlesOf(2, 0, 5, 1), Pack)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Place(pool, spec.Cluster{Name: "c", MappingText: "0-7", World: 8})
	if err != nil {
		t.Fatal(err)
	}
	var on []int
	for id, w := range plan.Workers {
		if len(w.Devices) != 1 || w.Devices[0].Global != id || w.Devices[0].Node != w.Node {
			t.Errorf("rank %d: %+v", id, w)
		}
		on = append(on, w.Node)
	}
	if want := []int{0, 0, 2, 2, 2, 2, 2, 3}; !slices.Equal(on, want) {
		t.Errorf("bundles %v, and not %v", on, want)
	}
	service := spec.Cluster{Name: "s", Kind: spec.KindService, GPUs: 3}
	if got, err := Choose(pool, service, nil); err != nil || !slices.Equal(got.Mapping, []int{2, 3, 4}) {
		t.Errorf("%v, %v", got.Mapping, err)
	}
	service.GPUs = 6
	if got, err := Choose(pool, service, nil); !errors.Is(err, &spec.Error{Code: spec.CodePlacement}) {
		t.Errorf("%v, %v", got.Mapping, err)
	}
}

func TestBundlesThatCannotBe(t *testing.T) {
	nodes := makeNodes("virtual", 1, 8)
	for _, bundles := range [][]spec.Bundle{nil, bundlesOf(1, -1), {{CPUs: -1}}, {{CPUs: math.NaN()}}, {{CPUs: math.Inf(1)}}} {
		if _, err := ReserveBundles(nodes, nil, bundles, Pack); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
			t.Errorf("%v: %v", bundles, err)
		}
	}
	if _, err := ReserveBundles(nodes, nil, bundlesOf(1), "TIGHT"); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
		t.Error(err)
	}
	if _, err := ReserveBundles(nodes, nil, bundlesOf(math.MaxInt, math.MaxInt), Pack); !errors.Is(err, &spec.Error{Code: spec.CodeResources}) {
		t.Error(err)
	}
	if _, err := ReserveBundles(nil, nil, bundlesOf(0), Pack); !errors.Is(err, &spec.Error{Code: spec.CodeResources}) {
		t.Error(err)
	}
}
