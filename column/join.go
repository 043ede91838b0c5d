package column

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/muster-rl/muster/spec"
)

// Piece is some rows of a column.
type Piece struct {
	Column   *Column
	From, To int      // rows From to (not included) To, where Rows is nil
	Rows     []uint32 // else these, in this order
}

func (p *Piece) len() int {
	if p.Rows != nil {
		return len(p.Rows)
	}
	return p.To - p.From
}

// each calls with runs of rows.
func (p *Piece) each(f func(from, to int)) {
	if p.Rows == nil {
		f(p.From, p.To)
		return
	}
	for i := 0; i < len(p.Rows); {
		from := i
		for i++; i < len(p.Rows) && p.Rows[i] == p.Rows[i-1]+1; i++ {
		}
		f(int(p.Rows[from]), int(p.Rows[i-1])+1)
	}
}

func (p *Piece) check() error {
	last := p.To
	if p.Rows != nil {
		last = 0
		if len(p.Rows) > 0 {
			last = int(slices.Max(p.Rows)) + 1
		}
	}
	if last > p.Column.rows || p.Rows == nil && p.From > p.To {
		return spec.Errorf(spec.CodeProtocol, "row %d of column '%s' is asked for, which has %d", last-1, p.Column.Name, p.Column.rows)
	}
	return nil
}

// Join puts rows of columns one after another: one range shares the memory of
// its column, all else is one copy. The column that it makes has references of
// its own.
func Join(pieces []Piece) (Column, error) {
	total := 0
	first := pieces[0].Column
	for i := range pieces {
		p := &pieces[i]
		if err := p.check(); err != nil {
			return Column{}, err
		}
		total += p.len()
		c := p.Column
		if c.Kind != first.Kind || c.Type != first.Type || !slices.Equal(c.Shape, first.Shape) {
			return Column{}, spec.Errorf(spec.CodeInvalid, "column '%s' is %s in some rows and %s in others: make it the same before batches are put together", first.Name, first, c)
		}
	}
	if p := &pieces[0]; len(pieces) == 1 && p.Rows == nil {
		out := p.Column.Slice(p.From, p.To)
		out.Retain()
		return out, nil
	}
	out := *first
	out.rows, out.from, out.validity, out.offsets, out.data = total, 0, nil, nil, nil
	if first.Kind == Fixed {
		data := aligned(total * first.stride)[:0]
		for i := range pieces {
			c := pieces[i].Column
			pieces[i].each(func(from, to int) { data = append(data, c.bytes(c.from+from, c.from+to)...) })
		}
		out.data = heap(data)
		return out, nil
	}
	out.joinRows(pieces)
	return out, nil
}

// joinRows fills in rows that differ in length.
func (c *Column) joinRows(pieces []Piece) {
	size, whole := 0, true
	for i := range pieces {
		p := pieces[i].Column
		whole = whole && p.complete()
		pieces[i].each(func(from, to int) { size += p.offset(to) - p.offset(from) })
	}
	offsets, data := aligned(8*(c.rows+1)), aligned(size * c.stride)[:0]
	var validity []byte
	if !whole {
		validity = aligned((c.rows + 7) / 8)
	}
	row, at := 0, 0
	for i := range pieces {
		p := pieces[i].Column
		pieces[i].each(func(from, to int) {
			data = append(data, p.bytes(p.offset(from), p.offset(to))...)
			for j := from; j < to; j++ {
				if validity != nil && p.valid(j) {
					bitutil.SetBit(validity, row)
				}
				at += p.offset(j+1) - p.offset(j)
				row++
				int64s(offsets)[row] = int64(at)
			}
		})
	}
	c.validity, c.offsets, c.data = heap(validity), heap(offsets), heap(data)
}

// String is the type of the column for people.
func (c *Column) String() string {
	if c.Kind != Fixed && c.Kind != Ragged {
		return c.Kind
	}
	text := c.Type
	if c.Kind == Ragged {
		text += "[*]"
	}
	if len(c.Shape) > 0 {
		text += shapeText(c.Shape)
	}
	return text
}
