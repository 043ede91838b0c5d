package muster_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/muster-rl/muster"
)

// maker is a worker in Python: what it makes is lent to workers that get it.
const maker = `
import numpy as np
from muster import Batch, Dispatch, Worker, register

class Maker(Worker):
    @register(Dispatch.ONE_TO_ALL_ONE)
    def fill(self, rows, x):
        return Batch({"x": np.full(rows, x)})
`

// sumOf reads the column x.
func sumOf(b *muster.Batch) (sum float64, err error) {
	x, err := b.Column("x")
	if err != nil {
		return 0, err
	}
	defer x.Release()
	for _, v := range x.(*array.Float64).Float64Values() {
		sum += v
	}
	return sum, nil
}

// A handle keeps no bytes in memory, whoever has it; they are there when they are
// read.
func TestWhatWorkersKeepUnreadIsSpilled(t *testing.T) {
	interpreter, dir, module := python(t), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(module, "makers.py"), []byte(maker), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_STORE_BYTES", "64MiB")
	t.Setenv("MUSTER_SPILL_DIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Error("left of what was spilled:", left, err)
		}
	})
	s := start(t, muster.Options{Virtual: "1x2", Python: interpreter})
	ctx := testContext(t)
	makers := get[*muster.Cluster](t)(s.Cluster(ctx, muster.ClusterConfig{Name: "makers", Class: "makers.Maker", PyModules: []string{module}, World: 1}))
	c := s.cluster("keepers", muster.ClusterConfig{World: 2})
	const rows = 1 << 20 // of 8 bytes; all together twice what the store may have
	var want []float64
	for i := range 16 {
		b := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, makers, "fill", rows, float64(i)))
		if err := muster.Do(ctx, c, "keep", b); err != nil {
			t.Fatal(err)
		}
		if n, err := muster.Call[int](ctx, c.Rank(i%2), "count", b); err != nil || n != rows {
			t.Error(n, err) // one more of what is kept, which goes again
		}
		b.Release()
		want = append(want, float64(i*rows))
	}
	report, err := s.Stores(ctx)
	if err != nil || report.Nodes[0].Spilled == 0 {
		t.Error("nothing is spilled", err)
	}
	if sums, err := muster.Call[[][]float64](ctx, c, "sums"); err != nil || !slices.Equal(sums[0], want) || !slices.Equal(sums[1], want) {
		t.Error(sums, err)
	}
	if err := muster.Do(ctx, c, "forget"); err != nil {
		t.Error(err)
	}
	s.empty(true)
}
