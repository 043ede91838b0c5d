package head_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// slowCuts holds up every large cut of a head, outside of its lock, until it is let go.
type slowCuts struct {
	begun chan struct{}
	let   chan struct{}
	open  atomic.Bool
}

// newSlowRig is a rig with such a head.
func newSlowRig(t *testing.T, virtual string, script fake.Script) (*rig, *slowCuts) {
	t.Helper()
	c := &slowCuts{begun: make(chan struct{}, 64), let: make(chan struct{})}
	r := newRig(t, setup{virtual: virtual, options: head.Options{Fault: c.fault}, script: script})
	t.Cleanup(c.all) // before the head's end, which waits for it
	return r, c
}

func (c *slowCuts) fault(step string) {
	if step != "cutting" || c.open.Load() {
		return
	}
	c.begun <- struct{}{}
	<-c.let
}

// all lets go, now and later.
func (c *slowCuts) all() {
	if !c.open.Swap(true) {
		close(c.let)
	}
}

// hugeRows are more than a lane reads in place.
const hugeRows = 800

// huge is rows that take long to cut.
func huge() []any {
	all := make([]any, hugeRows)
	for i := range all {
		all[i] = fmt.Sprintf("%d %s", i, bytes.Repeat([]byte("x"), 1000))
	}
	return all
}

// cutting is a head whose cluster b has a call at which it cuts, made of a result of a.
func cutting(t *testing.T, virtual string, world int, options ...func(*spec.Cluster)) (r *rig, hold *slowCuts, a, b uint32, call uint64, legs chan *fake.Leg) {
	t.Helper()
	legs = make(chan *fake.Leg, 64)
	r, hold = newSlowRig(t, virtual, fake.Script{Answer: func(l *fake.Leg) {
		if l.Worker.Name[0] == 'a' {
			echo(l)
		} else {
			legs <- l
		}
	}})
	a, b = r.cluster("a", 1).Number, r.cluster("b", world, options...).Number
	made := r.owner.send(callee{cluster: a, method: "one", flags: keep}, args(huge()))
	call = r.owner.send(callee{cluster: b, method: "compute", flags: marked}, args(future(made, -1)))
	r.owner.answer(made)
	within(t, hold.begun, "cut")
	return r, hold, a, b, call, legs
}

// While the head cuts a large result, others are answered, of the same caller too.
// What comes after it in its cluster stays behind it.
func TestOthersGoOnWhileAResultIsCut(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r, hold, a, b, slow, legs := cutting(t, "1x0"+relay, 2)
		c, other := r.owner, r.attach()
		behind := c.send(callee{cluster: b, method: "all"}, args("behind"))
		same(t, c.value(c.send(callee{cluster: a, method: "one"}, args(7))), "7")
		same(t, other.value(other.send(callee{cluster: a, method: "one"}, args(8))), "8")
		must(t, other.ask("status", &wire.Empty{}, &wire.Status{}))
		if len(legs) > 0 {
			t.Fatalf("a leg of %s went out before what comes first is cut", (<-legs).Method)
		}
		hold.all()
		order := map[int]string{}
		for range 4 {
			l := within(t, legs, "leg")
			if rows, _ := decode(t, firstArg(l)).([]any); l.Method == "compute" && len(rows) != hugeRows/2 {
				t.Errorf("%s got %d rows", l.Worker.Name, len(rows))
			}
			order[l.Worker.Rank] += l.Method + " "
			echo(l)
		}
		same(t, order, "map[0:compute all  1:compute all ]")
		if rows, ok := c.value(slow).([]any); !ok || len(rows) != hugeRows || rows[750].(string)[:4] != "750 " {
			t.Errorf("%d rows", len(rows))
		}
		same(t, c.value(behind), "[behind behind]")
	})
}

// The same of arguments that come with the call.
func TestOthersGoOnWhileArgumentsAreCut(t *testing.T) {
	r, hold := newSlowRig(t, "1x0", fake.Script{Answer: echo})
	n := r.cluster("a", 2).Number
	c, other := r.owner, r.attach()
	slow := c.send(callee{cluster: n, method: "compute"}, args(huge()))
	within(t, hold.begun, "cut")
	behind := c.send(callee{cluster: n, method: "one"}, args("behind"))
	same(t, other.value(other.send(callee{cluster: n, method: "one"}, args(8))), "8")
	hold.all()
	if rows, ok := c.value(slow).([]any); !ok || len(rows) != hugeRows {
		t.Errorf("%d rows", len(rows))
	}
	same(t, c.value(behind), "behind")
}

// A call that ends while it is cut ends as any that is not sent yet, and what comes
// behind it goes on.
func TestCallsEndWhileTheyAreCut(t *testing.T) {
	next := func(t *testing.T, r *rig, b uint32, legs chan *fake.Leg, ranks ...int) {
		t.Helper()
		id := r.owner.send(callee{cluster: b, method: "plain", how: 1, ranks: ranks}, args("next"))
		for _, l := range take(t, legs, len(ranks)) {
			if l.Method != "plain" {
				t.Errorf("%s of a call that has ended was sent", l.Method)
			}
			echo(l)
		}
		r.owner.value(id)
	}
	t.Run("cancelled", func(t *testing.T) {
		r, hold, _, b, id, legs := cutting(t, "1x0", 2)
		r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: id}, []byte{0xc2}, nil)
		r.owner.fails(id, spec.CodeCancelled, "b.compute", "before it was sent")
		next(t, r, b, legs, 0, 1)
		hold.all()
		next(t, r, b, legs, 0, 1)
	})
	t.Run("late", func(t *testing.T) {
		r, hold, _, b, id, legs := cutting(t, "1x0", 2)
		late := r.owner.send(callee{cluster: b, method: "all", timeout: 20 * time.Millisecond}, args())
		r.owner.fails(late, spec.CodeTimeout, "before it was sent", "b.compute", "being cut")
		r.owner.conn.Send(wire.Header{Kind: wire.KindExpire, ID: id}, nil, nil)
		r.owner.fails(id, spec.CodeTimeout, "before it was sent", "its arguments are being cut")
		hold.all()
		next(t, r, b, legs, 0, 1)
	})
	t.Run("a rank dies", func(t *testing.T) {
		r, hold, _, b, id, legs := cutting(t, "1x0", 2)
		r.worker("b-1").Die(wire.Exited{Signal: "SIGKILL"})
		r.owner.fails(id, spec.CodeWorkerDied, "b.compute", "b-1")
		hold.all()
		next(t, r, b, legs, 0)
	})
	t.Run("its caller leaves", func(t *testing.T) {
		legs, script := held()
		r, hold := newSlowRig(t, "1x0", script)
		a, b := r.cluster("a", 1).Number, r.cluster("b", 2).Number
		c := r.attach()
		made := c.send(callee{cluster: a, method: "one", flags: keep}, args(huge()))
		c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(made, -1)))
		echo(within(t, legs, "leg"))
		within(t, hold.begun, "cut")
		c.close()
		next(t, r, b, legs, 0, 1)
		hold.all()
		next(t, r, b, legs, 0, 1)
	})
	t.Run("its cluster stops", func(t *testing.T) {
		r, hold, a, b, id, _ := cutting(t, "1x0", 2)
		must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: b}, &wire.Mark{}))
		r.owner.fails(id, spec.CodeWorkerDied, "cluster b is no more")
		hold.all()
		same(t, r.owner.value(r.owner.send(callee{cluster: a, method: "one"}, args(7))), "7")
	})
}

// Ranks that are restarted while the head cuts get their parts, as new processes.
func TestRanksAreRestartedWhileAResultIsCut(t *testing.T) {
	r, hold, _, _, id, legs := cutting(t, "1x0", 2, func(s *spec.Cluster) { s.OnFailure, s.MaxRestarts = spec.OnFailureCluster, 1 })
	old := r.worker("b-1")
	old.Die(wire.Exited{Signal: "SIGKILL"})
	eventually(t, "another process of rank 1", func() bool { return r.worker("b-1") != old })
	hold.all()
	for _, l := range take(t, legs, 2) {
		echo(l)
	}
	if rows, ok := r.owner.value(id).([]any); !ok || len(rows) != hugeRows {
		t.Errorf("%d rows", len(rows))
	}
}

// A caller that is cut off while the head cuts what it sent comes back and sends it
// again: it runs once.
func TestACallerComesBackWhileItsCallIsCut(t *testing.T) {
	var ran atomic.Int32
	r, hold := newSlowRig(t, "1x0", fake.Script{Answer: func(l *fake.Leg) {
		if l.Method == "compute" {
			ran.Add(1)
		}
		echo(l)
	}})
	n := r.cluster("a", 1).Number
	c := newReturning(t, func() (*wire.Conn, error) { return wire.Dial(r.head.Address()) }, wire.Hello{Role: wire.RoleController, Token: r.head.Token()})
	slow := c.call(callee{cluster: n, method: "compute"}, args(huge()))
	within(t, hold.begun, "cut")
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	conn.Cut()
	within(t, hold.begun, "cut of what it sends again")
	hold.all()
	if _, err := c.wait(slow); err != nil {
		t.Fatal(err)
	}
	last := c.call(callee{cluster: n, method: "one"}, args(7))
	if f, err := c.wait(last); err != nil {
		t.Error(err)
	} else {
		same(t, decode(t, f.Body), "7")
	}
	must(t, c.leave())
	if ran.Load() != 1 {
		t.Errorf("it ran %d times", ran.Load())
	}
}

// largeBatch is batchValue for any size.
func largeBatch(n int, cut *batch.Cut) raw {
	h := batch.Handle{Rows: n, Objects: 1, Cut: cut, Parts: []batch.Part{{Columns: []string{"x"}, Pieces: []batch.Piece{{To: n}}}}}
	inside := h.Append([]byte{0, 0, 0, 0, 1, 0, 0, 0})
	return append(append(binary.BigEndian.AppendUint32(raw{0xc9}, uint32(len(inside))), 36), inside...)
}

// BenchmarkCutting is how long another caller waits for its answers while a balanced
// batch of four million rows, a result, is cut again and again.
func BenchmarkCutting(b *testing.B) {
	const rows = 4 << 20
	weights := make([]float64, rows)
	for i := range weights {
		weights[i] = float64(1 + i*7919%4099)
	}
	value := wire.Value{Raw: largeBatch(rows, &batch.Cut{Weights: weights}), Bufs: []wire.Buf{wire.Ref{Object: 1, Length: 1 << 20}.Buf()}}
	r := newRig(b, setup{virtual: "1x0", script: fake.Script{Answer: func(l *fake.Leg) {
		switch l.Method {
		case "zero":
			l.ReturnValue(value)
		default:
			l.Return([]byte{7})
		}
	}}})
	maker, user, idle := r.cluster("a", 1).Number, r.cluster("b", 8).Number, r.cluster("c", 1).Number
	made := r.owner.send(callee{cluster: maker, method: "zero", flags: keep}, args())
	r.owner.silent.Store(true)
	r.owner.answer(made)
	other := r.attach()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				r.owner.answer(r.owner.send(callee{cluster: user, method: "compute", flags: marked}, args(future(made, -1))))
			}
		}
	}()
	longest := time.Duration(0)
	b.ResetTimer()
	for b.Loop() {
		begun := time.Now()
		other.answer(other.send(callee{cluster: idle, method: "one"}, args(7)))
		longest = max(longest, time.Since(begun))
	}
	b.StopTimer()
	close(stop)
	<-stopped
	b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
}
