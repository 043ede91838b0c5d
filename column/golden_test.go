package column

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// What Python wrote, python/tests/golden_objects.py, is read here, and written
// again byte for byte.
func TestGoldenObjects(t *testing.T) {
	text, err := os.ReadFile("testdata/objects.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct {
		Name string `json:"name"`
		Rows int    `json:"rows"`
		Hex  string `json:"hex"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	found := map[string]arrow.RecordBatch{}
	for _, g := range golden {
		content := must(hex.DecodeString(g.Hex))
		own := aligned(len(content))
		copy(own, content)
		rows, columns, err := Read(memory.NewBufferBytes(own))
		if err != nil || rows != g.Rows {
			t.Fatalf("%s: %d rows, %v", g.Name, rows, err)
		}
		record := Record(rows, columns)
		found[g.Name] = record
		back, err := Of(record)
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		if again := Layout(rows, back); !bytes.Equal(again.Bytes(), own) {
			t.Errorf("%s is written in other bytes, %d of them instead of %d", g.Name, again.Size, len(own))
		}
	}
	for _, test := range []struct {
		object, column string
		row            int
		typ, want      string
	}{
		{"numbers", "|b1", 0, "bool8", "true"},
		{"numbers", "<i8", 0, "int64", "506097522914230528"},
		{"numbers", "<c8", 1, "fixed_size_binary[8]", "08090a0b0c0d0e0f"},
		{"numbers", ">i4", 0, "fixed_size_binary[4]", "00010203"},
		{"numbers", "<M8[ms]", 0, "timestamp[ms]", "506097522914230528"},
		{"numbers", "<M8[D]", 0, "int64", "506097522914230528"},
		{"numbers", "<m8[ns]", 0, "duration[ns]", "506097522914230528"},
		{"torch", "bf16", 1, "fixed_size_binary[2]", "0040"},
		{"torch", "fp8", 1, "fixed_shape_tensor<fixed_size_binary[1]>[3]", "[04 05 06]"},
		{"torch", "rows", 0, "large_list<item: fixed_size_binary[2], nullable>", "[803f 0040]"},
		{"shapes", "two", 1, "fixed_shape_tensor<int64>[2 3]", "[6 7 8 9 10 11]"},
		{"shapes", "mask", 0, "fixed_shape_tensor<bool8>[2]", "[true false]"},
		{"shapes", "none", 0, "fixed_size_binary[0]", ""},
		{"shapes", "record", 1, "fixed_size_binary[6]", "020000002040"},
		{"ragged", "ids", 0, "large_list<item: int64, nullable>", "[1 2 3]"},
		{"ragged", "some", 1, "large_list<item: float32, nullable>", "null"},
		{"ragged", "pairs", 0, "large_list<item: fixed_shape_tensor<int16>[2], nullable>", "[0 1 2 3 4 5]"},
		{"packed", "text", 1, "large_utf8", "é日🙂"},
		{"packed", "some", 2, "large_utf8", "null"},
		{"packed", "data", 0, "large_binary", "00ff"},
	} {
		record := found[test.object]
		at := record.Schema().FieldIndices(test.column)
		if len(at) != 1 {
			t.Fatalf("%s has no %s", test.object, test.column)
		}
		a := record.Column(at[0])
		if got := shown(a, test.row); got != test.want || a.DataType().String() != test.typ {
			t.Errorf("%s, %s, row %d is %s, a %s; want %s, a %s", test.object, test.column, test.row, got, a.DataType(), test.want, test.typ)
		}
	}
	for column, want := range map[string]string{"bf16": `["muster.dtype": "torch:bfloat16", "muster.lib": "torch"]`, "f4": `["muster.lib": "torch"]`} {
		record := found["torch"]
		if got := record.Schema().Field(record.Schema().FieldIndices(column)[0]).Metadata.String(); got != want {
			t.Errorf("%s has the metadata %s", column, got)
		}
	}
}
