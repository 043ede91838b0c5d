package batch

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkCut is what a head does with a batch of a call: read it, cut it for
// ranks, write a handle for each.
func BenchmarkCut(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	columns := []string{"input_ids", "attention_mask", "position_ids", "old_log_probs", "advantages", "prompt", "reply"}
	for _, c := range []struct{ rows, pieces, ranks int }{{4096, 1, 8}, {4096, 8, 8}, {4096, 64, 64}, {65536, 64, 64}, {1 << 20, 8, 8}, {4 << 20, 8, 8}} {
		for _, balanced := range []bool{false, true} {
			h := Handle{Rows: c.rows, Objects: c.pieces, Metas: []Meta{{Value: make([]byte, 64)}}}
			part := Part{Columns: columns}
			for i := range c.pieces {
				part.Pieces = append(part.Pieces, Piece{Buf: i, To: c.rows / c.pieces})
			}
			h.Parts = []Part{part}
			name := "even"
			if balanced {
				h.Cut, name = &Cut{Weights: lognormal(rng, c.rows, 1, 32768)}, "balanced"
			}
			payload := h.Append(nil)
			b.Run(fmt.Sprintf("%s-%dx%d-%d", name, c.rows, c.pieces, c.ranks), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					h, err := Parse(payload, c.pieces)
					if err != nil {
						b.Fatal(err)
					}
					shards, err := h.Cut.Shards(h.Rows, c.ranks)
					if err != nil {
						b.Fatal(err)
					}
					h.Cut = nil
					for i := range c.ranks {
						var part Handle
						if shards.Lists != nil {
							part = h.Take(shards.Lists[i])
						} else {
							part = h.Slice(shards.Ranges[i].From, shards.Ranges[i].To)
						}
						part, _ = part.Compact()
						part.Append(nil)
					}
				}
			})
		}
	}
}

// BenchmarkCollect is what a head does with the batches that ranks return: join
// them, and put rows that were balanced back into the caller's order.
func BenchmarkCollect(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ rows, ranks int }{{4096, 8}, {4096, 64}, {65536, 64}, {4 << 20, 8}} {
		cut := &Cut{Weights: lognormal(rng, c.rows, 1, 32768)}
		shards, err := cut.Shards(c.rows, c.ranks)
		if err != nil {
			b.Fatal(err)
		}
		payloads := make([][]byte, c.ranks)
		lens := make([]int, c.ranks)
		for i, list := range shards.Lists {
			h := Handle{Rows: len(list), Objects: 1, Parts: []Part{{[]string{"reply", "log_probs"}, []Piece{{To: len(list)}}}}, Metas: []Meta{{Value: make([]byte, 64)}}}
			payloads[i], lens[i] = h.Append(nil), len(list)
		}
		for _, restored := range []bool{false, true} {
			name := map[bool]string{false: "even", true: "restored"}[restored]
			b.Run(fmt.Sprintf("%s-%d-%d", name, c.rows, c.ranks), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					handles := make([]Handle, c.ranks)
					for i, payload := range payloads {
						if handles[i], err = Parse(payload, 1); err != nil {
							b.Fatal(err)
						}
					}
					joined, _, err := Concat(handles, func(handle, _ int) int { return 1 + handle })
					if err != nil {
						b.Fatal(err)
					}
					if restored {
						perm, m := Restore(shards.Lists, lens)
						joined = joined.TakeBlocks(perm, m)
					}
					joined.Append(nil)
				}
			})
		}
	}
}
