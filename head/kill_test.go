package head_test

import (
	"fmt"
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A rank that is killed for good stays dead whatever its cluster says; who did it is
// told to those who call it, and the others go on.
func TestKillOfARank(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, _, script := lifeOf()
		r := newRig(t, setup{virtual: "2x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 3, restarting("restart_worker", 3))
		must(t, err)
		each := callee{cluster: info.Number, method: "all", flags: split | apart}
		kill := &wire.ClusterRef{Number: info.Number, Ranks: []int{1}, Why: "killed for a test", Final: true}
		first := r.owner.send(each, args())
		out := take(t, legs, 3)
		must(t, r.owner.ask("cluster.kill", kill, &wire.Empty{}))
		must(t, r.owner.ask("cluster.kill", kill, &wire.Empty{})) // it is dead already
		later := r.owner.send(each, args())
		out[0].Return([]byte{0})
		out[2].Return([]byte{2})
		out = take(t, legs, 2)
		out[0].Return([]byte{0})
		out[2].Return([]byte{2})
		for _, id := range []uint64{first, later} {
			for range 3 {
				f := r.owner.answer(id)
				if rank := f.Ack; rank != 1 {
					same(t, decode(t, f.Body), fmt.Sprint(rank))
				} else {
					wantError(t, wire.ReadError(f.Body), spec.CodeWorkerDied, "a-1", "killed for a test, by the script")
				}
			}
		}
		now := r.described(info.Number)
		if now.Restarts != 0 || now.Workers[1].State != "dead" || now.Workers[0].State != "ready" {
			t.Errorf("it tells %+v", now)
		}
		r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeWorkerDied, "a-1", "killed for a test", "by the script")
		err = r.owner.ask("cluster.kill", &wire.ClusterRef{Number: info.Number, Ranks: []int{3}}, &wire.Empty{})
		if err == nil || spec.AsError(err).Code != spec.CodeInvalid {
			t.Errorf("of a rank that is not there: %v", err)
		}
	})
}
