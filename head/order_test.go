package head_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Several callers, of every kind of call: every rank sees one order.
func TestEveryRankSeesOneOrder(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		const world, callers, calls = 6, 8, 150
		var mu sync.Mutex
		seen := make([][]uint64, world)
		r := newRig(t, setup{virtual: "3x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
			mu.Lock()
			seen[l.Worker.Rank] = append(seen[l.Worker.Rank], l.Call)
			mu.Unlock()
			echo(l)
		}}})
		info, err := r.create(r.owner, r.pool(0, 3), "a", world, shaped(2, 1, 1))
		must(t, err)
		var all sync.WaitGroup
		for i := range callers {
			c := r.attach()
			all.Go(func() {
				var ids []uint64
				for k := range calls {
					to := callee{cluster: info.Number, method: "all", flags: keep}
					payload := args(k)
					switch (i + k) % 6 {
					case 0:
						to = callee{cluster: info.Number, method: "plain", how: 1, ranks: []int{k % world, (k + 1) % world}}
					case 1:
						to.method, payload = "compute", args([]any{1, 2, 3, 4})
					case 2:
						to = callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{k % world}}
					case 3:
						if k > 0 {
							to, payload = callee{cluster: info.Number, method: "one", flags: marked}, args(future(ids[k-1], -1))
						}
					case 4:
						to.flags = split
					}
					ids = append(ids, c.send(to, payload))
				}
				for _, id := range ids {
					c.answer(id)
				}
			})
		}
		all.Wait()
		for rank, order := range seen {
			if !slices.IsSorted(order) {
				t.Errorf("rank %d saw %v", rank, order)
			}
			if len(slices.Compact(slices.Clone(order))) != len(order) {
				t.Errorf("rank %d ran a call twice", rank)
			}
		}
	})
}

// More calls than a worker takes at a time: all are answered, in order, and what
// the controller says meanwhile is heard.
func TestManyCallsInFlight(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		const calls = 3000
		legs := make(chan *fake.Leg, 2*calls)
		most, out := 0, 0
		var mu sync.Mutex
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
			mu.Lock()
			out++
			most = max(most, out)
			mu.Unlock()
			legs <- l
		}}})
		info := r.cluster("a", 2)
		c := r.owner
		ids := make([]uint64, calls)
		for i := range ids {
			ids[i] = c.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{i % 2}}, args(i))
		}
		// A request and a cancel are not stuck behind them.
		must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, &wire.ClusterInfo{}))
		c.conn.Send(wire.Header{Kind: wire.KindCancel, ID: ids[calls-1]}, []byte{0xc0}, nil)
		c.fails(ids[calls-1], spec.CodeCancelled, "before it was sent")
		for range calls - 1 {
			l := within(t, legs, "leg")
			mu.Lock()
			out--
			mu.Unlock()
			echo(l)
		}
		for i, id := range ids[:calls-1] {
			same(t, c.value(id), fmt.Sprint(i))
		}
		if most > 2*1000 {
			t.Errorf("%d legs were out on two workers", most)
		}
	})
}

// A cluster whose workers hang under a heap of calls can still be stopped, its
// controller can go, and the head can end.
func TestHangingUnderManyCalls(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *rig, c *controller, info *wire.ClusterInfo){
		"stop": func(t *testing.T, r *rig, c *controller, info *wire.ClusterInfo) {
			must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
		},
		"controller gone": func(t *testing.T, r *rig, c *controller, _ *wire.ClusterInfo) {
			c.close()
			eventually(t, "end of its workers", func() bool { return r.fake.Agent(0).Live() == 0 })
		},
		"head ends": func(*testing.T, *rig, *controller, *wire.ClusterInfo) {},
		"worker dies": func(t *testing.T, r *rig, c *controller, info *wire.ClusterInfo) {
			r.worker("a-0").Die(wire.Exited{Code: 1})
			for id := uint64(1); id <= c.next.Load(); id++ {
				c.fails(id, spec.CodeWorkerDied, "a-0")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: func(*fake.Leg) {}}})
			c := r.attach()
			info, err := r.create(c, r.pool(0, 1), "a", 1)
			must(t, err)
			for range 2500 {
				c.send(callee{cluster: info.Number, method: "all"}, args())
			}
			end(t, r, c, info)
		})
	}
}

// Arguments that nobody takes hold up their sender, not the head's memory; what
// others call goes on.
func TestBytesHoldUpTheirSender(t *testing.T) {
	gate := make(chan struct{})
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: func(l *fake.Leg) {
		if l.Worker.Name == "slow-0" {
			<-gate
		}
		l.Return([]byte{0xc0})
	}}})
	slow, quick := r.cluster("slow", 1), r.cluster("quick", 1)
	c := r.attach()
	const calls, size = 18, 4 << 20
	data := make([]byte, size)
	ids := make(chan uint64, calls)
	go func() {
		for range calls {
			ids <- c.send(callee{cluster: slow.Number, method: "all"}, args(data))
		}
	}()
	for i := range 20 {
		same(t, r.owner.value(r.owner.send(callee{cluster: quick.Number, method: "all"}, args(i))), "[<nil>]")
	}
	eventually(t, "back-pressure", func() bool { return c.conn.Pending() > size || len(ids) == calls })
	if c.conn.Pending() == 0 {
		t.Error("72 MiB were taken that no worker has read")
	}
	close(gate)
	for range calls {
		c.value(within(t, ids, "call"))
	}
}

// A controller that does not read its answers holds up nobody else.
func TestSlowReaderHoldsUpNobody(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: echo}})
		info := r.cluster("a", 2)
		c := r.attach()
		c.reading.Lock()
		data := make([]byte, 1<<20)
		var ids []uint64
		for range 20 {
			ids = append(ids, c.send(callee{cluster: info.Number, method: "all"}, args(data)))
		}
		for i := range 50 {
			same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(i))), fmt.Sprintf("[%d %d]", i, i))
		}
		c.reading.Unlock()
		for _, id := range ids {
			if f := c.answer(id); len(f.Body) < 2<<20 {
				t.Fatalf("%d bytes", len(f.Body))
			}
		}
	})
}
