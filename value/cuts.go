package value

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/spec"
)

// Balanced is a batch that is cut so that the column, of numbers from 0 on,
// adds up to about the same for every rank.
func (b *Batch) Balanced(name string) (*Batch, error) {
	weights := make([]float64, b.Rows())
	err := b.reading(name, func(a arrow.Array) error {
		for row := range weights {
			w, ok := asFloat(a, row)
			if !ok || math.IsNaN(w) || math.IsInf(w, 0) || w < 0 {
				return spec.Errorf(spec.CodeInvalid, "column '%s', a %s, is %s in row %d: a batch is balanced by numbers from 0 on", name, a.DataType(), a.ValueStr(row), row)
			}
			weights[row] = w
		}
		return nil
	})
	return b.cutBy(err, func(c *batch.Cut) { c.Weights = weights })
}

// Grouped is a batch that is cut so that rows with the same value in the column,
// of text or whole numbers, go to the same rank.
func (b *Batch) Grouped(name string) (*Batch, error) {
	groups := make([]uint32, b.Rows())
	err := b.reading(name, func(a arrow.Array) error {
		known := map[any]uint32{}
		for row := range groups {
			var key any
			switch a := a.(type) {
			case *array.LargeString:
				key = a.Value(row)
			case *array.Float16, *array.Float32, *array.Float64:
			default:
				if w, ok := asFloat(a, row); ok && w == math.Trunc(w) {
					key = a.ValueStr(row)
				}
			}
			if key == nil || a.IsNull(row) {
				return spec.Errorf(spec.CodeInvalid, "column '%s', a %s, is %s in row %d: a batch is grouped by text or whole numbers", name, a.DataType(), a.ValueStr(row), row)
			}
			group, has := known[key]
			if !has {
				group = uint32(len(known))
				known[key] = group
			}
			groups[row] = group
		}
		return nil
	})
	return b.cutBy(err, func(c *batch.Cut) { c.Groups = groups })
}

// MultipleOf is a batch that is cut into shares of a multiple of n rows, but for
// the last.
func (b *Batch) MultipleOf(n int) (*Batch, error) {
	var err error
	if n < 1 || n > batch.MaxRows {
		err = spec.Errorf(spec.CodeInvalid, "a batch is cut into multiples of 1 row or more, not of %d", n)
	}
	return b.cutBy(err, func(c *batch.Cut) { c.Multiple = n })
}

// cutBy is the batch with another wish about how it is cut.
func (b *Batch) cutBy(err error, set func(*batch.Cut)) (*Batch, error) {
	if err != nil {
		return nil, err
	}
	var cut batch.Cut
	if b.handle.Cut != nil {
		cut = *b.handle.Cut
	}
	set(&cut)
	h := b.handle
	h.Cut = &cut
	return b.remade(h), nil
}

// reading has look see one column.
func (b *Batch) reading(name string, look func(arrow.Array) error) error {
	a, err := b.Column(name)
	if err != nil {
		return err
	}
	defer a.Release()
	return look(a)
}

// asFloat is the number in a row.
func asFloat(a arrow.Array, row int) (float64, bool) {
	switch a := a.(type) {
	case *array.Int8:
		return float64(a.Value(row)), true
	case *array.Int16:
		return float64(a.Value(row)), true
	case *array.Int32:
		return float64(a.Value(row)), true
	case *array.Int64:
		return float64(a.Value(row)), true
	case *array.Uint8:
		return float64(a.Value(row)), true
	case *array.Uint16:
		return float64(a.Value(row)), true
	case *array.Uint32:
		return float64(a.Value(row)), true
	case *array.Uint64:
		return float64(a.Value(row)), true
	case *array.Float16:
		return float64(a.Value(row).Float32()), true
	case *array.Float32:
		return float64(a.Value(row)), true
	case *array.Float64:
		return a.Value(row), true
	case *column.BoolArray:
		if a.Value(row) {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}
