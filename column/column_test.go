package column

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/spec"
)

// checked is an allocator that fails the test where something stays allocated.
func checked(t testing.TB) memory.Allocator {
	m := memory.NewCheckedAllocator(memory.NewGoAllocator())
	t.Cleanup(func() { m.AssertSize(t, 0) })
	return m
}

// random makes arrays of all types that a batch holds.
type random struct {
	*rand.Rand
	mem memory.Allocator
}

func (r random) valid(n int) []bool {
	if r.IntN(2) == 0 {
		return nil
	}
	valid := make([]bool, n)
	for i := range valid {
		valid[i] = r.IntN(3) > 0
	}
	return valid
}

var texts = []string{"", "a", "plain", "é", "日本", "🙂", strings.Repeat("long ", 40), "\x00"}

// primitive makes elements, some of which are NaNs that carry bits.
func (r random) primitive(n int) arrow.Array {
	build := func(b array.Builder, add func()) arrow.Array {
		defer b.Release()
		for range n {
			add()
		}
		return b.NewArray()
	}
	switch r.IntN(13) {
	case 0:
		b := array.NewInt64Builder(r.mem)
		return build(b, func() { b.Append(r.Int64() - r.Int64()) })
	case 1:
		b := array.NewInt8Builder(r.mem)
		return build(b, func() { b.Append(int8(r.IntN(256))) })
	case 2:
		b := array.NewUint16Builder(r.mem)
		return build(b, func() { b.Append(uint16(r.IntN(1 << 16))) })
	case 3:
		b := array.NewFloat32Builder(r.mem)
		return build(b, func() { b.Append(math.Float32frombits(r.Uint32())) })
	case 4:
		b := array.NewFloat64Builder(r.mem)
		return build(b, func() { b.Append(math.Float64frombits(0x7ff8000000000000 | r.Uint64())) })
	case 5:
		b := array.NewFloat16Builder(r.mem)
		return build(b, func() { b.Append(float16.FromBits(uint16(r.IntN(1 << 16)))) })
	case 6:
		b := array.NewBooleanBuilder(r.mem)
		return build(b, func() { b.Append(r.IntN(2) > 0) })
	case 7:
		b := array.NewTimestampBuilder(r.mem, &arrow.TimestampType{Unit: arrow.TimeUnit(r.IntN(4))})
		return build(b, func() { b.Append(arrow.Timestamp(r.Int64())) })
	case 8:
		b := array.NewDurationBuilder(r.mem, &arrow.DurationType{Unit: arrow.TimeUnit(r.IntN(4))})
		return build(b, func() { b.Append(arrow.Duration(-r.Int64())) })
	case 9:
		b := array.NewDate32Builder(r.mem)
		return build(b, func() { b.Append(arrow.Date32(r.IntN(50000) - 20000)) })
	case 10:
		b := array.NewTime32Builder(r.mem, &arrow.Time32Type{Unit: arrow.TimeUnit(r.IntN(2))})
		return build(b, func() { b.Append(arrow.Time32(r.IntN(86400))) })
	case 11:
		b := array.NewInt8Builder(r.mem)
		storage := build(b, func() { b.Append(int8(r.IntN(2))) })
		defer storage.Release()
		return array.NewExtensionArrayWithStorage(NewBoolType(), storage)
	default:
		width := r.IntN(6)
		b := array.NewFixedSizeBinaryBuilder(r.mem, &arrow.FixedSizeBinaryType{ByteWidth: width})
		return build(b, func() { b.Append(r.bytes(width)) })
	}
}

func (r random) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return b
}

// shaped makes rows of one shape.
func (r random) shaped(n int) arrow.Array {
	switch r.IntN(3) {
	case 0:
		shape := []int{1 + r.IntN(3), 1 + r.IntN(4)}
		flat := r.primitive(n * shape[0] * shape[1])
		defer flat.Release()
		a, err := NewTensor(flat, shape...)
		if err != nil {
			panic(err)
		}
		return a
	case 1:
		size := 1 + r.IntN(3)
		flat := r.shaped(n * size)
		defer flat.Release()
		data := array.NewData(arrow.FixedSizeListOf(int32(size), flat.DataType()), n, []*memory.Buffer{nil}, []arrow.ArrayData{flat.Data()}, 0, 0)
		defer data.Release()
		return array.MakeFromData(data)
	}
	return r.primitive(n)
}

func (r random) array(n int) arrow.Array {
	valid := r.valid(n)
	switch r.IntN(6) {
	case 0: // text
		values := make([]string, n)
		for i := range values {
			values[i] = texts[r.IntN(len(texts))]
		}
		kinds := []arrow.DataType{arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.StringView}
		b := array.NewBuilder(r.mem, kinds[r.IntN(3)]).(array.StringLikeBuilder)
		defer b.Release()
		b.AppendValues(values, valid)
		return b.NewArray()
	case 1: // bytes
		kinds := []arrow.BinaryDataType{arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeBinary}
		b := array.NewBinaryBuilder(r.mem, kinds[r.IntN(2)])
		defer b.Release()
		values := make([][]byte, n)
		for i := range values {
			values[i] = r.bytes(r.IntN(20))
		}
		b.AppendValues(values, valid)
		return b.NewArray()
	case 2, 3: // ragged
		return r.lists(n, valid)
	}
	return r.shaped(n)
}

func (r random) lists(n int, valid []bool) arrow.Array {
	large := r.IntN(2) > 0
	bits := array.NewBooleanBuilder(r.mem) // its values are the validity of the lists
	defer bits.Release()
	bits.AppendValues(valid, nil)
	mask := bits.NewArray()
	defer mask.Release()
	wide, narrow := make([]int64, n+1), make([]int32, n+1)
	for i := range n {
		wide[i+1] = wide[i] + int64(r.IntN(5))
		narrow[i+1] = int32(wide[i+1])
	}
	flat := r.shaped(int(wide[n]))
	defer flat.Release()
	buffers := []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int64Traits.CastToBytes(wide))}
	var t arrow.DataType = arrow.LargeListOf(flat.DataType())
	if !large {
		buffers[1], t = memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(narrow)), arrow.ListOf(flat.DataType())
	}
	if valid != nil {
		buffers[0] = mask.Data().Buffers()[1]
	}
	data := array.NewData(t, n, buffers, []arrow.ArrayData{flat.Data()}, array.UnknownNullCount, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// record makes one of random columns, which may be a slice of a longer one.
func (r random) record() arrow.RecordBatch {
	rows, before, after := r.IntN(20), 0, 0
	if r.IntN(2) == 0 {
		before, after = r.IntN(12), r.IntN(5)
	}
	var fields []arrow.Field
	var columns []arrow.Array
	for i := range r.IntN(5) {
		a := r.array(before + rows + after)
		columns = append(columns, a)
		fields = append(fields, arrow.Field{Name: fmt.Sprint("c", i), Type: a.DataType(), Nullable: true})
	}
	whole := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(before+rows+after))
	for _, a := range columns {
		a.Release()
	}
	defer whole.Release()
	return whole.NewSlice(int64(before), int64(before+rows))
}

// shown is a row for comparing: what a value is, whatever array it lies in.
func shown(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch a := a.(type) {
	case *array.FixedSizeBinary:
		return fmt.Sprintf("%x", a.Value(i))
	case *array.Float32:
		return fmt.Sprintf("%x", math.Float32bits(a.Value(i)))
	case *array.Float64:
		return fmt.Sprintf("%x", math.Float64bits(a.Value(i)))
	case *array.Float16:
		return fmt.Sprintf("%x", a.Value(i).Uint16())
	case *array.Date32:
		return fmt.Sprint(int32(a.Value(i)))
	case *array.Time32:
		return fmt.Sprint(int32(a.Value(i)))
	case *array.Timestamp:
		return fmt.Sprint(int64(a.Value(i)))
	case *array.Duration:
		return fmt.Sprint(int64(a.Value(i)))
	case *array.Binary:
		return fmt.Sprintf("%x", a.Value(i))
	case *array.LargeBinary:
		return fmt.Sprintf("%x", a.Value(i))
	case array.ExtensionArray:
		if _, ok := a.(*BoolArray); ok {
			return a.ValueStr(i)
		}
		return shown(a.Storage(), i)
	case array.ListLike:
		// Nested lists of fixed size and tensors are the same numbers.
		var all []string
		from, to := a.ValueOffsets(i)
		for j := from; j < to; j++ {
			all = append(all, strings.Trim(shown(a.ListValues(), int(j)), "[]"))
		}
		return "[" + strings.Join(all, " ") + "]"
	}
	return a.ValueStr(i)
}

func rowsOf(r arrow.RecordBatch) []string {
	rows := make([]string, r.NumRows())
	for i := range rows {
		var all []string
		for c := range int(r.NumCols()) {
			all = append(all, shown(r.Column(c), i))
		}
		rows[i] = strings.Join(all, ", ")
	}
	return rows
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// object reads content as if it had come from a store.
func object(t testing.TB, content []byte, mem memory.Allocator) (int, []Column) {
	t.Helper()
	b := memory.NewResizableBuffer(mem)
	b.Resize(len(content))
	copy(b.Bytes(), content)
	defer b.Release()
	rows, columns, err := Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return rows, columns
}

// What goes in comes out, and nothing stays allocated.
func TestRecordsComeBack(t *testing.T) {
	for seed := range uint64(400) {
		r := random{rand.New(rand.NewPCG(seed, 1)), checked(t)}
		record := r.record()
		columns, err := Of(record)
		if err != nil {
			t.Fatalf("seed %d: %v of %v", seed, err, record.Schema())
		}
		content := Layout(int(record.NumRows()), columns)
		whole := content.Bytes()
		if len(whole) != content.Size {
			t.Fatalf("seed %d: %d bytes instead of %d", seed, len(whole), content.Size)
		}
		Release(columns)
		rows, columns := object(t, whole, r.mem)
		back := Record(rows, columns)
		if got, want := rowsOf(back), rowsOf(record); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v\nwent in as\n%q\nand came out as\n%q", seed, record.Schema(), want, got)
		}
		again, err := Of(back)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if second := Layout(rows, again); !bytes.Equal(second.Bytes(), whole) {
			t.Fatalf("seed %d: what was read is written as other bytes:\n%x\n%x", seed, whole, second.Bytes())
		}
		Release(again)
		Release(columns)
		back.Release()
		record.Release()
	}
}

// Joining and slicing is the same as doing it row by row.
func TestJoin(t *testing.T) {
	for seed := range uint64(400) {
		r := random{rand.New(rand.NewPCG(seed, 2)), checked(t)}
		record := r.record()
		columns := must(Of(record))
		rows := rowsOf(record)
		var want []string
		pieces := make([][]Piece, len(columns))
		for range 1 + r.IntN(3) {
			p := Piece{From: r.IntN(len(rows) + 1)}
			p.To = p.From + r.IntN(len(rows)+1-p.From)
			want = append(want, rows[p.From:p.To]...)
			if r.IntN(2) == 0 && len(rows) > 0 {
				want, p.Rows = want[:len(want)-p.To+p.From], []uint32{}
				for range r.IntN(10) {
					row := r.IntN(len(rows))
					p.Rows = append(p.Rows, uint32(row))
					want = append(want, rows[row])
				}
			}
			for c := range columns {
				p.Column = &columns[c]
				pieces[c] = append(pieces[c], p)
			}
		}
		joined := make([]Column, len(columns))
		for c := range columns {
			joined[c] = must(Join(pieces[c]))
		}
		if len(columns) > 0 {
			out := Record(len(want), joined)
			if got := rowsOf(out); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v\n%q\ninstead of\n%q", seed, record.Schema(), got, want)
			}
			out.Release()
		}
		Release(joined)
		Release(columns)
		record.Release()
	}
}

func TestJoinRefuses(t *testing.T) {
	a := Column{Name: "x", Kind: Fixed, Type: "<f4", rows: 3}
	b := Column{Name: "x", Kind: Ragged, Type: "<f4", Shape: []int{2}, rows: 3}
	for want, pieces := range map[string][]Piece{
		"row 3 of column 'x' is asked for, which has 3":                {{Column: &a, To: 4}},
		"row 7 of column 'x'":                                          {{Column: &a, Rows: []uint32{0, 7, 1}}},
		"column 'x' is <f4 in some rows and <f4[*][2] in others: make": {{Column: &a, To: 1}, {Column: &b, To: 1}},
	} {
		if _, err := Join(pieces); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// build makes a record of one column from JSON.
func build(t *testing.T, typ arrow.DataType, text string) arrow.RecordBatch {
	t.Helper()
	a, _, err := array.FromJSON(memory.DefaultAllocator, typ, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ, Nullable: true}}, nil), []arrow.Array{a}, -1)
}

func TestOfRefuses(t *testing.T) {
	for _, test := range []struct {
		typ  arrow.DataType
		text string
		want string
	}{
		{arrow.PrimitiveTypes.Int64, `[1, null]`, "column 'x' has rows that are null, which rows of one size cannot be: fill them"},
		{arrow.Null, `[null]`, "column 'x' is a null, which a batch cannot hold: leave it out"},
		{arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int8}), `[{"a": 1}]`, "as columns of its own"},
		{arrow.ListOf(arrow.BinaryTypes.String), `[["a"]]`, "column 'x' holds lists, and what is in them is a utf8, which a batch cannot hold: lists hold numbers"},
		{arrow.ListOf(arrow.PrimitiveTypes.Int8), `[[1, null]]`, "holds lists, and what is in them has rows that are null"},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8), `[[1, 2], null]`, "null"},
		{&arrow.Decimal128Type{Precision: 5, Scale: 2}, `["1.00"]`, "make it a float64"},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, `["a"]`, "decode it first"},
	} {
		record := build(t, test.typ, test.text)
		_, err := Of(record)
		if spec.AsError(err).Code != spec.CodeEncoding || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v; want %q", test.typ, err, test.want)
		}
	}
	field := arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64}
	a := array.NewInt64Builder(memory.DefaultAllocator).NewArray()
	twice := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{field, field}, nil), []arrow.Array{a, a}, 0)
	if _, err := Of(twice); err == nil || !strings.Contains(err.Error(), "'x' is there twice") {
		t.Error(err)
	}
	nameless := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Type: field.Type}}, nil), []arrow.Array{a}, 0)
	if _, err := Of(nameless); err == nil || !strings.Contains(err.Error(), "the name of a column") {
		t.Error(err)
	}
	for _, bad := range [][]string{{"ok", "\xff"}, {"\xc3", "\xa9"}} {
		b := array.NewLargeStringBuilder(memory.DefaultAllocator)
		b.AppendValues(bad, nil)
		text := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.BinaryTypes.LargeString}}, nil), []arrow.Array{b.NewArray()}, -1)
		if _, err := Of(text); err == nil || !strings.Contains(err.Error(), "is not UTF-8 in row") {
			t.Error(err)
		}
	}
}
