package head_test

import (
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// two makes two clusters of n workers whose legs the test answers itself.
func two(t *testing.T, virtual string, n int) (r *rig, legs chan *fake.Leg, a, b uint32) {
	t.Helper()
	legs, script := held()
	r = newRig(t, setup{virtual: virtual, script: script})
	return r, legs, r.cluster("a", n).Number, r.cluster("b", n).Number
}

func TestShardsGoOutAsTheyCome(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r, legs, a, b := two(t, "1x0"+relay, 3)
		c := r.owner
		rows := c.send(callee{cluster: a, method: "compute", flags: keep}, args([]any{1, 2, 3, 4, 5}))
		sum := c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(rows, -1), perRank("x", "y", "z")))
		first := take(t, legs, 3)
		first[1].Return(encode(nil, []any{"c", "d", "e"})) // not as many as it got
		early := within(t, legs, "the second shard")
		if early.Worker.Name != "b-1" {
			t.Fatalf("%s got a leg", early.Worker.Name)
		}
		same(t, decode(t, firstArg(early)), "[c d e]")
		early.Return(encode(nil, []any{"CDE"}))
		first[0].Return(encode(nil, []any{"a", "b"}))
		zero := within(t, legs, "the first shard")
		zero.Return(firstArg(zero))
		first[2].Return(encode(nil, []any{}))
		last := within(t, legs, "the third shard")
		same(t, decode(t, firstArg(last)), "[]")
		last.Return(encode(nil, []any{"Z"}))
		same(t, c.value(rows), "[a b c d e]")
		same(t, c.value(sum), "[a b CDE Z]")
	})
}

func TestPairedAndWhole(t *testing.T) {
	r, legs, a, b := two(t, "1x0", 2)
	c := r.owner
	// What cannot be cut fails the call that needs it, by name.
	odd := c.send(callee{cluster: a, method: "compute", flags: keep}, args([]any{1, 2}))
	user := c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(odd, -1)))
	first := take(t, legs, 2)
	first[0].Return(encode(nil, 5))
	c.fails(user, spec.CodeType, "b.compute", "a.compute", "int")
	first[1].Return(encode(nil, 6))
	same(t, c.value(odd), "[5 6]")

	// Beside rows that are here, the future's are waited for and cut like them.
	some := c.send(callee{cluster: a, method: "compute", flags: keep}, args([]any{1, 2}))
	both := c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(some, -1), []any{7, 8, 9}))
	first = take(t, legs, 2)
	first[0].Return(encode(nil, []any{"a", "b", "c"}))
	first[1].Return(encode(nil, []any{}))
	second := take(t, legs, 2)
	same(t, decode(t, firstArg(second[0])), "[a b]")
	same(t, decode(t, firstArg(second[1])), "[c]")
	second[0].Return(encode(nil, []any{}))
	second[1].Return(encode(nil, []any{}))
	same(t, c.value(both), "[]")

	// The giving call fails.
	bad := c.send(callee{cluster: a, method: "compute", flags: keep}, args([]any{1, 2}))
	user = c.send(callee{cluster: b, method: "compute", flags: marked}, args(future(bad, -1)))
	first = take(t, legs, 2)
	first[0].Return(encode(nil, []any{1}))
	out := within(t, legs, "a shard")
	first[1].Raise(spec.Errorf(spec.CodeUser, "no rows"))
	c.fails(bad, spec.CodeUser, "no rows")
	c.fails(user, spec.CodeUser, "no rows")
	out.Return([]byte{0xc0})
	must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: b}, &wire.Mark{}))
}
