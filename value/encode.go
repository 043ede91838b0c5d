package value

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Append appends a value to dst that names no object in a store. Large []byte
// and the Data of arrays are not copied: they must not change until they are
// sent. After an error dst is what it was.
func Append(dst *wire.Value, v any) error {
	m := NewMessage(nil)
	m.Value = *dst
	defer m.Release()
	if err := m.Append(v); err != nil {
		return err
	}
	if wire.HasRefs(m.Bufs) {
		return spec.Errorf(spec.CodeEncoding, "a value whose bytes are in a store, which only arguments and results of calls can be")
	}
	*dst = m.Value
	return nil
}

type encoder struct {
	out     *wire.Value
	message *Message
	records records
	depth   int
}

// any encodes what is common without reflection.
func (e *encoder) any(v any) error {
	out := e.out
	switch v := v.(type) {
	case nil:
		out.Raw = msgp.AppendNil(out.Raw)
	case bool:
		out.Raw = msgp.AppendBool(out.Raw, v)
	case int:
		out.Raw = msgp.AppendInt(out.Raw, v)
	case int64:
		out.Raw = msgp.AppendInt64(out.Raw, v)
	case float64:
		out.Raw = msgp.AppendFloat64(out.Raw, v)
	case string:
		return e.text(v)
	case []byte:
		e.bytes(v)
	case []int:
		out.Array(len(v))
		for _, n := range v {
			out.Raw = msgp.AppendInt(out.Raw, n)
		}
	case []float64:
		out.Array(len(v))
		for _, f := range v {
			out.Raw = msgp.AppendFloat64(out.Raw, f)
		}
	case *Batch:
		if v == nil {
			out.Raw = msgp.AppendNil(out.Raw)
			return nil
		}
		return e.batch(v)
	case []string:
		out.Array(len(v))
		for i, s := range v {
			if err := e.text(s); err != nil {
				return inside(err, fmt.Sprintf("[%d]", i))
			}
		}
	default:
		return e.reflected(reflect.ValueOf(v))
	}
	return nil
}

func (e *encoder) text(s string) error {
	if !validText(s) {
		return misfitf("a string that is not UTF-8 (%.40q); send it as []byte", s)
	}
	if len(s) >= outOfBand {
		e.buffered(extText, nil, unsafe.Slice(unsafe.StringData(s), len(s))) // nobody writes to it
		return nil
	}
	e.out.Raw = msgp.AppendString(e.out.Raw, s)
	return nil
}

// validText takes UTF-8, and halves of surrogate pairs, which Python's text may
// have and which come through here on their way back.
func validText(s string) bool {
	if utf8.ValidString(s) {
		return true
	}
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r != utf8.RuneError || size > 1:
			i += size
		case len(s)-i >= 3 && s[i] == 0xed && s[i+1] >= 0xa0 && s[i+1] <= 0xbf && s[i+2]&0xc0 == 0x80:
			i += 3
		default:
			return false
		}
	}
	return true
}

func (e *encoder) bytes(b []byte) {
	if len(b) >= outOfBand {
		e.buffered(extBytes, nil, b)
		return
	}
	e.out.Raw = msgp.AppendBytes(e.out.Raw, b)
}

func (e *encoder) buffered(code int8, meta, data []byte) {
	e.extension(code, append(appendBuffers(nil, len(e.out.Bufs), 1), meta...))
	e.out.Bufs = append(e.out.Bufs, wire.Buf{Data: data})
}

// appendBuffers appends which buffers are an extension's.
func appendBuffers(dst []byte, first, n int) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(first)) //nolint:gosec // CheckSize bounds it
	return binary.LittleEndian.AppendUint32(dst, uint32(n))    //nolint:gosec // CheckSize bounds it
}

// raw passes a value on as it came.
func (e *encoder) raw(r Raw) error {
	if len(r.value.Raw) == 0 {
		e.out.Raw = msgp.AppendNil(e.out.Raw)
		return nil
	}
	bufs := r.value.Bufs
	if wire.HasRefs(bufs) {
		bufs = slices.Clone(bufs)
		for i := range bufs {
			var err error
			if bufs[i], err = e.message.pass(bufs[i], r.held); err != nil {
				return err
			}
		}
	}
	return e.out.Append(r.value.Raw, bufs)
}

func (e *encoder) extension(code int8, body []byte) {
	e.out.Raw = append(appendExtHead(e.out.Raw, code, len(body)), body...)
}

// wrapped encodes what encode appends as the inside of an extension.
func (e *encoder) wrapped(code int8, encode func() error) error {
	start := len(e.out.Raw)
	if err := encode(); err != nil {
		return err
	}
	var room [6]byte
	head := appendExtHead(room[:0], code, len(e.out.Raw)-start)
	e.out.Raw = slices.Insert(e.out.Raw, start, head...)
	return nil
}

func appendExtHead(dst []byte, code int8, size int) []byte {
	switch {
	case size == 1, size == 2, size == 4, size == 8, size == 16:
		dst = append(dst, 0xd4+byte(bits.TrailingZeros(uint(size))))
	case size <= math.MaxUint8:
		dst = append(dst, 0xc7, byte(size))
	case size <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xc8), uint16(size))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xc9), uint32(size)) //nolint:gosec // CheckSize bounds it
	}
	return append(dst, byte(code))
}

// reflected encodes any value by its kind.
func (e *encoder) reflected(v reflect.Value) error {
	if e.depth++; e.depth > wire.MaxDepth-16 {
		return misfitf("it is nested more than %d deep, or within itself", wire.MaxDepth-16)
	}
	defer func() { e.depth-- }()
	switch v.Type() {
	case typeRaw:
		return e.raw(v.Interface().(Raw))
	case typeArray:
		return e.array(v.Interface().(Array))
	case typeRange:
		r := v.Interface().(Range)
		body := msgp.AppendArrayHeader(nil, 3)
		body = msgp.AppendInt64(msgp.AppendInt64(msgp.AppendInt64(body, r.Start), r.Stop), r.Step)
		e.extension(extRange, body)
		return nil
	case typeBig:
		n := v.Interface().(big.Int)
		e.bigInt(&n)
		return nil
	}
	if done, err := e.marked(v); done {
		return err
	}
	return e.kind(v)
}

// marked encodes types that say themselves how they are written, and refuses
// marks, which are arguments and not parts of one.
func (e *encoder) marked(v reflect.Value) (done bool, err error) {
	if v.Kind() == reflect.Pointer && (v.IsNil() || v.Type().Elem() == typeBig) {
		return false, nil
	}
	if !v.CanInterface() {
		return false, nil
	}
	switch m := v.Interface().(type) {
	case *Batch:
		return true, e.batch(m)
	case Mark, Kwargs:
		return true, misfitf("a %T inside a value: it has to be an argument of the call itself", m)
	case encoding.TextMarshaler:
		text, err := m.MarshalText()
		if err != nil {
			return true, misfitf("a %T, whose MarshalText says: %v", m, err)
		}
		return true, e.text(string(text))
	case error:
		return true, e.text(m.Error())
	}
	return false, nil
}

func (e *encoder) kind(v reflect.Value) error {
	out := e.out
	switch v.Kind() {
	case reflect.Bool:
		out.Raw = msgp.AppendBool(out.Raw, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		out.Raw = msgp.AppendInt64(out.Raw, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		out.Raw = msgp.AppendUint64(out.Raw, v.Uint())
	case reflect.Float32, reflect.Float64:
		out.Raw = msgp.AppendFloat64(out.Raw, v.Float())
	case reflect.Complex64, reflect.Complex128:
		c := v.Complex()
		body := binary.LittleEndian.AppendUint64(nil, math.Float64bits(real(c)))
		e.extension(extComplex, binary.LittleEndian.AppendUint64(body, math.Float64bits(imag(c))))
	case reflect.String:
		return e.text(v.String())
	case reflect.Slice, reflect.Array:
		return e.list(v)
	case reflect.Map:
		return e.dict(v)
	case reflect.Struct:
		return e.object(v)
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			out.Raw = msgp.AppendNil(out.Raw)
			return nil
		}
		return e.reflected(v.Elem())
	default:
		return misfitf("a %s, which only means something in this process", v.Type())
	}
	return nil
}

func (e *encoder) list(v reflect.Value) error {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		if v.Kind() == reflect.Slice {
			e.bytes(v.Bytes())
			return nil
		}
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		e.bytes(b)
		return nil
	}
	e.out.Array(v.Len())
	for i := range v.Len() {
		if err := e.reflected(v.Index(i)); err != nil {
			return inside(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}

// dict writes keys that are text in order, so that equal maps are equal bytes.
func (e *encoder) dict(v reflect.Value) error {
	keys := v.MapKeys()
	if v.Type().Key().Kind() == reflect.String {
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	}
	e.out.Raw = msgp.AppendMapHeader(e.out.Raw, uint32(len(keys))) //nolint:gosec // CheckSize bounds it
	for _, key := range keys {
		err := e.reflected(key)
		if err == nil {
			err = e.reflected(v.MapIndex(key))
		}
		if err != nil {
			return inside(err, fmt.Sprintf("[%.40q]", fmt.Sprint(key)))
		}
	}
	return nil
}

func (e *encoder) object(v reflect.Value) error {
	r := e.records.of(v.Type())
	if r.opaque {
		return misfitf("a %s, which has no exported fields; give it MarshalText, or send what is in it", v.Type())
	}
	count := 0
	for i := range r.fields {
		if f := &r.fields[i]; !f.omit || !v.FieldByIndex(f.index).IsZero() {
			count++
		}
	}
	e.out.Raw = msgp.AppendMapHeader(e.out.Raw, uint32(count)) //nolint:gosec // fields of a struct
	for i := range r.fields {
		f := &r.fields[i]
		part := v.FieldByIndex(f.index)
		if f.omit && part.IsZero() {
			continue
		}
		e.out.Raw = msgp.AppendString(e.out.Raw, f.name)
		if err := e.reflected(part); err != nil {
			return inside(err, "."+f.name)
		}
	}
	return nil
}

func (e *encoder) bigInt(n *big.Int) {
	switch {
	case n.IsInt64():
		e.out.Raw = msgp.AppendInt64(e.out.Raw, n.Int64())
		return
	case n.IsUint64():
		e.out.Raw = msgp.AppendUint64(e.out.Raw, n.Uint64())
		return
	}
	// Two's complement of a negative number is the bits of -n-1, turned over.
	magnitude := n
	if n.Sign() < 0 {
		magnitude = new(big.Int).Not(n)
	}
	body := magnitude.FillBytes(make([]byte, magnitude.BitLen()/8+1))
	slices.Reverse(body)
	if n.Sign() < 0 {
		for i := range body {
			body[i] = ^body[i]
		}
	}
	e.extension(extBigInt, body)
}

func (e *encoder) array(a Array) error {
	if a.DType == "" {
		return misfitf("an array without a DType")
	}
	code, size := int8(extArray), uint32(3)
	if a.Tensor {
		code, size = extTensor, 2
	}
	meta := msgp.AppendArrayHeader(nil, size)
	meta = msgp.AppendString(meta, a.DType)
	meta = msgp.AppendArrayHeader(meta, uint32(len(a.Shape))) //nolint:gosec // dimensions
	for _, n := range a.Shape {
		meta = msgp.AppendInt(meta, n)
	}
	if !a.Tensor {
		order := "C"
		if a.Fortran {
			order = "F"
		}
		meta = msgp.AppendString(meta, order)
	}
	e.buffered(code, meta, a.Data)
	return nil
}

// misfit is an error with the place inside a value that it is about.
type misfit struct{ path, text string }

func (m *misfit) Error() string { return m.path + " " + m.text }

func misfitf(format string, args ...any) error { return &misfit{text: fmt.Sprintf(format, args...)} }

// inside says that an error is about that part of a value.
func inside(err error, part string) error {
	if m, ok := err.(*misfit); ok { //nolint:errorlint // never wrapped
		m.path = part + m.path
	}
	return err
}

// explain makes an error for people of a misfit.
func explain(err error, what string) error {
	m, ok := err.(*misfit) //nolint:errorlint // never wrapped
	if !ok {
		return err
	}
	if m.path == "" {
		return spec.Errorf(spec.CodeEncoding, "a value %s: %s", what, m.text)
	}
	return spec.Errorf(spec.CodeEncoding, "a value %s: at %s: %s", what, m.path, m.text)
}
