package worker_test

import (
	"context"
	"strings"

	"github.com/muster-rl/muster/worker"
)

// A worker that counts words. A cluster of it, called by its method count with a
// list of texts, gives each rank its share and chains what they return.
func ExampleMain() {
	worker.Main(func(info worker.Info) (*worker.Class, error) {
		class := worker.NewClass("Counter")
		class.Register("count", worker.DPCompute, func(_ context.Context, texts []string) []int {
			counts := make([]int, len(texts))
			for i, text := range texts {
				counts[i] = len(strings.Fields(text))
			}
			return counts
		}, worker.Params("texts"))
		class.Method("rank", func() int { return info.Rank })
		return class, nil
	})
}
