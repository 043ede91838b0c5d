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
