package value

import (
	"bytes"
	"encoding"
	"fmt"
	"math/big"
	"reflect"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Decode reads the one value of raw, whose frame has bufs and names no objects,
// into what into points to. Large bytes and the data of arrays are the buffers
// themselves, not copies; all else is copied.
func Decode(raw []byte, bufs []wire.Buf, into any) error { return RawOf(raw, bufs, nil).Decode(into) }

// pointed is what a value is read into.
func pointed(into any) (reflect.Value, error) {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return target, spec.Errorf(spec.CodeType, "a value is read into a pointer, not into a %T", into)
	}
	return target.Elem(), nil
}

type decoder struct {
	bufs    []wire.Buf
	held    *object.Set // the objects that bufs name
	mapped  map[uint64]*object.Mapped
	batches []*Batch // that were read
	records records
	depth   int
}

// value reads the first value of b into v and returns what follows it.
func (d *decoder) value(b []byte, v reflect.Value) ([]byte, error) {
	if d.depth++; d.depth > wire.MaxDepth {
		return b, spec.Errorf(spec.CodeEncoding, "a value is nested more than %d deep", wire.MaxDepth)
	}
	defer func() { d.depth-- }()
	if v.Type() == typeRaw {
		rest, err := wire.Skip(b)
		if err != nil {
			return b, err
		}
		own, err := d.raw(b[:len(b)-len(rest)])
		v.Set(reflect.ValueOf(own))
		return rest, err
	}
	it, rest, err := next(b)
	if err == nil {
		it, err = it.simple()
	}
	if err == nil && it.kind == isExt && (it.code == extText || it.code == extLongArray) {
		it, err = d.long(it)
	}
	if err != nil {
		return b, err
	}
	if it.kind == isExt && it.code <= extFrozenset && it.code > 0 {
		return rest, d.contained(it, v)
	}
	return d.item(it, rest, v)
}

// long reads text or a bytearray that is a buffer of the frame, as one that is not.
func (d *decoder) long(it item) (item, error) {
	buf, _, err := d.buffer(it)
	it.kind, it.data = isBytes, buf
	if it.code == extText {
		it.kind = isText
	}
	return it, err
}

// contained reads a tuple or set as the list that it holds.
func (d *decoder) contained(it item, v reflect.Value) error {
	list, rest, err := next(it.data)
	if err != nil || list.kind != isList {
		return short()
	}
	list.name = it.name
	rest, err = d.item(list, rest, v)
	if err == nil && len(rest) > 0 {
		err = short()
	}
	return err
}

// item reads a value whose head was read.
func (d *decoder) item(it item, rest []byte, v reflect.Value) ([]byte, error) {
	if it.kind == isExt && it.code == extPickle {
		return rest, misfitf("an object of Python's that is not plain data (it came pickled), which Go cannot read. Return numbers, text, bytes, lists, dicts, dataclasses or arrays, or take a Raw to pass it on unread")
	}
	switch v.Type() {
	case typeArray, typeRange, typeBig:
		return rest, d.special(it, v)
	case typeBatch:
		return rest, misfitf("a %s cannot be read into a Batch, which is not copied: use *Batch", it.name)
	case typeNothing:
		if it.kind == isNil {
			return rest, nil
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if it.kind == isNil {
			v.SetZero()
			return rest, nil
		}
		if v.Type().Elem() == typeBatch {
			b, err := d.batch(it)
			if err == nil {
				v.Set(reflect.ValueOf(b))
			}
			return rest, err
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return d.item(it, rest, v.Elem())
	case reflect.Interface:
		if v.NumMethod() > 0 {
			return rest, misfitf("a %s cannot be read into the interface %s; use any, or a type", it.name, v.Type())
		}
		found, rest, err := d.free(it, rest)
		if err == nil && found == nil {
			v.SetZero()
		} else if err == nil {
			v.Set(reflect.ValueOf(found))
		}
		return rest, err
	}
	if it.kind == isText && v.CanAddr() {
		if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := u.UnmarshalText(it.data); err != nil {
				return rest, misfitf("%v", err)
			}
			return rest, nil
		}
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		return d.list(it, rest, v)
	case reflect.Map, reflect.Struct:
		return d.fields(it, rest, v)
	}
	return rest, scalarInto(it, v)
}

// scalarInto sets what holds one number, truth or text.
func scalarInto(it item, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		if it.kind == isBool {
			v.SetBool(it.truth)
			return nil
		}
	case reflect.String:
		if it.kind == isText {
			v.SetString(string(it.data))
			return nil
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if it.kind == isInt && !v.OverflowInt(it.whole) {
			v.SetInt(it.whole)
			return nil
		}
		return it.tooLarge(v)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n := it.natural
		if it.kind == isInt {
			n = uint64(it.whole) //nolint:gosec // not negative, looked at next
		}
		if (it.kind == isInt && it.whole >= 0 || it.kind == isUint) && !v.OverflowUint(n) {
			v.SetUint(n)
			return nil
		}
		return it.tooLarge(v)
	case reflect.Float32, reflect.Float64:
		switch it.kind {
		case isFloat:
			v.SetFloat(it.float)
			return nil
		case isInt:
			v.SetFloat(float64(it.whole))
			return nil
		case isUint:
			v.SetFloat(float64(it.natural))
			return nil
		}
	case reflect.Complex64, reflect.Complex128:
		switch it.kind {
		case isComplex:
			v.SetComplex(it.complex)
			return nil
		case isFloat:
			v.SetComplex(complex(it.float, 0))
			return nil
		case isInt:
			v.SetComplex(complex(float64(it.whole), 0))
			return nil
		}
	}
	return it.other(v)
}

// tooLarge words a number that does not fit, or something that is no number.
func (it item) tooLarge(v reflect.Value) error {
	switch it.kind {
	case isInt:
		return misfitf("the int %d does not fit a %s", it.whole, v.Type())
	case isUint:
		return misfitf("the int %d does not fit a %s", it.natural, v.Type())
	case isBig:
		return misfitf("an int of %d bits does not fit a %s; use *big.Int", it.big.BitLen(), v.Type())
	}
	return it.other(v)
}

func (it item) other(v reflect.Value) error {
	if it.kind == isNil {
		return misfitf("None where a %s was expected; where it may be missing, use a pointer", v.Type())
	}
	return misfitf("a %s where a %s was expected", it.name, v.Type())
}

func (d *decoder) special(it item, v reflect.Value) error {
	switch v.Type() {
	case typeBig:
		n := v.Addr().Interface().(*big.Int)
		switch it.kind {
		case isInt:
			n.SetInt64(it.whole)
		case isUint:
			n.SetUint64(it.natural)
		case isBig:
			n.Set(it.big)
		default:
			return it.other(v)
		}
		return nil
	case typeRange:
		if it.kind != isExt || it.code != extRange {
			return it.other(v)
		}
		r, err := readRange(it.data)
		v.Set(reflect.ValueOf(r))
		return err
	}
	if it.kind != isExt || (it.code != extArray && it.code != extTensor) {
		return it.other(v)
	}
	a, err := d.array(it)
	v.Set(reflect.ValueOf(a))
	return err
}

func readRange(data []byte) (Range, error) {
	var n [3]int64
	d := decoder{}
	rest, err := d.value(data, reflect.ValueOf(&n).Elem())
	if err == nil && len(rest) > 0 {
		err = short()
	}
	return Range{n[0], n[1], n[2]}, err
}

func (d *decoder) array(it item) (Array, error) {
	buf, meta, err := d.buffer(it)
	if err != nil {
		return Array{}, err
	}
	a := Array{Data: buf, Tensor: it.code == extTensor}
	list, rest, err := next(meta)
	if err != nil || list.kind != isList || list.count < 2 {
		return a, short()
	}
	dtype, rest, err := next(rest)
	if err != nil {
		return a, err
	}
	if dtype.kind != isText {
		return a, misfitf("a numpy array of records, which has no like in Go; send its columns, or take a Raw")
	}
	a.DType = string(dtype.data)
	inner := decoder{}
	if rest, err = inner.value(rest, reflect.ValueOf(&a.Shape).Elem()); err != nil {
		return a, err
	}
	if list.count > 2 {
		order, _, err := next(rest)
		a.Fortran = string(order.data) == "F"
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// mostNumbers bounds what a range of a few bytes may make us allocate.
const mostNumbers = 1 << 24

// list reads into a slice or array.
func (d *decoder) list(it item, rest []byte, v reflect.Value) ([]byte, error) {
	if v.Type().Elem().Kind() == reflect.Uint8 && (it.kind == isBytes || it.kind == isExt && it.code == extBytes) {
		return rest, d.bytesInto(it, v)
	}
	switch {
	case it.kind == isNil && v.Kind() == reflect.Slice:
		v.SetZero()
		return rest, nil
	case it.kind == isExt && it.code == extRange:
		r, err := readRange(it.data)
		if err != nil {
			return rest, err
		}
		if r.Len() > mostNumbers {
			return rest, misfitf("a range of %d numbers, too many to write out; read it into a Range", r.Len())
		}
		return rest, d.fill(v, int(r.Len()), func(i int, to reflect.Value) error {
			return scalarOrAny(item{kind: isInt, whole: r.Start + int64(i)*r.Step, name: "int"}, to)
		})
	case it.kind == isExt && (it.code == extArray || it.code == extTensor):
		return rest, d.spread(it, v)
	case it.kind != isList:
		return rest, it.other(v)
	}
	err := d.fill(v, it.count, func(_ int, to reflect.Value) error {
		var err error
		rest, err = d.value(rest, to)
		return err
	})
	return rest, err
}

// fill makes v hold n elements, each set by set.
func (d *decoder) fill(v reflect.Value, n int, set func(i int, to reflect.Value) error) error {
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), n, n))
	} else if v.Len() != n {
		return misfitf("%d elements where a %s was expected", n, v.Type())
	}
	for i := range n {
		if err := set(i, v.Index(i)); err != nil {
			return inside(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}

func scalarOrAny(it item, to reflect.Value) error {
	if to.Kind() == reflect.Interface && to.NumMethod() == 0 {
		to.Set(reflect.ValueOf(it.plain()))
		return nil
	}
	return scalarInto(it, to)
}

// spread reads an array of one dimension into a slice.
func (d *decoder) spread(it item, v reflect.Value) error {
	a, err := d.array(it)
	if err != nil {
		return err
	}
	dtype := a.DType
	if a.Tensor {
		dtype = torchTypes[dtype]
	}
	size := sizes[dtype[min(1, len(dtype)):]]
	if len(a.Shape) != 1 || size == 0 || size*a.Len() != len(a.Data) {
		return misfitf("a %s of type %s and shape %v where a %s was expected; read it into an Array", it.name, a.DType, a.Shape, v.Type())
	}
	return d.fill(v, a.Len(), func(i int, to reflect.Value) error {
		one, err := number(dtype, a.Data[i*size:(i+1)*size])
		if err != nil {
			return err
		}
		return scalarOrAny(one, to)
	})
}

func (d *decoder) bytesInto(it item, v reflect.Value) error {
	data, err := d.bytes(it)
	switch {
	case err != nil:
		return err
	case v.Kind() == reflect.Slice:
		v.SetBytes(data)
	case v.Len() != len(data):
		return misfitf("%d bytes where a %s was expected", len(data), v.Type())
	default:
		reflect.Copy(v, reflect.ValueOf(data))
	}
	return nil
}

func (d *decoder) bytes(it item) ([]byte, error) {
	if it.kind == isBytes {
		return bytes.Clone(it.data), nil
	}
	buf, _, err := d.buffer(it)
	return buf, err
}

// fields reads a dict or dataclass into a map or struct.
func (d *decoder) fields(it item, rest []byte, v reflect.Value) ([]byte, error) {
	switch {
	case it.kind == isNil && v.Kind() == reflect.Map:
		v.SetZero()
		return rest, nil
	case it.kind == isExt && it.code == extDataclass:
		dict, inner, err := dataclass(it.data)
		if err != nil {
			return rest, err
		}
		_, err = d.fields(dict, inner, v)
		return rest, err
	case it.kind != isDict:
		return rest, it.other(v)
	case v.Kind() == reflect.Map:
		return d.dict(it, rest, v)
	}
	record := d.records.of(v.Type())
	for range it.count {
		key, after, err := next(rest)
		if err != nil {
			return rest, err
		}
		if key.kind != isText {
			return rest, misfitf("a dict with a %s for a key where a %s was expected", key.name, v.Type())
		}
		f := record.find(key.data)
		if f == nil {
			if rest, err = wire.Skip(after); err != nil {
				return rest, err
			}
			continue
		}
		if rest, err = d.value(after, v.FieldByIndex(f.index)); err != nil {
			return rest, inside(err, "."+f.name)
		}
	}
	return rest, nil
}

// dataclass is the dict of fields in [module, qualname, {field: value}].
func dataclass(data []byte) (item, []byte, error) {
	list, rest, err := next(data)
	if err != nil || list.kind != isList || list.count != 3 {
		return list, rest, short()
	}
	for range 2 {
		if rest, err = wire.Skip(rest); err != nil {
			return list, rest, err
		}
	}
	dict, rest, err := next(rest)
	if err == nil && dict.kind != isDict {
		err = short()
	}
	return dict, rest, err
}

func (d *decoder) dict(it item, rest []byte, v reflect.Value) ([]byte, error) {
	t := v.Type()
	m := reflect.MakeMapWithSize(t, it.count)
	for range it.count {
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		var err error
		if rest, err = d.value(rest, key); err != nil {
			return rest, inside(err, ".keys()")
		}
		if !key.Comparable() {
			return rest, misfitf("a dict with a key that Go's maps cannot have (%T); take a Raw", key.Interface())
		}
		if rest, err = d.value(rest, value); err != nil {
			return rest, inside(err, fmt.Sprintf("[%.40q]", fmt.Sprint(key)))
		}
		m.SetMapIndex(key, value)
	}
	v.Set(m)
	return rest, nil
}

// plain is a scalar as any.
func (it item) plain() any {
	switch it.kind {
	case isBool:
		return it.truth
	case isInt:
		return it.whole
	case isUint:
		return it.natural
	case isFloat:
		return it.float
	case isComplex:
		return it.complex
	case isBig:
		return it.big
	case isText:
		return string(it.data)
	}
	return nil
}

// free reads a value as whatever Go has that is most like it.
func (d *decoder) free(it item, rest []byte) (any, []byte, error) {
	switch it.kind {
	case isBytes:
		return bytes.Clone(it.data), rest, nil
	case isList:
		var list []any
		rest, err := d.list(it, rest, reflect.ValueOf(&list).Elem())
		return list, rest, err
	case isDict:
		return d.freeDict(it, rest)
	case isExt:
		found, err := d.freeExtension(it)
		return found, rest, err
	}
	return it.plain(), rest, nil
}

func (d *decoder) freeDict(it item, rest []byte) (any, []byte, error) {
	texts := true
	for b, i := rest, 0; i < it.count && texts; i++ {
		key, after, err := next(b)
		if err != nil {
			return nil, rest, err
		}
		if texts = key.kind == isText; texts {
			if b, err = wire.Skip(after); err != nil {
				return nil, rest, err
			}
		}
	}
	if texts {
		var m map[string]any
		rest, err := d.dict(it, rest, reflect.ValueOf(&m).Elem())
		return m, rest, err
	}
	var m map[any]any
	rest, err := d.dict(it, rest, reflect.ValueOf(&m).Elem())
	return m, rest, err
}

func (d *decoder) freeExtension(it item) (any, error) {
	switch it.code {
	case extDataclass:
		dict, inner, err := dataclass(it.data)
		if err != nil {
			return nil, err
		}
		found, _, err := d.freeDict(dict, inner)
		return found, err
	case extRange:
		return readRange(it.data)
	case extArray, extTensor:
		return d.array(it)
	case extBytes:
		return d.bytes(it)
	case extBatch:
		return d.batch(it)
	}
	return nil, misfitf("a %s (extension %d of the wire), which this release does not read", it.name, it.code)
}
