package column

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// raw writes an object with any header, and bytes after it.
func raw(rows int, after string, columns ...[]any) []byte {
	var header []byte
	header = msgp.AppendInt(msgp.AppendArrayHeader(header, 2), rows)
	header = msgp.AppendArrayHeader(header, uint32(len(columns)))
	for _, c := range columns {
		var err error
		if header, err = msgp.AppendIntf(header, c); err != nil {
			panic(err)
		}
	}
	b := append([]byte(magic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(header)))
	b = append(b, header...)
	b = append(b, make([]byte, 192-len(b))...)
	b = append(b, after...)
	out := aligned(len(b))
	copy(out, b)
	return out
}

func TestReadRefuses(t *testing.T) {
	span := func(n ...int) []any {
		var all []any
		for i := 0; i < len(n); i += 2 {
			all = append(all, []any{n[i], n[i+1]})
		}
		return all
	}
	none := []any{}
	offsets := func(n ...uint64) string {
		var b []byte
		for _, at := range n {
			b = binary.LittleEndian.AppendUint64(b, at)
		}
		return string(b)
	}
	const eight = "01234567"
	for _, test := range []struct {
		content []byte
		want    string
	}{
		{nil, "does not begin"},
		{[]byte("MBT2    "), "does not begin"},
		{[]byte("MBT1\xff\xff\xff\xff"), "a header of 4294967295 bytes"},
		{[]byte("MBT1\x03\x00\x00\x00\x92\x00\xdf"), "columns cannot be read"},
		{[]byte("MBT1\x07\x00\x00\x00\x92\x00\xdd\xff\xff\xff\xff"), "claim 4294967295 elements"},
		{[]byte("MBT1\x04\x00\x00\x00\x92\x00\x90\x00"), "1 bytes follow its header"},
		{raw(1, eight, []any{"x", "fixed", "<i8", none, "numpy", span(192, 9)}), "column 'x': bytes 192 to 201 of 200"},
		{raw(1, eight, []any{"x", "fixed", "<i8", none, "numpy", span(192, 7)}), "7 bytes for 1 rows of 8"},
		{raw(1, eight, []any{"x", "fixed", "<i8", none, "numpy", span(193, 7)}), "a buffer at 193"},
		{raw(1<<32, eight, []any{"x", "fixed", "<i8", []any{1 << 30, 1 << 30}, "numpy", span(192, 8)}), "shape"},
		{raw(1<<32, eight, []any{"x", "fixed", "|V2147483647", []any{1 << 30}, "numpy", span(192, 8)}), "bytes for 4294967296 rows"},
		{raw(1<<33, ""), "is over 4294967296"},
		{raw(1, eight, []any{"x", "fixed", "<i8", none, "numpy", span(192, 8, 0, 0)}), "2 buffers instead of 1"},
		{raw(1, eight, []any{"x", "strange", "", none, "numpy", span(192, 8)}), `kind "strange"`},
		{raw(1, eight, []any{"x", "fixed", "<q8", none, "numpy", span(192, 8)}), `type "<q8"`},
		{raw(1, eight, []any{"x", "fixed", "torch:quint4", none, "numpy", span(192, 8)}), `type "torch:quint4"`},
		{raw(1, eight, []any{"x", "fixed", "<i8", none, "numpy", span(192, 8)}, []any{"x", "fixed", "<i8", none, "numpy", span(192, 8)}), "twice"},
		{raw(1, offsets(0, 9)+eight, []any{"x", "text", "", none, "list", span(0, 0, 192, 16, 208, 8)}), "rows end at element 9 of 8 bytes"},
		{raw(2, offsets(0, 5, 3)+eight, []any{"x", "text", "", none, "list", span(0, 0, 192, 24, 216, 8)}), "a row 1 from 5 to 3"},
		{raw(1, offsets(1<<63, 3)+eight, []any{"x", "bytes", "", none, "list", span(0, 0, 192, 16, 208, 8)}), "begins at -"},
		{raw(1, offsets(0, 3)+eight, []any{"x", "bytes", "", none, "list", span(0, 0, 192, 8, 208, 8)}), "8 bytes of offsets for 1 rows"},
		{raw(9, strings.Repeat("\x00", 96), []any{"x", "bytes", "", none, "list", span(192, 1, 200, 80, 0, 0)}), "1 bytes say which of 9 rows"},
		{raw(1, offsets(0, 1<<60)+eight, []any{"x", "ragged", "<f8", []any{64}, "list", span(0, 0, 192, 16, 208, 8)}), "rows end at element 1152921504606846976"},
	} {
		_, _, err := Read(memory.NewBufferBytes(test.content))
		if err == nil || spec.AsError(err).Code != spec.CodeProtocol || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v; want %q", err, test.want)
		}
	}
}

// Whatever the bytes are, reading stays within them.
func FuzzRead(f *testing.F) {
	for seed := range uint64(40) {
		r := random{rand.New(rand.NewPCG(seed, 3)), memory.DefaultAllocator}
		record := r.record()
		columns, err := Of(record)
		if err != nil {
			f.Fatal(err)
		}
		content := Layout(int(record.NumRows()), columns)
		f.Add(content.Bytes())
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		own := aligned(len(content))
		copy(own, content)
		rows, columns, err := Read(memory.NewBufferBytes(own))
		if err != nil {
			return
		}
		if rows > 1<<16 {
			return // of columns without bytes; the rows of others are counted by them
		}
		record := Record(rows, columns)
		for c := range int(record.NumCols()) {
			for i := range rows {
				_ = shown(record.Column(c), i)
			}
		}
		for i := range columns {
			joined, err := Join([]Piece{{Column: &columns[i], To: rows}, {Column: &columns[i], Rows: []uint32{}}})
			if err != nil {
				t.Fatal(err)
			}
			one := Record(rows, []Column{joined})
			if rows > 0 {
				_ = shown(one.Column(0), rows-1)
			}
		}
		_ = Layout(rows, columns)
	})
}
