package value

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/object/objecttest"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// checked is an allocator that fails the test where something stays allocated.
func checked(t testing.TB) memory.Allocator {
	m := memory.NewCheckedAllocator(memory.NewGoAllocator())
	t.Cleanup(func() { m.AssertSize(t, 0) })
	return m
}

// sample makes a record of rows from first on, whose ids are wide numbers each;
// every value tells its row.
func sample(mem memory.Allocator, first, rows, wide int) arrow.RecordBatch {
	ids := array.NewInt64Builder(mem)
	lists := array.NewLargeListBuilder(mem, arrow.PrimitiveTypes.Float32)
	texts := array.NewStringBuilder(mem)
	data := array.NewBinaryBuilder(mem, arrow.BinaryTypes.Binary)
	for row := first; row < first+rows; row++ {
		for i := range wide {
			ids.Append(int64(1000*row + i))
		}
		lists.Append(true)
		for i := range row % 5 {
			lists.ValueBuilder().(*array.Float32Builder).Append(float32(row) + float32(i)/8)
		}
		if row%7 == 3 {
			texts.AppendNull()
		} else {
			texts.Append(fmt.Sprint("row ", row))
		}
		data.Append([]byte(strings.Repeat("x", row%4)))
	}
	flat := ids.NewArray()
	tensor, err := column.NewTensor(flat, wide)
	if err != nil {
		panic(err)
	}
	columns := []arrow.Array{tensor, lists.NewArray(), texts.NewArray(), data.NewArray()}
	names := []string{"ids", "reply", "prompt", "image"}
	var fields []arrow.Field
	for i, c := range columns {
		fields = append(fields, arrow.Field{Name: names[i], Type: c.DataType(), Nullable: true})
	}
	record := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(rows))
	for _, c := range append(columns, flat) {
		c.Release()
	}
	for _, b := range []array.Builder{ids, lists, texts, data} {
		b.Release()
	}
	return record
}

func sampleBatch(t testing.TB, first, rows, wide int, meta map[string]any) *Batch {
	t.Helper()
	record := sample(memory.DefaultAllocator, first, rows, wide)
	defer record.Release()
	b, err := NewBatch(record, meta)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sampleContent is an object of 20 rows.
func sampleContent() []byte {
	columns, err := column.Of(sample(memory.DefaultAllocator, 0, 20, 1))
	if err != nil {
		panic(err)
	}
	content := column.Layout(20, columns)
	return content.Bytes()
}

// rowTexts is a batch's rows for comparing.
func rowTexts(t testing.TB, b *Batch) []string {
	t.Helper()
	record, err := b.Record()
	if err != nil {
		t.Fatal(err)
	}
	defer record.Release()
	if int(record.NumRows()) != b.Rows() {
		t.Fatalf("a record of %d rows of a %s", record.NumRows(), b)
	}
	rows := make([]string, b.Rows())
	for i := range rows {
		for c := range int(record.NumCols()) {
			rows[i] += record.ColumnName(c) + " " + record.Column(c).ValueStr(i) + "; "
		}
	}
	return rows
}

// passed sends a value to a head and reads it as it comes back.
func passed[T any](t testing.TB, r *objecttest.Rig, v any) (T, *Message) {
	t.Helper()
	m := NewMessage(r.Link)
	if err := m.Append(v); err != nil {
		t.Fatal(err)
	}
	if err := m.Settle("a test"); err != nil {
		t.Fatal(err)
	}
	m.Send(func() { r.Conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, m.Raw, m.Bufs) })
	r.Until("the head has it", func() bool { return !wire.HasRefs(m.Bufs) || r.Counts() > 0 })
	bufs := slices.Clone(m.Bufs)
	for i := range bufs {
		if ref, ok := bufs[i].Ref(); ok {
			ref.New = false // a head passes on what is not
			bufs[i] = ref.Buf()
		}
	}
	raw := RawOf(slices.Clone(m.Raw), bufs, r.Arrive(bufs...))
	defer raw.Release()
	var out T
	if err := raw.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out, m
}

func TestBatchesComeBack(t *testing.T) {
	r := objecttest.New(t)
	for _, wide := range []int{1, 300} { // in the frame, in the store
		meta := map[string]any{"step": int64(3), "big": ArrayOf(make([]float32, 1<<17))}
		b := sampleBatch(t, 0, 100, wide, meta)
		want := rowTexts(t, b)
		back, m := passed[*Batch](t, r, b)
		if stored := wire.HasRefs(m.Bufs[:1]); stored != (wide > 1) {
			t.Errorf("of %d numbers a row: in the store is %v", wide, stored)
		}
		if !reflect.DeepEqual(back.Columns(), []string{"ids", "reply", "prompt", "image"}) || back.Rows() != 100 {
			t.Error(back)
		}
		if got := rowTexts(t, back); !slices.Equal(got, want) {
			t.Errorf("%q\ncame back as\n%q", want[:3], got[:3])
		}
		if got := rowTexts(t, b); !slices.Equal(got, want) {
			t.Error("what was sent reads otherwise now")
		}
		if got, err := back.Meta(); err != nil || !reflect.DeepEqual(got, meta) {
			t.Error(got, err)
		}
		m.Release()
		b.Release()
		if got := rowTexts(t, back); !slices.Equal(got, want) {
			t.Error("it hangs on what it was sent from")
		}
		again, m := passed[map[string][]*Batch](t, r, map[string]any{"both": []any{back, back.Slice(3, 5)}})
		if got := again["both"]; !slices.Equal(rowTexts(t, got[0]), want) || !slices.Equal(rowTexts(t, got[1]), want[3:5]) {
			t.Error("passed on, it is another")
		}
		m.ReleaseBatches()
		m.Release()
		for _, one := range again["both"] {
			one.Release()
		}
		back.Release()
		r.Empty()
	}
}

// What is made of batches has the rows that it should, wherever they lie.
func TestBatchesAgainstRows(t *testing.T) {
	r := objecttest.New(t)
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		b := sampleBatch(t, 0, 1+rnd.IntN(40), 1+rnd.IntN(2)*400, nil)
		rows := rowTexts(t, b)
		for range 8 {
			var next *Batch
			from := rnd.IntN(len(rows) + 1)
			to := from + rnd.IntN(len(rows)+1-from)
			switch rnd.IntN(5) {
			case 0:
				next, rows = b.Slice(from, to), rows[from:to]
			case 1:
				var picked []int
				var want []string
				for range min(len(rows), rnd.IntN(12)) {
					picked = append(picked, rnd.IntN(len(rows)))
					want = append(want, rows[picked[len(picked)-1]])
				}
				next, rows = b.Take(picked...), want
			case 2:
				more := sampleBatch(t, 100*rnd.IntN(5), rnd.IntN(30), 1, nil)
				if wide := b.handle; wide.Rows > 0 && len(rows[0]) > 200 || rnd.IntN(2) == 0 {
					more.Release()
					more = b.Slice(from, to)
				}
				joined, err := Concat(b, more)
				if err != nil {
					t.Fatal(err)
				}
				record, err := joined.Record()
				if err != nil { // rows of another shape
					if !strings.Contains(err.Error(), "column 'ids' is <i8") {
						t.Fatal(err)
					}
					joined.Release()
					more.Release()
					continue
				}
				record.Release()
				next, rows = joined, append(slices.Clone(rows), rowTexts(t, more)...)
				more.Release()
			case 3:
				left, err := b.Select("prompt", "ids")
				if err != nil {
					t.Fatal(err)
				}
				right, err := b.Select("image", "reply")
				if err != nil {
					t.Fatal(err)
				}
				side, err := left.Union(right)
				if err != nil {
					t.Fatal(err)
				}
				if next, err = side.Select("ids", "reply", "prompt", "image"); err != nil {
					t.Fatal(err)
				}
				left.Release()
				right.Release()
				side.Release()
			default:
				var m *Message
				next, m = passed[*Batch](t, r, b)
				m.Release()
			}
			b.Release()
			b = next
			if got := rowTexts(t, b); !slices.Equal(got, rows) {
				t.Fatalf("seed %d: %q\ninstead of\n%q", seed, got, rows)
			}
		}
		b.Release()
	}
	r.Empty()
}

func TestSentBatchesAreWrittenOnceAndNotMore(t *testing.T) {
	r := objecttest.New(t)
	b := sampleBatch(t, 0, 1000, 100, nil)
	half, few := b.Slice(0, 600), b.Slice(900, 910)
	narrow, err := b.Select("prompt", "reply")
	if err != nil {
		t.Fatal(err)
	}
	held := []*Batch{b, half, few, narrow}
	for _, test := range []struct {
		b       *Batch
		objects int
		rides   bool
	}{
		{few, 0, true}, {narrow, 0, true}, {half, 1, false}, {b, 1, false}, {few, 1, false}, {narrow, 1, false},
	} {
		back, m := passed[*Batch](t, r, test.b)
		if got := !wire.HasRefs(m.Bufs); got != test.rides || r.Objects() != test.objects || len(m.Bufs) != 1 {
			t.Errorf("%s: rides is %v, there are %d objects", test.b, got, r.Objects())
		}
		if !slices.Equal(rowTexts(t, back), rowTexts(t, test.b)) {
			t.Errorf("%s: other rows", test.b)
		}
		m.Release()
		held = append(held, back)
	}
	var small []*Batch
	for i := range 40 {
		small = append(small, sampleBatch(t, i, 2, 1, nil))
	}
	all, err := Concat(small...)
	if err != nil {
		t.Fatal(err)
	}
	back, m := passed[*Batch](t, r, all)
	if len(m.Bufs) != 1 || !slices.Equal(rowTexts(t, back), rowTexts(t, all)) {
		t.Errorf("%d buffers", len(m.Bufs))
	}
	m.Release()
	for _, b := range append(append(held, small...), all, back) {
		b.Release()
	}
	r.Empty()
}

func TestLargeBuffersGoThroughTheStore(t *testing.T) {
	r := objecttest.New(t)
	type both struct {
		Text  []byte
		Array Array
		Small []byte
		Again []float64
		Words []string
	}
	in := both{
		slices.Repeat([]byte("ab"), outOfBand), ArrayOf(make([]int32, outOfBand), 2, outOfBand/2), []byte("s"), make([]float64, 3),
		[]string{strings.Repeat("é", outOfBand), "s"},
	}
	in.Array.Data[77] = 5
	out, m := passed[both](t, r, in)
	if !reflect.DeepEqual(in, out) || r.Objects() != 1 || len(m.Bufs) != 3 || len(m.Raw) > 1<<10 {
		t.Errorf("%d objects, %d buffers", r.Objects(), len(m.Bufs))
	}
	raw, m2 := passed[Raw](t, r, in)
	m.Release()
	m2.Release()
	if r.Objects() == 0 {
		t.Error("what a Raw names is gone")
	}
	out, m = passed[both](t, r, raw)
	if !reflect.DeepEqual(in, out) {
		t.Error("passed on unread it is another")
	}
	m.Release()
	raw.Release()
	r.Empty()
	if err := raw.Decode(&out); !errors.Is(err, &spec.Error{Code: spec.CodeInternal}) {
		t.Error(err)
	}
}

// What lies with one head goes to another by its bytes.
func TestFromOneHeadToAnother(t *testing.T) {
	near := objecttest.New(t)
	far := objecttest.New(t, near)
	b := sampleBatch(t, 0, 300, 100, nil)
	want := rowTexts(t, b)
	here, m := passed[*Batch](t, near, b)
	m.Release()
	there, m := passed[*Batch](t, far, here)
	m.Release()
	raw, m := passed[Raw](t, near, []any{b, make([]byte, outOfBand)})
	m.Release()
	list, m := passed[[]any](t, far, raw)
	m.Release()
	again := list[0].(*Batch)
	b.Release()
	here.Release()
	raw.Release()
	near.Empty()
	if !slices.Equal(rowTexts(t, there), want) || !slices.Equal(rowTexts(t, again), want) || len(list[1].([]byte)) != outOfBand {
		t.Error("other rows")
	}
	there.Release()
	again.Release()
	far.Empty()
}

func TestReleasedBatchesSaySo(t *testing.T) {
	r := objecttest.New(t)
	b := sampleBatch(t, 0, 10, 2000, map[string]any{"a": 1})
	kept := b.Clone()
	record, err := b.Record()
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	b.Release()
	fails := func(err error) {
		t.Helper()
		if !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) || !strings.Contains(err.Error(), "a batch of 10 rows: ids, reply, prompt, image that was released") {
			t.Error(err)
		}
	}
	_, err = b.Record()
	fails(err)
	_, err = b.Meta()
	fails(err)
	fails(NewMessage(r.Link).Append(b))
	_, err = Concat(kept, b)
	fails(err)
	_, err = b.Slice(0, 10).Record()
	fails(err)
	if got := record.Column(2).ValueStr(2); got != "row 2" {
		t.Error(got)
	}
	record.Release()
	back, m := passed[*Batch](t, r, kept)
	record, err = back.Record()
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	kept.Release()
	back.Release()
	r.Until("the handles are gone", func() bool { return r.Counts() == 0 })
	if got := record.Column(2).ValueStr(9); got != "row 9" || r.Objects() != 1 {
		t.Error("the record has lost its bytes", got)
	}
	record.Release()
	r.Empty()
}

func TestForgottenBatchesAreCollected(t *testing.T) {
	r := objecttest.New(t)
	for range 5 {
		back, _ := passed[*Batch](t, r, sampleBatch(t, 0, 10, 2000, nil))
		if _, err := back.Slice(2, 7).Record(); err != nil {
			t.Fatal(err)
		}
	}
	r.Collected()
}

// What is read in a method's arguments goes with them, what it returns when it
// is sent.
func TestIncoming(t *testing.T) {
	r := objecttest.New(t)
	b := sampleBatch(t, 0, 10, 2000, nil)
	m := NewMessage(r.Link)
	if err := m.Append([]any{b, "x"}); err != nil {
		t.Fatal(err)
	}
	m.Send(func() { r.Conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, m.Raw, m.Bufs) })
	in := NewIncoming(r.Arrive(m.Bufs...))
	var args []any
	if err := in.DecodeInto(m.Raw, m.Bufs, reflect.ValueOf(&args).Elem()); err != nil {
		t.Fatal(err)
	}
	got := args[0].(*Batch)
	kept := got.Slice(0, 2)
	m.ReleaseBatches()
	m.Release()
	in.Release()
	for _, gone := range []*Batch{b, got} {
		if _, err := gone.Record(); err == nil {
			t.Error("it is still there")
		}
	}
	if rows := rowTexts(t, kept); len(rows) != 2 {
		t.Error(rows)
	}
	kept.Release()
	r.Empty()
}

func TestBatchesConcurrently(t *testing.T) {
	r := objecttest.New(t)
	b := sampleBatch(t, 0, 50, 500, map[string]any{"a": "b"})
	want := rowTexts(t, b)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 4 {
				back, m := passed[*Batch](t, r, b.Slice(5, 50))
				if got := rowTexts(t, back); !slices.Equal(got, want[5:]) {
					t.Error("other rows")
				}
				if meta, err := back.Meta(); err != nil || meta["a"] != "b" {
					t.Error(meta, err)
				}
				m.ReleaseBatches()
				m.Release()
				back.Release()
			}
		})
	}
	all.Wait()
	b.Release()
	r.Empty()
}

func TestBatchRefusals(t *testing.T) {
	b := sampleBatch(t, 0, 2, 1, nil)
	var out wire.Value
	if err := Append(&out, b); err != nil || len(out.Bufs) != 1 { // small, so it rides
		t.Fatal(err)
	}
	for want, into := range map[string]any{
		"a Batch cannot be read into a Batch, which is not copied: use *Batch": new(Batch),
		"a Batch where a int was expected":                                     new(int),
		"a Batch where a []int was expected":                                   new([]int),
	} {
		if err := Decode(out.Raw, out.Bufs, into); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	var back *Batch
	if err := Decode([]byte{0x05}, nil, &back); err == nil || !strings.Contains(err.Error(), "a int where a Batch was expected") {
		t.Error(err)
	}
	if err := Decode([]byte{0xc0}, nil, &back); err != nil || back != nil {
		t.Error(back, err)
	}
	for _, test := range []struct {
		bufs []wire.Buf
		want string
	}{
		{nil, "names buffers 0 to 1 of a frame that has 0"},
		{[]wire.Buf{wire.Ref{Object: 5, Length: 9}.Buf()}, "in a store that cannot be reached"},
	} {
		if err := Decode(out.Raw, test.bufs, &back); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v; want %q", err, test.want)
		}
	}
	if err := Decode(out.Raw, wire.Bytes([]byte("rubbish")), &back); err != nil {
		t.Error(err)
	}
	if _, err := back.Record(); !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) {
		t.Error(err)
	}
	if _, err := NewBatch(sample(memory.DefaultAllocator, 0, 1, 1), map[string]any{"f": func() {}}); err == nil || !strings.Contains(err.Error(), "the meta of a batch: a value cannot be sent: at") {
		t.Error(err)
	}
	if err := Append(&out, (*Batch)(nil)); err != nil {
		t.Error(err)
	}
	if _, err := b.Select("id"); err == nil || !strings.Contains(err.Error(), "did you mean 'ids'") {
		t.Error(err)
	}
	var held *object.Set
	if err := NewIncoming(held).DecodeInto(out.Raw, out.Bufs, reflect.ValueOf(new(any)).Elem()); err == nil {
		t.Error("two values are one")
	}
}

// A batch has its own references to what it was given, and to nothing after it.
func TestGivenMemoryIsReleased(t *testing.T) {
	r := objecttest.New(t)
	mem := checked(t)
	record := sample(mem, 0, 300, 100)
	b, err := NewBatch(record, nil)
	record.Release()
	if err != nil {
		t.Fatal(err)
	}
	few := b.Take(1, 5, 3)
	view, err := few.Record()
	if err != nil {
		t.Fatal(err)
	}
	view.Release()
	unsent, err := Concat(b, few)
	if err != nil {
		t.Fatal(err)
	}
	back, m := passed[*Batch](t, r, b)
	m.ReleaseBatches()
	m.Release()
	back.Release()
	few.Release()
	unsent.Release()
	r.Empty()
}
