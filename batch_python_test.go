package muster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/column"
)

// stage is a worker in Python that takes and makes batches; every column that it
// adds follows from those that came.
const stage = `
import gc
import numpy as np
from muster import Batch, Dispatch, Worker, register

class Stage(Worker):
    @register(Dispatch.DP_MP_COMPUTE)
    def types(self, b):
        row = b[0]
        return [f"{name}: {type(b[name]).__name__} of {type(row[name]).__name__} {getattr(b[name], 'dtype', '')}"
                f" {getattr(b[name], 'shape', ())[1:]}" for name in b.columns] + [repr(b.meta)]

    @register(Dispatch.DP_MP_COMPUTE)
    def work(self, b):
        n = len(b)
        ids = b["ids"]
        out = b.with_columns({
            "sum": ids.sum(axis=(1, 2)),
            "upper": [p and p.upper() for p in b["prompt"]],
            "tails": [r[1:] for r in b["reply"]],
            "mask": ids % 2 == 0,
            "half": ids[:, 0, 0].astype("f2"),
            "spin": ids[:, 0, 0] * 1j,
            "sizes": [bytes([len(i)]) * len(i) for i in b["image"]],
            "things": [{"first": int(i), "rank": self.rank} for i in ids[:, 0, 0]],
        })
        return out.with_meta(seen=b.meta["step"], scale=np.arange(3.0))

    @register(Dispatch.DP_MP_COMPUTE)
    def renamed(self, b):
        if len(b) == 0:
            return Batch({"text": [], "reply": []})
        return b.select("prompt", "reply").rename({"prompt": "text"}).with_meta(metrics={"same": 1})

    @register(Dispatch.DP_MP_COMPUTE)
    def texts(self, b):
        return b["text"]

    @register(Dispatch.DP_MP_COMPUTE)
    def firsts(self, b):
        return [t["first"] for t in b["things"]]

    @register(Dispatch.ONE_TO_ALL)
    def make(self, rows, wide):
        return Batch({"x": np.arange(rows * wide, dtype="f4").reshape(rows, wide), "t": [f"{self.rank}.{i}" for i in range(rows)],
                      "when": np.arange(rows).astype("M8[s]"), "empty": np.zeros((rows, 0, 2))}, meta={"rank": self.rank})

    def collect(self):
        gc.collect()
`

// tensors is a batch with every kind of column that Go makes: of rows of 2 x wide
// numbers, ragged, of texts and of bytes, some of which are missing.
func tensors(t *testing.T, rows, wide int) *muster.Batch {
	t.Helper()
	mem := memory.DefaultAllocator
	ids, replies := array.NewInt64Builder(mem), array.NewListBuilder(mem, arrow.PrimitiveTypes.Float32)
	texts, images := array.NewLargeStringBuilder(mem), array.NewBinaryBuilder(mem, arrow.BinaryTypes.Binary)
	for row := range rows {
		for i := range 2 * wide {
			ids.Append(int64(row*2*wide + i))
		}
		replies.Append(true)
		for i := range row % 3 {
			replies.ValueBuilder().(*array.Float32Builder).Append(float32(row) + float32(i)/4)
		}
		if row%4 == 3 {
			texts.AppendNull()
		} else {
			texts.Append(fmt.Sprintf("prompt %d é", row))
		}
		images.Append([]byte(strings.Repeat("\xff", row%4)))
	}
	tensor := get[*muster.Tensor](t)(muster.NewTensor(ids.NewArray(), 2, wide))
	columns := []arrow.Array{tensor, replies.NewArray(), texts.NewArray(), images.NewArray()}
	var fields []arrow.Field
	for i, name := range []string{"ids", "reply", "prompt", "image"} {
		fields = append(fields, arrow.Field{Name: name, Type: columns[i].DataType(), Nullable: true})
	}
	record := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(rows))
	return get[*muster.Batch](t)(muster.NewBatch(record, map[string]any{"step": 3, "name": "é"}))
}

func TestBatchesToPythonAndBack(t *testing.T) {
	interpreter := python(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stages.py"), []byte(stage), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, virtual := range []string{"1x2", "2x1+relay"} {
		t.Run(virtual, func(t *testing.T) {
			s := start(t, muster.Options{Virtual: virtual, Python: interpreter})
			ctx := testContext(t)
			nodes := 1
			if virtual != "1x2" {
				nodes = 2
			}
			pool := get[*muster.Pool](t)(s.Pool(ctx, nodes, 2/nodes))
			c := get[*muster.Cluster](t)(s.Cluster(ctx, muster.ClusterConfig{
				Name: "stage", Class: "stages.Stage", PyModules: []string{dir}, Pool: pool, Devices: "0-1",
			}))
			for _, wide := range []int{3, 3000} { // in frames, in stores
				exchange(t, c, wide)
			}
			for _, wide := range []int{2, 20000} {
				madeInPython(t, c, wide)
			}
			if err := muster.Do(ctx, c.All(), "collect"); err != nil {
				t.Error(err)
			}
			s.empty(true)
		})
	}
}

// exchange has Python add columns to a batch, and Go look at all of them.
func exchange(t *testing.T, c *muster.Cluster, wide int) {
	t.Helper()
	ctx := testContext(t)
	sent := tensors(t, 9, wide)
	defer sent.Release()
	types := get[[]string](t)(muster.RankZero[[]string](ctx, c, "types", sent))
	want := []string{
		fmt.Sprintf("ids: ndarray of ndarray int64 (2, %d)", wide), "reply: list of ndarray  ()", "prompt: list of str  ()", "image: list of bytes  ()",
		"{'name': 'é', 'step': 3}",
	}
	if !slices.Equal(types, want) {
		t.Errorf("Python sees %q, want %q", types, want)
	}
	out := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "work", sent))
	defer out.Release()
	if got := strings.Join(out.Columns(), " "); got != "ids reply prompt image sum upper tails mask half spin sizes things" || out.Rows() != 9 {
		t.Error(out)
	}
	meta, err := out.Meta()
	if err != nil || meta["seen"] != int64(3) || meta["name"] != "é" || !reflect.DeepEqual(meta["scale"], muster.ArrayOf([]float64{0, 1, 2})) {
		t.Error(meta, err)
	}
	renamed(t, c, sent)
	record := get[arrow.RecordBatch](t)(out.Record())
	defer record.Release()
	for i, typ := range []string{
		fmt.Sprintf("fixed_shape_tensor<int64>[2 %d]", wide), "large_list<item: float32, nullable>", "large_utf8", "large_binary",
		"int64", "large_utf8", "large_list<item: float32, nullable>", fmt.Sprintf("fixed_shape_tensor<bool8>[2 %d]", wide), "float16", "fixed_size_binary[16]", "large_binary", "large_binary",
	} {
		if got := record.Column(i).DataType().String(); got != typ {
			t.Errorf("column %s is a %s, want %s", record.ColumnName(i), got, typ)
		}
	}
	sent4 := get[*muster.Batch](t)(out.Select("ids", "reply", "prompt", "image"))
	defer sent4.Release()
	if !slices.Equal(shownRows(sent4), shownRows(sent)) {
		t.Error("what was passed through is another")
	}
	for row := range 9 {
		sum := int64(0)
		for i := range 2 * wide {
			sum += int64(row*2*wide + i)
		}
		upper, tail := fmt.Sprintf("PROMPT %d É", row), "[]"
		if row%4 == 3 {
			upper = "(null)"
		}
		if row%3 == 2 {
			tail = fmt.Sprintf("[%v]", float32(row)+0.25)
		}
		for i, want := range map[int]string{4: fmt.Sprint(sum), 5: upper, 6: tail} {
			if got := record.Column(i).ValueStr(row); got != want {
				t.Errorf("row %d of %s is %s, want %s", row, record.ColumnName(i), got, want)
			}
		}
		if got := string(record.Column(10).(*array.LargeBinary).Value(row)); got != strings.Repeat(string(rune(row%4)), row%4) {
			t.Errorf("row %d of sizes is %q", row, got)
		}
	}
	if field := record.Schema().Field(9); field.Metadata.String() != `["muster.dtype": "<c16"]` {
		t.Error(field)
	}
	// Pickles that Go only passes on, in a record that it made anew.
	again := get[*muster.Batch](t)(muster.NewBatch(record, nil))
	defer again.Release()
	firsts := get[[]int](t)(muster.Call[[]int](ctx, c, "firsts", again.Take(8, 0, 4)))
	if !slices.Equal(firsts, []int{8 * 2 * wide, 0, 4 * 2 * wide}) {
		t.Error(firsts)
	}
}

// renamed has Python rename a column, which Go reads by its new name and sends back.
func renamed(t *testing.T, c *muster.Cluster, sent *muster.Batch) {
	t.Helper()
	ctx := testContext(t)
	for _, rows := range []int{9, 1} { // of one row, a rank gets none
		some := sent.Slice(0, rows)
		defer some.Release()
		out := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "renamed", some))
		defer out.Release()
		if !slices.Equal(out.Columns(), []string{"text", "reply"}) || out.Rows() != rows {
			t.Error(out)
		}
		text := get[arrow.Array](t)(out.Column("text"))
		defer text.Release()
		record := get[arrow.RecordBatch](t)(out.Record())
		defer record.Release()
		if got := text.ValueStr(0); got != "prompt 0 é" || record.ColumnName(0) != "text" {
			t.Error(got, record.ColumnName(0))
		}
		one := get[*muster.Batch](t)(out.Select("text"))
		defer one.Release()
		texts := get[[]any](t)(muster.Call[[]any](ctx, c, "texts", one))
		if len(texts) != rows || texts[0] != "prompt 0 é" {
			t.Error(texts)
		}
		if meta, err := out.Meta(); err != nil || rows > 1 && !reflect.DeepEqual(meta["metrics"], map[string]any{"same": []any{int64(1), int64(1)}}) {
			t.Error(meta, err)
		}
	}
}

// madeInPython reads what Python made of its own.
func madeInPython(t *testing.T, c *muster.Cluster, wide int) {
	t.Helper()
	ctx := testContext(t)
	parts := get[[]*muster.Batch](t)(muster.Call[[]*muster.Batch](ctx, c, "make", 4, wide))
	all := get[*muster.Batch](t)(muster.Concat(parts...))
	for _, b := range parts {
		b.Release()
	}
	defer all.Release()
	x := get[arrow.Array](t)(all.Column("x"))
	defer x.Release()
	flat := x.(*column.TensorArray).Elements()
	defer flat.Release()
	if n := flat.(*array.Float32).Float32Values(); len(n) != 8*wide || n[4*wide] != 0 || n[8*wide-1] != float32(4*wide-1) {
		t.Error(len(n))
	}
	rest := get[*muster.Batch](t)(all.Select("t", "when"))
	defer rest.Release()
	rows := shownRows(rest)
	if rows[7] != "t=1.3 when=1970-01-01T00:00:03 " {
		t.Errorf("%q", rows)
	}
	back := get[[]string](t)(muster.RankZero[[]string](ctx, c, "types", all))
	if !slices.Contains(back, "empty: ndarray of ndarray float64 (0, 2)") || !slices.Contains(back, "when: ndarray of datetime64 datetime64[s] ()") {
		t.Errorf("%q", back)
	}
}

// drives is a controller in Python of workers in Go.
const drives = `
import gc, json, subprocess, sys, time
import numpy as np
import muster
from muster import Batch, Cluster, ResourceManager, WorkerConfig

program, binary = sys.argv[1:]

def objects():
    gc.collect()
    told = json.loads(subprocess.run([binary, "store", "--json"], capture_output=True, check=True, text=True).stdout)
    return [o for head in told for node in head["nodes"] for o in node["objects"]]

muster.init(virtual="2x2")
pool = ResourceManager(2, 2)
go = Cluster("go", f"exec:{program}", pool, WorkerConfig(device_mapping="0-3"))
for wide in (3, 3000):
    n = 10
    ids = np.arange(n * wide).reshape(n, wide)
    sent = Batch({"ids": ids, "reply": [np.arange(i % 3, dtype="f4") for i in range(n)], "prompt": [None if i == 4 else f"p{i} é" for i in range(n)],
                  "image": [b"\0" * i for i in range(n)], "mask": ids > 5, "wave": ids[:, 0] * 1j, "things": [{"row": i} for i in range(n)]}, meta={"step": 3})
    out = go.score(sent)
    assert isinstance(out, Batch) and out.columns == [*sent.columns, "score"] and len(out) == n, out
    assert np.array_equal(out["ids"], ids) and np.array_equal(out["score"], ids.sum(axis=1)), out["score"]
    assert out["prompt"] == sent["prompt"] and out["image"] == sent["image"] and out["things"] == sent["things"]
    assert [r.tolist() for r in out["reply"]] == [list(map(float, range(i % 3))) for i in range(n)]
    assert np.array_equal(out["mask"], ids > 5) and out["mask"].dtype == bool and np.array_equal(out["wave"], ids[:, 0] * 1j)
    assert out.meta == {"step": 3, "rank": 0}, out.meta
    again = go.__getattr__("pass")(out[[7, 2]].balanced("score"))
    assert again["prompt"] == ["p7 é", "p2 é"] and again["score"].tolist() == ids.sum(axis=1)[[7, 2]].tolist()
    rows = go.rows(sent.select("ids", "prompt"))
    assert len(rows) == n and rows[1].endswith(" prompt=p1 é ") and rows[4].endswith("prompt=(null) "), rows[4][-30:]
    other = sent.select("ids", "prompt").rename({"prompt": "ids", "ids": "prompt"})
    back = go.__getattr__("pass")(Batch.concat([other[5:], other[:5]]))
    assert back.columns == ["prompt", "ids"] and back["ids"] == [*sent["prompt"][5:], *sent["prompt"][:5]], back
    rows = go.rows(other)
    assert len(rows) == n and rows[1].endswith(" ids=p1 é "), rows[1][-30:]
    del sent, out, again, other, back
doubled = muster.get(go.execute_rank_zero("doubled", np.arange(1 << 16, dtype="f8")))
assert doubled[77] == 154 and len(doubled) == 1 << 16
del doubled
deadline = time.monotonic() + 10
while objects() and time.monotonic() < deadline:
    time.sleep(0.01)
assert not objects(), objects()
muster.shutdown()
print("ok")
`

func TestPythonDrivesGoWorkersWithBatches(t *testing.T) {
	interpreter := python(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "drives.py")
	if err := os.WriteFile(path, []byte(drives), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_DIR", shortDir(t))
	cmd := exec.CommandContext(testContext(t), interpreter, path, program, os.Getenv("MUSTER_BINARY"))
	if said, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(said), "ok\n") {
		t.Errorf("%v: %s", err, said)
	}
}
