package wire

import (
	"encoding/binary"

	"github.com/muster-rl/muster/spec"
)

// MaxDepth is how deep a value may be nested; it bounds the stack of whoever
// walks one.
const MaxDepth = 512

// Extension codes that the head itself reads; docs/wire.md has them all.
const (
	extTuple     = 1
	extPerRank   = 5
	extBroadcast = 6
	extFuture    = 21
	extBatch     = 36

	lastContainer = 15 // codes 1-15 hold one value
	firstBuffered = 32 // codes 32-47 begin with u32 first, u32 n
	lastBuffered  = 47
)

// follow tells heads apart by what follows them.
type follow uint8

const (
	plain follow = iota
	array
	pairs
	extension
	nothing // the one byte that msgpack never uses
)

// headTable describes the first bytes 0xc0-0xdf: how many bytes of length
// follow, how many of content where that is fixed.
var headTable = [32]struct {
	length, size uint8
	then         follow
}{
	0x00: {},              // nil
	0x01: {then: nothing}, // never used
	0x02: {}, 0x03: {},    // false, true
	0x04: {length: 1}, 0x05: {length: 2}, 0x06: {length: 4}, // bin
	0x07: {1, 0, extension}, 0x08: {2, 0, extension}, 0x09: {4, 0, extension}, // ext
	0x0a: {size: 4}, 0x0b: {size: 8}, // float
	0x0c: {size: 1}, 0x0d: {size: 2}, 0x0e: {size: 4}, 0x0f: {size: 8}, // uint
	0x10: {size: 1}, 0x11: {size: 2}, 0x12: {size: 4}, 0x13: {size: 8}, // int
	0x14: {0, 1, extension}, 0x15: {0, 2, extension}, 0x16: {0, 4, extension}, // fixext
	0x17: {0, 8, extension}, 0x18: {0, 16, extension}, // fixext, longer
	0x19: {length: 1}, 0x1a: {length: 2}, 0x1b: {length: 4}, // str
	0x1c: {2, 0, array}, 0x1d: {4, 0, array}, // array
	0x1e: {2, 0, pairs}, 0x1f: {4, 0, pairs}, // map
}

// valueHead is what the first bytes of a value say of the rest.
type valueHead struct {
	start int // where the head ends
	end   int // where the bytes that are no values of their own end
	count int // elements of an array, pairs of a map
	then  follow
	code  int8 // of an extension
}

// kids is the number of values that follow the head.
func (h valueHead) kids() int {
	if h.then == pairs {
		return 2 * h.count
	}
	return h.count
}

// readHead reads the head at b[i]. What it returns lies within b; a count is
// never larger than the bytes that are left could hold.
func readHead(b []byte, i int) (valueHead, error) {
	if i >= len(b) {
		return valueHead{}, shortValue(b)
	}
	c := b[i]
	i++
	switch {
	case c < 0x80, c >= 0xe0:
		return valueHead{start: i, end: i}, nil
	case c < 0xa0:
		h := valueHead{start: i, end: i, count: int(c & 0x0f), then: pairs}
		if c >= 0x90 {
			h.then = array
		}
		return h, h.fits(b)
	case c < 0xc0:
		h := valueHead{start: i, end: i + int(c&0x1f)}
		return h, h.fits(b)
	}
	t := &headTable[c-0xc0]
	n := int(t.size)
	if left := len(b) - i; left < int(t.length) {
		return valueHead{}, shortValue(b)
	}
	switch t.length {
	case 1:
		n = int(b[i])
	case 2:
		n = int(binary.BigEndian.Uint16(b[i:]))
	case 4:
		n = int(binary.BigEndian.Uint32(b[i:]))
	}
	i += int(t.length)
	h := valueHead{start: i, end: i, then: t.then}
	switch t.then {
	case plain:
		h.end += n
	case extension:
		if i >= len(b) {
			return valueHead{}, shortValue(b)
		}
		h.code = int8(b[i])
		h.start++
		h.end = h.start + n
	case nothing:
		return valueHead{}, spec.Errorf(spec.CodeProtocol, "a malformed value: byte 0xc1 at %d of %d begins nothing", i-1, len(b))
	default:
		h.count = n
	}
	return h, h.fits(b)
}

// fits refuses claims beyond the bytes there are: each value takes at least one.
func (h valueHead) fits(b []byte) error {
	if h.end > len(b) || h.kids() > len(b)-h.end {
		return shortValue(b)
	}
	return nil
}

func shortValue(b []byte) error {
	return spec.Errorf(spec.CodeProtocol, "a malformed value: it goes on after the %d bytes there are", len(b))
}

func deepValue() error {
	return spec.Errorf(spec.CodeEncoding, "a value is nested more than %d deep: flatten it, or pass it as bytes", MaxDepth)
}

// Skip returns what follows the first value of b. Extensions are stepped over
// by their length; Buffers looks into them.
func Skip(b []byte) (rest []byte, err error) {
	i, err := skipValues(b, 0, 1, MaxDepth)
	if err != nil {
		return b, err
	}
	return b[i:], nil
}

// skipValues returns where the n values that begin at b[i] end.
func skipValues(b []byte, i, n, depth int) (int, error) {
	for ; n > 0; n-- {
		if i < len(b) && (b[i] < 0x80 || b[i] >= 0xe0) {
			i++ // a small int: lists of token ids are full of them
			continue
		}
		h, err := readHead(b, i)
		if err != nil {
			return 0, err
		}
		i = h.end
		if kids := h.kids(); kids > 0 {
			if depth == 0 {
				return 0, deepValue()
			}
			if i, err = skipValues(b, i, kids, depth-1); err != nil {
				return 0, err
			}
		}
	}
	return i, nil
}

// Buffers walks the one value that b holds, containers included, and reports
// each extension that uses buffers: the first of its n buffers, and where in b
// the u32 of that number lies. It stops at visit's first error.
func Buffers(b []byte, visit func(pos int, first, n uint32) error) error {
	return buffersOf(b, 1, visit)
}

// buffersOf is Buffers for n values, one after another.
func buffersOf(b []byte, n int, visit func(pos int, first, n uint32) error) error {
	end, err := walkValues(b, 0, n, MaxDepth, visit)
	if err == nil && end != len(b) {
		err = trailingBytes(len(b) - end)
	}
	return err
}

func trailingBytes(n int) error {
	return spec.Errorf(spec.CodeProtocol, "a malformed value: %d bytes follow its end", n)
}

func walkValues(b []byte, i, n, depth int, visit func(pos int, first, n uint32) error) (int, error) {
	for ; n > 0; n-- {
		if i < len(b) && (b[i] < 0x80 || b[i] >= 0xe0) {
			i++
			continue
		}
		h, err := readHead(b, i)
		if err != nil {
			return 0, err
		}
		i = h.end
		kids, inside := h.kids(), h.then == extension && h.code > 0 && h.code <= lastContainer
		if (kids > 0 || inside) && depth == 0 {
			return 0, deepValue()
		}
		switch {
		case kids > 0:
			if i, err = walkValues(b, i, kids, depth-1, visit); err != nil {
				return 0, err
			}
		case inside:
			end, err := walkValues(b[:h.end], h.start, 1, depth-1, visit)
			if err != nil {
				return 0, err
			}
			if end != h.end {
				return 0, trailingBytes(h.end - end)
			}
		case h.then == extension && h.code >= firstBuffered && h.code <= lastBuffered:
			if h.end-h.start < 8 {
				return 0, spec.Errorf(spec.CodeProtocol, "a malformed value: extension %d has %d bytes, too few to name its buffers", h.code, h.end-h.start)
			}
			first, count := binary.LittleEndian.Uint32(b[h.start:]), binary.LittleEndian.Uint32(b[h.start+4:])
			if err := visit(h.start, first, count); err != nil {
				return 0, err
			}
		}
	}
	return i, nil
}

// TypeName is what a value's type is called by its user, for messages.
func TypeName(b []byte) string {
	h, err := readHead(b, 0)
	if err != nil {
		return "malformed value"
	}
	if h.then == extension {
		if name, ok := extNames[h.code]; ok {
			return name
		}
		return "object"
	}
	switch c := b[0]; {
	case h.then == array:
		return "list"
	case h.then == pairs:
		return "dict"
	case c < 0x80, c >= 0xe0, c >= 0xcc && c <= 0xd3:
		return "int"
	case c < 0xc0, c >= 0xd9:
		return "str"
	case c == 0xc0:
		return "None"
	case c <= 0xc3:
		return "bool"
	case c <= 0xc6:
		return "bytes"
	}
	return "float"
}

var extNames = map[int8]string{
	extTuple: "tuple", 2: "set", 3: "frozenset", 4: "dataclass", extPerRank: "PerRank", extBroadcast: "Broadcast",
	16: "int", 17: "complex", 18: "range", 19: "bytearray", 20: "numpy scalar", extFuture: "future",
	32: "ndarray", 34: "bytes", 35: "torch tensor", extBatch: "Batch", 37: "str", 38: "bytearray",
}
