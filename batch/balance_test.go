package batch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBalanceOfVeryMany: more rows than are differenced are balanced as well, of
// whatever distribution: 3% over the mean at most, or the heaviest row alone.
func TestBalanceOfVeryMany(t *testing.T) {
	kinds := map[string]func(*rand.Rand) float64{
		"long tail": func(rng *rand.Rand) float64 { return math.Ceil(min(400*math.Exp(rng.NormFloat64()), 32768)) },
		"pareto":    func(rng *rand.Rand) float64 { return math.Pow(1-rng.Float64(), -1/1.1) },
		"even":      func(rng *rand.Rand) float64 { return float64(1 + rng.IntN(5000)) },
		"equal":     func(rng *rand.Rand) float64 { return 1 + float64(rng.IntN(1000)/999) },
		"two":       func(rng *rand.Rand) float64 { return float64(1 + 999*(rng.IntN(50)/49)) },
		"tiny":      func(rng *rand.Rand) float64 { return 5e-324 * float64(1+rng.IntN(9)) },
		"zeros":     func(rng *rand.Rand) float64 { return float64(max(0, rng.IntN(40)-20)) },
	}
	for kind, draw := range kinds {
		for _, n := range []int{2, 7, 8, 64, 200} {
			rng := rand.New(rand.NewPCG(uint64(n), 13))
			weights := make([]float64, 20_000+rng.IntN(100_000))
			total := 0.0
			for i := range weights {
				weights[i] = draw(rng)
				total += weights[i]
			}
			c := &Cut{Weights: weights}
			s, err := c.Shards(len(weights), n)
			if err != nil {
				t.Fatal(err)
			}
			checkShards(t, c, len(weights), n, s)
			if over := slices.Max(weightsOf(s, weights)) / max(total/float64(n), slices.Max(weights)); over > 1.03 {
				t.Errorf("%s: of %d rows in %d shards the largest is %.2f%% over", kind, len(weights), n, 100*over-100)
			}
		}
	}
}

// TestRestIsEven: whatever the weights, a shard that has any but the heaviest rows
// weighs at most so much more than any other as is dealt at a time, which is a 2,000th
// of a shard's part in the light rows, and the heaviest of these; and as much as is
// next to nothing, which is such a part again. That is under 0.21% of a shard, and the
// one heaviest row does not even count as part of one.
func TestRestIsEven(t *testing.T) {
	worst := 0.0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 15))
		n := 2 + rng.IntN(30)
		weights := make([]float64, 6000+1024*n+rng.IntN(40_000))
		width := []float64{0.1, 1, 5, 50}[seed%4] // from all alike to none beside another
		for i := range weights {
			weights[i] = math.Exp(width * rng.NormFloat64())
		}
		for range rng.IntN(3) * n {
			weights[rng.IntN(len(weights))] *= 1e9
		}
		if rng.IntN(3) == 0 {
			slices.Sort(weights)
		}
		if rng.IntN(3) == 0 {
			slices.Reverse(weights)
		}
		some := heaviest(weights, max(4096, 1024*n))
		light, largest, total := 0.0, 0.0, 0.0 // largest of the light ones
		sums, has := make([]float64, n), make([]bool, n)
		for at, shard := range balance(weights, n) {
			sums[shard] += weights[at]
			total += weights[at]
			if _, is := slices.BinarySearch(some, int32(at)); !is {
				has[shard] = true
				light += weights[at]
				largest = max(largest, weights[at])
			}
		}
		bound := light/float64(n)/1000 + largest
		if all := (total - slices.Max(weights)) / float64(n); bound > 0.0021*all+1e-12*total {
			t.Fatalf("seed %d: %v may be dealt at a time, of %v for a shard", seed, bound, all)
		}
		least := slices.Min(sums)
		for shard, sum := range sums {
			if has[shard] && sum-least > bound+1e-9*sum {
				t.Errorf("seed %d: of %d shards one weighs %v, the lightest %v: more than %v between them", seed, n, sum, least, bound)
			}
			if has[shard] {
				worst = max(worst, (sum-least)/sum)
			}
		}
	}
	t.Logf("they were %.3f%% apart at most", 100*worst)
}

// TestLightRowsAreDealtEvenly: where few rows carry most of the weight, the others are
// as many in each shard that has room for them.
func TestLightRowsAreDealtEvenly(t *testing.T) {
	kinds := map[string]func(rng *rand.Rand, i, n int) float64{
		"outliers": func(rng *rand.Rand, i, n int) float64 {
			if i < n-1-n/3 {
				return 1e9 * (1 + rng.Float64()) // each more than all light ones
			}
			return 1 + rng.Float64()
		},
		"a twentieth": func(_ *rand.Rand, i, n int) float64 {
			if i < 5000/n*n {
				return 1000
			}
			return 0.01
		},
		"a third": func(_ *rand.Rand, i, n int) float64 {
			if i < 33_333/n*n {
				return 1000
			}
			return 0.01
		},
		"next to nothing": func(rng *rand.Rand, i, _ int) float64 {
			if i < 40_000 {
				return 1 + rng.Float64()
			}
			return 1e-6 * rng.Float64()
		},
		"too little to add": func(rng *rand.Rand, i, n int) float64 {
			if i < 2*n {
				return 1
			}
			return 1e-300 * rng.Float64()
		},
	}
	orders := map[string]func(*rand.Rand, []float64){
		"light last":  func(_ *rand.Rand, w []float64) {},
		"light first": func(_ *rand.Rand, w []float64) { slices.Reverse(w) },
		"mixed": func(rng *rand.Rand, w []float64) {
			rng.Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
		},
	}
	worst := 0.0
	for kind, draw := range kinds {
		for order, sort := range orders {
			for _, n := range []int{2, 4, 7, 8, 32} {
				rng := rand.New(rand.NewPCG(uint64(n), 16))
				weights := make([]float64, 100_000)
				for i := range weights {
					weights[i] = draw(rng, i, n)
				}
				sort(rng, weights)
				c := &Cut{Weights: weights}
				s, err := c.Shards(len(weights), n)
				if err != nil {
					t.Fatal(err)
				}
				checkShards(t, c, len(weights), n, s)
				least, most := math.MaxInt, 0
				for _, shard := range written(s) {
					if len(shard) > 1 { // others have an outlier
						least, most = min(least, len(shard)), max(most, len(shard))
					}
				}
				if float64(most) > 1.05*float64(least) {
					t.Errorf("%s, %s: %d shards have %d to %d rows", kind, order, n, least, most)
				}
				worst = max(worst, float64(most)/float64(least)-1)
			}
		}
	}
	t.Logf("the most rows were at most %.2f%% over the fewest", 100*worst)
}

func TestHeaviest(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 14))
		weights := make([]float64, 1+rng.IntN(400))
		for i := range weights {
			weights[i] = math.Exp(10*rng.NormFloat64()) * float64(rng.IntN(3))
		}
		n := rng.IntN(len(weights) + 1)
		some := heaviest(weights, n)
		if len(some) != n || !slices.IsSorted(some) || len(slices.Compact(slices.Clone(some))) != n {
			t.Fatalf("%d of %d are %v", n, len(weights), some)
		}
		least, most := math.Inf(1), 0.0
		for at, w := range weights {
			if _, is := slices.BinarySearch(some, int32(at)); is {
				least = min(least, w)
			} else {
				most = max(most, w)
			}
		}
		if most > least*17/16 {
			t.Fatalf("%v was left out, %v was not", most, least)
		}
	}
}
