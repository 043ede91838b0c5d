package head_test

import (
	"sync/atomic"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A call takes what another gives part by part, and one rank has got its part when
// the head ends. The script has read the whole, so that nobody has the parts any
// more: the other rank gets the rows that it would have got.
func TestPartsThatAreLeftAreCutAsBefore(t *testing.T) {
	for name, c := range map[string]struct {
		first, second []any // what the ranks give
		whole, rest   string
	}{
		"evenly":   {[]any{"a", "b"}, []any{"c"}, "[a b c]", "[c]"},
		"unevenly": {[]any{"a"}, []any{"b", "c", "d"}, "[a b c d]", "[b c d]"},
		"nothing":  {[]any{"a", "b"}, []any{}, "[a b]", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, relay string) {
				legs := make(chan *fake.Leg, 16)
				var losing, lost atomic.Bool
				s := newCrashes(t, "1x2"+relay, fake.Script{
					Answer: func(l *fake.Leg) { legs <- l },
					Lost:   func(l *fake.Leg) bool { return losing.Load() && l.Worker.Name == "b-1" && !lost.Swap(true) },
				})
				by := s.controller()
				a, b := pairOf(t, by)
				rows := by.call(callee{cluster: a, method: "compute", flags: keep}, args([]any{1, 2}))
				given := take(t, legs, 2)
				sum := by.call(callee{cluster: b, method: "compute", flags: marked}, args(future(rows.ID, -1)), rows.ID)
				losing.Store(true)
				given[0].Return(encode(nil, c.first))
				zero := within(t, legs, "the first part")
				given[1].Return(encode(nil, c.second))
				f, err := by.wait(rows)
				must(t, err)
				same(t, decode(t, f.Body), c.whole)
				eventually(t, "the loss of the other part", lost.Load)
				losing.Store(false)
				s.crash()
				s.fault("now")
				one := within(t, legs, "the other part")
				if one.Worker.Name != "b-1" {
					t.Fatalf("%s got a leg", one.Worker.Name)
				}
				same(t, decode(t, firstArg(one)), c.rest)
				zero.Return(encode(nil, []any{"0"}))
				one.Return(encode(nil, []any{"1"}))
				f, err = by.wait(sum)
				must(t, err)
				same(t, decode(t, f.Body), "[0 1]")
				must(t, s.end(by))
			})
		})
	}
}

// pairOf makes two clusters of two workers.
func pairOf(t *testing.T, by *returning) (a, b uint32) {
	t.Helper()
	var p spec.Pool
	must(t, by.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &p))
	numbers := make([]uint32, 0, 2)
	for _, name := range []string{"a", "b"} {
		info := &wire.ClusterInfo{}
		must(t, by.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: clusterSpec(name, 2)}, info))
		numbers = append(numbers, info.Number)
	}
	return numbers[0], numbers[1]
}
