package head_test

import (
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestFuturesAsArguments(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs := make(chan *fake.Leg, 64)
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
			if l.Method == "all" {
				legs <- l
				return
			}
			echo(l)
		}}})
		info := r.cluster("a", 2)
		c, n := r.owner, info.Number
		slow := c.send(callee{cluster: n, method: "all", flags: keep}, args())
		twice := c.send(callee{cluster: n, method: "plain", how: 2, ranks: []int{0}, flags: marked}, args(future(slow, -1)))
		cut := c.send(callee{cluster: n, method: "compute_all", flags: marked}, args(future(slow, -1)))
		behind := c.send(callee{cluster: n, method: "one"}, args(9)) // keeps its place behind those that wait
		behindCut := c.send(callee{cluster: n, method: "compute"}, args([]any{1, 2, 3}))
		large := c.send(callee{cluster: n, method: "one"}, args(make([]byte, 30_000)))
		out := take(t, legs, 2)
		out[0].Return(encode(nil, "x"))
		out[1].Return(encode(nil, "y"))
		same(t, c.value(slow), "[x y]")
		same(t, c.value(twice), "[x y]")
		same(t, c.value(cut), "[[x] [y]]")
		same(t, c.value(behind), "9")
		same(t, c.value(behindCut), "[1 2 3]")
		if got, ok := c.value(large).([]byte); !ok || len(got) != 30_000 {
			t.Errorf("%d bytes", len(got))
		}

		// Kept until it is acknowledged, after that no more.
		c.silent.Store(true)
		kept := c.send(callee{cluster: n, method: "one", flags: keep}, args("kept"))
		same(t, c.value(kept), "kept")
		again := c.send(callee{cluster: n, method: "one", flags: marked}, args(future(kept, -1)))
		same(t, c.value(again), "kept")
		c.silent.Store(false)
		c.fails(c.send(callee{cluster: n, method: "one", flags: marked}, args(future(kept, -1))), spec.CodeNotFound, "a.one", "get its value")
		c.fails(c.send(callee{cluster: n, method: "one", flags: marked}, args(future(999_999, -1))), spec.CodeNotFound)
	})
}

func TestFuturesOfRanks(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: told}})
	info := r.cluster("a", 3)
	c, n := r.owner, info.Number
	c.silent.Store(true)
	dep := c.send(callee{cluster: n, method: "plain", how: 1, ranks: []int{2, 0}, flags: split | keep}, args())
	c.answer(dep)
	c.answer(dep)
	same(t, c.value(c.send(callee{cluster: n, method: "plain", how: 2, ranks: []int{1}, flags: marked}, args(future(dep, 2)))), "[1 plain [2 plain <nil>]]")
	for _, rank := range []int{1, 3, 1 << 30} {
		c.fails(c.send(callee{cluster: n, method: "one", flags: marked}, args(future(dep, rank))), spec.CodeInvalid, "a.one", "future of rank")
	}
	whole := c.send(callee{cluster: n, method: "all", flags: keep}, args())
	c.answer(whole)
	c.fails(c.send(callee{cluster: n, method: "one", flags: marked}, args(future(whole, 3))), spec.CodeInvalid, "rank 3 of a.all")
}

func TestFuturesThatFail(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0", script: script})
	a, err := r.create(r.owner, r.pool(0, 1), "a", 1)
	must(t, err)
	b, err := r.create(r.owner, r.pool(0, 1), "b", 1)
	must(t, err)
	c := r.owner
	dep := c.send(callee{cluster: a.Number, method: "one", flags: keep}, args())
	user := c.send(callee{cluster: b.Number, method: "one", flags: marked}, args(future(dep, -1)))
	within(t, legs, "leg").Raise(spec.Errorf(spec.CodeUser, "no data"))
	c.fails(dep, spec.CodeUser, "no data")
	c.fails(user, spec.CodeUser, "no data")

	// A deadline and a cancel of what was not sent yet.
	dep = c.send(callee{cluster: a.Number, method: "one", flags: keep}, args())
	late := c.send(callee{cluster: b.Number, method: "one", flags: marked, timeout: 50 * time.Millisecond}, args(future(dep, -1)))
	c.fails(late, spec.CodeTimeout, "before it was sent", "a.one")
	gone := c.send(callee{cluster: b.Number, method: "one", flags: marked}, args(future(dep, -1)))
	c.conn.Send(wire.Header{Kind: wire.KindCancel, ID: gone}, []byte{0xc0}, nil)
	c.fails(gone, spec.CodeCancelled, "before it was sent")

	// A result that does not fit where it goes.
	odd := c.send(callee{cluster: b.Number, method: "compute", flags: marked}, args(future(dep, -1)))
	within(t, legs, "leg").Return(encode(nil, 5))
	c.fails(odd, spec.CodeType, "b.compute")
	same(t, c.value(dep), "5")

	// A worker that dies under one fails the other; a cluster that goes as well.
	dep = c.send(callee{cluster: a.Number, method: "one", flags: keep}, args())
	user = c.send(callee{cluster: b.Number, method: "one", flags: marked}, args(future(dep, -1)))
	within(t, legs, "leg").Worker.Die(wire.Exited{Code: 2})
	c.fails(user, spec.CodeWorkerDied, "a-0", "exit code 2")
	must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: b.Number}, &wire.Mark{}))
}

// A caller inside a worker that waits for what needs that worker is told at once.
func TestWaitsThatCloseACycle(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r := newRig(t, setup{virtual: "1x0" + relay, script: script})
		pool := r.pool(0, 1)
		a, err := r.create(r.owner, pool, "a", 2)
		must(t, err)
		b, err := r.create(r.owner, pool, "b", 1)
		must(t, err)
		id := r.owner.send(callee{cluster: a.Number, method: "plain", how: 2, ranks: []int{0}}, args())
		inA := within(t, legs, "leg in a")
		fromA := r.inside(inA.Worker)
		toB := fromA.send(callee{cluster: b.Number, method: "all", parent: inA.Call, flags: waiting}, args())
		inB := within(t, legs, "leg in b")
		if inB.Parent != inA.Call {
			t.Errorf("the parent is told as %d instead of %d", inB.Parent, inA.Call)
		}
		fromB := r.inside(inB.Worker)
		// Rank 1 is free: no cycle. Rank 0 waits for b: a cycle.
		fine := fromB.send(callee{cluster: a.Number, method: "plain", how: 2, ranks: []int{1}, parent: inB.Call, flags: waiting}, args())
		within(t, legs, "leg in a").Return([]byte{1})
		same(t, fromB.value(fine), "1")
		closes := fromB.send(callee{cluster: a.Number, method: "all", parent: inB.Call, flags: waiting}, args())
		fromB.fails(closes, spec.CodeDeadlock, "a.all", "a-0 on node-0, which waits for b.all", "b-0 on node-0, which is the one that waits", "async def")

		// The same by a later Wait: the call is out already when the wait begins.
		later := fromB.send(callee{cluster: a.Number, method: "plain", how: 2, ranks: []int{0}, parent: inB.Call}, args())
		fromB.conn.Send(wire.Header{Kind: wire.KindWait, ID: inB.Call}, encode(nil, []any{int(later), 77}), nil)
		fromB.fails(later, spec.CodeDeadlock, "a.plain")

		inB.Return([]byte{2})
		same(t, fromA.value(toB), "[2]")
		inA.Return([]byte{3})
		same(t, r.owner.value(id), "3")
	})
}

// A script's wait is no part of a cycle, and rubbish in a Wait ends its sender.
func TestWaitOfAScript(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	info := r.cluster("a", 1)
	r.owner.conn.Send(wire.Header{Kind: wire.KindWait, ID: 5}, encode(nil, []any{1}), nil)
	r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args()))
}
