package column

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/spec"
)

// The kinds of columns, as they are called in an object's header.
const (
	Fixed  = "fixed"
	Ragged = "ragged"
	Text   = "text"
	Bytes  = "bytes"
	Object = "object"
)

// Column is one column of an object, or one that can be written into one. It
// refers to memory that it does not change; Release gives that back.
type Column struct {
	Name  string
	Kind  string
	Type  string // of the elements of Fixed and Ragged, as numpy or torch calls it
	Shape []int  // of a row of Fixed, of an element of a row of Ragged
	Lib   string // what it is in Python: "numpy", "torch", "list", …

	elem   element
	stride int // bytes of a row of Fixed, of an element of a row of Ragged; else 1
	rows   int
	from   int // where the rows begin in the buffers

	validity *memory.Buffer // a bit a row, nil: all are there
	offsets  *memory.Buffer // of all but Fixed: where each row begins, 64 bits each
	data     *memory.Buffer // nil where there is none
}

// Rows is the number of rows.
func (c *Column) Rows() int { return c.rows }

// Retain keeps the memory for one more Release.
func (c *Column) Retain() {
	for _, b := range c.buffers() {
		b.Retain()
	}
}

// Release gives the memory back.
func (c *Column) Release() {
	for _, b := range c.buffers() {
		b.Release()
	}
}

func (c *Column) buffers() []*memory.Buffer {
	return slices.DeleteFunc([]*memory.Buffer{c.validity, c.offsets, c.data}, func(b *memory.Buffer) bool { return b == nil })
}

// measure finds the sizes of the column's elements by its type and shape.
func (c *Column) measure() error {
	c.stride = 1
	switch c.Kind {
	case Text, Bytes, Object:
		return nil
	case Fixed, Ragged:
	default:
		return spec.Errorf(spec.CodeProtocol, "a column of the kind %q, which this release does not know", c.Kind)
	}
	elem, err := elementOf(c.Type)
	if err != nil {
		return err
	}
	c.elem = elem
	n, ok := count(c.Shape)
	if ok {
		c.stride, ok = product(n, elem.width)
	}
	if !ok || n > math.MaxInt32 {
		return spec.Errorf(spec.CodeProtocol, "rows of the shape %v, which are more than Arrow can hold", c.Shape)
	}
	return nil
}

// Slice is rows from to (not included) to. It has no references of its own.
func (c *Column) Slice(from, to int) Column {
	out := *c
	out.from, out.rows = c.from+from, to-from
	return out
}

// offset is where row i begins in data, counted in elements.
func (c *Column) offset(i int) int { return int(c.offsets64()[c.from+i]) }

func (c *Column) offsets64() []int64 { return int64s(c.offsets.Bytes()) }

func (c *Column) valid(i int) bool {
	return c.validity == nil || bitutil.BitIsSet(c.validity.Bytes(), c.from+i)
}

// complete says that no row is missing.
func (c *Column) complete() bool {
	return c.validity == nil || bitutil.CountSetBits(c.validity.Bytes(), c.from, c.rows) == c.rows
}

// bytes are those of the elements from to (not included) to.
func (c *Column) bytes(from, to int) []byte {
	if from == to || c.stride == 0 {
		return nil
	}
	return c.data.Bytes()[from*c.stride : to*c.stride]
}

// int64s are the numbers that aligned bytes hold; Arrow's buffers are little
// endian, and so is everything that this runs on.
func int64s(b []byte) []int64 {
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// aligned allocates as Arrow wants it.
func aligned(size int) []byte { return memory.NewGoAllocator().Allocate(size) }

// zeroOffsets are those of no rows.
var zeroOffsets = memory.NewBufferBytes(binary.LittleEndian.AppendUint64(aligned(8)[:0], 0))
