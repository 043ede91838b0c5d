package head_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// losing is a cluster of two of which rank 0 has done its part of a call, died and
// was restarted; then the head ended while the call still ran on rank 1.
type losing struct {
	t       *testing.T
	s       *crashes
	c       *returning
	cluster uint32
	legs    chan *fake.Leg
	call    *outgoing // the one that is lost
	other   *fake.Leg // its leg on rank 1
	one     callee    // of rank 0 alone

	mu  sync.Mutex
	ran []string
}

func newLosing(t *testing.T, relay string) *losing {
	legs, _, script := lifeOf()
	l := &losing{t: t, legs: legs}
	answer := script.Answer
	script.Answer = func(leg *fake.Leg) {
		l.mu.Lock()
		l.ran = append(l.ran, leg.Worker.Name+" "+leg.Method)
		l.mu.Unlock()
		answer(leg)
	}
	l.s = newCrashes(t, "2x1"+relay, script)
	l.c = l.s.controller()
	var p spec.Pool
	must(t, l.c.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: 10}, &p))
	cluster := clusterSpec("c", 2)
	restarting("restart_worker", 3)(&cluster)
	info := &wire.ClusterInfo{}
	must(t, l.c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: cluster}, info))
	l.cluster = info.Number
	l.call = l.c.call(callee{cluster: info.Number, method: "all"}, args("x"))
	out := take(t, legs, 2)
	out[0].Return([]byte{7})
	l.other = out[1]
	first := l.c.call(callee{cluster: info.Number, method: "all", how: 2, ranks: []int{0}}, args())
	take(t, legs, 1)[0].Return([]byte{1})
	_, err := l.c.wait(first) // so the head has got the result before it
	must(t, err)
	l.die(out[0].Worker)
	l.one = callee{cluster: info.Number, method: "again", how: 2, ranks: []int{0}}
	l.crash()
	return l
}

// die ends a worker and waits for the one that takes its place.
func (l *losing) die(w *fake.Worker) {
	w.Die(wire.Exited{Signal: "SIGKILL"})
	eventually(l.t, "the rank is there again", func() bool {
		now := &wire.ClusterInfo{}
		must(l.t, l.c.ask("cluster.describe", &wire.ClusterRef{Number: l.cluster}, now))
		at := now.Workers[w.Rank]
		return at.Number != w.Number && at.State == "ready"
	})
}

// crash ends the head, and says that the call is not run again by the next one,
// which does run others.
func (l *losing) crash() {
	l.s.crash()
	after := l.c.call(l.one, args())
	leg := within(l.t, l.legs, "leg")
	if leg.Method != l.one.method {
		l.t.Fatalf("%s runs %s again", leg.Worker.Name, leg.Method)
	}
	leg.Return([]byte{2})
	if _, err := l.c.wait(after); err != nil {
		l.t.Error(err)
	}
	_, err := l.c.wait(l.call)
	if e := spec.AsError(err); err == nil || e.Code != spec.CodeWorkerDied || !strings.Contains(e.Message, "not run again") {
		l.t.Errorf("it ended so: %v", err)
	}
}

// end looks at what ran after the first two legs.
func (l *losing) end(want string) {
	l.mu.Lock()
	got := strings.Join(l.ran, ", ")
	l.mu.Unlock()
	if got != "c-0 all, c-1 all, "+want && got != "c-1 all, c-0 all, "+want {
		l.t.Error("what ran: ", got)
	}
	must(l.t, l.s.end(l.c))
}

// A rank has done its part of a call, dies and is restarted; then the head ends
// while the call still runs elsewhere. The next head does not have the rank's new
// process do it once more, and tells so to a call that names it.
func TestNothingRunsAgainOnARestartedRank(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		l := newLosing(t, relay)
		use := l.one
		use.flags = marked
		l.c.unread(2) // as if it was sent before the answer came
		named := l.c.call(use, args(future(l.call.ID, -1)))
		if _, err := l.c.wait(named); err == nil || !strings.Contains(err.Error(), "not run again") {
			t.Errorf("a call that names it ended so: %v", err)
		}
		l.other.Return([]byte{8})
		l.end("c-0 all, c-0 again")
	})
}

// What is not run again stays so until its caller has read that: whatever is
// restarted meanwhile, ranks and the head.
func TestWhatIsLostStaysLost(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		l := newLosing(t, relay)
		l.c.unread(2, l.call)
		l.die(l.other.Worker)
		l.crash()
		l.end("c-0 all, c-0 again, c-0 again")
	})
}
