package call

import (
	"fmt"
	"testing"
)

// BenchmarkCall takes calls through the table: in, sent, all legs back, answered.
func BenchmarkCall(b *testing.B) {
	for _, ranks := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			t := NewTable(1)
			cl := &Cluster{Number: 1, Name: "c"}
			for r := range ranks {
				cl.Workers = append(cl.Workers, &Worker{Number: uint32(r), Rank: r, Cluster: cl, Serial: true})
			}
			b.ReportAllocs()
			for i := range b.N {
				c, _ := t.Submit(Request{Caller: 1, CallerID: uint64(i), Cluster: cl, Method: "m"})
				id := c.ID
				for _, w := range cl.Workers {
					t.Result(w, id, Result{})
				}
			}
			if t.Len() != 0 {
				b.Fatalf("%d calls are left in the table", t.Len())
			}
		})
	}
}

// BenchmarkBehind takes calls of one rank through a queue in which they wait behind one
// that waits for a future: what each costs must not grow with how many there are.
func BenchmarkBehind(b *testing.B) {
	for _, many := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("calls=%d", many), func(b *testing.B) {
			for range b.N {
				t := NewTable(1)
				other := &Cluster{Number: 1, Name: "other"}
				other.Workers = []*Worker{{Cluster: other}}
				cl := &Cluster{Number: 2, Name: "c"}
				for r := range 2 {
					cl.Workers = append(cl.Workers, &Worker{Number: uint32(1 + r), Rank: r, Cluster: cl, Serial: true})
				}
				slow, _ := t.Submit(Request{Caller: 1, CallerID: 1, Cluster: other, Method: "slow", Keep: true})
				waits, _ := t.Submit(Request{Caller: 1, CallerID: 2, Cluster: cl, Method: "waits", Ranks: []int{0}, Futures: []Future{{CallerID: 1, Rank: -1}}})
				calls := []*Call{waits}
				for i := range many {
					c, _ := t.Submit(Request{Caller: 1, CallerID: uint64(3 + i), Cluster: cl, Method: "m", Ranks: []int{0}})
					calls = append(calls, c)
					passes, _ := t.Submit(Request{Caller: 2, CallerID: uint64(i), Cluster: cl, Method: "m", Ranks: []int{1}})
					t.Result(cl.Workers[1], passes.ID, Result{})
				}
				t.Result(other.Workers[0], slow.ID, Result{})
				for _, c := range calls {
					if c.State != Running {
						b.Fatalf("%s is %v", c.Title(), c.State)
					}
					t.Result(cl.Workers[0], c.ID, Result{})
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/call")
		})
	}
}
