package column

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/spec"
)

// Of makes columns of a record, or says which of its columns has no place in a
// batch and what to do. They share the record's memory where they can, by
// references of their own.
func Of(record arrow.RecordBatch) (columns []Column, err error) {
	defer func() {
		if err != nil {
			Release(columns)
			columns = nil
		}
	}()
	rows := int(record.NumRows())
	seen := map[string]bool{}
	for i, field := range record.Schema().Fields() {
		if err := checkName(field.Name, seen); err != nil {
			return columns, err
		}
		c, err := of(field, array.NewSliceData(record.Column(i).Data(), 0, int64(rows)))
		if err != nil {
			e := *spec.AsError(err)
			e.Message = "column '" + field.Name + "' " + e.Message
			return columns, &e
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// Release gives the memory of all columns back.
func Release(columns []Column) {
	for i := range columns {
		columns[i].Release()
	}
}

func checkName(name string, seen map[string]bool) error {
	switch {
	case name == "" || strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return spec.Errorf(spec.CodeInvalid, "the name of a column is a text without NUL, not %q", name)
	case seen[name]:
		return spec.Errorf(spec.CodeInvalid, "column '%s' is there twice: a batch has a name once", name)
	}
	seen[name] = true
	return nil
}

// of makes a column of an array's data, which it takes.
func of(field arrow.Field, data arrow.ArrayData) (Column, error) {
	defer data.Release()
	storage := storageOf(data)
	defer storage.Release()
	c := Column{Name: field.Name, rows: data.Len()}
	var err error
	switch storage.DataType().ID() {
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW:
		c.Kind = Text
		err = c.packed(storage)
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW:
		if c.Kind = Bytes; said(field, MetaKind) == Object {
			c.Kind = Object
		}
		err = c.packed(storage)
	case arrow.LIST, arrow.LARGE_LIST:
		c.Kind = Ragged
		err = c.ragged(field, storage)
	default:
		c.Kind = Fixed
		err = c.fixed(field, data)
	}
	if err == nil && c.Kind != Fixed && c.Kind != Ragged {
		c.Type = said(field, MetaDType)
		c.Shape, err = saidShape(field)
	}
	if err == nil {
		err = c.measure()
	}
	if err == nil && c.Kind == Text {
		err = c.checkText()
	}
	if err != nil {
		c.Release()
		return Column{}, err
	}
	if c.Lib = said(field, MetaLib); c.Lib == "" {
		c.Lib = defaultLib(c.Kind)
	}
	return c, nil
}

// storageOf is what an extension type is over, anything else itself; to be
// released.
func storageOf(data arrow.ArrayData) arrow.ArrayData {
	e, ok := data.DataType().(arrow.ExtensionType)
	if !ok {
		data.Retain()
		return data
	}
	return array.NewData(e.StorageType(), data.Len(), data.Buffers(), data.Children(), data.NullN(), data.Offset())
}

func said(field arrow.Field, key string) string {
	text, _ := field.Metadata.GetValue(key)
	return text
}

// saidShape is the shape in a field's metadata, if there is one.
func saidShape(field arrow.Field) (shape []int, err error) {
	text := said(field, MetaShape)
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &shape); err != nil {
		return nil, spec.Errorf(spec.CodeEncoding, "says %s %q in its metadata, which is no shape", MetaShape, text)
	}
	return shape, nil
}

// missing says that some of the rows are null.
func missing(data arrow.ArrayData) bool {
	validity := data.Buffers()[0]
	return data.NullN() != 0 && validity != nil && validity.Len() > 0 &&
		bitutil.CountSetBits(validity.Bytes(), data.Offset(), data.Len()) < data.Len()
}

// flat is rows of one shape, or elements of rows, as they lie in memory.
type flat struct {
	elem  arrow.DataType
	dtype string // numpy's name of it
	shape []int
	data  *memory.Buffer // from the first element on; nil where there is none
}

// flatten finds the elements below tensors and lists of fixed size.
func flatten(data arrow.ArrayData) (f flat, err error) {
	if missing(data) {
		return f, spec.Errorf(spec.CodeEncoding, "has rows that are null, which rows of one size cannot be: fill them, or make it a column of lists or texts")
	}
	t := data.DataType()
	if e, ok := t.(arrow.ExtensionType); ok && !isBool(t) {
		storage := storageOf(data)
		defer storage.Release()
		f, err = flatten(storage)
		if err == nil && e.ExtensionName() == tensorName {
			n := int(e.StorageType().(*arrow.FixedSizeListType).Len())
			var shape []int
			if shape, err = tensorShape(e.Serialize(), n); err == nil {
				f.shape = append(shape, f.shape[1:]...)
			}
		}
		return f, err
	}
	if list, ok := t.(*arrow.FixedSizeListType); ok {
		n := int64(list.Len())
		from := int64(data.Offset())
		inner := array.NewSliceData(data.Children()[0], from*n, (from+int64(data.Len()))*n)
		defer inner.Release()
		f, err = flatten(inner)
		f.shape = append([]int{int(n)}, f.shape...)
		return f, err
	}
	return primitive(data)
}

// primitive is the elements of an array that has no children.
func primitive(data arrow.ArrayData) (flat, error) {
	switch t := data.DataType().(type) {
	case *arrow.BooleanType:
		return flat{elem: boolType, dtype: "|b1", data: unpacked(data)}, nil
	case *arrow.Date32Type:
		// Numpy counts days in 64 bits.
		return flat{elem: arrow.PrimitiveTypes.Int64, dtype: "<M8[D]", data: widened(data)}, nil
	case *arrow.Time32Type:
		as := &arrow.DurationType{Unit: t.Unit}
		return flat{elem: as, dtype: dtypeOf(as), data: widened(data)}, nil
	}
	as := data.DataType()
	switch t := as.(type) {
	case *arrow.Date64Type:
		as = &arrow.TimestampType{Unit: arrow.Millisecond}
	case *arrow.Time64Type:
		as = &arrow.DurationType{Unit: t.Unit}
	case *arrow.TimestampType: // an instant, whatever zone it is shown in
		as = &arrow.TimestampType{Unit: t.Unit}
	}
	f := flat{elem: as, dtype: dtypeOf(as)}
	if f.dtype == "" {
		return f, refused(as)
	}
	elem, err := elementOf(f.dtype)
	if err == nil {
		f.data, err = window(data, elem.width)
	}
	return f, err
}

// refused says why a type has no place in a batch, and what to do.
func refused(t arrow.DataType) error {
	hint := "pass what is in it as columns of its own"
	switch t.ID() {
	case arrow.NULL:
		hint = "leave it out, or say what it is"
	case arrow.DICTIONARY, arrow.RUN_END_ENCODED:
		hint = "decode it first"
	case arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		hint = "make it a float64, or text"
	case arrow.LIST, arrow.LARGE_LIST, arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW:
		hint = "lists hold numbers, or rows of one shape; write them as text, such as JSON"
	}
	return spec.Errorf(spec.CodeEncoding, "is a %s, which a batch cannot hold: %s", t, hint)
}

// window is the part of an array's one buffer that its elements lie in.
func window(data arrow.ArrayData, width int) (*memory.Buffer, error) {
	size := data.Len() * width
	if size == 0 {
		return nil, nil
	}
	b := data.Buffers()[1]
	from := data.Offset() * width
	if b == nil || b.Len() < from+size {
		return nil, spec.Errorf(spec.CodeInvalid, "is an array of %d elements whose buffer does not hold them", data.Len())
	}
	return memory.SliceBuffer(b, from, size), nil
}

// unpacked is bits as bytes.
func unpacked(data arrow.ArrayData) *memory.Buffer {
	out := aligned(data.Len())
	for i := range out {
		if bitutil.BitIsSet(data.Buffers()[1].Bytes(), data.Offset()+i) {
			out[i] = 1
		}
	}
	return heap(out)
}

// widened is 32-bit numbers in 64 bits each.
func widened(data arrow.ArrayData) *memory.Buffer {
	if data.Len() == 0 {
		return nil
	}
	out := aligned(8 * data.Len())
	for i, n := range arrow.Int32Traits.CastFromBytes(data.Buffers()[1].Bytes())[data.Offset() : data.Offset()+data.Len()] {
		int64s(out)[i] = int64(n)
	}
	return heap(out)
}

// heap is a buffer of memory that the collector sees to.
func heap(b []byte) *memory.Buffer {
	if len(b) == 0 {
		return nil
	}
	return memory.NewBufferBytes(b)
}
