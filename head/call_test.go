package head_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// same compares a decoded value by its text, which tells lists from others.
func same(t testing.TB, got any, want string) {
	t.Helper()
	if text := fmt.Sprint(got); text != want {
		t.Fatalf("got %s, expected %s", text, want)
	}
}

// told answers with [rank, method, payload's first argument].
func told(leg *fake.Leg) {
	b := encode([]byte{0x93}, leg.Worker.Rank)
	b = encode(b, leg.Method)
	leg.Return(append(b, firstArg(leg)...))
}

func TestHowCallsPickRanks(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x0" + relay, script: fake.Script{Answer: told}})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 4)
		must(t, err)
		c, n := r.owner, info.Number
		for _, test := range []struct {
			to   callee
			arg  any
			want string
		}{
			{callee{method: "all"}, 7, "[[0 all 7] [1 all 7] [2 all 7] [3 all 7]]"},
			{callee{method: "plain", how: 1}, 7, "[[0 plain 7] [1 plain 7] [2 plain 7] [3 plain 7]]"},
			{callee{method: "plain", how: 1, ranks: []int{2, 0}}, 7, "[[2 plain 7] [0 plain 7]]"},
			{callee{method: "plain", how: 2, ranks: []int{3}}, 7, "[3 plain 7]"},
			{callee{method: "zero"}, 7, "[0 zero 7]"},
			{callee{method: "one"}, 7, "[0 one 7]"},
			{callee{method: "plain", how: 1, flags: marked}, perRank(5, 6, 7, 8), "[[0 plain 5] [1 plain 6] [2 plain 7] [3 plain 8]]"},
			{callee{method: "plain", how: 1, flags: marked}, broadcast([]any{1, 2}), "[[0 plain [1 2]] [1 plain [1 2]] [2 plain [1 2]] [3 plain [1 2]]]"},
			{callee{method: "plain", how: 2, ranks: []int{2}, flags: marked}, perRank(5, 6, 7, 8), "[2 plain 7]"},
		} {
			test.to.cluster = n
			same(t, c.value(c.send(test.to, args(test.arg))), test.want)
		}
		for _, test := range []struct {
			to    callee
			arg   any
			code  spec.Code
			words []string
		}{
			{callee{method: "plain"}, 1, spec.CodeNotFound, []string{"a.plain is not registered"}},
			{callee{method: "computer", how: 1}, 1, spec.CodeNotFound, []string{"did you mean compute?"}},
			{callee{method: "all", how: 1, ranks: []int{4}}, 1, spec.CodeInvalid, []string{"no rank 4", "ranks 0 to 3"}},
			{callee{method: "all", how: 1, ranks: []int{-1}}, 1, spec.CodeInvalid, []string{"no rank -1"}},
			{callee{method: "all", how: 1, ranks: []int{1, 1}}, 1, spec.CodeInvalid, []string{"rank 1 was chosen twice"}},
			{callee{method: "all", how: 1, ranks: []int{}}, 1, spec.CodeInvalid, []string{"no rank was chosen"}},
			{callee{method: "all", how: 2}, 1, spec.CodeProtocol, []string{"names 0"}},
			{callee{method: "all", how: 2, ranks: []int{1, 2}}, 1, spec.CodeProtocol, []string{"names 2"}},
			{callee{method: "each"}, []any{1, 2, 3}, spec.CodeInvalid, []string{"a.each", "3", "4"}},
			{callee{method: "plain", how: 1, flags: marked}, perRank(1, 2), spec.CodeInvalid, []string{"2", "4"}},
			{callee{method: "compute"}, 17, spec.CodeType, []string{"a.compute", "int"}},
		} {
			test.to.cluster = n
			e := c.fails(c.send(test.to, args(test.arg)), test.code, test.words...)
			if e.Code != spec.CodeProtocol && (e.Cluster != "" && e.Cluster != "a") {
				t.Errorf("about cluster %q: %v", e.Cluster, e)
			}
		}
	})
}

// A controller that breaks the rules of routes is told, and breaks nothing.
func TestRoutesThatMakeNoSense(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: echo}})
	info := r.cluster("a", 4, shaped(2, 1, 1))
	c := r.owner
	same(t, c.value(c.send(callee{cluster: info.Number, method: "compute", ranks: []int{1}}, args([]any{1, 2, 3}))), "[1 2 3]")
	same(t, c.value(c.send(callee{cluster: info.Number, method: "zero", ranks: []int{1, 2}}, args(5))), "5")
	c.fails(c.send(callee{cluster: info.Number, method: "all", how: 9}, args()), spec.CodeProtocol, "9")
	c.fails(c.send(callee{cluster: 12345, method: "all"}, args()), spec.CodeNotFound, "no more")
	c.fails(c.send(callee{cluster: 12345, method: "all", flags: split}, args()), spec.CodeNotFound) // for every rank at once
}

func TestModesOnBytes(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x0" + relay, script: fake.Script{Answer: echo}})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 8, shaped(2, 2, 1)) // dp 2
		must(t, err)
		c := r.owner
		rows := []any{1, "two", 3.5, nil, []any{5}}
		for _, test := range []struct {
			method string
			args   []byte
			want   string
		}{
			{"all", args(rows), "[" + repeat("[1 two 3.5 <nil> [5]]", 8) + "]"},
			{"one", args(rows), "[1 two 3.5 <nil> [5]]"},
			{"each", args([]any{0, 1, 2, 3, 4, 5, 6, 7}), "[0 1 2 3 4 5 6 7]"},
			{"custom", args([]any{0, 1, 2, 3, 4, 5, 6, 7}), "[0 1 2 3 4 5 6 7]"},
			{"compute", args(rows), "[1 two 3.5 <nil> [5]]"},
			{"compute", args([]any{}), "[]"},
			{"compute", args([]any{9}), "[9]"},
			{"compute_all", args([]any{1, 2, 3}), "[[1 2] [1 2] [3] [3] [1 2] [1 2] [3] [3]]"},
			{"first", args(rows), "[1 two 3.5 <nil> [5]]"},
			{"first_all", args([]any{1, 2}), "[[1] [1] [2] [2] [1] [1] [2] [2]]"},
		} {
			same(t, c.value(c.send(callee{cluster: info.Number, method: test.method}, test.args)), test.want)
		}
		// A value that is no list comes back as a list of parts.
		same(t, c.value(c.send(callee{cluster: info.Number, method: "compute", flags: marked}, args(broadcast(4)))), "[4 4]")
		// A tuple is cut as a tuple, by a keyword too.
		payload := append([]byte{0x92, 0x90, 0x81}, msgp.AppendString(nil, "rows")...)
		payload = append(payload, extension(1, encode(nil, []any{1, 2, 3}))...)
		f := c.answer(c.send(callee{cluster: info.Number, method: "compute_all"}, payload))
		if !bytes.Contains(f.Body, extensionBytes(1, encode(nil, []any{1, 2}))) {
			t.Errorf("no tuple of two: % x", f.Body)
		}
	})
}

func repeat(s string, n int) string {
	out := s
	for range n - 1 {
		out += " " + s
	}
	return out
}

// extensionBytes is the shortest form, as the head writes it.
func extensionBytes(code byte, payload []byte) []byte {
	return append([]byte{0xc7, byte(len(payload)), code}, payload...)
}

// buffered is a value of extension 34: bytes that lie in a buffer of the frame.
func buffered(first int) raw {
	return extension(34, []byte{byte(first), 0, 0, 0, 1, 0, 0, 0})
}

// Frames of every size come through unchanged while others follow close behind
// and nobody takes them yet: what is passed on by reference must not lie in a
// buffer that is read into.
func TestBytesSurviveTheNextFrame(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		gate := make(chan struct{})
		r := newRig(t, setup{virtual: "2x0" + relay, script: fake.Script{Answer: func(leg *fake.Leg) {
			p, err := wire.ParsePayload(leg.Payload, leg.Bufs)
			if err != nil {
				panic(err)
			}
			if len(p.Args) == 0 {
				<-gate // the one test that wants workers which do not read
				leg.Return([]byte{0xc0})
				return
			}
			leg.ReturnValue(wire.Value{Raw: p.Args[0].Raw, Bufs: leg.Bufs})
		}}})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 4)
		must(t, err)
		c, other := r.owner, r.attach()
		stop := c.send(callee{cluster: info.Number, method: "all"}, args())
		type sent struct {
			id   uint64
			fill byte
			size int
			list bool
		}
		var calls []sent
		for i, size := range []int{10, 9_000, 17_000, 30_000, 50_000, 60_000, 70_000, 20_000, 200_000, 40_000} {
			for k, to := range []callee{{method: "all"}, {method: "one"}, {method: "each"}, {method: "plain", how: 2, ranks: []int{1}}} {
				to.cluster = info.Number
				fill := byte(i*4 + k + 1)
				data := bytes.Repeat([]byte{fill}, size)
				list := to.method == "all" || to.method == "each"
				if to.method == "each" {
					calls = append(calls, sent{c.send(to, args([]any{data, data, data, data})), fill, size, list})
					continue
				}
				calls = append(calls,
					sent{c.send(to, args(buffered(0)), data), fill, size, list},
					sent{c.send(to, args(data)), fill, size, list})
			}
		}
		// Answered when every call before it has been read.
		must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, &wire.ClusterInfo{}))
		c.reading.Lock() // and now it is the controller that does not take them
		close(gate)
		other.value(other.send(callee{cluster: info.Number, method: "all"}, args(1)))
		c.reading.Unlock()
		c.value(stop)
		for _, s := range calls {
			f := c.answer(s.id)
			if f.Flags&wire.FlagError != 0 {
				t.Fatal(wire.ReadError(f.Body))
			}
			copies := 1
			if s.list {
				copies = 4
			}
			found := bytes.Count(f.Body, bytes.Repeat([]byte{s.fill}, s.size))
			for _, b := range f.Bufs {
				found += bytes.Count(b.Data, bytes.Repeat([]byte{s.fill}, s.size))
			}
			if found != copies {
				t.Errorf("%d bytes of %d: %d copies instead of %d", s.size, s.fill, found, copies)
			}
		}
	})
}

func TestSplitAnswersEachRank(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs := make(chan *fake.Leg, 8)
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) { legs <- l }}})
		info := r.cluster("a", 3)
		id := r.owner.send(callee{cluster: info.Number, method: "plain", how: 1, ranks: []int{2, 0, 1}, flags: split}, args())
		byRank := map[int]*fake.Leg{}
		for range 3 {
			l := within(t, legs, "leg")
			byRank[l.Worker.Rank] = l
		}
		byRank[0].Return(encode(nil, "zero")) // answered although the others are not
		f := r.owner.answer(id)
		if f.Flags != wire.FlagRank || f.Ack != 0 {
			t.Fatalf("answered by %+v", f.Header)
		}
		same(t, decode(t, f.Body), "zero")
		byRank[2].Raise(spec.Errorf(spec.CodeUser, "no"))
		f = r.owner.answer(id)
		if f.Flags != wire.FlagRank|wire.FlagError || f.Ack != 2 {
			t.Fatalf("answered by %+v", f.Header)
		}
		e := wire.ReadError(f.Body)
		if e.Rank != 2 || e.Worker != "a-2" || e.Node != "node-0" {
			t.Errorf("about %+v", e)
		}
		byRank[1].Return(encode(nil, "one"))
		f = r.owner.answer(id)
		same(t, decode(t, f.Body), "one")
	})
}

func TestJoinedResultOverTheLimit(t *testing.T) {
	many := make([][]byte, 40_000) // 2 x 40,000 buffers are more than a frame has
	for i := range many {
		many[i] = []byte{1}
	}
	value := msgp.AppendArrayHeader(nil, uint32(len(many)))
	for i := range many {
		value = append(value, extension(34, []byte{byte(i), byte(i >> 8), 0, 0, 1, 0, 0, 0})...)
	}
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: func(l *fake.Leg) { l.Return(value, many...) }}})
	info := r.cluster("a", 2)
	c := r.owner
	c.fails(c.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeTooLarge, "a.all", "joined result", "65535")
	c.fails(c.send(callee{cluster: info.Number, method: "compute", flags: marked}, args(broadcast(1))), spec.CodeTooLarge, "a.compute")
	f := c.answer(c.send(callee{cluster: info.Number, method: "one"}, args()))
	if len(f.Bufs) != len(many) {
		t.Fatalf("%d buffers", len(f.Bufs))
	}
}
