package value

import (
	"encoding/binary"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Extension codes, docs/wire.md.
const (
	extTuple     = 1
	extSet       = 2
	extFrozenset = 3
	extDataclass = 4
	extPerRank   = 5
	extBroadcast = 6
	extBigInt    = 16
	extComplex   = 17
	extRange     = 18
	extByteArray = 19
	extScalar    = 20
	extFuture    = 21
	extArray     = 32
	extPickle    = 33
	extBytes     = 34
	extTensor    = 35
	extBatch     = 36
	extText      = 37
	extLongArray = 38
)

// outOfBand is from which size on bytes and text are a buffer of the frame.
const outOfBand = 256 << 10

// Raw is a value that is passed on as it came. The zero Raw is None.
type Raw struct {
	value wire.Value
	held  *object.Set // the objects that it names
}

// RawOf is the value that raw encodes, with the buffers of its frame, whose
// objects are in held. It keeps all three, so they must not change any more.
func RawOf(raw []byte, bufs []wire.Buf, held *object.Set) Raw {
	return Raw{wire.Value{Raw: raw, Bufs: bufs}, held}
}

// Decode reads the value into what into points to.
func (r Raw) Decode(into any) error {
	target, err := pointed(into)
	if err != nil {
		return err
	}
	if len(r.value.Raw) == 0 {
		r.value.Raw = []byte{0xc0}
	}
	in := Incoming{held: r.held}
	return in.DecodeInto(r.value.Raw, r.value.Bufs, target)
}

// Release gives back what the value names in stores; the collector does so too,
// later. It cannot be decoded or passed on any more where it needs that.
func (r Raw) Release() { r.held.Release() }

// Type is what the value's type is called in Python.
func (r Raw) Type() string {
	if len(r.value.Raw) == 0 {
		return "NoneType"
	}
	return wire.TypeName(r.value.Raw)
}

// Array is a numpy array or a torch tensor on the CPU.
type Array struct {
	// DType is numpy's name of the element type, as "<f4"; of a Tensor it is
	// torch's, as "bfloat16".
	DType string
	Shape []int
	// Data has the elements in C order, or in Fortran's where that is set. It is
	// sent without a copy, and what was received is the caller's own.
	Data    []byte
	Fortran bool
	Tensor  bool
}

// Len is the number of elements.
func (a Array) Len() int {
	n := 1
	for _, size := range a.Shape {
		n *= size
	}
	return n
}

// Element is a type that numpy and Go both have.
type Element interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64 | ~complex64 | ~complex128 | ~bool
}

// ArrayOf makes an array of elements in C order; without a shape it has one
// dimension. It panics where the shape does not hold them.
func ArrayOf[T Element](elements []T, shape ...int) Array {
	if len(shape) == 0 {
		shape = []int{len(elements)}
	}
	a := Array{DType: dtypeOf(reflect.TypeFor[T]()), Shape: shape}
	if a.Len() != len(elements) {
		panic(spec.Errorf(spec.CodeInvalid, "%d elements do not make an array of shape %v", len(elements), shape))
	}
	a.Data, _ = binary.Append(make([]byte, 0, binary.Size(elements)), binary.LittleEndian, elements)
	return a
}

// Elements are the elements of an array of that very type, as they lie in Data.
func Elements[T Element](a Array) ([]T, error) {
	want, have := dtypeOf(reflect.TypeFor[T]()), a.DType
	if a.Tensor {
		have = torchTypes[have]
	}
	if strings.TrimLeft(have, "<|=") != want[1:] {
		return nil, spec.Errorf(spec.CodeType, "an array of %s cannot be read as %s, which is numpy's %s", a.DType, reflect.TypeFor[T](), want)
	}
	elements := make([]T, a.Len())
	if binary.Size(elements) != len(a.Data) {
		return nil, spec.Errorf(spec.CodeEncoding, "an array of shape %v and type %s has %d bytes instead of %d", a.Shape, a.DType, len(a.Data), binary.Size(elements))
	}
	_, err := binary.Decode(a.Data, binary.LittleEndian, elements)
	return elements, err
}

var torchTypes = map[string]string{
	"float32": "<f4", "float64": "<f8", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
	"uint8": "|u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "bool": "|b1", "complex64": "<c8", "complex128": "<c16",
}

func dtypeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "|b1"
	case reflect.Int8:
		return "|i1"
	case reflect.Uint8:
		return "|u1"
	}
	letter := "i"
	switch t.Kind() {
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		letter = "u"
	case reflect.Float32, reflect.Float64:
		letter = "f"
	case reflect.Complex64, reflect.Complex128:
		letter = "c"
	}
	return "<" + letter + []string{2: "2", 4: "4", 8: "8", 16: "16"}[t.Size()]
}

// Range is Python's range.
type Range struct{ Start, Stop, Step int64 }

// Len is how many numbers the range has.
func (r Range) Len() int64 {
	switch {
	case r.Step > 0 && r.Start < r.Stop:
		return int64((uint64(r.Stop)-uint64(r.Start)-1)/uint64(r.Step)) + 1 //nolint:gosec // differences wrap as they should
	case r.Step < 0 && r.Start > r.Stop:
		return int64((uint64(r.Start)-uint64(r.Stop)-1)/-uint64(r.Step)) + 1 //nolint:gosec // differences wrap as they should
	}
	return 0
}

var (
	typeRaw     = reflect.TypeFor[Raw]()
	typeArray   = reflect.TypeFor[Array]()
	typeRange   = reflect.TypeFor[Range]()
	typeBig     = reflect.TypeFor[big.Int]()
	typeBatch   = reflect.TypeFor[Batch]()
	typeNothing = reflect.TypeFor[struct{}]()
)

// field is one of a struct that travels.
type field struct {
	name   string
	folded string
	index  []int
	omit   bool // where it is zero
}

// record is how a struct type travels.
type record struct {
	fields []field
	opaque bool // it has fields, and none that others can see
}

func (r *record) find(name []byte) *field {
	for i := range r.fields {
		if r.fields[i].name == string(name) {
			return &r.fields[i]
		}
	}
	folded := fold(string(name))
	for i := range r.fields {
		if r.fields[i].folded == folded {
			return &r.fields[i]
		}
	}
	return nil
}

func fold(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// records are the struct types that one value has; a value of many structs
// looks at their type once.
type records map[reflect.Type]*record

func (rs *records) of(t reflect.Type) *record {
	if r := (*rs)[t]; r != nil {
		return r
	}
	if *rs == nil {
		*rs = records{}
	}
	r := &record{}
	seen := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		name, options := tagOf(f)
		inlined := f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct
		if !f.IsExported() || name == "-" || inlined || throughPointer(t, f.Index) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if !seen[name] { // an outer field hides an inner one of its name
			seen[name] = true
			r.fields = append(r.fields, field{name, fold(name), f.Index, slices.Contains(options, "omitempty")})
		}
	}
	r.opaque = len(r.fields) == 0 && t.NumField() > 0
	(*rs)[t] = r
	return r
}

func tagOf(f reflect.StructField) (string, []string) {
	tag, ok := f.Tag.Lookup("muster")
	if !ok {
		tag = f.Tag.Get("json")
	}
	parts := strings.Split(tag, ",")
	return parts[0], parts[1:]
}

// throughPointer says that a promoted field lies behind an embedded pointer,
// which may be nil: the pointer travels as a field of its own instead.
func throughPointer(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		if t.Kind() != reflect.Struct {
			return true
		}
		t = t.Field(i).Type
	}
	return t.Kind() != reflect.Struct
}
