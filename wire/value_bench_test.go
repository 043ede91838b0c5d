package wire

import (
	"testing"

	"github.com/tinylib/msgp/msgp"
)

func BenchmarkSkip(b *testing.B) {
	rows := make([][]byte, 1000)
	for i := range rows {
		rows[i] = mapOf(str("prompt"), str("how many"), str("ids"), ints(1, 2, 3, 400, 50000, 6, 7), str("score"), msgp.AppendFloat64(nil, 0.5))
	}
	for name, v := range map[string][]byte{"small": ints(1, 2, 3), "tokens": ints(make([]int, 100000)...), "rows": listOf(rows...)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(v)))
			for b.Loop() {
				if _, err := Skip(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCut parses a payload and cuts it into parts, as a call does.
func BenchmarkCut(b *testing.B) {
	for _, c := range []struct {
		name        string
		rows, parts int
	}{{"8rows-4parts", 8, 4}, {"10000rows-16parts", 10000, 16}, {"100000rows-1000parts", 100000, 1000}} {
		b.Run(c.name, func(b *testing.B) {
			raw := payload([][]byte{ints(make([]int, c.rows)...)}, str("lr"), ext(extBroadcast, msgp.AppendFloat64(nil, 0.1)))
			var p Payload
			var v Value
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(raw, nil); err != nil {
					b.Fatal(err)
				}
				for k := range c.parts {
					v.Reset()
					p.Open(&v)
					if p.Rows(&v, 0, c.rows*k/c.parts, c.rows*(k+1)/c.parts) != nil || p.Whole(&v, 1) != nil {
						b.Fatal("cannot be cut")
					}
					p.Close(&v)
				}
			}
		})
	}
}

func BenchmarkChain(b *testing.B) {
	plain, arrays := make([]Value, 64), make([]Value, 64)
	for i := range plain {
		plain[i] = Value{Raw: ints(make([]int, 128)...)}
		arrays[i] = Value{Raw: listOf(buffered(0, 1, "shape"), buffered(1, 1, "shape")), Bufs: Bytes([]byte{1}, []byte{2})}
	}
	for name, parts := range map[string][]Value{"plain": plain, "buffers": arrays} {
		b.Run(name, func(b *testing.B) {
			var v Value
			b.ReportAllocs()
			for b.Loop() {
				v.Reset()
				if ok, err := v.Chain(parts, nil); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
