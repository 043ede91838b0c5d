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

// BenchmarkBatch is 64 MiB from Go to two Go workers: made and sent, and as a
// handle of what lies in the store already.
func BenchmarkBatch(b *testing.B) {
	s, err := muster.Start(b.Context(), muster.Options{Virtual: "1x1", Log: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	program, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	c, err := s.Cluster(b.Context(), muster.ClusterConfig{Name: "c", Command: []string{program}, World: 2})
	if err != nil {
		b.Fatal(err)
	}
	record := floats("x", make([]float64, 8<<20))
	made := func() *muster.Batch {
		batch, err := muster.NewBatch(record, nil)
		if err != nil {
			b.Fatal(err)
		}
		return batch
	}
	send := func(batch *muster.Batch) {
		out, err := muster.Call[*muster.Batch](b.Context(), c, "pass", batch)
		if err != nil || out.Rows() != batch.Rows() {
			b.Fatal(out, err)
		}
		out.Release()
	}
	b.Run("first hop", func(b *testing.B) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			batch := made()
			send(batch)
			batch.Release()
		}
	})
	b.Run("next hops", func(b *testing.B) {
		batch := made()
		defer batch.Release()
		for b.Loop() {
			send(batch)
		}
	})
	b.Run("read", func(b *testing.B) {
		batch := made()
		defer batch.Release()
		send(batch)
		for b.Loop() {
			read, err := batch.Record()
			if err != nil {
				b.Fatal(err)
			}
			read.Release()
		}
	})
}
