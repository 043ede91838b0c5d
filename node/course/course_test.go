package course

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var limits = Limits{Join: 60 * time.Second, Stop: 10 * time.Second, Farewell: 5 * time.Second, Silence: 30 * time.Second, Refused: 5}

const s = time.Second

// brief is orders as text.
func brief(orders []Order) string {
	var all []string
	for _, o := range orders {
		switch o.Do {
		case StartRay:
			all = append(all, strings.TrimSpace("start-ray "+o.Address))
		case StartCommand:
			all = append(all, "start-command")
		case SignalCommand:
			all = append(all, fmt.Sprintf("signal %d", o.Number))
		case KillCommand:
			all = append(all, "kill")
		case StopRay:
			all = append(all, "stop-ray")
		case TellLeader:
			all = append(all, "tell")
		case Say:
			all = append(all, o.Event)
		case Exit:
			all = append(all, fmt.Sprintf("exit %d %q", o.Code, o.Text))
		}
	}
	return strings.Join(all, ", ")
}

func expect(t *testing.T, got []Order, want string) {
	t.Helper()
	if brief(got) != want {
		t.Errorf("got  %s\nwant %s", brief(got), want)
	}
}

// gathered is a leader of three with both others here and joined.
func gathered(t *testing.T) *Leader {
	t.Helper()
	l := NewLeader("L", 3, 3, limits)
	expect(t, l.Start(), "start-ray")
	expect(t, l.RayUp(3*s, "10.0.0.1:6379"), "ray, waiting")
	for rank := 1; rank < 3; rank++ {
		if err := l.Hello(4*s, rank, 3, fmt.Sprint("id", rank), fmt.Sprint("host", rank)); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, l.Heard(5*s, 1, "id1", Joined, ""), "waiting")
	expect(t, l.Heard(6*s, 2, "id2", Joined, ""), "waiting, start-command")
	return l
}

func TestTheCommandsCodeIsPassedOn(t *testing.T) {
	l := gathered(t)
	expect(t, l.CommandEnded(9*s, 3, "exit code 3"), "")
	if n := l.Notice(); n.Phase != Ended || n.Code != 3 || n.Reason != "the command ended with exit code 3" {
		t.Errorf("told %+v", n)
	}
	expect(t, l.Heard(10*s, 1, "id1", Left, ""), "")
	expect(t, l.Heard(10*s, 2, "id2", Left, ""), "stop-ray")
	expect(t, l.RayEnded(12*s, "exit code 1"), `exit 3 "the command ended with exit code 3"`)
	expect(t, l.Tick(13*s), "")
}

func TestAFarewellIsBounded(t *testing.T) {
	l := gathered(t)
	expect(t, l.CommandEnded(9*s, 0, ""), "")
	expect(t, l.Tick(13*s), "")
	expect(t, l.Tick(14*s), "stop-ray")
	expect(t, l.RayEnded(15*s, ""), `exit 0 ""`)
}

func TestASignalCutsTheFarewellShort(t *testing.T) {
	l := gathered(t)
	expect(t, l.CommandEnded(9*s, 0, ""), "")
	expect(t, l.Signal(10*s, "SIGTERM", 15, true), "stop-ray")
}

func TestSignalsGoToTheCommand(t *testing.T) {
	l := gathered(t)
	expect(t, l.Signal(8*s, "SIGHUP", 1, true), "signal, signal 1")
	expect(t, l.Signal(9*s, "SIGTERM", 15, true), "")
	expect(t, l.Tick(17*s), "")
	expect(t, l.Tick(18*s), "kill, kill")
	expect(t, l.CommandEnded(19*s, 137, "killed by SIGKILL"), "")
	if n := l.Notice(); n.Code != 137 {
		t.Errorf("told %+v", n)
	}
}

func TestASignalOfTheTerminalIsNotSentTwice(t *testing.T) {
	l := gathered(t)
	expect(t, l.Signal(8*s, "SIGINT", 2, false), "signal")
	expect(t, l.Tick(18*s), "kill, kill")
}

func TestASignalBeforeTheCommand(t *testing.T) {
	l := NewLeader("L", 2, 2, limits)
	l.Start()
	expect(t, l.Signal(s, "SIGTERM", 15, true), "stop-ray")
	expect(t, l.RayEnded(2*s, "exit code 1"), `exit 143 "stopped by SIGTERM before the command started"`)
}

func TestNotEnoughWithinTheDeadline(t *testing.T) {
	l := NewLeader("L", 4, 4, limits)
	l.Start()
	l.RayUp(s, "a:1")
	_ = l.Hello(2*s, 1, 4, "x", "h1")
	expect(t, l.Heard(3*s, 1, "x", Joined, ""), "waiting")
	_ = l.Hello(3*s, 2, 4, "y", "h2")
	expect(t, l.Heard(3*s, 2, "y", Failed, "no module ray"), "failed, waiting")
	expect(t, l.Tick(32*s), "")
	expect(t, l.Heard(33*s, 1, "x", Joined, ""), "waiting") // the same, after a while
	expect(t, l.Tick(60*s), "")
	want := "within 60 s only 2 of 4 nodes joined; not heard of: rank 3; rank 2 on h2 failed: no module ray"
	if got := l.Notice().Reason; got != want {
		t.Errorf("got %s", got)
	}
	expect(t, l.Heard(61*s, 1, "x", Left, ""), "stop-ray")
	expect(t, l.RayEnded(62*s, ""), fmt.Sprintf("exit 1 %q", want))
}

func TestRayThatDoesNotStart(t *testing.T) {
	l := NewLeader("L", 2, 2, limits)
	l.Start()
	expect(t, l.RayEnded(s, "exit code 1: no module named ray"), `exit 1 "Ray's head did not start: exit code 1: no module named ray"`)
	l = NewLeader("L", 2, 2, limits)
	l.Start()
	expect(t, l.RaySlow(30*s, "timed out"), "slow, start-ray")
	expect(t, l.RaySlow(60*s, "timed out"), `exit 1 "Ray's head did not start: timed out"`)
	l = NewLeader("L", 2, 2, limits)
	l.Start()
	expect(t, l.Tick(60*s), "stop-ray")
	expect(t, l.RaySlow(61*s, "timed out"), `exit 1 "Ray's head was not up within 60 s"`)
	l = NewLeader("L", 2, 2, limits)
	l.Start()
	expect(t, l.Tick(60*s), "stop-ray")
	expect(t, l.RayEnded(61*s, ""), `exit 1 "Ray's head was not up within 60 s"`)
}

func TestRaysHeadEndsUnderTheCommand(t *testing.T) {
	l := gathered(t)
	expect(t, l.RayEnded(8*s, "gcs_server has ended"), "lost, signal 15")
	expect(t, l.CommandEnded(9*s, 143, "killed by SIGTERM"), "")
	expect(t, l.Heard(10*s, 1, "id1", Left, ""), "")
	expect(t, l.Heard(10*s, 2, "id2", Left, ""), `exit 1 "Ray's head ended while the command ran: gcs_server has ended"`)
}

// A scheduler may send its signal to every process of the job.
func TestRayEndsBecauseOfTheSameSignal(t *testing.T) {
	l := gathered(t)
	expect(t, l.Signal(8*s, "SIGTERM", 15, true), "signal, signal 15")
	expect(t, l.RayEnded(9*s, "exit code 1"), "")
	expect(t, l.CommandEnded(10*s, 143, "killed by SIGTERM"), "")
	expect(t, l.Tick(15*s), `exit 143 "the command ended with killed by SIGTERM"`)
}

func TestALeaderWithoutAFrontKillsTheCommand(t *testing.T) {
	l := gathered(t)
	expect(t, l.Orphaned(8*s), "kill")
	expect(t, l.CommandEnded(9*s, 137, "killed by SIGKILL"), "")
	expect(t, l.Tick(14*s), "stop-ray")
}

func TestRanksThatAreWrong(t *testing.T) {
	l := gathered(t)
	for _, c := range []struct {
		rank, world int
		id          string
		want        string
	}{
		{0, 3, "x", "rank 0 on h is not needed: the leader is rank 0, and two replicas were given that rank"},
		{3, 3, "x", "rank 3 on h is not one of 1 to 2: the leader has 3 replicas"},
		{-1, 3, "x", "rank -1 on h is not one of 1 to 2: the leader has 3 replicas"},
		{1, 4, "x", "rank 1 on h was told of 4 replicas, and the leader of 3: all need the same number"},
		{1, 3, "x", "rank 1 on h is already here, on host1: two replicas were given that rank"},
	} {
		if err := l.Hello(7*s, c.rank, c.world, c.id, "h"); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if err := l.Hello(7*s, 1, 3, "id1", "host1"); err != nil {
		t.Error("one that dials again is refused:", err)
	}
	l.Cut(1, "id1")
	if err := l.Hello(8*s, 1, 3, "new", "h"); err != nil {
		t.Error("one that was started in place of one that is gone is refused:", err)
	}
	expect(t, l.Heard(9*s, 1, "id1", Joined, ""), "")
}

func TestASilentReplicaIsLostAndMayComeBack(t *testing.T) {
	l := gathered(t)
	expect(t, l.Heard(30*s, 1, "id1", Joined, ""), "")
	expect(t, l.Tick(36*s), "")
	expect(t, l.Tick(37*s), "lost")
	if n := l.Notice(); n.Joined != 2 {
		t.Errorf("told %+v", n)
	}
	expect(t, l.Heard(40*s, 2, "id2", Joined, ""), "back")
}

func joined(t *testing.T) *Replica {
	t.Helper()
	r := NewReplica(2, "host0:6380", limits)
	expect(t, r.Missed(s, NoListener, "connection refused"), "waiting")
	expect(t, r.Missed(2*s, NoListener, "connection refused"), "")
	expect(t, r.Looked(3*s, Notice{Leader: "L", Phase: Starting}), "waiting")
	expect(t, r.Looked(4*s, Notice{Leader: "L", Phase: Gathering, Ray: "10.0.0.1:6379", Joined: 1, Need: 3}), "joining, start-ray 10.0.0.1:6379")
	expect(t, r.RayUp(8*s), "joined")
	expect(t, r.Looked(9*s, Notice{Leader: "L", Phase: Running, Ray: "10.0.0.1:6379", Joined: 3, Need: 3}), "running")
	return r
}

func TestAReplicaLeavesWithTheLeader(t *testing.T) {
	for code, reason := range map[int]string{0: "", 3: "the leader ended: the command ended with exit code 3"} {
		r := joined(t)
		expect(t, r.Looked(20*s, Notice{Leader: "L", Phase: Ended, Code: code, Reason: "the command ended with exit code 3"}), "tell, stop-ray")
		if state, _ := r.State(); state != Left {
			t.Errorf("it says %s", state)
		}
		expect(t, r.Signal(21*s, "SIGTERM", 15), "")
		expect(t, r.RayEnded(22*s, ""), fmt.Sprintf("exit %d %q", code, reason))
	}
}

func TestAReplicaThatComesAtTheEnd(t *testing.T) {
	r := NewReplica(1, "host0:6380", limits)
	expect(t, r.Looked(s, Notice{Leader: "L", Phase: Ended, Code: 1, Reason: "why"}), `tell, exit 1 "the leader ended: why"`)
}

func TestTheLeaderIsGivenUpAfterManyLooks(t *testing.T) {
	r := joined(t)
	for i := range 4 {
		if got := brief(r.Missed(time.Duration(10+i)*s, NoListener, "connection refused")); got != "" && got != "suspect" {
			t.Fatalf("after %d looks: %s", i+1, got)
		}
	}
	expect(t, r.Missed(14*s, NoListener, "connection refused"), "tell, stop-ray")
	expect(t, r.RayEnded(15*s, ""), `exit 1 "the leader at host0:6380 is gone without a word: connection refused, 5 looks in a row"`)

	r = joined(t)
	for i := range 29 { // silence is no proof: it takes longer
		if got := brief(r.Missed(time.Duration(10+i)*s, NoAnswer, "no answer")); got != "" && got != "suspect" {
			t.Fatalf("after %d looks: %s", i+1, got)
		}
	}
	expect(t, r.Missed(39*s, NoAnswer, "no answer"), "tell, stop-ray")

	r = joined(t)
	for i := range 100 { // every look that succeeds starts the count anew
		r.Missed(time.Duration(10+10*i)*s, NoListener, "connection refused")
		expect(t, r.Looked(time.Duration(15+10*i)*s, Notice{Leader: "L", Phase: Running, Ray: "x"}), "")
	}
}

func TestWhatEndsAReplica(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Replica) []Order
		want string
	}{
		{"lost raylet", func(r *Replica) []Order { return r.RayEnded(9*s, "exit code 1") }, `tell, exit 1 "lost raylet: this node's Ray ended: exit code 1"`},
		{"another leader", func(r *Replica) []Order { return r.Looked(9*s, Notice{Leader: "M", Phase: Gathering, Ray: "x"}) }, "tell, stop-ray"},
		{"a signal", func(r *Replica) []Order { return r.Signal(9*s, "SIGHUP", 1) }, "tell, stop-ray"},
		{"the deadline of joining is over", func(r *Replica) []Order { return r.Tick(100 * s) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.do(joined(t)), c.want) })
	}
	r := NewReplica(1, "a:1", limits)
	expect(t, r.Missed(s, NotWelcome, "rank 1 is already here"), `tell, exit 1 "the leader refuses this replica: rank 1 is already here"`)
	r = NewReplica(1, "a:1", limits)
	expect(t, r.Missed(s, BadToken, "the token is not the leader's"), "waiting")
	expect(t, r.Missed(2*s, BadToken, "the token is not the leader's"), "")
	expect(t, r.Missed(3*s, BadToken, "the token is not the leader's"), `tell, exit 1 "the token is not the leader's at a:1: the replicas need the same RAY_AUTH_TOKEN"`)
	r = NewReplica(1, "a:1", limits)
	r.Missed(s, NoName, "its name cannot be looked up: no such host")
	expect(t, r.Tick(60*s), `tell, exit 1 "rank 1 waited 60 s for the leader at a:1 in vain: its name cannot be looked up: no such host"`)
	r = NewReplica(1, "a:1", limits)
	r.Looked(s, Notice{Leader: "L", Phase: Gathering, Ray: "x"})
	expect(t, r.RaySlow(31*s, "timed out"), "slow, start-ray x")
	expect(t, r.RayEnded(40*s, "exit code 1: wrong version"), `tell, exit 1 "this node could not join Ray: exit code 1: wrong version"`)
}

func TestManyThatAreMissingAreNamedInShort(t *testing.T) {
	l := NewLeader("L", 100, 100, limits)
	l.Start()
	orders := l.RayUp(s, "a:1")
	want := "1 of 100 nodes joined; not heard of: rank 1, 2, 3, 4, 5, 6, 7, 8, 91 more"
	if !slices.ContainsFunc(orders, func(o Order) bool { return o.Text == want }) {
		t.Errorf("got %+v", orders)
	}
}
