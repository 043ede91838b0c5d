package wire

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// Part is what one part has of a value that is joined of several: so many rows,
// which follow those of the part before it, or rows here and there.
type Part struct {
	Rows  int
	Index []uint32 // where they went, if not one after the other
}

// Lens is how many rows each of some values has; false where one has none: it is
// neither a list nor a batch.
func Lens(values []Value) ([]int, bool) {
	lens := make([]int, len(values))
	for i := range values {
		var a Arg
		if err := a.parse(values[i].Raw, nil); err != nil || (a.Kind != ArgList && a.Kind != ArgTuple && a.Kind != ArgBatch) {
			return nil, false
		}
		lens[i] = a.Len
	}
	return lens, true
}

// AppendParts encodes parts: a number of rows each, or where they went.
func AppendParts(dst []byte, parts []Part) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(parts))) //nolint:gosec // one per rank
	for _, p := range parts {
		if p.Index == nil {
			dst = msgp.AppendInt(dst, p.Rows)
			continue
		}
		index := make([]byte, 0, 4*len(p.Index))
		for _, row := range p.Index {
			index = binary.LittleEndian.AppendUint32(index, row)
		}
		dst = msgp.AppendBytes(dst, index)
	}
	return dst
}

// ReadParts reads what AppendParts has written.
func ReadParts(b []byte) ([]Part, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err == nil && int(n) > len(b) { // each takes at least a byte
		return nil, badParts("more of them than bytes")
	}
	var parts []Part
	for ; err == nil && n > 0; n-- {
		if msgp.NextType(b) != msgp.BinType {
			var rows int
			if rows, b, err = msgp.ReadIntBytes(b); err == nil {
				parts = append(parts, Part{Rows: rows})
			}
			continue
		}
		var index []byte
		if index, b, err = msgp.ReadBytesZC(b); err != nil {
			break
		}
		if len(index)%4 != 0 {
			return nil, badParts("half a row")
		}
		p := Part{Rows: len(index) / 4, Index: make([]uint32, 0, len(index)/4)}
		for ; len(index) > 0; index = index[4:] {
			p.Index = append(p.Index, binary.LittleEndian.Uint32(index))
		}
		parts = append(parts, p)
	}
	if err != nil {
		return nil, badParts(err.Error())
	}
	if len(b) > 0 {
		return nil, trailingBytes(len(b))
	}
	return parts, nil
}

func badParts(why string) error {
	return spec.Errorf(spec.CodeProtocol, "malformed parts of a value: %s", why)
}

// Parts takes a list or a batch apart again into what it was joined of.
func (v *Value) Parts(parts []Part) ([]Value, error) {
	p := Payload{Args: make([]Arg, 1), Positional: 1}
	a := &p.Args[0]
	bufs := v.Bufs
	if bufs == nil {
		bufs = []Buf{} // so that those that a batch claims to have are looked for
	}
	if err := a.parse(v.Raw, bufs); err != nil {
		return nil, err
	}
	if a.Kind != ArgList && a.Kind != ArgTuple && a.Kind != ArgBatch {
		return nil, badParts("a " + TypeName(v.Raw) + " has none")
	}
	values := make([]Value, len(parts))
	at := 0
	for i, part := range parts {
		var err error
		switch {
		case part.Index != nil:
			for _, row := range part.Index {
				if int(row) >= a.Len {
					return nil, badParts("a row that it does not have")
				}
			}
			err = p.Take(&values[i], 0, part.Index)
		case part.Rows < 0 || part.Rows > a.Len-at:
			return nil, badParts("more rows than it has")
		default:
			err = p.Rows(&values[i], 0, at, at+part.Rows)
			at += part.Rows
		}
		if err != nil {
			return nil, err
		}
	}
	return values, nil
}

// EvenParts are n parts of so many rows, as dispatch cuts them: they differ by one
// row at most, larger ones first.
func EvenParts(rows, n int) []Part {
	parts := make([]Part, n)
	for i := range parts {
		parts[i].Rows = rows / n
		if i < rows%n {
			parts[i].Rows++
		}
	}
	return parts
}
