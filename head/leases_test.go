package head_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// stored is a rig whose stores only tell what they were told.
func stored(t *testing.T, virtual string, script fake.Script) (r *rig, told chan string) {
	t.Helper()
	told = make(chan string, 1024)
	script.Objects = func(node int, o wire.Objects) {
		for what, list := range map[string][]uint64{"hold": o.Hold, "drop": o.Drop} {
			for _, object := range list {
				told <- fmt.Sprintf("%d %s %d", node, what, object&0xffff)
			}
		}
	}
	return newRig(t, setup{virtual: virtual, script: script}), told
}

// tells waits for what the stores are told, in any order.
func tells(t *testing.T, told chan string, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, within(t, told, "news for a store, of "+strings.Join(want, ", ")))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("told %q, want %q", got, want)
	}
}

// object is the n-th of a node's store, as its maker first names it.
func object(node, n uint64) wire.Buf {
	return wire.Ref{Object: node<<48 | n, Length: 1 << 20, New: true}.Buf()
}

// array is a value of one buffer.
var array = []byte(extension(32, []byte{0, 0, 0, 0, 1, 0, 0, 0, 0x90}))

func (c *controller) sendBufs(to callee, payload []byte, bufs ...wire.Buf) uint64 {
	id := c.next.Add(1)
	c.conn.Send(wire.Header{Kind: wire.KindCall, ID: id, Ack: c.read.Load()}, append(to.route(), payload...), bufs)
	return id
}

func (c *controller) release(node, n uint64, count int) {
	c.t.Helper()
	body, err := wire.AppendVerb(nil, "release", &wire.Releases{Objects: []wire.Released{{Object: node<<48 | n, Count: count}}})
	must(c.t, err)
	c.conn.Send(wire.Header{Kind: wire.KindNotice}, body, nil)
}

func release(w *fake.Worker, node, n uint64, count int) {
	body, err := wire.AppendVerb(nil, "release", &wire.Releases{Objects: []wire.Released{{Object: node<<48 | n, Count: count}}})
	if err != nil {
		panic(err)
	}
	w.Send(wire.Header{Kind: wire.KindNotice}, body)
}

// An object lives while its maker, a call or a receiver knows of it.
func TestObjectsAreHeld(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r, told := stored(t, "2x2"+relay, script)
		info, err := r.create(r.owner, r.pool(0, 2), "a", 2)
		must(t, err)
		c, n := r.owner, info.Number
		id := c.sendBufs(callee{cluster: n, method: "all"}, args(raw(array)), object(0, 1))
		tells(t, told, "0 hold 1")
		c.release(0, 1, 1) // the call still needs it
		both := take(t, legs, 2)
		for rank, l := range both {
			if ref, ok := l.Bufs[0].Ref(); !ok || ref.New || ref.Object != 1 {
				t.Fatalf("rank %d got %+v", rank, l.Bufs)
			}
		}
		// Each returns an object of its own node's, lets go of it and of the argument.
		for rank, l := range both {
			l.ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(uint64(rank), 10+uint64(rank))}})
			release(l.Worker, 0, 1, 1)
			release(l.Worker, uint64(rank), 10+uint64(rank), 1)
		}
		f := c.answer(id)
		if len(f.Bufs) != 2 || f.Bufs[0].Object != 10 || f.Bufs[1].Object != 1<<48|11 {
			t.Fatalf("%+v", f.Bufs)
		}
		tells(t, told, "0 hold 10", "1 hold 11", "0 drop 1")
		c.release(0, 10, 5) // more than it has: as much as it has
		tells(t, told, "0 drop 10")

		// Passed on by reference, and let go of by its sender in the same breath.
		id = c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), wire.Ref{Object: 1<<48 | 11}.Buf())
		c.release(1, 11, 1)
		both = take(t, legs, 2)
		both[1].Return([]byte{0xc0})
		release(both[0].Worker, 1, 11, 1)
		both[0].Worker.Die(wire.Exited{Code: 1}) // and with it all that it knows of
		c.fails(id, spec.CodeWorkerDied, "a-0")
		release(both[1].Worker, 1, 11, 1)
		tells(t, told, "1 drop 11")

		// Refused at once, for a rank is dead.
		c.fails(c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), object(0, 12)), spec.CodeWorkerDied, "a-0")
		tells(t, told, "0 hold 12")
		c.release(0, 12, 1)
		tells(t, told, "0 drop 12")
	})
}

// A caller's end is the end of all that it knew of, and so is a worker's; a call
// that is refused leaves its maker what it made.
func TestObjectsGoWithTheirHolders(t *testing.T) {
	legs, script := held()
	r, told := stored(t, "1x0", script)
	n := r.cluster("a", 2).Number
	other := r.attach()
	other.fails(other.sendBufs(callee{cluster: n, method: "nonsense"}, args(raw(array)), object(0, 1)), spec.CodeNotFound)
	tells(t, told, "0 hold 1")
	id := other.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), object(0, 2))
	tells(t, told, "0 hold 2")
	out := take(t, legs, 2)
	out[0].ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, 3)}})
	out[1].Return([]byte{0xc0})
	other.answer(id)
	tells(t, told, "0 hold 3")
	for _, l := range out {
		release(l.Worker, 0, 2, 1)
	}
	out[0].Worker.Die(wire.Exited{Code: 1}) // the caller knows of what it gave
	other.close()
	tells(t, told, "0 drop 1", "0 drop 2", "0 drop 3")
	var report wire.StoreReport
	must(t, r.owner.ask("store", &wire.Empty{}, &report))
	if len(report.Nodes) != 1 || len(report.Holders) == 0 {
		t.Errorf("%+v", report)
	}
}

// A result that is told again, of a call that no head knows any more: what was made
// for it while there was none goes, as nobody else will say so.
func TestObjectsOfResultsThatNobodyWaitsFor(t *testing.T) {
	legs, script := held()
	r, told := stored(t, "1x0", script)
	n := r.cluster("a", 1).Number
	id := r.owner.send(callee{cluster: n, method: "one"}, args(raw(array)))
	leg := take(t, legs, 1)[0]
	again := wire.Header{Kind: wire.KindResult, Flags: wire.FlagAgain, ID: leg.Call + 1000}
	leg.Worker.Send(again, array, object(0, 7))
	tells(t, told, "0 hold 7", "0 drop 7")
	leg.Return([]byte{0xc0})
	r.owner.answer(id)
}

// The result of a call is held for a call that waits for it.
func TestObjectsOfFutures(t *testing.T) {
	legs, script := held()
	r, told := stored(t, "1x0", script)
	n := r.cluster("a", 1).Number
	c := r.owner
	dep := c.send(callee{cluster: n, method: "one", flags: keep}, args())
	user := c.send(callee{cluster: n, method: "one", flags: marked}, args(future(dep, -1)))
	l := within(t, legs, "leg")
	l.ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, 1)}})
	release(l.Worker, 0, 1, 1)
	tells(t, told, "0 hold 1")
	c.answer(dep)
	c.release(0, 1, 1)
	next := within(t, legs, "the leg that waited")
	if len(next.Bufs) != 1 || next.Bufs[0].Object != 1 {
		t.Fatalf("%+v", next.Bufs)
	}
	next.Return([]byte{0xc0})
	release(next.Worker, 0, 1, 1)
	c.answer(user)
	c.send(callee{cluster: n, method: "one"}, args()) // acknowledges
	within(t, legs, "leg").Return([]byte{0xc0})
	tells(t, told, "0 drop 1")
}

// A worker is told where an object lies, and the store that it was; of an object
// that moves, nobody is told any more.
func TestObjectsAreLent(t *testing.T) {
	legs, script := held()
	lent := make(chan string, 64)
	script.Objects = func(_ int, o wire.Objects) {
		for _, l := range o.Lent {
			lent <- fmt.Sprintf("%d %d", l.Object, l.Count)
		}
		for _, moved := range o.Moved {
			lent <- fmt.Sprintf("%d moved", moved)
		}
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	n := r.cluster("a", 2).Number
	c := r.owner
	where := func(l *fake.Leg) uint32 {
		ref, _ := l.Bufs[0].Ref()
		return ref.Segment
	}
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), wire.Ref{Object: 1, New: true, Segment: 9}.Buf())
	out := take(t, legs, 2)
	tells(t, lent, "1 1", "1 1")
	if where(out[0]) != 9 || where(out[1]) != 9 {
		t.Errorf("told %d and %d", where(out[0]), where(out[1]))
	}
	out[0].Return([]byte{0xc0})
	release(out[0].Worker, 0, 1, 1)
	tells(t, lent, "1 -1")
	body, err := wire.AppendVerb(nil, "moving", &wire.Moving{Object: 1})
	must(t, err)
	r.fake.Agent(0).Send(wire.Header{Kind: wire.KindNotice}, body)
	tells(t, lent, "1 moved")
	out[1].Return([]byte{0xc0})
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), wire.Ref{Object: 1}.Buf())
	for _, l := range take(t, legs, 2) {
		if where(l) != 0 {
			t.Errorf("%s was told segment %d of an object that has moved", l.Worker.Name, where(l))
		}
		l.Return([]byte{0xc0})
		release(l.Worker, 0, 1, 2)
	}
	tells(t, lent, "1 -1")
}

// A worker that keeps an object and does not look at it gives the loan back: its
// store may then spill it. One that is on its way meanwhile stands.
func TestLoansAreGivenBack(t *testing.T) {
	legs, script := held()
	lent := make(chan string, 64)
	script.Objects = func(_ int, o wire.Objects) {
		for _, l := range o.Lent {
			lent <- fmt.Sprintf("%d %d", l.Object, l.Count)
		}
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	n := r.cluster("a", 1).Number
	c := r.owner
	ref := wire.Ref{Object: 1, New: true, Segment: 9}
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array), raw(array)), ref.Buf(), wire.Ref{Object: 1, Segment: 9}.Buf())
	first := take(t, legs, 1)[0]
	for i := range first.Bufs {
		if ref, _ := first.Bufs[i].Ref(); ref.Segment != 9 {
			t.Errorf("%+v", ref)
		}
	}
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), wire.Ref{Object: 1}.Buf())
	second := take(t, legs, 1)[0]
	tells(t, lent, "1 1")
	giveBack := func() {
		body, err := wire.AppendVerb(nil, "release", &wire.Releases{Objects: []wire.Released{}, Lent: []wire.Released{{Object: 1, Count: 1}}})
		must(t, err)
		first.Worker.Send(wire.Header{Kind: wire.KindNotice}, body)
	}
	first.Return([]byte{0xc0})
	giveBack()
	second.Return([]byte{0xc0})
	giveBack()
	tells(t, lent, "1 -1") // once: with the second
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), wire.Ref{Object: 1}.Buf())
	third := take(t, legs, 1)[0]
	tells(t, lent, "1 1") // it may be lent again
	third.Return([]byte{0xc0})
	release(third.Worker, 0, 1, 3)
	tells(t, lent, "1 -1")
}

// Who has handles is known by name, for muster store and for a store that is full.
func TestHoldersAreNamed(t *testing.T) {
	legs, script := held()
	answers := make(chan wire.Holders, 1)
	script.Holders = func(_ int, m wire.Holders) { answers <- m }
	r, told := stored(t, "1x0", script)
	n := r.cluster("keeper", 1).Number
	c := r.owner
	c.sendBufs(callee{cluster: n, method: "one"}, args(raw(array)), object(0, 1))
	leg := take(t, legs, 1)[0]
	tells(t, told, "0 hold 1")
	ask := func() []string {
		body, err := wire.AppendVerb(nil, "holders", &wire.HoldersAsk{ID: 5, Objects: []uint64{1, 77}})
		must(t, err)
		r.fake.Agent(0).Send(wire.Header{Kind: wire.KindNotice}, body)
		answer := within(t, answers, "who has handles")
		names := []string{}
		for _, held := range answer.Held {
			if held.Object != 1 || held.Seconds < 0 || answer.ID != 5 {
				t.Errorf("%+v", answer)
			}
			names = append(names, held.Holder)
		}
		slices.Sort(names)
		return names
	}
	me := fmt.Sprintf("the script (process %d)", os.Getpid())
	if got, want := ask(), []string{"keeper-0", "the call keeper.one", me}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	leg.Return([]byte{0xc0})
	c.release(0, 1, 1)
	c.send(callee{cluster: n, method: "one"}, args()) // acknowledges
	within(t, legs, "leg").Return([]byte{0xc0})
	for names := ask(); !slices.Equal(names, []string{"keeper-0"}); names = ask() {
		if len(names) == 0 {
			t.Fatal("the worker still has it")
		}
	}
}
