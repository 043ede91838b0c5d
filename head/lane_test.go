package head_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/wire"
)

// Workers that do not read hold up who calls them, once much waits for them, and
// nobody else, although all connections are read by one goroutine.
func TestHeldCallerHoldsUpNobody(t *testing.T) {
	const calls, ranks, size = 4000, 4, 30 << 10 // more than the head lets wait, in frames that a lane takes
	release := make(chan struct{})
	r := newRig(t, setup{virtual: "1x4+relay", script: fake.Script{Answer: func(l *fake.Leg) {
		<-release
		l.Return([]byte{0xc0})
	}}})
	c := r.cluster("stuck", ranks)
	other := r.attach()
	argument := args(strings.Repeat("x", size))
	var ids [calls]uint64
	var sent atomic.Int64
	all := make(chan struct{})
	go func() {
		defer close(all)
		for i := range ids {
			ids[i] = r.owner.send(callee{cluster: c.Number, method: "all", how: 2, ranks: []int{i % ranks}}, argument)
			r.owner.conn.WaitBelow(1 << 20)
			sent.Add(1)
		}
	}()
	for still, before := 0, int64(0); still < 100; still++ { // until the head reads no more of it
		must(t, other.ask("status", &wire.Empty{}, &wire.Status{}))
		if now := sent.Load(); now != before || now < calls/2 {
			still, before = 0, now
		}
	}
	if sent.Load() == calls {
		t.Errorf("the head took %d MiB for workers that do not read", calls*size>>20)
	}
	close(release)
	<-all
	for _, id := range ids {
		r.owner.value(id)
	}
}

// Frames of all sizes keep their order, though the large ones are read outside of
// the lane.
func TestOrderOfSmallAndLargeCalls(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x4" + relay, script: fake.Script{Answer: func(l *fake.Leg) { l.Return(l.Payload) }}})
		c := r.cluster("a", 1)
		var ids []uint64
		for i := range 200 {
			size := 10
			if i%20 < 3 {
				size = 100_000 << (i % 20 * 2) // the last of them takes a lane too long
			}
			ids = append(ids, r.owner.send(callee{cluster: c.Number, method: "zero"}, args(strings.Repeat(string(rune('a'+i%26)), size))))
		}
		for i, id := range ids {
			if f := r.owner.answer(id); len(f.Body) == 0 || f.Body[len(f.Body)/2] != byte('a'+i%26) {
				t.Fatalf("call %d was answered with another's value", i)
			}
		}
	})
}
