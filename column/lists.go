package column

import (
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/spec"
)

// fixed fills in a column of rows of one shape.
func (c *Column) fixed(field arrow.Field, data arrow.ArrayData) error {
	f, err := flatten(data)
	c.data = f.data
	if err == nil {
		err = c.typed(field, f)
	}
	return err
}

// typed says what the elements of a column are: what their Arrow type tells, or
// the field's metadata where that fits it.
func (c *Column) typed(field arrow.Field, f flat) error {
	c.Shape, c.Type = f.shape, f.dtype
	named := said(field, MetaDType)
	if elem, err := elementOf(named); err == nil {
		if arrow.TypeEqual(elem.as, f.elem) {
			c.Type = named
		}
		return c.bare(field, f, named)
	}
	return nil
}

// bare takes the shape of rows without elements from the field: Arrow has no
// type for those.
func (c *Column) bare(field arrow.Field, f flat, dtype string) error {
	shape, err := saidShape(field)
	if n, ok := count(shape); err == nil && ok && n == 0 && len(f.shape) == 0 && arrow.TypeEqual(f.elem, &arrow.FixedSizeBinaryType{}) {
		c.Type, c.Shape = dtype, shape
	}
	return err
}

// ragged fills in a column of lists.
func (c *Column) ragged(field arrow.Field, data arrow.ArrayData) error {
	if err := c.spans(data); err != nil {
		return err
	}
	child := data.Children()[0]
	first, last := int64(c.offset(0)), int64(c.offset(c.rows))
	if last > int64(child.Len()) {
		return spec.Errorf(spec.CodeInvalid, "is an array whose lists end at element %d of %d", last, child.Len())
	}
	if first > 0 { // what other rows hold is not looked at
		c.rebase()
	}
	values := array.NewSliceData(child, first, last)
	defer values.Release()
	f, err := flatten(values)
	if err != nil {
		e := *spec.AsError(err)
		e.Message = "holds lists, and what is in them " + e.Message
		return &e
	}
	c.data = f.data
	return c.typed(field, f)
}

// spans takes over validity and offsets of an array.
func (c *Column) spans(data arrow.ArrayData) error {
	offsets := data.Buffers()[1]
	switch data.DataType().ID() {
	case arrow.LARGE_LIST, arrow.LARGE_STRING, arrow.LARGE_BINARY:
		if data.Len() == 0 {
			c.offsets = zeroOffsets
			return nil
		}
		size := 8 * (data.Offset() + data.Len() + 1)
		if offsets == nil || offsets.Len() < size {
			return shortOffsets(data)
		}
		c.from, c.offsets = data.Offset(), memory.SliceBuffer(offsets, 0, size)
		if missing(data) {
			c.validity = data.Buffers()[0]
			c.validity.Retain()
		}
		return c.checkOffsets()
	}
	out := aligned(8 * (data.Len() + 1))
	if data.Len() > 0 {
		if offsets == nil || offsets.Len() < 4*(data.Offset()+data.Len()+1) {
			return shortOffsets(data)
		}
		for i, at := range arrow.Int32Traits.CastFromBytes(offsets.Bytes())[data.Offset() : data.Offset()+data.Len()+1] {
			int64s(out)[i] = int64(at)
		}
	}
	c.offsets = heap(out)
	c.bits(data)
	return c.checkOffsets()
}

// rebase has offsets and validity begin with the column's own first row.
func (c *Column) rebase() {
	validity, offsets := c.rebased()
	c.Release()
	c.from, c.validity, c.offsets = 0, heap(validity), heap(offsets)
}

func shortOffsets(data arrow.ArrayData) error {
	return spec.Errorf(spec.CodeInvalid, "is an array of %d rows whose offsets are too few", data.Len())
}

// checkOffsets refuses rows that end before they begin.
func (c *Column) checkOffsets() error {
	at := c.offsets64()[c.from : c.from+c.rows+1]
	if at[0] < 0 {
		return spec.Errorf(spec.CodeProtocol, "begins at %d", at[0])
	}
	for i := range c.rows {
		if at[i+1] < at[i] {
			return spec.Errorf(spec.CodeProtocol, "has a row %d from %d to %d", i, at[i], at[i+1])
		}
	}
	return nil
}

// bits copies which rows there are, beginning with a bit of its own.
func (c *Column) bits(data arrow.ArrayData) {
	if missing(data) {
		c.validity = heap(bitsOf(data.Buffers()[0].Bytes(), data.Offset(), data.Len()))
	}
}

func bitsOf(from []byte, at, n int) []byte {
	out := aligned((n + 7) / 8)
	bitutil.CopyBitmap(from, at, n, out, 0)
	return out
}

// packed fills in a column of texts or bytes.
func (c *Column) packed(data arrow.ArrayData) error {
	switch data.DataType().ID() {
	case arrow.STRING_VIEW, arrow.BINARY_VIEW:
		return c.views(data)
	}
	if err := c.spans(data); err != nil {
		return err
	}
	last, size := c.offset(c.rows), 0
	if b := data.Buffers()[2]; b != nil {
		size = b.Len()
	}
	if last > size {
		return spec.Errorf(spec.CodeInvalid, "is an array whose rows end at byte %d of %d", last, size)
	}
	if last > 0 {
		c.data = memory.SliceBuffer(data.Buffers()[2], 0, last)
	}
	return nil
}

// views copies rows that lie all over the place.
func (c *Column) views(data arrow.ArrayData) error {
	from := array.MakeFromData(data).(array.ViewLike)
	defer from.Release()
	offsets := aligned(8 * (data.Len() + 1))
	var all []byte
	for i := range data.Len() {
		if from.IsValid(i) {
			switch rows := from.(type) {
			case *array.StringView:
				all = append(all, rows.Value(i)...)
			case *array.BinaryView:
				all = append(all, rows.Value(i)...)
			}
		}
		int64s(offsets)[i+1] = int64(len(all))
	}
	c.offsets, c.data = heap(offsets), heap(all)
	c.bits(data)
	return nil
}

// checkText refuses what is no UTF-8: others could not read it.
func (c *Column) checkText() error {
	first, last := c.offset(0), c.offset(c.rows)
	all := c.bytes(first, last)
	good := utf8.Valid(all)
	for i := 0; i < c.rows && good; i++ { // all of it may be, and a row begin in the middle of a character
		at := c.offset(i) - first
		good = at == len(all) || utf8.RuneStart(all[at])
	}
	if good {
		return nil
	}
	for i := range c.rows {
		if row := c.bytes(c.offset(i), c.offset(i+1)); !utf8.Valid(row) {
			return spec.Errorf(spec.CodeEncoding, "has text that is not UTF-8 in row %d (%.40q): make it a column of bytes", i, row)
		}
	}
	return nil
}
