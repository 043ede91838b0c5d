package head_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// batchValue is a batch of column "x": n rows of the first object.
func batchValue(n int, cut *batch.Cut) raw {
	h := batch.Handle{Rows: n, Objects: 1, Cut: cut, Parts: []batch.Part{{Columns: []string{"x"}, Pieces: []batch.Piece{{To: n}}}}}
	return extension(36, h.Append([]byte{0, 0, 0, 0, 1, 0, 0, 0}))
}

// rowsOf tells the rows of a batch as object:row.
func rowsOf(t testing.TB, value []byte, bufs []wire.Buf) string {
	t.Helper()
	inside := value[4:] // extension makes heads of 4 bytes, and so does wire beyond 255
	if value[0] == 0xc7 {
		inside = value[3:]
	}
	first, n := binary.LittleEndian.Uint32(inside), binary.LittleEndian.Uint32(inside[4:])
	h, err := batch.Parse(inside[8:], int(n))
	must(t, err)
	var out []string
	for _, p := range h.Parts[0].Pieces {
		rows := p.Rows
		for row := p.From; p.Rows == nil && row < p.To; row++ {
			rows = append(rows, uint32(row))
		}
		for _, row := range rows {
			out = append(out, fmt.Sprintf("%d:%d", bufs[int(first)+p.Buf].Object, row))
		}
	}
	return strings.Join(out, " ")
}

// echoBatch answers with the batch that came, by reference.
func echoBatch(l *fake.Leg) {
	p, err := wire.ParsePayload(l.Payload, l.Bufs)
	if err != nil {
		panic(err)
	}
	l.ReturnValue(wire.Value{Raw: p.Args[0].Raw, Bufs: l.Bufs})
}

func TestBatchesAreCutByReference(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r, told := stored(t, "1x0"+relay, script)
		n := r.cluster("a", 2).Number
		c := r.owner
		id := c.sendBufs(callee{cluster: n, method: "compute"}, args(batchValue(5, nil)), object(0, 1))
		tells(t, told, "0 hold 1")
		out := take(t, legs, 2)
		for rank, want := range []string{"1:0 1:1 1:2", "1:3 1:4"} {
			if got := rowsOf(t, firstArg(out[rank]), out[rank].Bufs); got != want {
				t.Errorf("rank %d got %s", rank, got)
			}
			echoBatch(out[rank])
		}
		f := c.answer(id)
		if got := rowsOf(t, f.Body, f.Bufs); got != "1:0 1:1 1:2 1:3 1:4" || len(f.Bufs) != 1 {
			t.Errorf("got %s in %d buffers", got, len(f.Bufs))
		}

		// By weight: the caller's order comes back, beside a list that is cut alike.
		cut := &batch.Cut{Weights: []float64{9, 1, 8, 1, 1}}
		id = c.sendBufs(callee{cluster: n, method: "compute"}, args(batchValue(5, cut), []any{"a", "b", "c", "d", "e"}), wire.Ref{Object: 1}.Buf())
		out = take(t, legs, 2)
		for rank, l := range out {
			p, err := wire.ParsePayload(l.Payload, l.Bufs)
			must(t, err)
			rows := strings.Fields(rowsOf(t, p.Args[0].Raw, l.Bufs))
			if list, ok := decode(t, p.Args[1].Raw).([]any); !ok || len(list) != len(rows) {
				t.Errorf("rank %d got rows %v beside %v", rank, rows, list)
			}
			echoBatch(l)
		}
		f = c.answer(id)
		if got := rowsOf(t, f.Body, f.Bufs); got != "1:0 1:1 1:2 1:3 1:4" {
			t.Errorf("got %s", got)
		}

		// Only the first rank of a part is fed: here everyone is one.
		id = c.sendBufs(callee{cluster: n, method: "first"}, args(batchValue(1, nil)), wire.Ref{Object: 1}.Buf())
		for rank, l := range take(t, legs, 2) {
			if got := rowsOf(t, firstArg(l), l.Bufs); (got == "1:0") != (rank == 0) {
				t.Errorf("rank %d got %q", rank, got)
			}
			echoBatch(l)
		}
		c.answer(id)
		c.fails(c.sendBufs(callee{cluster: n, method: "each"}, args(batchValue(2, nil)), wire.Ref{Object: 1}.Buf()), spec.CodeType, "a.each", "Batch")
	})
}

// A shard of a future's batch goes out before the others are there.
func TestShardsOfBatchesAreNotWaitedFor(t *testing.T) {
	r, legs, a, b := two(t, "1x0", 2)
	c := r.owner
	made := c.sendBufs(callee{cluster: a, method: "compute", flags: keep}, args(batchValue(4, nil)), object(0, 1))
	used := c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(made, -1)))
	first := take(t, legs, 2)
	echoBatch(first[1])
	early := within(t, legs, "the second shard")
	if got := rowsOf(t, firstArg(early), early.Bufs); early.Worker.Name != "b-1" || got != "1:2 1:3" {
		t.Fatalf("%s got %s", early.Worker.Name, got)
	}
	echoBatch(early)
	echoBatch(first[0])
	echoBatch(within(t, legs, "the first shard"))
	f := c.answer(used)
	if got := rowsOf(t, f.Body, f.Bufs); got != "1:0 1:1 1:2 1:3" {
		t.Errorf("got %s", got)
	}
}
