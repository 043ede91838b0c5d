package muster_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/worker"
)

// batchMethods are those of the test workers that take batches.
func batchMethods(c *worker.Class, info worker.Info) {
	var kept []*worker.Batch
	c.Register("rows", worker.DPCompute, func(b *worker.Batch) []string { return shownRows(b) }, worker.Params("batch"))
	c.Register("pass", worker.DPCompute, func(b *worker.Batch) *worker.Batch { return b }, worker.Params("batch"))
	c.Register("score", worker.DPCompute, func(b *worker.Batch) (*worker.Batch, error) {
		ids, err := b.Column("ids")
		if err != nil {
			return nil, err
		}
		defer ids.Release()
		elements := ids.(*column.TensorArray).Elements()
		defer elements.Release()
		numbers, wide := elements.(*array.Int64).Int64Values(), ids.(*column.TensorArray).Shape()[0]
		sums := make([]float64, ids.Len())
		for i := range sums {
			for _, n := range numbers[i*wide : (i+1)*wide] {
				sums[i] += float64(n)
			}
		}
		scores, err := muster.NewBatch(floats("score", sums), map[string]any{"rank": info.Rank})
		if err != nil {
			return nil, err
		}
		defer scores.Release()
		return b.Union(scores)
	}, worker.Params("batch"))
	c.Register("keep", worker.OneToAll, func(b *worker.Batch) {
		kept = append(kept, b.Clone())
	})
	c.Register("kept", worker.OneToAll, func() []string { return shownRows(kept[len(kept)-1]) })
	c.Method("count", func(b *worker.Batch) int { return b.Rows() })
	c.Register("sums", worker.OneToAll, func() (sums []float64, err error) {
		for _, b := range kept {
			sum, err := sumOf(b)
			if err != nil {
				return nil, err
			}
			sums = append(sums, sum)
		}
		return sums, nil
	})
	c.Register("forget", worker.OneToAll, func() {
		for _, b := range kept {
			b.Release()
		}
		kept = nil
	})
	c.Register("leave", worker.OneToAll, func(_ *worker.Batch) { os.Exit(3) })
	c.Method("handOn", func(ctx context.Context, cluster string, b *worker.Batch) (*worker.Batch, error) {
		s, err := info.Session(ctx)
		if err != nil {
			return nil, err
		}
		other, err := s.Attached(ctx, cluster)
		if err != nil {
			return nil, err
		}
		own, err := muster.NewBatch(floats("own", make([]float64, b.Rows())), nil)
		if err != nil {
			return nil, err
		}
		defer own.Release()
		both, err := b.Union(own)
		if err != nil {
			return nil, err
		}
		defer both.Release()
		return muster.Call[*worker.Batch](ctx, other, "score", both)
	})
	c.Method("doubled", func(a muster.Array) (muster.Array, error) {
		numbers, err := muster.Elements[float64](a)
		for i := range numbers {
			numbers[i] *= 2
		}
		return muster.ArrayOf(numbers), err
	})
}

func floats(name string, values []float64) arrow.RecordBatch {
	b := array.NewFloat64Builder(memory.DefaultAllocator)
	b.AppendValues(values, nil)
	return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: name, Type: arrow.PrimitiveTypes.Float64}}, nil), []arrow.Array{b.NewArray()}, int64(len(values)))
}

// shownRows are a batch's rows as text; what cannot be read is told as that.
func shownRows(b *muster.Batch) []string {
	record, err := b.Record()
	if err != nil {
		return []string{err.Error()}
	}
	defer record.Release()
	rows := make([]string, b.Rows())
	for i := range rows {
		for c := range int(record.NumCols()) {
			rows[i] += record.ColumnName(c) + "=" + record.Column(c).ValueStr(i) + " "
		}
	}
	return rows
}

// samples is a batch whose every value tells its row; wide numbers a row.
func samples(t *testing.T, rows, wide int, meta map[string]any) *muster.Batch {
	t.Helper()
	mem := memory.DefaultAllocator
	ids, replies := array.NewInt64Builder(mem), array.NewLargeListBuilder(mem, arrow.PrimitiveTypes.Float32)
	texts, images := array.NewStringBuilder(mem), array.NewBinaryBuilder(mem, arrow.BinaryTypes.Binary)
	for row := range rows {
		for i := range wide {
			ids.Append(int64(row*wide + i))
		}
		replies.Append(true)
		for i := range row % 3 {
			replies.ValueBuilder().(*array.Float32Builder).Append(float32(row) + float32(i)/4)
		}
		texts.Append(fmt.Sprintf("prompt %d é", row))
		images.Append(bytes.Repeat([]byte{byte(row)}, row%4))
	}
	tensor, err := muster.NewTensor(ids.NewArray(), wide)
	if err != nil {
		t.Fatal(err)
	}
	columns := []arrow.Array{tensor, replies.NewArray(), texts.NewArray(), images.NewArray()}
	var fields []arrow.Field
	for i, name := range []string{"ids", "reply", "prompt", "image"} {
		fields = append(fields, arrow.Field{Name: name, Type: columns[i].DataType()})
	}
	b, err := muster.NewBatch(array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(rows)), meta)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// empty waits until no store of the session has an object; collect: with help of
// the collector.
func (r *rig) empty(collect bool) {
	r.t.Helper()
	ctx := testContext(r.t)
	eventually(r.t, "the stores are empty", func() (bool, string) {
		if collect {
			runtime.GC()
		}
		report, err := r.Stores(ctx)
		var left []string
		for _, n := range report.Nodes {
			for _, o := range n.Objects {
				left = append(left, fmt.Sprintf("%+v", o))
			}
		}
		return err == nil && len(left) == 0, fmt.Sprint(err, strings.Join(left, "; "))
	})
}

func get[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestBatchesBetweenClusters(t *testing.T) {
	for _, virtual := range []string{"1x4", "2x2", "2x2+relay", "2x2+net"} {
		for _, wide := range []int{2, 2000} { // in frames, in stores
			t.Run(fmt.Sprint(virtual, " ", wide), func(t *testing.T) {
				s := start(t, muster.Options{Virtual: virtual})
				ctx := testContext(t)
				nodes := 1
				if virtual != "1x4" {
					nodes = 2
				}
				pool := get[*muster.Pool](t)(s.Pool(ctx, nodes, 4/nodes))
				a := s.cluster("a", muster.ClusterConfig{Pool: pool, Devices: "0-3"})
				b := s.cluster("b", muster.ClusterConfig{Pool: pool, Devices: "0-3"})
				batch := samples(t, 10, wide, map[string]any{"step": 3})
				want := shownRows(batch)
				if rows, err := muster.Call[[]string](ctx, a, "rows", batch); err != nil || !slices.Equal(rows, want) {
					t.Errorf("%v: %.3q", err, rows)
				}
				scored := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, a, "score", batch))
				if got := strings.Join(scored.Columns(), " "); got != "ids reply prompt image score" || scored.Rows() != 10 {
					t.Error(scored)
				}
				if meta, err := scored.Meta(); err != nil || meta["step"] != int64(3) || meta["rank"] != int64(0) {
					t.Error(meta, err)
				}
				// On to the next cluster, which reads what the others hold.
				coming := muster.Go[*muster.Batch](ctx, a, "score", batch)
				again := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, b, "pass", coming))
				first := get[*muster.Batch](t)(coming.Get(ctx))
				wanted := shownRows(scored)
				for row, text := range wanted {
					if sum := fmt.Sprint("score=", float64(wide)*float64(row*wide)+float64(wide*(wide-1)/2), " "); text != want[row]+sum {
						t.Fatalf("row %d is %.200q, want %.20q at the end", row, text, sum)
					}
				}
				for _, other := range []*muster.Batch{again, first} {
					if !slices.Equal(shownRows(other), wanted) {
						t.Error("other rows")
					}
				}
				// From one worker to others, by its own connection.
				handed := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, b.Rank(3), "handOn", "a", batch.Slice(2, 9)))
				if got := strings.Join(handed.Columns(), " "); got != "ids reply prompt image own score" || handed.Rows() != 7 {
					t.Error(handed)
				}
				// Kept by workers after everybody else has let go.
				if err := muster.Do(ctx, a, "keep", scored); err != nil {
					t.Fatal(err)
				}
				for _, held := range []*muster.Batch{batch, scored, again, first, handed} {
					held.Release()
				}
				if kept, err := muster.Call[[][]string](ctx, a, "kept"); err != nil || !slices.Equal(kept[2], wanted) {
					t.Error(err)
				}
				if err := muster.Do(ctx, a, "forget"); err != nil {
					t.Error(err)
				}
				s.empty(true) // the future still holds what it was answered
			})
		}
	}
}

func TestBatchesAreCutAsTheyWant(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	batch := samples(t, 8, 1, nil)
	weights := get[*muster.Batch](t)(muster.NewBatch(floats("w", []float64{9, 1, 1, 1, 1, 1, 1, 3}), nil))
	both := get[*muster.Batch](t)(batch.Union(weights))
	balanced := get[*muster.Batch](t)(both.Balanced("w"))
	parts := muster.Each[[]string](ctx, c, "rows", muster.PerRank([]*muster.Batch{both.Slice(0, 1), both.Slice(1, 8)}))
	if all, err := muster.GetAll(ctx, parts); err != nil || len(all[0]) != 1 || len(all[1]) != 7 {
		t.Error(all, err)
	}
	rows, err := muster.Call[[]string](ctx, c, "rows", balanced)
	if err != nil || !slices.Equal(rows, shownRows(both)) {
		t.Errorf("the order is lost: %v %q", err, rows)
	}
	scored := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "score", balanced))
	if got := shownRows(scored); !strings.HasPrefix(got[7], "ids=[7]") {
		t.Errorf("the order is lost: %q", got)
	}
	if meta, err := scored.Meta(); err != nil || meta["rank"] != int64(0) {
		t.Error(meta, err)
	}
	whole, err := muster.Call[[][]string](ctx, c.All(), "rows", both)
	if err != nil || len(whole) != 2 || len(whole[1]) != 8 {
		t.Error(whole, err)
	}
}

// Large buffers of any value go by the store, too.
func TestLargeArraysThroughTheStore(t *testing.T) {
	s := start(t, muster.Options{Virtual: "2x1"})
	ctx := testContext(t)
	pool := get[*muster.Pool](t)(s.Pool(ctx, 2, 1))
	c := s.cluster("c", muster.ClusterConfig{Pool: pool, Devices: "0-1"})
	numbers := make([]float64, 1<<17)
	for i := range numbers {
		numbers[i] = float64(i)
	}
	for rank := range 2 {
		twice := get[muster.Array](t)(muster.Call[muster.Array](ctx, c.Rank(rank), "doubled", muster.ArrayOf(numbers)))
		back, err := muster.Elements[float64](twice)
		if err != nil || len(back) != len(numbers) || back[77] != 154 {
			t.Error(len(back), err)
		}
		if size, err := muster.Call[int](ctx, c.Rank(rank), "size", make([]byte, 3<<20)); err != nil || size != 3<<20 {
			t.Error(size, err)
		}
	}
	raw := get[muster.Raw](t)(muster.Call[muster.Raw](ctx, c.Rank(0), "bytes", 1<<20))
	if size, err := muster.Call[int](ctx, c.Rank(1), "size", raw); err != nil || size != 1<<20 {
		t.Error(size, err)
	}
	raw.Release()
	if n, err := muster.Call[int](ctx, c.Rank(0), "add", 1, 2); err != nil || n != 3 {
		t.Error(n, err)
	}
	s.empty(true)
}

// Many steps leave nothing behind, in no process.
func TestStepsLeaveNothing(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	step := func() {
		batch := samples(t, 64, 1024, nil)
		scored := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "score", batch))
		record := get[arrow.RecordBatch](t)(scored.Record())
		if record.NumRows() != 64 {
			t.Error(record.NumRows())
		}
		record.Release()
		scored.Release()
		batch.Release()
	}
	for range 20 {
		step()
	}
	s.empty(false)
	fds, used := openFiles(t), s.pooled()
	for range 100 {
		step()
	}
	s.empty(false)
	// What one step gives back may be on its way when the next needs a segment.
	if now := openFiles(t); now > fds+3 {
		t.Errorf("%d descriptors are open, %d were", now, fds)
	}
	if now := s.pooled(); now > 2*used {
		t.Errorf("the store keeps %d bytes, it kept %d", now, used)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// pooled is what the stores keep for the next objects.
func (r *rig) pooled() (sum uint64) {
	r.t.Helper()
	for _, n := range get[muster.StoreReport](r.t)(r.Stores(testContext(r.t))).Nodes {
		sum += n.Pooled
	}
	return sum
}

func TestWorkersThatDieLetGo(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	batch := samples(t, 64, 1024, nil)
	if err := muster.Do(ctx, c.Rank(1), "keep", batch); err != nil {
		t.Fatal(err)
	}
	code(t, muster.Do(ctx, c.Rank(1), "leave", batch), muster.CodeWorkerDied)
	if got := shownRows(batch); len(got) != 64 {
		t.Error(got)
	}
	batch.Release()
	s.empty(false)
}

// From one session to another of the same head by name, and to another head by
// its bytes.
func TestBatchesBetweenSessions(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	scored := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "score", samples(t, 8, 4096, nil)))
	want := shownRows(scored)
	entries, err := os.ReadDir(fmt.Sprintf("%s/muster-%d", os.Getenv("MUSTER_DIR"), os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(entries, func(e os.DirEntry) bool { return e.Name() != "logs" })
	attached := get[*muster.Session](t)(muster.Start(ctx, muster.Options{Address: entries[at].Name(), Log: &s.log}))
	defer attached.Close()
	other := get[*muster.Session](t)(muster.Start(ctx, muster.Options{Virtual: "1x1", Log: &s.log}))
	defer other.Close()
	near := get[*muster.Cluster](t)(attached.Attached(ctx, "c"))
	far := get[*muster.Cluster](t)(other.Cluster(ctx, workers(t, "far", muster.ClusterConfig{World: 2})))
	for _, cluster := range []*muster.Cluster{near, far} {
		passed := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, cluster, "pass", scored))
		if !slices.Equal(shownRows(passed), want) {
			t.Errorf("%s passed other rows", cluster.Name())
		}
		passed.Release()
	}
	scored.Release()
	s.empty(true)
}

func TestFullStores(t *testing.T) {
	t.Setenv("MUSTER_STORE_BYTES", "8MiB")
	t.Setenv("MUSTER_SPILL_DIR", "off")
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 1})
	first := samples(t, 5, 128<<10, nil) // of 5 MiB
	if rows, err := muster.Call[*muster.Batch](ctx, c, "pass", first); err != nil || rows.Rows() != 5 {
		t.Error(err)
	}
	second := samples(t, 6, 128<<10, nil)
	_, err := muster.Call[*muster.Batch](ctx, c, "pass", second)
	code(t, err, muster.CodeStoreFull, "c.pass", "8", "batch of 5 rows: ids, reply, prompt, image")
	if err := muster.Do(ctx, c.Rank(0), "size", make([]byte, 5<<20)); muster.CodeOf(err) != muster.CodeStoreFull {
		t.Error(err)
	}
	first.Release() // what passed it is garbage, which is looked for when there is no room
	if rows, err := muster.Call[*muster.Batch](ctx, c, "pass", second); err != nil || rows.Rows() != 6 {
		t.Error(err)
	}
	second.Release()
	s.empty(true)
}

func TestBatchesOutliveTheirSession(t *testing.T) {
	batch := samples(t, 64, 1024, nil)
	want := shownRows(batch)
	var record arrow.RecordBatch
	t.Run("session", func(t *testing.T) {
		s := start(t, muster.Options{Virtual: "1x1"})
		ctx := testContext(t)
		c := s.cluster("c", muster.ClusterConfig{})
		passed := get[*muster.Batch](t)(muster.Call[*muster.Batch](ctx, c, "pass", batch))
		record = get[arrow.RecordBatch](t)(passed.Record())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_, err := passed.Record()
		code(t, err, muster.CodeHeadLost, "the session is closed")
		passed.Release()
	})
	if got := record.Column(2).ValueStr(63); got != "prompt 63 é" {
		t.Error(got)
	}
	record.Release()
	_, err := batch.Record() // it was frozen into a store that is gone
	code(t, err, muster.CodeHeadLost, "the session is closed")
	if len(want) != 64 {
		t.Error(want)
	}
}
