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
