package muster_test

import (
	"io"
	"os"
	"testing"

	"github.com/muster-rl/muster"
)

// BenchmarkCall is one small call, from Go through the head to a Go worker and
// back.
func BenchmarkCall(b *testing.B) {
	s, err := muster.Start(b.Context(), muster.Options{Virtual: "1x1", Log: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c, err := s.Cluster(b.Context(), muster.ClusterConfig{Name: "c", Command: []string{program}, World: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := muster.Call[int](b.Context(), c.Rank(0), "add", 1, 2); err != nil || n != 3 {
			b.Fatal(n, err)
		}
	}
}
