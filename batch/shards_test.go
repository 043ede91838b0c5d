package batch

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

func TestEven(t *testing.T) {
	for parts := 1; parts < 9; parts++ {
		for rows := range 40 {
			next, last, first := 0, rows+1, 0
			for i := range parts {
				from, to := Even(rows, parts, i)
				if from != next || to < from || to-from > last {
					t.Fatalf("part %d of %d of %d rows is %d to %d", i, parts, rows, from, to)
				}
				if next, last = to, to-from; i == 0 {
					first = last
				}
			}
			if next != rows || first-last > 1 {
				t.Fatalf("%d rows in %d parts: the first has %d, the last %d, together %d", rows, parts, first, last, next)
			}
		}
	}
}

// written is the rows of each shard.
func written(s Shards) [][]uint32 {
	if s.Lists != nil {
		return s.Lists
	}
	out := make([][]uint32, len(s.Ranges))
	for i, r := range s.Ranges {
		for row := r.From; row < r.To; row++ {
			out[i] = append(out[i], uint32(row))
		}
	}
	return out
}

// checkShards: every row once, in order; ranges follow each other; groups and
// blocks are whole.
func checkShards(t *testing.T, c *Cut, rows, n int, s Shards) {
	t.Helper()
	if (s.Ranges == nil) == (s.Lists == nil) {
		t.Fatalf("%v", s)
	}
	at := 0
	for _, r := range s.Ranges {
		if r.From != at || r.To < r.From {
			t.Fatalf("ranges %v", s.Ranges)
		}
		at = r.To
	}
	shards := written(s)
	shardOf := map[uint32]int{}
	for i, shard := range shards {
		if !slices.IsSorted(shard) {
			t.Fatalf("shard %d is out of order: %v", i, shard)
		}
		for _, row := range shard {
			if _, twice := shardOf[row]; twice || int(row) >= rows {
				t.Fatalf("row %d of %d in %v", row, rows, shards)
			}
			shardOf[row] = i
		}
	}
	if len(shards) != n || len(shardOf) != rows {
		t.Fatalf("%d shards with %d of %d rows", len(shards), len(shardOf), rows)
	}
	if c == nil {
		return
	}
	groups := map[uint32]int{}
	for row := range uint32(rows) {
		if c.Groups != nil {
			if at, known := groups[c.Groups[row]]; known && at != shardOf[row] {
				t.Fatalf("group %d is in shards %d and %d", c.Groups[row], at, shardOf[row])
			}
			groups[c.Groups[row]] = shardOf[row]
		} else if k := uint32(max(c.Multiple, 1)); shardOf[row] != shardOf[row/k*k] {
			t.Fatalf("rows %d and %d of one block of %d are in two shards", row/k*k, row, k)
		}
	}
}

func TestShards(t *testing.T) {
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		rows, n := rng.IntN(80), 1+rng.IntN(12)
		var c *Cut
		if rng.IntN(5) > 0 {
			c = anyCut(rng, rows)
			if rng.IntN(2) == 0 {
				slices.Sort(c.Groups)
			}
			if rng.IntN(8) == 0 {
				clear(c.Weights)
			}
		}
		s, err := c.Shards(rows, n)
		if err != nil {
			if c.Groups == nil || c.Multiple < 2 || !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
				t.Fatal(err)
			}
			continue
		}
		checkShards(t, c, rows, n, s)
		if again, _ := c.Shards(rows, n); !reflect.DeepEqual(s, again) {
			t.Fatal("the same rows were cut in two ways")
		}
		// What shards were made into goes back into the caller's order.
		m := 1 + rng.IntN(3)
		var joined, lens = []uint32{}, make([]int, n)
		for i, list := range s.Lists {
			lens[i] = m * len(list)
			for _, row := range list {
				for range m {
					joined = append(joined, row)
				}
			}
		}
		if s.Lists == nil {
			continue
		}
		perm, got := Restore(s.Lists, lens)
		if rows > 0 && got != m {
			t.Fatalf("%d results a row were taken for %d", m, got)
		}
		for row := range rows {
			at := row
			if perm != nil {
				at = int(perm[row])
			}
			for k := range m {
				if joined[at*m+k] != uint32(row) {
					t.Fatalf("row %d is not at %d of %v", row, at*m+k, joined)
				}
			}
		}
	}
}

func TestRestoreLeavesTheRest(t *testing.T) {
	lists := [][]uint32{{0, 3}, {1, 2}, {}}
	for _, c := range []struct {
		lens []int
		perm []uint32
		m    int
	}{
		{[]int{2, 2, 0}, []uint32{0, 2, 3, 1}, 1},
		{[]int{6, 6, 0}, []uint32{0, 2, 3, 1}, 3},
		{[]int{2, 3, 0}, nil, 0},
		{[]int{3, 3, 2}, nil, 0},
		{[]int{2, 2, 4}, nil, 0},
		{[]int{1, 3, 0}, nil, 0},
		{[]int{0, 0, 0}, nil, 0},
		{[]int{1, 1, 0}, nil, 0},
	} {
		if perm, m := Restore(lists, c.lens); !slices.Equal(perm, c.perm) || m != c.m {
			t.Errorf("%v: %v, %d", c.lens, perm, m)
		}
	}
	if perm, m := Restore([][]uint32{{}, {}}, []int{0, 0}); perm != nil || m != 0 {
		t.Errorf("no rows: %v, %d", perm, m)
	}
}

// lognormal is lengths of replies as they come: most short, a few very long, none
// over what a model writes.
func lognormal(rng *rand.Rand, rows int, sigma, longest float64) []float64 {
	out := make([]float64, rows)
	for i := range out {
		out[i] = math.Ceil(min(400*math.Exp(sigma*rng.NormFloat64()), longest))
	}
	return out
}

// weightsOf adds up each shard.
func weightsOf(s Shards, weights []float64) []float64 {
	var sums []float64
	for _, shard := range written(s) {
		sum := 0.0
		for _, row := range shard {
			sum += weights[row]
		}
		sums = append(sums, sum)
	}
	return sums
}

// TestBalance: of long-tailed lengths, no shard is over 3% above the mean, unless
// one row is.
func TestBalance(t *testing.T) {
	worst := 0.0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 8))
		n := 2 + rng.IntN(63)
		rows := 16*n + rng.IntN(max(4096-16*n, 1))
		if seed%3 == 0 {
			rows = max(16*n, 64)
		}
		sigma := 0.5 + rng.Float64()
		weights := lognormal(rng, rows, sigma, 32768)
		c := &Cut{Weights: weights}
		s, err := c.Shards(rows, n)
		if err != nil {
			t.Fatal(err)
		}
		checkShards(t, c, rows, n, s)
		sums := weightsOf(s, weights)
		total := 0.0
		for _, sum := range sums {
			total += sum
		}
		bound := max(total/float64(n), slices.Max(weights))
		over := slices.Max(sums)/bound - 1
		worst = max(worst, over)
		if over > 0.03 {
			t.Errorf("seed %d, %d rows in %d shards, sigma %.2f: the largest is %.2f%% over", seed, rows, n, sigma, 100*over)
		}
	}
	t.Logf("the largest shard was at most %.3f%% over", 100*worst)
}

// TestWhatWeighsNothing: rows of weight 0 are dealt by number, and change nothing
// of how the others are balanced.
func TestWhatWeighsNothing(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 12))
		n := 2 + rng.IntN(20)
		weights := lognormal(rng, 16*n+rng.IntN(500), 0.5+rng.Float64(), 32768)
		zeros := rng.IntN(3000)
		weights = append(weights, make([]float64, zeros)...)
		rng.Shuffle(len(weights), func(i, j int) { weights[i], weights[j] = weights[j], weights[i] })
		c := &Cut{Weights: weights}
		size := 1
		if seed%4 == 1 { // each row a group of a few
			size = 1 + rng.IntN(4)
			c.Groups = make([]uint32, 0, size*len(weights))
			each := weights
			c.Weights, weights = nil, nil
			for i, w := range each {
				for range size {
					weights, c.Groups = append(weights, w), append(c.Groups, uint32(i))
				}
			}
			c.Weights = weights
		}
		s, err := c.Shards(len(weights), n)
		if err != nil {
			t.Fatal(err)
		}
		checkShards(t, c, len(weights), n, s)
		least, most := math.MaxInt, 0
		for _, shard := range written(s) {
			count := 0
			for _, row := range shard {
				if weights[row] == 0 {
					count++
				}
			}
			least, most = min(least, count), max(most, count)
		}
		if most-least > size {
			t.Errorf("seed %d: shards have %d to %d of %d rows that weigh nothing", seed, least, most, zeros)
		}
		sums, total := weightsOf(s, weights), 0.0
		for _, sum := range sums {
			total += sum
		}
		if over := slices.Max(sums) / max(total/float64(n), slices.Max(weights)*float64(size)); over > 1.03 {
			t.Errorf("seed %d: the largest of %d is %.2f%% over", seed, n, 100*over-100)
		}
	}
	ones := append(slices.Repeat([]float64{1}, 8), make([]float64, 1000)...)
	s, err := (&Cut{Weights: ones}).Shards(len(ones), 8)
	if err != nil {
		t.Fatal(err)
	}
	for i, shard := range written(s) {
		if len(shard) != 126 {
			t.Errorf("shard %d has %d rows", i, len(shard))
		}
	}
}

// TestNoShardIsEmpty: with as many groups, blocks or rows as shards, each shard has
// one, whatever weighs nothing. Shards have as many rows that weigh nothing as others,
// but for one group or block, and where all are of one size, who has more of these has
// no more of the others.
func TestNoShardIsEmpty(t *testing.T) {
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 17))
		n := 2 + rng.IntN(11)
		c := &Cut{Weights: make([]float64, 1+rng.IntN(60))}
		rows := len(c.Weights)
		for range rng.IntN(2 * n) {
			c.Weights[rng.IntN(rows)] = math.Exp(3 * rng.NormFloat64())
		}
		atom := make([]int, rows)
		switch seed % 3 {
		case 1:
			c.Groups = make([]uint32, rows)
			some := 1 + rng.Uint32N(uint32(rows))
			for row := range c.Groups {
				c.Groups[row] = rng.Uint32N(some)
				atom[row] = int(c.Groups[row])
			}
		case 2:
			c.Multiple = 2 + rng.IntN(3)
			fallthrough
		default:
			for row := range atom {
				atom[row] = row / max(c.Multiple, 1)
			}
		}
		s, err := c.Shards(rows, n)
		if err != nil {
			t.Fatal(err)
		}
		checkShards(t, c, rows, n, s)
		weight, size := map[int]float64{}, map[int]int{}
		for row, at := range atom {
			weight[at] += c.Weights[row]
			size[at]++
		}
		heavies, largest := 0, 0 // how many weigh something, and the largest that does not
		for at, w := range weight {
			if w > 0 {
				heavies++
			} else {
				largest = max(largest, size[at])
			}
			if c.Groups == nil {
				largest = 1 // block
			}
		}
		shards := written(s)
		light, heavy := make([]int, n), make([]int, n) // rows or blocks
		for i, shard := range shards {
			if len(shard) == 0 && len(weight) >= n {
				t.Fatalf("%v of %v is cut into %v", c, c.Weights, shards)
			}
			for _, row := range shard {
				switch {
				case c.Multiple > 0 && int(row)%c.Multiple > 0: // not the first of its block
				case weight[atom[row]] > 0:
					heavy[i]++
				default:
					light[i]++
				}
			}
		}
		if heavies == 0 || s.Ranges != nil {
			continue // cut by number
		}
		if slices.Max(light)-slices.Min(light) > largest {
			t.Fatalf("%v of %v: %v rows weigh nothing in %v", c, c.Weights, light, shards)
		}
		for i := range shards {
			for j := range shards {
				if c.Groups == nil && light[i] > light[j] && heavy[i] > heavy[j] {
					t.Fatalf("%v: shards %d and %d of %v have %d and %d that weigh nothing", c.Weights, i, j, shards, light[i], light[j])
				}
			}
		}
	}
	for _, c := range []struct {
		cut  *Cut
		n    int
		want string
	}{
		{&Cut{Weights: []float64{5, 5, 5, 0, 0}}, 4, "[[0 4] [1] [2] [3]]"},
		{&Cut{Weights: []float64{5, 5, 0, 0, 0, 0}}, 5, "[[0 5] [1] [2] [3] [4]]"},
		{&Cut{Weights: []float64{0, 0, 1, 0, 0, 1}, Groups: []uint32{0, 1, 2, 0, 1, 2}}, 3, "[[0 3] [1 4] [2 5]]"},
	} {
		if s, err := c.cut.Shards(len(c.cut.Weights), c.n); err != nil || fmt.Sprint(s.Lists) != c.want {
			t.Errorf("%v: %v, %v, want %s", c.cut.Weights, s, err, c.want)
		}
	}
}

// best is the least that the heaviest of n shards can weigh, by trying all.
func best(weights []float64, sums []float64) float64 {
	if len(weights) == 0 {
		return slices.Max(sums)
	}
	least := math.Inf(1)
	for i := range sums {
		sums[i] += weights[0]
		least = min(least, best(weights[1:], sums))
		sums[i] -= weights[0]
	}
	return least
}

// TestNearBest: of few rows, where the best is known, not far above it; equal
// groups are as even as can be.
func TestNearBest(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		rows, n := 1+rng.IntN(8), 2+rng.IntN(2)
		weights := make([]float64, rows)
		for i := range weights {
			weights[i] = float64(rng.IntN(20))
		}
		c := &Cut{Weights: weights}
		s, err := c.Shards(rows, n)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Max(weightsOf(s, weights)), best(weights, make([]float64, n)); got > want*4/3 {
			t.Errorf("%v in %d: %v where %v can be", weights, n, got, want)
		}
	}
	for groups := range 40 {
		for n := 1; n < 9; n++ {
			c := &Cut{Groups: make([]uint32, 4*groups)}
			for row := range c.Groups {
				c.Groups[row] = uint32(row % max(groups, 1)) // interleaved
			}
			s, err := c.Shards(len(c.Groups), n)
			if err != nil {
				t.Fatal(err)
			}
			checkShards(t, c, len(c.Groups), n, s)
			least, most := math.MaxInt, 0
			for _, shard := range written(s) {
				least, most = min(least, len(shard)), max(most, len(shard))
			}
			if most-least > 4 {
				t.Errorf("%d groups in %d shards: %d to %d rows", groups, n, least, most)
			}
		}
	}
}

func TestShardsStayRanges(t *testing.T) {
	equal := slices.Repeat([]float64{7}, 10)
	prompts := []uint32{9, 9, 9, 4, 4, 4, 6, 6, 6, 1, 1, 1}
	for _, c := range []struct {
		cut  *Cut
		rows int
		want string
	}{
		{nil, 10, "[{0 4} {4 7} {7 10}]"},
		{&Cut{Multiple: 4}, 10, "[{0 4} {4 8} {8 10}]"},
		{&Cut{Multiple: 4}, 3, "[{0 3} {3 3} {3 3}]"},
		{&Cut{Multiple: 1 << 31}, MaxRows, "[{0 2147483648} {2147483648 4294967296} {4294967296 4294967296}]"},
		{&Cut{Weights: equal}, 10, "[{0 4} {4 7} {7 10}]"},
		{&Cut{Weights: make([]float64, 10)}, 10, "[{0 4} {4 7} {7 10}]"},
		{&Cut{Weights: []float64{1, 5}}, 2, "[{0 1} {1 2} {2 2}]"},
		{&Cut{Groups: prompts}, 12, "[{0 6} {6 9} {9 12}]"},
		{&Cut{Groups: prompts, Multiple: 3}, 12, "[{0 6} {6 9} {9 12}]"},
	} {
		s, err := c.cut.Shards(c.rows, 3)
		if err != nil || s.Lists != nil || fmt.Sprint(s.Ranges) != c.want {
			t.Errorf("%v of %d rows: %v, %v, want %s", c.cut, c.rows, s, err, c.want)
		}
	}
}

func TestShardsRefuse(t *testing.T) {
	for _, c := range []struct {
		cut     *Cut
		rows, n int
		code    spec.Code
		want    string
	}{
		{&Cut{Groups: []uint32{7, 7, 8, 8, 8}, Multiple: 2}, 5, 2, spec.CodeInvalid, "group 8, first seen in row 2, has 3 rows"},
		{&Cut{Weights: []float64{1, -2}}, 2, 2, spec.CodeInvalid, "row 1 weighs -2"},
		{&Cut{Weights: []float64{1}}, 2, 2, spec.CodeInternal, "has 1 weights"},
		{nil, 2, 0, spec.CodeInternal, "into 0 shards"},
	} {
		if _, err := c.cut.Shards(c.rows, c.n); !errors.Is(err, &spec.Error{Code: c.code}) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, error is %v", c.want, err)
		}
	}
}

func BenchmarkShards(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []struct{ rows, n int }{{512, 8}, {4096, 8}, {4096, 64}, {65536, 8}, {65536, 64}, {65536, 1024}, {1 << 20, 8}, {1 << 20, 64}, {1 << 22, 8}} {
		weights := lognormal(rng, size.rows, 1, 32768)
		outlier := slices.Clone(weights)
		outlier[7] = 1e12
		groups := make([]uint32, size.rows)
		for i := range groups {
			groups[i] = rng.Uint32N(uint32(size.rows) / 8)
		}
		for name, c := range map[string]*Cut{
			"weights": {Weights: weights}, "outlier": {Weights: outlier},
			"groups": {Groups: groups}, "both": {Weights: weights, Groups: groups},
		} {
			b.Run(fmt.Sprintf("%s-%dx%d", name, size.rows, size.n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Shards(size.rows, size.n); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
