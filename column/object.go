package column

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

// Alignment of the buffers of an object.
const Alignment = 64

const magic = "MBT1"

func alignedSize(size int) int { return (size + Alignment - 1) &^ (Alignment - 1) }

// Content is an object in the making.
type Content struct {
	// Parts are its bytes: each begins at the next multiple of Alignment.
	Parts [][]byte
	Size  int
}

// Layout lays columns of as many rows out as the content of an object. It
// refers to their memory.
func Layout(rows int, columns []Column) Content {
	buffers := make([][][]byte, len(columns))
	for i := range columns {
		buffers[i] = columns[i].written()
	}
	// Where buffers begin depends on how long the header is, and that on where
	// they begin.
	header, start := []byte(nil), 0
	for needed := Alignment; needed > start; needed = alignedSize(8 + len(header)) {
		start = needed
		header = appendHeader(header[:0], rows, columns, buffers, start)
	}
	front := append(make([]byte, 0, start), magic...)
	front = binary.LittleEndian.AppendUint32(front, uint32(len(header)))
	front = append(front, header...)
	c := Content{Parts: [][]byte{front[:start]}, Size: start}
	for _, its := range buffers {
		for _, b := range its {
			if len(b) > 0 {
				c.Parts = append(c.Parts, b)
				c.Size = alignedSize(c.Size) + len(b)
			}
		}
	}
	return c
}

// Bytes writes the content into one piece of memory.
func (c *Content) Bytes() []byte {
	out := aligned(c.Size)
	at := 0
	for _, part := range c.Parts {
		at = alignedSize(at)
		at += copy(out[at:], part)
	}
	return out
}

func appendHeader(dst []byte, rows int, columns []Column, buffers [][][]byte, start int) []byte {
	dst = msgp.AppendArrayHeader(dst, 2)
	dst = msgp.AppendUint64(dst, uint64(rows))
	dst = msgp.AppendArrayHeader(dst, uint32(len(columns)))
	at := start
	for i := range columns {
		c := &columns[i]
		dst = msgp.AppendArrayHeader(dst, 6)
		dst = msgp.AppendString(dst, c.Name)
		dst = msgp.AppendString(dst, c.Kind)
		dst = msgp.AppendString(dst, c.Type)
		dst = msgp.AppendArrayHeader(dst, uint32(len(c.Shape)))
		for _, n := range c.Shape {
			dst = msgp.AppendUint64(dst, uint64(n))
		}
		dst = msgp.AppendString(dst, c.Lib)
		dst = msgp.AppendArrayHeader(dst, uint32(len(buffers[i])))
		for _, b := range buffers[i] {
			dst = msgp.AppendArrayHeader(dst, 2)
			if len(b) == 0 {
				dst = msgp.AppendUint64(msgp.AppendUint64(dst, 0), 0)
				continue
			}
			dst = msgp.AppendUint64(msgp.AppendUint64(dst, uint64(at)), uint64(len(b)))
			at = alignedSize(at + len(b))
		}
	}
	return dst
}

// written are the buffers of the column's rows as they lie in an object.
func (c *Column) written() [][]byte {
	if c.Kind == Fixed {
		return [][]byte{c.bytes(c.from, c.from+c.rows)}
	}
	validity, offsets := c.rebased()
	return [][]byte{validity, offsets, c.bytes(c.offset(0), c.offset(c.rows))}
}

// rebased are validity, if a row is missing, and offsets of the column's own
// rows, the first of which begins at 0.
func (c *Column) rebased() (validity, offsets []byte) {
	if !c.complete() {
		validity = bitsOf(c.validity.Bytes(), c.from, c.rows)
	}
	offsets = c.offsets.Bytes()[8*c.from : 8*(c.from+c.rows+1)]
	if first := int64(c.offset(0)); first != 0 {
		moved := aligned(len(offsets))
		for i, at := range int64s(offsets) {
			int64s(moved)[i] = at - first
		}
		offsets = moved
	}
	return validity, offsets
}

// Read reads the columns of an object, whose bytes are content and begin at a
// multiple of 8. They share its memory, by references of their own. Whatever the
// bytes are, arrays made of what it returns stay within them.
func Read(content *memory.Buffer) (rows int, columns []Column, err error) {
	defer func() {
		if err != nil {
			Release(columns)
			rows, columns = 0, nil
		}
	}()
	all := content.Bytes()
	if len(all) < 8 || string(all[:4]) != magic {
		return 0, nil, malformed("it does not begin with %q", magic)
	}
	length := int(binary.LittleEndian.Uint32(all[4:]))
	if length > len(all)-8 {
		return 0, nil, malformed("a header of %d bytes in %d", length, len(all))
	}
	r := reader{rest: all[8 : 8+length]}
	r.array("the header", 2)
	rows = r.number("the rows", batch.MaxRows)
	seen := map[string]bool{}
	for range r.list("the columns") {
		c, spans := r.column()
		if r.err != nil {
			return 0, columns, r.err
		}
		c.rows = rows
		if seen[c.Name] {
			return 0, columns, malformed("column '%s' is there twice", c.Name)
		}
		seen[c.Name] = true
		if err := c.place(content, spans); err != nil {
			c.Release()
			return 0, columns, malformed("column '%s': %s", c.Name, spec.AsError(err).Message)
		}
		columns = append(columns, c)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.err = malformed("%d bytes follow its header", len(r.rest))
	}
	return rows, columns, r.err
}

func malformed(format string, args ...any) error {
	return spec.Errorf(spec.CodeProtocol, "an object that is no batch: %s", fmt.Sprintf(format, args...))
}

// span is a stretch of an object's bytes.
type span struct{ offset, length int }

// place makes the column refer to its buffers, after it has checked them.
func (c *Column) place(content *memory.Buffer, spans []span) error {
	if err := c.measure(); err != nil {
		return err
	}
	want := 3
	if c.Kind == Fixed {
		want = 1
	}
	if len(spans) != want {
		return fmt.Errorf("%d buffers instead of %d", len(spans), want)
	}
	size := content.Len()
	for _, s := range spans {
		if s.offset > size || s.length > size-s.offset {
			return fmt.Errorf("bytes %d to %d of %d", s.offset, s.offset+s.length, size)
		}
		if s.length > 0 && s.offset%8 != 0 {
			return fmt.Errorf("a buffer at %d, which is no multiple of %d", s.offset, Alignment)
		}
	}
	cut := func(s span) *memory.Buffer {
		if s.length == 0 {
			return nil
		}
		return memory.SliceBuffer(content, s.offset, s.length)
	}
	if c.Kind == Fixed {
		if want, ok := product(c.rows, c.stride); !ok || want != spans[0].length {
			return fmt.Errorf("%d bytes for %d rows of %d", spans[0].length, c.rows, c.stride)
		}
		c.data = cut(spans[0])
		return nil
	}
	if n := spans[0].length; n > 0 && n < (c.rows+7)/8 {
		return fmt.Errorf("%d bytes say which of %d rows there are", n, c.rows)
	}
	if n := spans[1].length; n != 8*(c.rows+1) && (c.rows > 0 || n > 0) {
		return fmt.Errorf("%d bytes of offsets for %d rows", n, c.rows)
	}
	c.validity, c.offsets, c.data = cut(spans[0]), cut(spans[1]), cut(spans[2])
	if c.offsets == nil {
		c.offsets = zeroOffsets
	}
	if err := c.checkOffsets(); err != nil {
		return err
	}
	if end, ok := product(c.offset(c.rows), c.stride); !ok || end > spans[2].length {
		return fmt.Errorf("rows end at element %d of %d bytes", c.offset(c.rows), spans[2].length)
	}
	return nil
}
