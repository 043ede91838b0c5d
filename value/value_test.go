package value

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

type point struct {
	X, Y int
	Note string `muster:"note,omitempty"`
}

type deep struct {
	point
	MaxLen *int           `json:"max_len"`
	Points []point        `json:"points"`
	By     map[string]int `json:"by"`
	When   time.Time      `json:"when"`
}

func round(t *testing.T, v, into any) {
	t.Helper()
	var out wire.Value
	if err := Append(&out, v); err != nil {
		t.Fatalf("%#v: %v", v, err)
	}
	if err := Decode(out.Raw, out.Bufs, into); err != nil {
		t.Fatalf("%#v as %x: %v", v, out.Raw, err)
	}
}

func TestValuesComeBack(t *testing.T) {
	seven := 7
	huge, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	for _, v := range []any{
		true, 0, -1, 127, 128, -33, 1 << 40, uint64(1<<64 - 1), int8(-128), uint16(65535), 2.5, float32(0.25),
		"", "text é", "\xed\xa0\x80", strings.Repeat("x", 70000), []byte{1, 2, 3}, make([]byte, outOfBand+1),
		strings.Repeat("é", outOfBand), []string{"a", strings.Repeat("b", outOfBand)}, map[string]string{"k": strings.Repeat("c", outOfBand)},
		complex(1, -2), []int{1, 2, 300}, []string{"a", ""}, []float64{1, 2.5}, [3]int{1, 2, 3}, [2]byte{8, 9},
		[][]int{{1}, {}, {2, 3}}, map[string]int{"a": 1, "b": 2}, map[int]string{1: "x", -5: "y"},
		point{X: 1, Y: 2}, []point{{X: 1, Note: "n"}, {}}, &point{X: 9},
		deep{point: point{X: 1}, MaxLen: &seven, Points: []point{{Y: 3}}, By: map[string]int{"k": 4}, When: time.Unix(1700000000, 5).UTC()},
		huge, *huge, big.NewInt(12), Range{1, 10, 3}, ArrayOf([]float32{1, 2, 3, 4}, 2, 2),
		Array{DType: "bfloat16", Shape: []int{1}, Data: []byte{0, 1}, Tensor: true},
		time.Duration(5), []time.Duration{1, 2},
	} {
		got := reflect.New(reflect.TypeOf(v))
		round(t, v, got.Interface())
		if !reflect.DeepEqual(got.Elem().Interface(), v) {
			t.Errorf("%#v came back as %#v", v, got.Elem().Interface())
		}
	}
}

func TestNilsAreEmptyOrNone(t *testing.T) {
	for want, v := range map[string]any{
		"c0": nil, "90": []int(nil), "80": map[string]int(nil), "c400": []byte(nil), "91c0": []any{nil},
		"81a14ec0": struct{ N *int }{},
	} {
		var out wire.Value
		if err := Append(&out, v); err != nil || hex.EncodeToString(out.Raw) != want {
			t.Errorf("%#v is %x, %v; want %s", v, out.Raw, err, want)
		}
	}
}

// The vectors that Go's wire and Python share: whatever Python encodes is read
// here, but for pickles.
func TestGoldenValuesAreRead(t *testing.T) {
	text, err := os.ReadFile("../wire/testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Values []struct {
			Name    string   `json:"name"`
			BodyHex string   `json:"body_hex"`
			BufsHex []string `json:"bufs_hex"`
		} `json:"values"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Values) == 0 {
		t.Fatal("no vectors")
	}
	// Marks are no values, and for the others Go has nothing alike.
	unreadable := []string{"dict", "structured", "pickle", "long pickle", "per rank", "broadcast", "future", "future of a rank"}
	for _, v := range golden.Values {
		body, _ := hex.DecodeString(v.BodyHex)
		var bufs []wire.Buf
		for _, text := range v.BufsHex {
			buf, _ := hex.DecodeString(text)
			bufs = append(bufs, wire.Buf{Data: buf})
		}
		var got any
		err := Decode(body, bufs, &got)
		if (err != nil) != slices.Contains(unreadable, v.Name) {
			t.Errorf("%s: %#v, %v", v.Name, got, err)
		}
		var raw Raw
		if err := Decode(body, bufs, &raw); err != nil {
			t.Errorf("%s as Raw: %v", v.Name, err)
		}
		var again wire.Value
		if err := Append(&again, raw); err != nil || hex.EncodeToString(again.Raw) != v.BodyHex {
			t.Errorf("%s passed on is %x, %v", v.Name, again.Raw, err)
		}
	}
}

func TestPythonsTypes(t *testing.T) {
	ext := func(code int8, inside string) string {
		data, err := hex.DecodeString(inside)
		if err != nil {
			t.Fatal(err)
		}
		return string(append(appendExtHead(nil, code, len(data)), data...))
	}
	for _, test := range []struct {
		raw  string
		want any
	}{
		{ext(extTuple, "930102a3616263"), []any{int64(1), int64(2), "abc"}},
		{ext(extTuple, "920102"), []int{1, 2}},
		{ext(extTuple, "920102"), [2]float64{1, 2}},
		{ext(extSet, "920102"), []uint8{1, 2}},
		{ext(extDataclass, "93a16da14382a15805a47265737401"), point{X: 5}},
		{ext(extDataclass, "93a16da14381a15805"), map[string]any{"X": int64(5)}},
		{ext(extRange, "93000802"), []int{0, 2, 4, 6}},
		{ext(extRange, "93000802"), Range{0, 8, 2}},
		{ext(extScalar, "92a33c6634c4040000c03f"), 1.5},
		{ext(extScalar, "92a33c6932c402ffff"), -1},
		{ext(extScalar, "92a33c6632c402003e"), 1.5},
		{ext(extScalar, "92a37c6231c40101"), true},
		{ext(extByteArray, "0102"), []byte{1, 2}},
		{ext(extBigInt, "ffffffffffffffffff"), big.NewInt(-1)},
		{"\x81\x01\x02", map[any]any{int64(1): int64(2)}},
		{"\x82\xa1a\x01\xa1b\xc0", map[string]any{"a": int64(1), "b": nil}},
	} {
		got := reflect.New(reflect.TypeOf(test.want))
		if err := Decode([]byte(test.raw), nil, got.Interface()); err != nil || !reflect.DeepEqual(got.Elem().Interface(), test.want) {
			t.Errorf("%x is %#v, %v; want %#v", test.raw, got.Elem().Interface(), err, test.want)
		}
	}
}

func TestArraysReadAsSlices(t *testing.T) {
	var f []float64
	round(t, ArrayOf([]float32{1, 2.5}), &f)
	var n []int
	round(t, Array{DType: "int16", Shape: []int{2}, Data: []byte{1, 0, 0xff, 0xff}, Tensor: true}, &n)
	if !reflect.DeepEqual(f, []float64{1, 2.5}) || !reflect.DeepEqual(n, []int{1, -1}) {
		t.Error(f, n)
	}
	back, err := Elements[float32](ArrayOf([]float32{1, 2.5}))
	if err != nil || !reflect.DeepEqual(back, []float32{1, 2.5}) {
		t.Error(back, err)
	}
	if _, err := Elements[int32](ArrayOf([]float32{1})); !errors.Is(err, &spec.Error{Code: spec.CodeType}) {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	into := func(v any) func([]byte) error { return func(b []byte) error { return Decode(b, nil, v) } }
	for _, test := range []struct {
		raw  string
		read func([]byte) error
		want string
	}{
		{"\xa1x", into(new(int)), "a str where a int was expected"},
		{"\xc0", into(new(int)), "None where a int was expected; where it may be missing, use a pointer"},
		{"\xcd\x01\x00", into(new(uint8)), "256 does not fit"},
		{"\xff", into(new(uint)), "-1 does not fit"},
		{"\x93\x01\x02\xa1x", into(new([]int)), "at [2]: a str"},
		{"\x81\xa6points\x91\x81\xa1X\xc3", into(new(deep)), "at .points[0].X: a bool"},
		{"\x92\x01\x02", into(new([3]int)), "2 elements"},
		{"\xc7\x0b\x21\x00\x00\x00\x00\x00\x00\x00\x00\x80\x05.", into(new(any)), "pickled"},
		{"\x81\x91\x01\x02", into(new(any)), "Go's maps cannot have"},
		{"\x01\x02", into(new(any)), "follow its end"},
		{"\xdd\xff\xff\xff\xff", into(new(any)), "ends early"},
		{"\xc1", into(new(any)), "means nothing"},
	} {
		if err := test.read([]byte(test.raw)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%x: %v; want %q", test.raw, err, test.want)
		}
	}
	type ring struct{ Next *ring }
	loop := &ring{}
	loop.Next = loop
	for want, v := range map[string]any{
		"only means something in this process": make(chan int), "no exported fields": struct{ a int }{1},
		"nested": loop, "not UTF-8": "\xff", "at [1].F: ": []any{1, struct{ F func() }{}}, "argument of the call itself": []any{Broadcast(1)},
	} {
		var out wire.Value
		err := Append(&out, v)
		if err == nil || !strings.Contains(err.Error(), want) || len(out.Raw) != 0 {
			t.Errorf("%T: %v; want %q, %d bytes left", v, err, want, len(out.Raw))
		}
	}
}

func TestPayloads(t *testing.T) {
	out := NewMessage(nil)
	marked, err := out.AppendPayload([]any{PerRank([]int{1, 2}), Broadcast([]string{"a"}), FutureOf(7, -1), 5}, Kwargs{"k": PerRank([]byte{1})})
	if err != nil || !marked {
		t.Fatal(marked, err)
	}
	p, err := wire.ParsePayload(out.Raw, out.Bufs)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []wire.ArgKind
	for _, a := range p.Args {
		kinds = append(kinds, a.Kind)
	}
	want := []wire.ArgKind{wire.ArgPerRank, wire.ArgBroadcast, wire.ArgFuture, wire.ArgWhole, wire.ArgPerRank}
	if !reflect.DeepEqual(kinds, want) || p.Args[4].Name() != "k" || p.Args[4].Len != 1 {
		t.Errorf("%v, %+v", kinds, p.Args[4])
	}
	if id, rank := p.Args[2].Future(); id != 7 || rank != -1 {
		t.Error(id, rank)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x93\x01\xa1x\xc0"))
	f.Add([]byte("\xc7\x05\x04\x93\xa1m\xa1C"))
	for _, rows := range []int{0, 1, 20} {
		var out wire.Value
		if err := Append(&out, sampleBatch(f, 0, rows, 1, map[string]any{"a": 1})); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Raw)
	}
	content := sampleContent()
	f.Fuzz(func(t *testing.T, raw []byte) {
		bufs := wire.Bytes(content, []byte{1, 2, 3, 4})
		var v any
		if Decode(raw, bufs, &v) == nil {
			var out wire.Value
			if err := Append(&out, v); err != nil && !strings.Contains(err.Error(), "UTF-8") && !strings.Contains(err.Error(), "nested") {
				t.Errorf("%x was read as %#v, which cannot be sent: %v", raw, v, err)
			}
		}
		if b, ok := v.(*Batch); ok {
			if record, err := b.Record(); err == nil {
				for _, a := range record.Columns() {
					_ = a.String()
				}
			}
			_, _ = b.Meta()
		}
		_ = Decode(raw, bufs, new(deep))
		_ = Decode(raw, bufs, new([]float64))
		_ = Decode(raw, bufs, new(Raw))
	})
}
