package batch

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

func TestParseAppend(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 4))
		h, bufs := anyHandle(rng, letters[:rng.IntN(6)], rng.IntN(400))
		b := h.Append([]byte("before"))
		got, err := Parse(b[6:], len(bufs))
		if err != nil || !bytes.HasPrefix(b, []byte("before")) {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, h) {
			t.Fatalf("%v came back as %v", h, got)
		}
		for cut := range len(b) - 6 {
			if _, err := Parse(b[6:6+cut], len(bufs)); !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) {
				t.Fatalf("%d bytes of %d: %v", cut, len(b)-6, err)
			}
			if cut > 64 {
				break
			}
		}
	}
}

// list is a msgpack array of what was encoded already.
func list(elements ...[]byte) []byte {
	return append(msgp.AppendArrayHeader(nil, uint32(len(elements))), bytes.Join(elements, nil)...)
}

func num(n uint64) []byte  { return msgp.AppendUint64(nil, n) }
func bin(b ...byte) []byte { return msgp.AppendBytes(nil, b) }
func name(s string) []byte { return msgp.AppendString(nil, s) }
func floats(w ...float64) []byte {
	c := Cut{Weights: w}
	return c.append(nil)
}

func TestParseRefuses(t *testing.T) {
	nothing, none := []byte{0xc0}, list()
	rows := func(from, to uint64) []byte { return list(num(0), num(from), num(to)) }
	part := func(pieces ...[]byte) []byte { return list(list(name("a")), list(pieces...)) }
	for _, c := range []struct {
		payload []byte
		want    string
	}{
		{nil, "the handle cannot be read"},
		{num(4), "the handle cannot be read"},
		{list(num(0), none, nothing), "the handle has 3 elements instead of 4"},
		{append(list(num(0), none, nothing, none), 0), "1 bytes follow its end"},
		{list(num(MaxRows+1), none, nothing, none), "its rows: 4294967297 is over 4294967296"},
		{list([]byte{0xff}, none, nothing, none), "its rows cannot be read"},
		{list(num(2), list(part(rows(0, 3))), nothing, none), "part 0 ('a') has 3 rows instead of 2"},
		{list(num(2), list(part(rows(3, 1))), nothing, none), "a piece from row 3 to 1"},
		{list(num(2), list(part(rows(0, MaxRows+1))), nothing, none), "where a piece ends"},
		{list(num(2), list(part(list(num(2), num(0), num(2)))), nothing, none), "piece 0 of part 0 lies in buffer 2 of 2"},
		{list(num(2), list(part(list(num(0), bin(1, 2, 3)))), nothing, none), "the rows of a piece are 3 bytes"},
		{list(num(2), list(part(list(num(0), nothing))), nothing, none), "the rows of a piece cannot be read"},
		{list(num(2), list(part(list(num(0)), rows(0, 2))), nothing, none), "a piece of 1 elements"},
		{list(num(0), list(part()), nothing, bin(0, 0, 0)), "a part without pieces"},
		{list(num(0), list(list(none, list(rows(0, 0)))), nothing, none), "a part without columns"},
		{list(num(2), list(part(rows(0, 2)), part(rows(0, 2))), nothing, none), "column 'a' is there twice"},
		{list(num(2), list(list(list(num(1)), list(rows(0, 2)))), nothing, none), "the name of a column cannot be read"},
		{[]byte{0x94, 0, 0xdd, 0xff, 0xff, 0xff, 0xff, 0, 0, 0}, "its parts claims 4294967295 elements in 3 bytes"},
		{list(num(0), none, list(nothing, nothing), none), "the cut has 2 elements instead of 3"},
		{list(num(1), none, list(bin(1, 2), nothing, num(0)), none), "the weights are 2 bytes instead of 8"},
		{list(num(1), none, list(nothing, bin(1, 2), num(0)), none), "the groups are 2 bytes"},
		{list(num(1), none, list(nothing, bin(), num(0)), none), "groups for 0 rows of 1"},
		{list(num(1), none, list(nothing, nothing, nothing), none), "the multiple cannot be read"},
		{list(num(0), none, nothing, list(list(bin(), num(3)))), "the buffers of a meta: 3 is over 2"},
		{list(num(0), none, nothing, list(list(bin(), num(2)), list(bin(), num(1)))), "its metas need 3 buffers of 2"},
		{list(num(0), none, nothing, list(bin(1, 2, 3, 4))), "a meta cannot be read"},
	} {
		_, err := Parse(c.payload, 2)
		if !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) || !strings.Contains(err.Error(), "a malformed batch: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%x: want %q, error is %v", c.payload, c.want, err)
		}
	}
	for _, w := range []float64{math.NaN(), -1, math.Inf(1)} {
		if _, err := Parse(list(num(2), none, floats(1, w), none), 0); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) || !strings.Contains(err.Error(), "row 1 weighs") {
			t.Errorf("%v", err)
		}
	}
	if _, err := Parse(list(num(2), none, floats(math.MaxFloat64, math.MaxFloat64), none), 0); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
		t.Errorf("%v", err)
	}
}

// TestParseSaysNothingTwice: a cut that asks for nothing is none.
func TestParseSaysNothingTwice(t *testing.T) {
	nothing := []byte{0xc0}
	h, err := Parse(list(num(0), list(), list(nothing, nothing, num(1)), list()), 0)
	if err != nil || h.Cut != nil {
		t.Fatal(h.Cut, err)
	}
}

// FuzzParse: whatever comes, nothing panics, nothing is allocated that the bytes
// do not account for, and what is read is written as it was meant.
func FuzzParse(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		h, bufs := anyHandle(rng, letters[:rng.IntN(5)], rng.IntN(20))
		f.Add(h.Append(nil), uint16(len(bufs)))
	}
	f.Add([]byte{0x94, 0, 0xdd, 0xff, 0xff, 0xff, 0xff, 0, 0, 0}, uint16(3))
	f.Fuzz(func(t *testing.T, payload []byte, nbufs uint16) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := Parse(payload, int(nbufs))
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64*uint64(len(payload))+64<<10 {
			t.Fatalf("%d bytes of payload took %d bytes of memory", len(payload), took)
		}
		if err != nil {
			return
		}
		again, err := Parse(h.Append(nil), int(nbufs))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("%v was read again as %v: %v", h, again, err)
		}
		if !bytes.Equal(again.Append(nil), h.Append(nil)) {
			t.Fatal("the same handle was written in two ways")
		}
		use(h)
	})
}

// use does to a handle what a head does, whatever it claims.
func use(h Handle) {
	mid := h.Rows / 2
	a, b := h.Slice(0, mid), h.Slice(mid, h.Rows)
	a.Compact()
	empty := h.Empty()
	empty.Append(nil)
	joined, _, err := Concat([]Handle{a, b, h.Empty()}, func(_, buf int) int { return buf })
	if err == nil && joined.Rows != h.Rows {
		panic("rows were lost")
	}
	if h.Rows > 0 {
		h.TakeBlocks([]uint32{1, 0, 1}, h.Rows/2)
		h.Take([]uint32{uint32(h.Rows - 1), 0})
	}
	_, _ = h.Cut.Shards(h.Rows, 3)
}
