package value

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

type kind uint8

const (
	isNil kind = iota
	isBool
	isInt
	isUint // beyond int64
	isFloat
	isBig
	isComplex
	isText
	isBytes
	isList
	isDict
	isExt
)

// item is the head of a value: what it is, and as much of it as is not values
// of its own.
type item struct {
	kind    kind
	code    int8 // of isExt
	truth   bool
	whole   int64
	natural uint64
	float   float64
	complex complex128
	big     *big.Int
	data    []byte // of isText, isBytes, isExt
	count   int    // of isList, isDict
	name    string // what Python calls its type
}

// next reads the head of the first value of b.
func next(b []byte) (it item, rest []byte, err error) {
	if len(b) == 0 {
		return it, b, short()
	}
	lead := b[0]
	it.name = wire.TypeName(b)
	switch {
	case lead < 0x80 || lead >= 0xe0:
		it.kind, it.whole = isInt, int64(int8(lead)) //nolint:gosec // fixints are one signed byte
		return it, b[1:], nil
	case lead < 0x90, lead == 0xde, lead == 0xdf:
		n, rest, err := msgp.ReadMapHeaderBytes(b)
		it.kind, it.count = isDict, int(n)
		return it, rest, broken(err, it.count <= len(rest)/2)
	case lead < 0xa0, lead == 0xdc, lead == 0xdd:
		n, rest, err := msgp.ReadArrayHeaderBytes(b)
		it.kind, it.count = isList, int(n)
		return it, rest, broken(err, it.count <= len(rest))
	case lead < 0xc0, lead >= 0xd9 && lead <= 0xdb:
		it.kind = isText
		it.data, rest, err = msgp.ReadStringZC(b)
	case lead == 0xc0:
		return it, b[1:], nil
	case lead == 0xc2, lead == 0xc3:
		it.kind, it.truth = isBool, lead == 0xc3
		return it, b[1:], nil
	case lead >= 0xc4 && lead <= 0xc6:
		it.kind = isBytes
		it.data, rest, err = msgp.ReadBytesZC(b)
	case lead == 0xca:
		var f float32
		f, rest, err = msgp.ReadFloat32Bytes(b)
		it.kind, it.float = isFloat, float64(f)
	case lead == 0xcb:
		it.kind = isFloat
		it.float, rest, err = msgp.ReadFloat64Bytes(b)
	case lead >= 0xcc && lead <= 0xcf:
		it.natural, rest, err = msgp.ReadUint64Bytes(b)
		it.kind, it.whole = isInt, int64(it.natural) //nolint:gosec // looked at next
		if it.natural > math.MaxInt64 {
			it.kind = isUint
		}
	case lead >= 0xd0 && lead <= 0xd3:
		it.kind = isInt
		it.whole, rest, err = msgp.ReadInt64Bytes(b)
	default:
		it.kind = isExt
		it.code, it.data, rest, err = extension(b)
	}
	return it, rest, broken(err, true)
}

// extension reads an extension's code and inside.
func extension(b []byte) (code int8, data, rest []byte, err error) {
	head := 2
	var size int
	switch lead := b[0]; {
	case lead >= 0xd4 && lead <= 0xd8:
		size = 1 << (lead - 0xd4)
	case lead == 0xc7 && len(b) > 2:
		size, head = int(b[1]), 3
	case lead == 0xc8 && len(b) > 3:
		size, head = int(binary.BigEndian.Uint16(b[1:])), 4
	case lead == 0xc9 && len(b) > 5:
		size, head = int(binary.BigEndian.Uint32(b[1:])), 6
	default:
		return 0, nil, b, short()
	}
	if len(b) < head+size {
		return 0, nil, b, short()
	}
	return int8(b[head-1]), b[head : head+size], b[head+size:], nil //nolint:gosec // codes are signed bytes
}

func short() error {
	return spec.Errorf(spec.CodeProtocol, "a malformed value: it ends early, or begins with a byte that means nothing")
}

func broken(err error, fits bool) error {
	if err != nil || !fits {
		return short()
	}
	return nil
}

// simple turns extensions that are plain numbers and bytes into items of those
// kinds, and leaves others.
func (it item) simple() (item, error) {
	if it.kind != isExt {
		return it, nil
	}
	switch it.code {
	case extBigInt:
		it.kind, it.big = isBig, bigFrom(it.data)
	case extComplex:
		if len(it.data) != 16 {
			return it, short()
		}
		it.kind = isComplex
		it.complex = complex(float64At(it.data), float64At(it.data[8:]))
	case extByteArray:
		it.kind = isBytes
	case extScalar:
		return it.scalar()
	}
	return it, nil
}

func float64At(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }

func bigFrom(data []byte) *big.Int {
	b := slices.Clone(data)
	slices.Reverse(b)
	negative := len(b) > 0 && b[0]&0x80 != 0
	if negative {
		for i := range b {
			b[i] = ^b[i]
		}
	}
	n := new(big.Int).SetBytes(b)
	if negative {
		n.Not(n)
	}
	return n
}

// scalar reads a numpy scalar, [dtype, bytes].
func (it item) scalar() (item, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(it.data)
	var dtype string
	if err == nil && n == 2 {
		dtype, b, err = msgp.ReadStringBytes(b)
	}
	if err != nil || n != 2 {
		return it, short()
	}
	data, _, err := msgp.ReadBytesZC(b)
	if err != nil {
		return it, short()
	}
	return number(dtype, data)
}

// number is the element of a numpy type that data holds.
func number(dtype string, data []byte) (item, error) {
	it := item{name: "numpy " + dtype}
	form := strings.TrimLeft(dtype, "<|=")
	if len(form) < 2 || sizes[form] == 0 || sizes[form] != len(data) {
		return it, misfitf("a numpy %s, which has no like in Go; turn it into a plain number in Python", dtype)
	}
	var bits uint64
	for i := min(len(data), 8) - 1; i >= 0; i-- {
		bits = bits<<8 | uint64(data[i])
	}
	switch form[0] {
	case 'b':
		it.kind, it.truth = isBool, bits != 0
	case 'i':
		it.kind, it.whole = isInt, int64(bits<<(64-8*len(data)))>>(64-8*len(data)) //nolint:gosec // spreads the sign
	case 'u':
		it.kind, it.natural, it.whole = isInt, bits, int64(bits) //nolint:gosec // looked at next
		if bits > math.MaxInt64 {
			it.kind = isUint
		}
	case 'f':
		it.kind, it.float = isFloat, floatOf(bits, len(data))
	case 'c':
		it.kind = isComplex
		half := len(data) / 2
		if half == 4 {
			it.complex = complex(floatOf(uint64(binary.LittleEndian.Uint32(data)), 4), floatOf(uint64(binary.LittleEndian.Uint32(data[4:])), 4))
		} else {
			it.complex = complex(float64At(data), float64At(data[8:]))
		}
	}
	return it, nil
}

// sizes are the numpy types that Go has a like of, by how many bytes they take.
var sizes = map[string]int{
	"b1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8, "f2": 2, "f4": 4, "f8": 8, "c8": 8, "c16": 16,
}

func floatOf(bits uint64, size int) float64 {
	switch size {
	case 8:
		return math.Float64frombits(bits)
	case 4:
		return float64(math.Float32frombits(uint32(bits))) //nolint:gosec // four bytes were read
	}
	sign, exponent, fraction := bits>>15&1, int(bits>>10&0x1f), float64(bits&0x3ff) //nolint:gosec // five bits
	f := math.Ldexp(1+fraction/1024, exponent-15)
	switch {
	case exponent == 0:
		f = math.Ldexp(fraction/1024, -14)
	case exponent == 31 && fraction == 0:
		f = math.Inf(1)
	case exponent == 31:
		f = math.NaN()
	}
	if sign != 0 {
		f = -f
	}
	return f
}
