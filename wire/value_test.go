package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// Values are written out in these tests by small constructors, so that a case
// reads as the value it is about.

func ints(values ...int) []byte {
	b := appendArrayHead(nil, len(values))
	for _, v := range values {
		b = msgp.AppendInt(b, v)
	}
	return b
}

func listOf(values ...[]byte) []byte {
	return append(appendArrayHead(nil, len(values)), bytes.Join(values, nil)...)
}

func mapOf(pairs ...[]byte) []byte {
	return append(appendMapHead(nil, len(pairs)/2), bytes.Join(pairs, nil)...)
}

func ext(code int8, payload []byte) []byte {
	return append(appendExtHead(nil, code, len(payload)), payload...)
}

func str(s string) []byte { return msgp.AppendString(nil, s) }

func tupleOf(values ...[]byte) []byte { return ext(extTuple, listOf(values...)) }

func buffered(first, n uint32, rest string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, first)
	b = binary.LittleEndian.AppendUint32(b, n)
	return ext(33, append(b, rest...))
}

func future(call uint64, rank int32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, call)
	return ext(extFuture, binary.LittleEndian.AppendUint32(b, uint32(rank)))
}

func payload(args [][]byte, keywords ...[]byte) []byte {
	return append(append([]byte{0x92}, listOf(args...)...), mapOf(keywords...)...)
}

func nested(depth int) []byte {
	return append(bytes.Repeat([]byte{0x91}, depth), 0xc0)
}

func wantCode(t *testing.T, err error, code spec.Code) {
	t.Helper()
	if !errors.Is(err, &spec.Error{Code: code}) {
		t.Fatalf("error is %v, want one of code %q", err, code)
	}
}

func TestSkip(t *testing.T) {
	values := map[string][]byte{
		"nil": {0xc0}, "true": {0xc3}, "small int": {7}, "negative": {0xff},
		"float": msgp.AppendFloat64(nil, 1.5), "uint64": msgp.AppendUint64(nil, 1<<63),
		"empty list": {0x90}, "empty map": {0x80}, "str": str("hello"),
		"str16": str(strings.Repeat("x", 300)), "str32": str(strings.Repeat("x", 70000)),
		"bytes": msgp.AppendBytes(nil, make([]byte, 300)),
		"list":  ints(1, 1000, -5), "array16": ints(make([]int, 20)...), "array32": ints(make([]int, 70000)...),
		"map": mapOf(str("a"), ints(1, 2), str("b"), mapOf(str("c"), []byte{0xc0})),
		"set": ext(2, ints(1, 2, 3)), "fixext": ext(17, make([]byte, 16)), "ext16": ext(16, make([]byte, 300)),
		"ext32": ext(19, make([]byte, 70000)), "deep": nested(MaxDepth),
	}
	for name, v := range values {
		rest, err := Skip(append(bytes.Clone(v), "rest"...))
		if err != nil || string(rest) != "rest" {
			t.Errorf("%s: rest %q, error %v", name, rest, err)
		}
		for _, cut := range []int{0, 1, len(v) / 2, len(v) - 1} {
			if cut < len(v) {
				if _, err := Skip(v[:cut]); err == nil {
					t.Errorf("%s cut at %d is taken for a value", name, cut)
				}
			}
		}
	}
	_, err := Skip([]byte{0xc1})
	wantCode(t, err, spec.CodeProtocol)
	_, err = Skip(nested(MaxDepth + 1))
	wantCode(t, err, spec.CodeEncoding)
	// A head that claims four thousand million elements costs nothing.
	_, err = Skip([]byte{0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0})
	wantCode(t, err, spec.CodeProtocol)
}

func TestTypeName(t *testing.T) {
	for want, v := range map[string][]byte{
		"None": {0xc0}, "bool": {0xc2}, "int": {0xd3, 0, 0, 0, 0, 0, 0, 0, 0}, "float": msgp.AppendFloat32(nil, 1),
		"str": str(""), "bytes": msgp.AppendBytes(nil, nil), "list": ints(), "dict": mapOf(),
		"tuple": tupleOf(), "set": ext(2, ints()), "ndarray": ext(32, make([]byte, 8)), "object": buffered(0, 0, ""),
		"malformed value": {},
	} {
		if got := TypeName(v); got != want {
			t.Errorf("TypeName(% x) = %q, want %q", v, got, want)
		}
	}
}

func TestParsePayload(t *testing.T) {
	b := payload(
		[][]byte{msgp.AppendInt(nil, 5), ints(1, 2, 3), tupleOf(str("a"), str("b")), ext(extPerRank, ints(4, 5)), ext(extBroadcast, ints(9)), future(77, -1)},
		str("rows"), ints(1, 2), str("scale"), msgp.AppendFloat64(nil, 2), str("of"), future(78, 3))
	p, err := ParsePayload(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for i := range p.Args {
		call, rank := p.Args[i].Future()
		got += fmt.Sprintf("%s:%d/%d/%d/%d ", p.Args[i].Name(), p.Args[i].Kind, p.Args[i].Len, call, rank)
	}
	want := ":0/0/0/-1 :1/3/0/-1 :2/2/0/-1 :3/2/0/-1 :4/0/0/-1 :5/0/77/-1 rows:1/2/0/-1 scale:0/0/0/-1 of:5/0/78/3 "
	if got != want || p.Positional != 6 || p.Futures() != 2 {
		t.Fatalf("parsed as\n%s, positional %d, futures %d, want\n%s", got, p.Positional, p.Futures(), want)
	}
	// Whole gives back what came in, but for the Broadcast around argument 4.
	var v Value
	p.Open(&v)
	for i := range p.Args {
		if err := p.Whole(&v, i); err != nil {
			t.Fatal(err)
		}
	}
	p.Close(&v)
	if want := bytes.Replace(b, ext(extBroadcast, ints(9)), ints(9), 1); !bytes.Equal(v.Raw, want) {
		t.Fatalf("rebuilt as\n% x, want\n% x", v.Raw, want)
	}
}

func TestMalformedPayloads(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty": {}, "no array": str("x"), "one part": listOf(ints()), "args no array": {0x92, 0xc0, 0x80},
		"keywords no map": {0x92, 0x90, 0x90}, "keyword no str": payload(nil, ints(1), ints(2)),
		"trailing": append(payload(nil), 1), "missing argument": {0x92, 0x92, 1}, "no keywords": {0x92, 0x90},
		"tuple of a map": payload([][]byte{ext(extTuple, mapOf())}), "empty tuple": payload([][]byte{ext(extTuple, nil)}),
		"broadcast of two":  payload([][]byte{ext(extBroadcast, []byte{1, 2})}),
		"broadcast of none": payload([][]byte{ext(extBroadcast, nil)}), "short future": payload([][]byte{ext(extFuture, make([]byte, 8))}),
	} {
		if _, err := ParsePayload(b, nil); !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	_, err := ParsePayload(payload([][]byte{nested(MaxDepth + 1)}), nil)
	wantCode(t, err, spec.CodeEncoding)
	_, err = ParsePayload(append(append([]byte{0x92}, ints(make([]int, maxArgs+1)...)...), 0x80), nil)
	wantCode(t, err, spec.CodeTooLarge)
	// What is wrong inside a tuple shows when it is cut.
	p, err := ParsePayload(payload([][]byte{ext(extTuple, append(ints(1, 2), 3))}), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, p.Rows(&Value{}, 0, 0, 1), spec.CodeProtocol)
}

func TestCut(t *testing.T) {
	long := make([]int, denseElements+100)
	for i := range long {
		long[i] = i * 37 % 1000
	}
	p, err := ParsePayload(payload([][]byte{ints(10, 2000, 30), tupleOf(str("a"), ints(1), str("c"))}, str("long"), ints(long...)), nil)
	if err != nil {
		t.Fatal(err)
	}
	build := func(f func(v *Value) error) []byte {
		t.Helper()
		var v Value
		p.Open(&v)
		if err := f(&v); err != nil {
			t.Fatal(err)
		}
		p.Close(&v)
		return v.Raw
	}
	for _, r := range [][2]int{{0, 0}, {0, 1}, {31, 33}, {64, 96}, {5, len(long)}, {len(long), len(long)}, {0, len(long)}} {
		got := build(func(v *Value) error {
			return errors.Join(p.Element(v, 0, 1), p.Rows(v, 1, 1, 3), p.Rows(v, 2, r[0], r[1]))
		})
		want := payload([][]byte{msgp.AppendInt(nil, 2000), tupleOf(ints(1), str("c"))}, str("long"), ints(long[r[0]:r[1]]...))
		if !bytes.Equal(got, want) {
			t.Fatalf("rows %v: % x, want % x", r, got, want)
		}
	}
	for _, bad := range [][2]int{{-1, 1}, {2, 1}, {0, 4}} {
		wantCode(t, p.Rows(&Value{}, 0, bad[0], bad[1]), spec.CodeInternal)
	}
}

func joined(bufs []Buf) string {
	var all []string
	for i := range bufs {
		all = append(all, string(bufs[i].Data))
	}
	return strings.Join(all, ",")
}

func TestAppendMovesBuffers(t *testing.T) {
	src := Bytes([]byte("zero"), []byte("one"), []byte("two"), []byte("three"))
	// The second value's buffers come first in the frame, and lie deep inside.
	a := listOf(buffered(2, 2, "p"), str("x"), buffered(0, 0, ""))
	b := mapOf(str("k"), tupleOf(ext(2, listOf(buffered(0, 1, "q"))), buffered(1, 1, "r")))
	v := Value{Bufs: Bytes([]byte("there before"))}
	for _, raw := range [][]byte{b, a} {
		if err := v.Append(raw, src); err != nil {
			t.Fatal(err)
		}
	}
	if got := joined(v.Bufs); got != "there before,zero,one,two,three" {
		t.Fatalf("buffers are %s", got)
	}
	want := append(mapOf(str("k"), tupleOf(ext(2, listOf(buffered(1, 1, "q"))), buffered(2, 1, "r"))), listOf(buffered(3, 2, "p"), str("x"), buffered(5, 0, ""))...)
	if !bytes.Equal(v.Raw, want) {
		t.Fatalf("% x, want % x", v.Raw, want)
	}
}

func TestAppendRefuses(t *testing.T) {
	src := Bytes([]byte{1}, []byte{2})
	for name, raw := range map[string][]byte{
		"beyond":       buffered(1, 2, ""),
		"overflow":     buffered(0xffffffff, 0xffffffff, ""),
		"no room":      ext(32, make([]byte, 7)),
		"second wrong": listOf(buffered(0, 1, ""), buffered(2, 1, "")),
		"inside":       ext(1, append(ints(1), 1)),
		"truncated":    {0x92, 0xc0},
		"two values":   {1, 2},
	} {
		v := Value{Raw: []byte("kept"), Bufs: Bytes([]byte{9})}
		err := v.Append(raw, src)
		if !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) || string(v.Raw) != "kept" || len(v.Bufs) != 1 {
			t.Errorf("%s: error %v, value %q with %d buffers", name, err, v.Raw, len(v.Bufs))
		}
	}
	v := Value{Bufs: make([]Buf, 0xffff)}
	wantCode(t, v.Append(buffered(0, 1, ""), src), spec.CodeTooLarge)
	wantCode(t, (&Value{}).Append(bytes.Repeat([]byte{0xd4, 1}, 2), src), spec.CodeProtocol)
	deep := []byte{0xc0}
	for range MaxDepth + 1 {
		deep = ext(1, deep)
	}
	wantCode(t, (&Value{}).Append(deep, src), spec.CodeEncoding)
}

func TestChainAndList(t *testing.T) {
	one := Value{Raw: listOf(str("a"), buffered(0, 1, "")), Bufs: Bytes([]byte("first"))}
	two := Value{Raw: listOf()}
	three := Value{Raw: listOf(buffered(0, 1, ""), ints(1)), Bufs: Bytes([]byte("second"))}
	var v Value
	ok, err := v.Chain([]Value{one, two, three}, nil)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if want := listOf(str("a"), buffered(0, 1, ""), buffered(1, 1, ""), ints(1)); !bytes.Equal(v.Raw, want) || len(v.Bufs) != 2 {
		t.Fatalf("chained: % x with %d buffers, want % x", v.Raw, len(v.Bufs), want)
	}
	v.Reset()
	if err := v.List([]Value{one, two, three}); err != nil {
		t.Fatal(err)
	}
	if want := listOf(one.Raw, two.Raw, listOf(buffered(1, 1, ""), ints(1))); !bytes.Equal(v.Raw, want) || len(v.Bufs) != 2 {
		t.Fatalf("listed: % x with %d buffers, want % x", v.Raw, len(v.Bufs), want)
	}
	for _, other := range [][]byte{tupleOf(), str("x"), {0xc0}, ext(2, ints())} {
		v.Reset()
		if ok, err := v.Chain([]Value{one, {Raw: other}}, nil); ok || err != nil || len(v.Raw) != 0 {
			t.Errorf("a %s was chained: %v %v % x", TypeName(other), ok, err, v.Raw)
		}
	}
	v.Reset()
	_, err = v.Chain([]Value{one, {}}, nil)
	wantCode(t, err, spec.CodeProtocol)
	_, err = v.Chain([]Value{one, {Raw: listOf(buffered(1, 1, "")), Bufs: Bytes([]byte{1})}}, nil)
	if wantCode(t, err, spec.CodeProtocol); len(v.Raw) != 0 || len(v.Bufs) != 0 {
		t.Fatalf("a failed chain left % x", v.Raw)
	}
}

func TestSplice(t *testing.T) {
	p, err := ParsePayload(payload([][]byte{buffered(0, 1, "own")}, str("rows"), future(5, -1)), Bytes([]byte("own")))
	if err != nil {
		t.Fatal(err)
	}
	result := listOf(buffered(0, 1, "x"), buffered(1, 1, "y"))
	if err := p.Splice(1, result, Bytes([]byte("bx"), []byte("by"))); err != nil {
		t.Fatal(err)
	}
	if a := &p.Args[1]; a.Kind != ArgList || a.Len != 2 || a.Name() != "rows" || p.Futures() != 0 {
		t.Fatalf("spliced in as kind %d of length %d named %q", a.Kind, a.Len, a.Name())
	}
	var v Value
	p.Open(&v)
	if err := errors.Join(p.Whole(&v, 0), p.Rows(&v, 1, 1, 2)); err != nil {
		t.Fatal(err)
	}
	p.Close(&v)
	want := payload([][]byte{buffered(0, 1, "own")}, str("rows"), listOf(buffered(1, 1, "y")))
	if got := joined(v.Bufs); !bytes.Equal(v.Raw, want) || got != "own,by" {
		t.Fatalf("% x with buffers %s, want % x", v.Raw, got, want)
	}
	wantCode(t, p.Splice(1, ext(extBroadcast, ints(1)), nil), spec.CodeInvalid)
	wantCode(t, p.Splice(1, []byte{1, 2}, nil), spec.CodeProtocol)
}

func TestParseUsesMemoryAgain(t *testing.T) {
	b := payload([][]byte{ints(make([]int, 100)...), str("x")}, str("k"), ints(1, 2, 3))
	var p Payload
	var v Value
	if n := testing.AllocsPerRun(100, func() {
		v.Reset()
		if err := p.Parse(b, nil); err != nil {
			t.Fatal(err)
		}
		p.Open(&v)
		if p.Rows(&v, 0, 10, 60) != nil || p.Whole(&v, 1) != nil || p.Element(&v, 2, 2) != nil {
			t.Fatal("cannot be cut")
		}
		p.Close(&v)
	}); n > 0 {
		t.Fatalf("%.0f allocations for a payload that is parsed and cut again", n)
	}
}
