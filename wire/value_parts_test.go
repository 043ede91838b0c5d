package wire

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/batch"
)

// What was joined comes apart again, whether rows followed each other or went back
// to where they had come from.
func TestPartsOfJoined(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(5)
		values := make([]Value, n)
		want := make([]string, n)
		var lens []int
		for i := range values {
			k := r.IntN(4)
			if i == 0 {
				k++ // a batch of no rows at all has no buffer
			}
			lens = append(lens, k)
			values[i] = Value{Raw: batchOf(0, 1, "", batch.Piece{From: 5, To: 5 + k}), Bufs: refs(uint64(i) + 1)}
			if r.IntN(2) == 0 {
				values[i].Bufs = append(values[i].Bufs, Bytes([]byte("of nobody"))...)
			}
			want[i] = rows(t, &values[i])
		}
		var shards [][]uint32
		total := 0
		for _, k := range lens {
			total += k
		}
		parts := make([]Part, n)
		if order := r.Perm(total); r.IntN(2) == 0 {
			for i, k := range lens {
				shard := []uint32{}
				for _, row := range order[:k] {
					shard = append(shard, uint32(row))
				}
				order = order[k:]
				shards = append(shards, shard)
				parts[i] = Part{k, shard}
			}
		} else {
			for i, k := range lens {
				parts[i].Rows = k
			}
		}
		var joined Value
		if chained, err := joined.Chain(values, shards); err != nil || !chained {
			t.Fatal(chained, err)
		}
		read, err := ReadParts(AppendParts(nil, parts))
		if err != nil || !reflect.DeepEqual(read, parts) {
			t.Fatalf("%v came back as %v, %v", parts, read, err)
		}
		apart, err := joined.Parts(read)
		if err != nil {
			t.Fatal(err)
		}
		for i := range apart {
			if got := rows(t, &apart[i]); got != want[i] {
				t.Errorf("seed %d: part %d has %s, it gave %s (shards %v)", seed, i, got, want[i], shards)
			}
		}
	}
}

func TestPartsOfLists(t *testing.T) {
	v := Value{Raw: ints(1, 2, 3, 4, 5)}
	apart, err := v.Parts([]Part{{Rows: 2}, {Rows: 0}, {2, []uint32{4, 2}}, {Rows: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{ints(1, 2), ints(), ints(5, 3), ints(3)} {
		if !bytes.Equal(apart[i].Raw, want) {
			t.Errorf("part %d is %x, expected %x", i, apart[i].Raw, want)
		}
	}
	lens, ok := Lens([]Value{v, {Raw: tupleOf(str("a"))}, {Raw: ints()}})
	if !ok || !reflect.DeepEqual(lens, []int{5, 1, 0}) {
		t.Error(lens, ok)
	}
	if _, ok := Lens([]Value{v, {Raw: str("x")}}); ok {
		t.Error("a text has rows")
	}
	for words, bad := range map[string]struct {
		v     Value
		parts []Part
	}{
		"has none":           {Value{Raw: str("x")}, EvenParts(1, 1)},
		"more rows than":     {v, EvenParts(6, 2)},
		"does not have":      {v, []Part{{1, []uint32{5}}}},
		"of a frame that":    {Value{Raw: batchOf(0, 1, "", batch.Piece{To: 2})}, EvenParts(2, 2)},
		"more rows than it ": {v, []Part{{Rows: -1}}},
	} {
		if _, err := bad.v.Parts(bad.parts); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, expected %q", err, words)
		}
	}
}

// FuzzParts: what can be read is what was written, and takes any value apart or
// says why not.
func FuzzParts(f *testing.F) {
	f.Add(AppendParts(nil, []Part{{Rows: 2}, {2, []uint32{0, 3}}}), ints(1, 2, 3, 4))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, []byte{0xc0})
	f.Add(AppendParts(nil, EvenParts(5, 3)), batchOf(0, 1, "", batch.Piece{To: 5}))
	f.Fuzz(func(t *testing.T, b, value []byte) {
		parts, err := ReadParts(b)
		if err != nil {
			return
		}
		if again, err := ReadParts(AppendParts(nil, parts)); err != nil || len(again) != len(parts) {
			t.Fatalf("%v, %v", again, err)
		}
		v := Value{Raw: value, Bufs: refs(1)}
		if apart, err := v.Parts(parts); err == nil && len(apart) != len(parts) {
			t.Fatalf("%d parts of %d", len(apart), len(parts))
		}
	})
}
