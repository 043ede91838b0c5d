package head_test

import (
	"fmt"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
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

// killed is a cluster of two whose heads end, and a kill of its rank 1 for good.
func killed(t *testing.T, virtual, how string) (s *crashes, c *returning, cluster uint32, legs chan *fake.Leg) {
	t.Helper()
	legs, _, script := lifeOf()
	s = newCrashes(t, virtual, script)
	c = s.controller()
	var p spec.Pool
	must(t, c.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: 10}, &p))
	two := clusterSpec("a", 2)
	restarting(how, 3)(&two)
	info := &wire.ClusterInfo{}
	must(t, c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: two}, info))
	return s, c, info.Number, legs
}

// toOne is a call of one rank.
func toOne(cluster uint32, rank int) callee {
	return callee{cluster: cluster, method: "all", how: 2, ranks: []int{rank}}
}

// staysDead looks at a cluster of which rank 1 is dead for good, and rank 0 is not,
// and says how often it was restarted.
func staysDead(t *testing.T, c *returning, cluster uint32, legs chan *fake.Leg) int {
	t.Helper()
	now := &wire.ClusterInfo{}
	must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: cluster}, now)) // so the head knows of the death
	_, err := c.wait(c.call(toOne(cluster, 1), args()))
	wantError(t, err, spec.CodeWorkerDied, "a-1")
	alive := c.call(toOne(cluster, 0), args())
	take(t, legs, 1)[0].Return([]byte{5})
	_, err = c.wait(alive)
	must(t, err)
	must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: cluster}, now))
	if now.Workers[1].State != "dead" || now.Workers[0].State != "ready" {
		t.Errorf("it tells %+v", now)
	}
	return now.Restarts
}

// A rank that is killed for good stays dead under the next head as well, whether
// the head ends as soon as that was answered or just before.
func TestKilledForGoodUnderTheNextHead(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		for _, answered := range []bool{true, false} {
			s, c, cluster, legs := killed(t, "2x1"+relay, "restart_worker")
			if !answered {
				s.crash()
			}
			must(t, c.ask("cluster.kill", &wire.ClusterRef{Number: cluster, Ranks: []int{1}, Why: "killed for a test", Final: true}, &wire.Empty{}))
			if answered {
				s.crashNow()
			}
			restarts := staysDead(t, c, cluster, legs)
			s.crashNow() // nor is it forgotten by the one after that
			restarts += staysDead(t, c, cluster, legs)
			if restarts != 0 {
				t.Errorf("restarted %d times", restarts)
			}
			must(t, s.end(c))
			if s.epochs != 3 {
				t.Errorf("%d heads instead of 3", s.epochs)
			}
		}
	})
}

// A rank that died and is to be restarted can be killed for good before it is.
func TestKilledForGoodBeforeItsRestart(t *testing.T) {
	s, c, cluster, legs := killed(t, "2x1", "restart_worker")
	first := c.call(toOne(cluster, 1), args())
	take(t, legs, 1)[1].Worker.Die(wire.Exited{Signal: "SIGSEGV"})
	_, err := c.wait(first)
	wantError(t, err, spec.CodeWorkerDied, "a-1", "SIGSEGV")
	must(t, c.ask("cluster.kill", &wire.ClusterRef{Number: cluster, Ranks: []int{1}, Final: true}, &wire.Empty{}))
	staysDead(t, c, cluster, legs)
	must(t, s.end(c))
}

// A cluster is restarted as a whole or not at all: not with a rank that is dead for
// good.
func TestKilledForGoodHoldsForClusters(t *testing.T) {
	s, c, cluster, legs := killed(t, "2x1", "restart_cluster")
	must(t, c.ask("cluster.kill", &wire.ClusterRef{Number: cluster, Ranks: []int{1}, Final: true}, &wire.Empty{}))
	staysDead(t, c, cluster, legs)
	other := c.call(toOne(cluster, 0), args())
	take(t, legs, 1)[0].Worker.Die(wire.Exited{Signal: "SIGSEGV"})
	_, err := c.wait(other)
	wantError(t, err, spec.CodeWorkerDied, "a-0", "SIGSEGV", "not restarted", "a-1 was killed for good")
	must(t, s.end(c))
}
