package head_test

import (
	"fmt"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/wire"
)

// BenchmarkCall sends calls to a head whose workers answer at once, all in one
// process: sockets, head and call table, without Python. Time and allocations
// are those of controller, head and fake workers together.
func BenchmarkCall(b *testing.B) {
	for _, ranks := range []int{1, 16, 64} {
		for _, flight := range []int{1, 100} {
			b.Run(fmt.Sprintf("ranks=%d/flight=%d", ranks, flight), func(b *testing.B) {
				r := newRig(b, setup{virtual: "1x0", script: fake.Script{Answer: func(leg *fake.Leg) { leg.Return([]byte{7}) }}})
				info := r.cluster("a", ranks)
				call := append(callee{cluster: info.Number, method: "all"}.route(), args(7)...)
				// A connection without the rig's reader: its channels cost more than a call.
				conn, err := wire.Dial(r.head.Address())
				must(b, err)
				defer conn.Close()
				_, err = wire.Join(conn, wire.Hello{
					Role: wire.RoleController, Token: r.head.Token(), Runtime: clusterSpec("", 1).Runtime,
				})
				must(b, err)
				var sent, answered uint32
				b.ReportAllocs()
				b.ResetTimer()
				for answered < uint32(b.N) {
					for sent < uint32(b.N) && sent < answered+uint32(flight) {
						sent++
						conn.Send(wire.Header{Kind: wire.KindCall, ID: uint64(sent), Ack: answered}, call, nil)
					}
					f, err := conn.Read()
					must(b, err)
					if f.Flags&wire.FlagError != 0 {
						b.Fatal(wire.ReadError(f.Body))
					}
					if f.Kind == wire.KindAnswer {
						answered++
					}
				}
				b.StopTimer()
			})
		}
	}
}
