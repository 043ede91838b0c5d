package value

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/object/objecttest"
)

func TestCuts(t *testing.T) {
	b := sampleBatch(t, 0, 8, 1, nil)
	n := array.NewUint16Builder(memory.DefaultAllocator)
	n.AppendValues([]uint16{5, 5, 7, 7, 9, 9, 0, 0}, nil)
	record := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Uint16}}, nil), []arrow.Array{n.NewArray()}, 8)
	numbers, err := NewBatch(record, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = b.Union(numbers); err != nil {
		t.Fatal(err)
	}
	cut := func(b *Batch, err error) *Batch {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	all := cut(cut(cut(b.Balanced("n")).Grouped("n")).MultipleOf(2))
	want := batch.Cut{Weights: []float64{5, 5, 7, 7, 9, 9, 0, 0}, Groups: []uint32{0, 0, 1, 1, 2, 2, 3, 3}, Multiple: 2}
	if !all.handle.Cut.Equal(&want) {
		t.Errorf("%+v", all.handle.Cut)
	}
	back, _ := passed[*Batch](t, objecttest.New(t), all)
	if !back.handle.Cut.Equal(&want) {
		t.Errorf("%+v", back.handle.Cut)
	}
	short := cut(b.Slice(0, 3).Grouped("prompt"))
	if !short.handle.Cut.Equal(&batch.Cut{Groups: []uint32{0, 1, 2}}) {
		t.Errorf("%+v", short.handle.Cut)
	}
	for want, err := range map[string]error{
		"column 'prompt', a large_utf8, is row 0 in row 0: a batch is balanced by numbers": second(b.Balanced("prompt")),
		"is (null) in row 3: a batch is grouped by text or whole numbers":                  second(b.Grouped("prompt")),
		"there is no column 'm'":           second(b.Grouped("m")),
		"multiples of 1 row or more":       second(b.MultipleOf(0)),
		"batches of 8 and of 2 rows":       second(b.Union(b.Slice(0, 2))),
		"both batches have a column 'ids'": second(b.Union(b)),
		"no batches to put together":       second(Concat()),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func second(_ *Batch, err error) error { return err }
