package column

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// noValidity is the buffers of an array of which no row is missing and that has
// no others.
var noValidity = []*memory.Buffer{nil}

// Record makes Arrow's record of columns of as many rows. It shares their
// memory, by references of its own.
func Record(rows int, columns []Column) arrow.RecordBatch {
	fields := make([]arrow.Field, len(columns))
	arrays := make([]arrow.Array, len(columns))
	for i := range columns {
		arrays[i] = columns[i].Array()
		fields[i] = columns[i].field(arrays[i].DataType())
	}
	record := array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, int64(rows))
	for _, a := range arrays {
		a.Release()
	}
	return record
}

// Array is the column as Arrow has it, sharing its memory.
func (c *Column) Array() arrow.Array {
	var data *array.Data
	switch c.Kind {
	case Fixed:
		data = c.elements(c.from, c.rows)
	case Ragged:
		total := 0
		if n := len(c.offsets64()); n > 0 {
			total = int(c.offsets64()[n-1])
		}
		child := c.elements(0, total)
		data = array.NewData(arrow.LargeListOf(child.DataType()), c.rows, []*memory.Buffer{c.validity, c.offsets}, []arrow.ArrayData{child}, c.nulls(), c.from)
		child.Release()
	default:
		var t arrow.DataType = arrow.BinaryTypes.LargeBinary
		if c.Kind == Text {
			t = arrow.BinaryTypes.LargeString
		}
		data = array.NewData(t, c.rows, []*memory.Buffer{c.validity, c.offsets, c.data}, nil, c.nulls(), c.from)
	}
	defer data.Release()
	return array.MakeFromData(data)
}

func (c *Column) nulls() int {
	if c.validity == nil {
		return 0
	}
	return array.UnknownNullCount
}

// elements are rows of one shape in data, each of the column's type.
func (c *Column) elements(from, rows int) *array.Data {
	t := c.elementType()
	tensor, ok := t.(*TensorType)
	if !ok {
		return array.NewData(t, rows, []*memory.Buffer{nil, c.data}, nil, 0, from)
	}
	n := int(tensor.Storage.(*arrow.FixedSizeListType).Len())
	flat := array.NewData(tensor.Elem(), (from+rows)*n, []*memory.Buffer{nil, c.data}, nil, 0, 0)
	defer flat.Release()
	return array.NewData(tensor, rows, noValidity, []arrow.ArrayData{flat}, 0, from)
}

// elementType is Arrow's type of rows of the column's shape.
func (c *Column) elementType() arrow.DataType {
	if len(c.Shape) == 0 {
		return c.elem.as
	}
	if t, err := NewTensorType(c.elem.as, c.Shape...); err == nil {
		return t
	}
	return &arrow.FixedSizeBinaryType{} // Arrow's lists cannot have no elements
}

// field describes the column: its Arrow type, and in its metadata what that does
// not tell.
func (c *Column) field(t arrow.DataType) arrow.Field {
	meta := map[string]string{}
	switch c.Kind {
	case Fixed, Ragged:
		_, tensor := c.elementType().(*TensorType)
		bare := len(c.Shape) > 0 && !tensor
		if !c.elem.exact || bare {
			meta[MetaDType] = c.Type
		}
		if bare {
			meta[MetaShape] = shapeText(c.Shape)
		}
	default:
		if c.Kind == Object {
			meta[MetaKind] = Object
		}
		if c.Type != "" {
			meta[MetaDType] = c.Type
		}
		if len(c.Shape) > 0 {
			meta[MetaShape] = shapeText(c.Shape)
		}
	}
	if c.Lib != defaultLib(c.Kind) {
		meta[MetaLib] = c.Lib
	}
	f := arrow.Field{Name: c.Name, Type: t, Nullable: c.validity != nil}
	if len(meta) > 0 {
		f.Metadata = arrow.MetadataFrom(meta)
	}
	return f
}
