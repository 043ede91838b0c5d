package head_test

import (
	"fmt"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/wire"
)

// quiet is a controller that reads its own answers, as the SDK does.
func quiet(b *testing.B, r *rig) *wire.Conn {
	b.Helper()
	conn, err := wire.Dial(r.head.Address())
	must(b, err)
	_, err = wire.Join(conn, wire.Hello{Role: wire.RoleController, Token: r.head.Token(), Runtime: clusterSpec("", 1).Runtime})
	must(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

func roundTrips(b *testing.B, conn *wire.Conn, body []byte) {
	b.Helper()
	b.ReportAllocs()
	id := uint64(0)
	for b.Loop() {
		id++
		conn.Send(wire.Header{Kind: wire.KindCall, ID: id}, body, nil)
		f, err := conn.Read()
		if err != nil || f.ID != id || f.Flags != 0 {
			b.Fatalf("%v %+v %q", err, f.Header, f.Body)
		}
	}
}

// BenchmarkBroadcast is a call of every rank whose results come back as a list:
// controller, head and workers in one process, with sockets of their own or as
// links of agents with 8 workers each; allocations are those of all of them.
func BenchmarkBroadcast(b *testing.B) {
	for _, relay := range []string{"", "+relay"} {
		for _, world := range []int{1, 16, 64, 256, 1024} {
			b.Run(fmt.Sprintf("%d%s", world, relay), func(b *testing.B) {
				nodes := max(1, world/8)
				r := newRig(b, setup{virtual: fmt.Sprintf("%dx0%s", nodes, relay), script: fake.Script{Answer: echo}})
				info, err := r.create(r.owner, r.pool(0, nodes), "a", world)
				must(b, err)
				to := callee{cluster: info.Number, method: "all"}
				roundTrips(b, quiet(b, r), append(to.route(), args(1)...))
			})
		}
	}
}
