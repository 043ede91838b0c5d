package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/batch"
)

// refs makes buffers of objects by number.
func refs(objects ...uint64) []Buf {
	var bufs []Buf
	for _, o := range objects {
		bufs = append(bufs, Ref{Object: o, Length: 100}.Buf())
	}
	return bufs
}

// batchOf is a batch of column "x": the rows of each piece, in buffers from
// first on.
func batchOf(first int, objects int, meta string, pieces ...batch.Piece) []byte {
	h := batch.Handle{Objects: objects, Parts: []batch.Part{{Columns: []string{"x"}, Pieces: pieces}}}
	for i := range pieces {
		h.Rows += pieces[i].Len()
	}
	if meta != "" {
		h.Metas = []batch.Meta{{Value: []byte(meta)}}
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(first))
	body = binary.LittleEndian.AppendUint32(body, uint32(objects))
	return ext(extBatch, h.Append(body))
}

// rows reads a batch of column "x" as object.row.
func rows(t *testing.T, v *Value) string {
	t.Helper()
	h, err := readHead(v.Raw, 0)
	if err != nil {
		t.Fatal(err)
	}
	handle, first, n, err := readBatch(v.Raw[h.start:h.end])
	if err != nil || first+n > len(v.Bufs) {
		t.Fatal(first, n, err)
	}
	var out []string
	for _, p := range handle.Parts[0].Pieces {
		list := p.Rows
		for row := p.From; p.Rows == nil && row < p.To; row++ {
			list = append(list, uint32(row))
		}
		for _, row := range list {
			out = append(out, fmt.Sprintf("%d.%d", v.Bufs[first+p.Buf].Object, row))
		}
	}
	return strings.Join(out, " ")
}

func TestCutBatch(t *testing.T) {
	bufs := append(Bytes([]byte("not its own")), refs(7, 8)...)
	b := batchOf(1, 2, "m", batch.Piece{Buf: 0, To: 3}, batch.Piece{Buf: 1, From: 5, To: 7})
	p, err := ParsePayload(payload([][]byte{b, ints(1, 2, 3, 4, 5)}), bufs)
	if err != nil || p.Args[0].Kind != ArgBatch || p.Args[0].Len != 5 {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, c := range []struct {
		cut     func(v *Value) error
		rows    string
		objects []uint64
	}{
		{func(v *Value) error { return p.Rows(v, 0, 0, 2) }, "7.0 7.1", []uint64{7}},
		{func(v *Value) error { return p.Rows(v, 0, 2, 5) }, "7.2 8.5 8.6", []uint64{7, 8}},
		{func(v *Value) error { return p.Rows(v, 0, 4, 5) }, "8.6", []uint64{8}},
		{func(v *Value) error { return p.Take(v, 0, []uint32{4, 0, 1}) }, "8.6 7.0 7.1", []uint64{8, 7}},
		{func(v *Value) error { return p.Empty(v, 0) }, "", []uint64{7}},
		{func(v *Value) error { return p.Whole(v, 0) }, "7.0 7.1 7.2 8.5 8.6", []uint64{7, 8}},
	} {
		v := Value{Bufs: Bytes([]byte("there before"))}
		if err := c.cut(&v); err != nil {
			t.Fatal(err)
		}
		got := make([]uint64, 0, 2)
		for _, b := range v.Bufs[1:] {
			got = append(got, b.Object)
		}
		if r := rows(t, &v); r != c.rows || !slices.Equal(got, c.objects) {
			t.Errorf("rows %s of %v, want %s of %v", r, got, c.rows, c.objects)
		}
	}
	var v Value
	if err := p.Take(&v, 1, []uint32{3, 0}); err != nil || string(v.Raw[len(v.Raw)-3:]) != "\x92\x04\x01" {
		t.Errorf("% x, %v", v.Raw, err)
	}
	if p.Rows(&v, 0, 4, 6) == nil || p.Rows(&v, 0, -1, 2) == nil {
		t.Error("rows that are not there were given")
	}
}

func TestChainBatches(t *testing.T) {
	one := Value{Raw: batchOf(0, 1, "m", batch.Piece{To: 2}), Bufs: refs(7)}
	two := Value{Raw: batchOf(1, 2, "m", batch.Piece{Buf: 1, From: 2, To: 3}, batch.Piece{Buf: 0, To: 1}), Bufs: refs(1, 9, 7)}
	var v Value
	if ok, err := v.Chain([]Value{one, two}, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := rows(t, &v); got != "7.0 7.1 7.2 9.0" || len(v.Bufs) != 2 {
		t.Errorf("%s in %d buffers", got, len(v.Bufs))
	}
	// The caller's rows 0 and 3 went to the first shard, 1 and 2 to the second.
	v = Value{}
	if ok, err := v.Chain([]Value{one, two}, [][]uint32{{0, 3}, {1, 2}}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := rows(t, &v); got != "7.0 7.2 9.0 7.1" {
		t.Error(got)
	}
	// The same with lists, of which each row became two elements.
	v = Value{}
	lists := []Value{{Raw: ints(1, 2, 7, 8)}, {Raw: ints(3, 4, 5, 6)}}
	if ok, err := v.Chain(lists, [][]uint32{{0, 3}, {1, 2}}); !ok || err != nil || string(v.Raw) != string(ints(1, 2, 3, 4, 5, 6, 7, 8)) {
		t.Errorf("% x, %v, %v", v.Raw, ok, err)
	}
	// What does not fit the rows stays as it came.
	v = Value{}
	if ok, err := v.Chain(lists, [][]uint32{{0, 3}, {1}}); !ok || err != nil || string(v.Raw) != string(ints(1, 2, 7, 8, 3, 4, 5, 6)) {
		t.Errorf("% x, %v, %v", v.Raw, ok, err)
	}
	if ok, err := v.Chain([]Value{one, lists[0]}, nil); ok || err != nil {
		t.Error("a batch and a list were chained")
	}
	broken := Value{Raw: batchOf(5, 1, "", batch.Piece{To: 2}), Bufs: refs(7)}
	if _, err := v.Chain([]Value{one, broken}, nil); err == nil || !strings.Contains(err.Error(), "names buffers 5 to 6") {
		t.Error(err)
	}
	if Cuttable(ints(1)) != true || Cuttable(one.Raw) != true || Cuttable(str("x")) {
		t.Error("what can be cut is not told right")
	}
}
