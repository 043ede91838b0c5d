package column

import (
	"encoding/json"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/muster-rl/muster/spec"
)

// element is what one number, or the like, of a fixed or ragged column is.
type element struct {
	width int            // in bytes
	as    arrow.DataType // what it is in Arrow
	exact bool           // as tells all of it
}

// numpyType takes numpy's name of a type apart: byte order, kind, size, unit of
// a time, and what records say of their fields.
var numpyType = regexp.MustCompile(`^([<>|=]?)([a-zA-Z?])([0-9]*)(\[[^]]*\])?(:.*)?$`)

var numbers = map[string]arrow.DataType{
	"i1": arrow.PrimitiveTypes.Int8, "i2": arrow.PrimitiveTypes.Int16, "i4": arrow.PrimitiveTypes.Int32, "i8": arrow.PrimitiveTypes.Int64,
	"u1": arrow.PrimitiveTypes.Uint8, "u2": arrow.PrimitiveTypes.Uint16, "u4": arrow.PrimitiveTypes.Uint32, "u8": arrow.PrimitiveTypes.Uint64,
	"f2": arrow.FixedWidthTypes.Float16, "f4": arrow.PrimitiveTypes.Float32, "f8": arrow.PrimitiveTypes.Float64,
}

var units = map[string]arrow.TimeUnit{"[s]": arrow.Second, "[ms]": arrow.Millisecond, "[us]": arrow.Microsecond, "[ns]": arrow.Nanosecond}

// elementOf finds what a type in an object's header means; its name is numpy's,
// or torch's after "torch:".
func elementOf(dtype string) (element, error) {
	if name, ok := strings.CutPrefix(dtype, "torch:"); ok {
		if width := torchWidth(name); width > 0 {
			return opaque(width), nil
		}
		return element{}, unknownType(dtype)
	}
	m := numpyType.FindStringSubmatch(dtype)
	if m == nil {
		return element{}, unknownType(dtype)
	}
	order, kind, size, unit := m[1], m[2], m[3], m[4]
	n, err := strconv.ParseUint(size, 10, 31)
	if err != nil {
		return element{}, unknownType(dtype)
	}
	width := int(n)
	swapped := order == ">" && width > 1
	switch kind {
	case "b":
		if width == 1 {
			return element{1, boolType, true}, nil
		}
	case "i", "u", "f":
		if as := numbers[kind+size]; as != nil && !swapped {
			return element{width, as, true}, nil
		}
		if width > 0 {
			return opaque(width), nil
		}
	case "c":
		if width > 0 {
			return opaque(width), nil
		}
	case "M", "m":
		return timeElement(kind, unit, width, swapped, dtype)
	case "S", "V":
		return opaque(width), nil
	case "U":
		if width <= math.MaxInt32/4 {
			return opaque(4 * width), nil
		}
	}
	return element{}, unknownType(dtype)
}

// opaque is an element of which only the size is known here.
func opaque(width int) element {
	return element{width, &arrow.FixedSizeBinaryType{ByteWidth: width}, false}
}

func timeElement(kind, unit string, width int, swapped bool, dtype string) (element, error) {
	switch u, known := units[unit]; {
	case width != 8:
		return element{}, unknownType(dtype)
	case swapped:
		return opaque(8), nil
	case !known: // days, or multiples: numbers whose meaning is in the metadata
		return element{8, arrow.PrimitiveTypes.Int64, false}, nil
	case kind == "M":
		return element{8, &arrow.TimestampType{Unit: u}, true}, nil
	default:
		return element{8, &arrow.DurationType{Unit: u}, true}, nil
	}
}

// torchWidth is the size of a type that torch has and numpy has not, 0 where
// that is not known.
func torchWidth(name string) int {
	switch name {
	case "bfloat16", "bits16":
		return 2
	case "complex32", "bcomplex32":
		return 4
	}
	for _, prefix := range []string{"float8", "float4", "bits", "int", "uint"} {
		if strings.HasPrefix(name, prefix) {
			return 1
		}
	}
	return 0
}

func unknownType(dtype string) error {
	return spec.Errorf(spec.CodeProtocol, "elements of the type %q, which this release does not know", dtype)
}

// dtypeOf is numpy's name of an Arrow type, "" where it has none.
func dtypeOf(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.TimestampType:
		return "<M8[" + t.Unit.String() + "]"
	case *arrow.DurationType:
		return "<m8[" + t.Unit.String() + "]"
	case *arrow.FixedSizeBinaryType:
		return "|V" + strconv.Itoa(t.ByteWidth)
	}
	if isBool(t) {
		return "|b1"
	}
	for name, as := range numbers {
		if as.ID() == t.ID() {
			if name[1] == '1' {
				return "|" + name
			}
			return "<" + name
		}
	}
	return ""
}

// Names of what a field's metadata tells beyond its Arrow type.
const (
	MetaKind  = "muster.kind"  // "object": the rows are pickles
	MetaDType = "muster.dtype" // numpy's or torch's type of the elements
	MetaShape = "muster.shape" // of a row, where it has no elements, as "[0,3]"
	MetaLib   = "muster.lib"   // what a column is in Python: "torch", "list", …
)

// defaultLib is what a column becomes in Python where nothing else is said.
func defaultLib(kind string) string {
	if kind == Fixed || kind == Ragged {
		return "numpy"
	}
	return "list"
}

func shapeText(shape []int) string {
	text, _ := json.Marshal(shape) // numbers
	return string(text)
}

// count is the number of elements of a shape; false where that is no number.
func count(shape []int) (int, bool) {
	n := 1
	for _, size := range shape {
		if size < 0 {
			return 0, false
		}
		var ok bool
		if n, ok = product(n, size); !ok {
			return 0, false
		}
	}
	return n, true
}

// product multiplies what is not negative.
func product(a, b int) (int, bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int(low), high == 0 && low <= math.MaxInt64
}
