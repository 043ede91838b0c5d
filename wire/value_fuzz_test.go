package wire

import (
	"bytes"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

func seedValues(f *testing.F) {
	for _, v := range [][]byte{
		{}, {0xc1}, {0xc0}, ints(1, 2, 300, -7), nested(MaxDepth + 1), str("x"), tupleOf(ints(1), str("b")),
		mapOf(str("a"), ints(1), str("b"), mapOf()), buffered(0, 1, "p"), listOf(buffered(0, 1, ""), ext(1, listOf(buffered(1, 2, "")))),
		{0xdd, 0xff, 0xff, 0xff, 0xff}, {0xc9, 0xff, 0xff, 0xff, 0xff, 1}, {0xdf, 0x80, 0, 0, 0},
	} {
		f.Add(v)
		f.Add(payload([][]byte{v, future(1, -1)}, str("rows"), v))
	}
}

// FuzzSkip: what Skip takes for a value, another reader does too, and the same.
func FuzzSkip(f *testing.F) {
	seedValues(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, err := Skip(b)
		theirs, theirErr := msgp.Skip(b)
		if err == nil && (theirErr != nil || len(rest) != len(theirs)) {
			t.Fatalf("Skip leaves %d of %d bytes, msgp %d (%v)", len(rest), len(b), len(theirs), theirErr)
		}
		if err == nil {
			if again, err := Skip(b[:len(b)-len(rest)]); err != nil || len(again) != 0 {
				t.Fatalf("the value by itself leaves %d bytes (%v)", len(again), err)
			}
			_ = TypeName(b)
		}
		visited := 0
		if Buffers(b, func(pos int, _, _ uint32) error {
			visited++
			if pos < 2 || pos+8 > len(b) {
				t.Fatalf("a buffer's number at %d of %d", pos, len(b))
			}
			return nil
		}) == nil && (err != nil || len(rest) != 0) {
			t.Fatalf("Buffers walks what Skip refuses: %v", err)
		}
	})
}

// FuzzPayload: a payload that parses can be put together again, whole or from
// the parts it was cut into.
func FuzzPayload(f *testing.F) {
	f.Add(payload([][]byte{ints(1, 2, 3, 4, 5), tupleOf(str("a"), str("b"))}, str("k"), ext(extPerRank, ints(1, 2))), uint8(2))
	f.Add(payload([][]byte{ext(extBroadcast, ints(1)), future(3, 2)}), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, parts uint8) {
		p, err := ParsePayload(b, nil)
		if err != nil {
			return
		}
		var whole Value
		p.Open(&whole)
		for i := range p.Args {
			if err := p.Whole(&whole, i); err != nil {
				t.Fatal(err)
			}
		}
		p.Close(&whole)
		again, err := ParsePayload(whole.Raw, nil)
		if err != nil || len(again.Args) != len(p.Args) {
			t.Fatalf("a rebuilt payload does not parse: %v", err)
		}
		for i := range p.Args {
			if again.Args[i].Name() != p.Args[i].Name() {
				t.Fatalf("argument %d is called %q, was %q", i, again.Args[i].Name(), p.Args[i].Name())
			}
			cutAndChain(t, &p, i, int(parts))
		}
	})
}

// cutAndChain cuts list i of p into parts and compares what chaining them gives.
func cutAndChain(t *testing.T, p *Payload, i, parts int) {
	t.Helper()
	a := &p.Args[i]
	if a.Kind != ArgList {
		for k := range a.Len {
			if p.Element(&Value{}, i, k) != nil {
				return // a tuple is only looked into when it is cut
			}
		}
		return
	}
	pieces := make([]Value, parts+1)
	for k := range pieces {
		from, to := a.Len*k/len(pieces), a.Len*(k+1)/len(pieces)
		body, err := a.cut(from, to)
		if err != nil {
			t.Fatal(err)
		}
		pieces[k].Array(to - from)
		if err := pieces[k].append(body, to-from, nil); err != nil {
			t.Fatal(err)
		}
		if rest, err := Skip(pieces[k].Raw); err != nil || len(rest) != 0 {
			t.Fatalf("piece %d is no value: %v", k, err)
		}
	}
	var v Value
	if ok, err := v.Chain(pieces, nil); !ok || err != nil {
		t.Fatalf("pieces do not chain: %v", err)
	}
	if want := append(appendArrayHead(nil, a.Len), a.body...); !bytes.Equal(v.Raw, want) {
		t.Fatalf("chained % x, was % x", v.Raw, want)
	}
}

// FuzzRenumber: a value that is moved keeps its length and, read again, names
// the same buffers; moving it back gives the same bytes where its buffers were
// numbered in order.
func FuzzRenumber(f *testing.F) {
	seedValues(f)
	src := Bytes([]byte("a"), []byte("b"), []byte("c"), []byte("d"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v := Value{Bufs: Bytes([]byte("before"))}
		if v.Append(b, src) != nil {
			if len(v.Raw) != 0 || len(v.Bufs) != 1 {
				t.Fatal("a refused value left something behind")
			}
			return
		}
		named := func(b []byte, bufs []Buf) (names []string, inOrder bool) {
			inOrder = true
			next := uint32(0)
			if err := Buffers(b, func(_ int, first, n uint32) error {
				inOrder = inOrder && first == next
				next = first + n
				for _, buf := range bufs[first : first+n] {
					names = append(names, string(buf.Data))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return names, inOrder
		}
		was, inOrder := named(b, src)
		is, _ := named(v.Raw, v.Bufs)
		if len(v.Raw) != len(b) || len(was) != len(is) || len(v.Bufs) != 1+len(was) {
			t.Fatalf("named %v, now %v; %d buffers", was, is, len(v.Bufs))
		}
		for i := range was {
			if was[i] != is[i] {
				t.Fatalf("named %v, now %v", was, is)
			}
		}
		var back Value
		if err := back.Append(v.Raw, v.Bufs); err != nil {
			t.Fatal(err)
		}
		if inOrder && !bytes.Equal(back.Raw, b) {
			t.Fatalf("moved back: % x, was % x", back.Raw, b)
		}
	})
}
