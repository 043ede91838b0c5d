package head_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// held is a script whose legs wait in a channel.
func held() (chan *fake.Leg, fake.Script) {
	legs := make(chan *fake.Leg, 4096)
	return legs, fake.Script{Answer: func(l *fake.Leg) { legs <- l }}
}

// take waits for n legs and sorts them by rank, each rank once.
func take(t testing.TB, legs chan *fake.Leg, n int) map[int]*fake.Leg {
	t.Helper()
	byRank := map[int]*fake.Leg{}
	for range n {
		l := within(t, legs, "leg")
		byRank[l.Worker.Rank] = l
	}
	if len(byRank) != n {
		t.Fatalf("legs of %d ranks instead of %d", len(byRank), n)
	}
	return byRank
}

func TestErrorIsToldAtOnceAndOthersRunOn(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		cancelled := make(chan int, 8)
		script.Cancel = func(w *fake.Worker, _ *fake.Leg) string { cancelled <- w.Rank; return "done" }
		r := newRig(t, setup{virtual: "1x0" + relay, script: script})
		info := r.cluster("a", 3)
		id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		out := take(t, legs, 3)
		out[1].Raise(&spec.Error{Code: spec.CodeUser, Message: "bad row", Traceback: "line 9", Rank: -1})
		e := r.owner.fails(id, spec.CodeUser, "bad row", "line 9")
		if e.Rank != 1 || e.Worker != "a-1" || e.Node != "node-0" || e.Cluster != "a" {
			t.Errorf("it is about %+v", e)
		}
		out[0].Raise(spec.Errorf(spec.CodeUser, "a consequence"))
		out[2].Return([]byte{0xc0})
		next := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		for _, l := range take(t, legs, 3) {
			l.Return([]byte{1})
		}
		same(t, r.owner.value(next), "[1 1 1]")
		select {
		case rank := <-cancelled:
			t.Errorf("rank %d was cancelled", rank)
		default:
		}
	})
}

func TestCollectiveCancelsTheOthers(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r := newRig(t, setup{virtual: "1x0" + relay, script: script})
		info := r.cluster("a", 3)
		id := r.owner.send(callee{cluster: info.Number, method: "together"}, args())
		out := take(t, legs, 3)
		out[2].Raise(spec.Errorf(spec.CodeUser, "lost the group"))
		r.owner.fails(id, spec.CodeUser, "lost the group")
		// The fake ends what is cancelled, so its workers are free again.
		next := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		for _, l := range take(t, legs, 3) {
			l.Return([]byte{1})
		}
		same(t, r.owner.value(next), "[1 1 1]")
	})
}

func TestWorkerLostInTheMiddle(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		cancelled := make(chan int, 8)
		script.Cancel = func(w *fake.Worker, l *fake.Leg) string {
			l.Raise(spec.Errorf(spec.CodeCancelled, "cancelled"))
			cancelled <- w.Rank
			return "interrupted"
		}
		r := newRig(t, setup{virtual: "2x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 4)
		must(t, err)
		to := callee{cluster: info.Number, method: "all"}
		first := r.owner.send(to, args())
		queued := r.owner.send(to, args())
		single := r.owner.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{1}}, args())
		out := map[int]*fake.Leg{}
		for range 9 {
			if l := within(t, legs, "leg"); out[l.Worker.Rank] == nil {
				out[l.Worker.Rank] = l
			}
		}
		out[0].Return([]byte{0})
		out[3].Worker.Die(wire.Exited{Signal: "SIGSEGV", Logs: []string{"one", "two"}})
		for _, id := range []uint64{first, queued} {
			e := r.owner.fails(id, spec.CodeWorkerDied, "a.all", "a-3 on node-1", "SIGSEGV", "one\n  two")
			if e.Rank != 3 || e.Signal != "SIGSEGV" || e.Worker != "a-3" {
				t.Errorf("it is about %+v", e)
			}
		}
		for range 5 { // ranks 1 and 2 of both, rank 0 of the queued one
			if rank := within(t, cancelled, "cancel"); rank == 3 {
				t.Error("the dead rank was cancelled")
			}
		}
		r.owner.fails(r.owner.send(to, args()), spec.CodeWorkerDied, "a-3 on node-1", "SIGSEGV") // and ever after
		later := r.owner.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{1}}, args())
		out[1] = within(t, legs, "leg of a rank that lives")
		out[1].Return([]byte{7})
		same(t, r.owner.value(later), "7")
		_ = single
		var again wire.ClusterInfo
		must(t, r.owner.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, &again))
		if again.Workers[3].State != "dead" || again.Workers[2].State != "ready" {
			t.Errorf("states: %+v", again.Workers)
		}
	})
}

// What a rank raises because its peer is dying is told as the peer's death. The
// workers are relayed: on one connection the order of these events is sure.
func TestTheDeathIsTheFirstCause(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0+relay", script: script})
	info := r.cluster("a", 2)
	id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
	out := take(t, legs, 2)
	out[1].Worker.HangUp() // seen before its exit is told
	out[0].Raise(spec.Errorf(spec.CodeUser, "connection reset by peer"))
	out[1].Worker.Exit(wire.Exited{Code: 9})
	r.owner.fails(id, spec.CodeWorkerDied, "a-1", "exit code 9")
}

func TestExitThatNobodyReports(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0", script: script, options: head.Options{ExitWait: 50 * time.Millisecond}})
	info := r.cluster("a", 2)
	id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
	out := take(t, legs, 2)
	out[0].Worker.Send(wire.Header{Kind: wire.KindResult, ID: 1 << 40}, []byte{0xc0}) // of no call: ignored
	out[0].Worker.Exit(wire.Exited{Code: 4})                                          // its socket lives on elsewhere
	r.owner.fails(id, spec.CodeWorkerDied, "a-0", "exit code 4")
}

func TestAgentLost(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		for name, lose := range map[string]func(*fake.Agent){"killed": (*fake.Agent).Kill, "cut off": (*fake.Agent).HangUp} {
			t.Run(name, func(t *testing.T) {
				legs, script := held()
				r := newRig(t, setup{virtual: "2x1" + relay, script: script, options: head.Options{ExitWait: 100 * time.Millisecond}})
				pool := r.pool(1, 2)
				info, err := r.create(r.owner, pool, "a", 2)
				must(t, err)
				whole, err := r.create(r.owner, pool, "b", 1)
				must(t, err)
				id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
				take(t, legs, 2)
				lose(r.fake.Agent(1))
				e := r.owner.fails(id, spec.CodeNodeLost, "node-1")
				if e.Rank != 1 || e.Node != "node-1" {
					t.Errorf("it is about %+v", e)
				}
				// The other node goes on.
				id = r.owner.send(callee{cluster: whole.Number, method: "all"}, args())
				within(t, legs, "leg").Return([]byte{5})
				same(t, r.owner.value(id), "[5]")
				_, err = r.create(r.owner, pool, "c", 2)
				wantError(t, err, spec.CodeNodeLost, "node-1")
				must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
			})
		}
	})
}

func TestDeadlineHasStacks(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		script.Stack = func(w *fake.Worker) string { return "stuck in " + w.Name }
		r := newRig(t, setup{virtual: "2x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 3)
		must(t, err)
		id := r.owner.send(callee{cluster: info.Number, method: "all", timeout: time.Second}, args())
		out := take(t, legs, 3)
		out[0].Return([]byte{0})
		e := r.owner.fails(id, spec.CodeTimeout, "a.all", "1s", "2 of 3 ranks", "a-1 on node-1", "stuck in a-1", "stuck in a-2")
		if len(e.Stacks) != 2 || e.Stacks[0].Rank != 1 || e.Stacks[0].Node != "node-1" {
			t.Errorf("stacks: %+v", e.Stacks)
		}
		out[1].Return([]byte{1}) // too late, and no harm
		out[2].Return([]byte{2})

		// One rank alone: the error is about it.
		id = r.owner.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{2}, timeout: 50 * time.Millisecond}, args())
		if e := r.owner.fails(id, spec.CodeTimeout, "stuck in a-2"); e.Rank != 2 || e.Worker != "a-2" {
			t.Errorf("it is about %+v", e)
		}
		within(t, legs, "leg").Return([]byte{0})

		// A deadline of a Split call holds for the legs that are still out.
		id = r.owner.send(callee{cluster: info.Number, method: "all", flags: split, timeout: time.Second}, args())
		out = take(t, legs, 3)
		out[1].Return([]byte{1})
		if f := r.owner.answer(id); f.Flags != wire.FlagRank || f.Ack != 1 {
			t.Errorf("answered by %+v", f.Header)
		}
		for range 2 {
			f := r.owner.answer(id)
			if f.Flags != wire.FlagRank|wire.FlagError || wire.ReadError(f.Body).Code != spec.CodeTimeout {
				t.Errorf("answered by %+v: %v", f.Header, wire.ReadError(f.Body))
			}
		}
	})
}

// All ranks are asked where they are; of many, one tells it for each place.
func TestDeadlineOfManyRanks(t *testing.T) {
	legs, script := held()
	script.Stack = func(w *fake.Worker) string {
		if w.Rank == 77 {
			return "in next (dataloader.py:88)"
		}
		return "in all_reduce (comm.py:12)"
	}
	r := newRig(t, setup{virtual: "4x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 4), "a", 100)
	must(t, err)
	id := r.owner.send(callee{cluster: info.Number, method: "all", timeout: 50 * time.Millisecond}, args())
	take(t, legs, 100)
	e := r.owner.fails(id, spec.CodeTimeout, "100 of 100 ranks", "and 92 more", "ranks 0-76,78-99 in all_reduce (comm.py:12)\n  rank 77 in next (dataloader.py:88)\n", "a-0 on node-0 had not answered, like 98 more at this place:")
	if len(e.Groups) != 2 || len(e.Stacks) != 2 {
		t.Errorf("%d groups, %d stacks", len(e.Groups), len(e.Stacks))
	}
}

func TestExpireAsksForStacks(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0", script: script})
	info := r.cluster("a", 2)
	id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
	take(t, legs, 2)
	r.owner.conn.Send(wire.Header{Kind: wire.KindExpire, ID: id}, []byte{0xc0}, nil)
	r.owner.fails(id, spec.CodeTimeout, "the time its caller waited", "2 of 2 ranks", "in all")
	r.owner.conn.Send(wire.Header{Kind: wire.KindExpire, ID: id}, []byte{0xc0}, nil)     // answered
	r.owner.conn.Send(wire.Header{Kind: wire.KindExpire, ID: 123456}, []byte{0xc0}, nil) // never was
	must(t, r.owner.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, &wire.ClusterInfo{}))
}

func TestOnTimeout(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		r := newRig(t, setup{virtual: "1x0" + relay, script: script})
		info := r.cluster("a", 2)
		id := r.owner.send(callee{cluster: info.Number, method: "bounded", timeout: 50 * time.Millisecond}, args())
		take(t, legs, 2)
		r.owner.fails(id, spec.CodeTimeout)
		id = r.owner.send(callee{cluster: info.Number, method: "all"}, args()) // the fake's workers are free again
		for _, l := range take(t, legs, 2) {
			l.Return([]byte{1})
		}
		same(t, r.owner.value(id), "[1 1]")
		id = r.owner.send(callee{cluster: info.Number, method: "deadly", timeout: 50 * time.Millisecond}, args())
		take(t, legs, 2)
		r.owner.fails(id, spec.CodeTimeout)
		eventually(t, "kill", func() bool { return r.fake.Agent(0).Live() == 0 })
		r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeWorkerDied, "SIGKILL")
	})
}

func TestCancel(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		script.Cancel = func(w *fake.Worker, l *fake.Leg) string {
			if l.Method == "plain" {
				return "still in C"
			}
			l.Raise(spec.Errorf(spec.CodeCancelled, "interrupted"))
			return "interrupted"
		}
		r := newRig(t, setup{virtual: "1x0" + relay, script: script, options: head.Options{CancelGrace: 100 * time.Millisecond}})
		info := r.cluster("a", 2)
		cancel := func(id uint64) {
			r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: id}, []byte{0xc0}, nil)
		}
		id := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		take(t, legs, 2)
		cancel(id)
		r.owner.fails(id, spec.CodeCancelled, "a.all was cancelled")
		cancel(id) // answered

		id = r.owner.send(callee{cluster: info.Number, method: "plain", how: 1}, args())
		out := take(t, legs, 2)
		cancel(id)
		e := r.owner.fails(id, spec.CodeCancelled, "a.plain was cancelled", "cannot be interrupted", "2 of 2 ranks")
		if strings.Contains(e.Message, "a.all") {
			t.Error(e)
		}
		out[0].Return([]byte{0})
		out[1].Return([]byte{0})
		id = r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		for _, l := range take(t, legs, 2) {
			l.Return([]byte{1})
		}
		same(t, r.owner.value(id), "[1 1]")

		// Where that was asked for, who does not end is killed, and nobody else.
		id = r.owner.send(callee{cluster: info.Number, method: "plain", how: 1}, args())
		out = take(t, legs, 2)
		out[0].Return([]byte{0})
		r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: id}, []byte{0xc3}, nil)
		e = r.owner.fails(id, spec.CodeCancelled, "killed, because still in C", "1 of 2 ranks (a-1 on node-0)", "in plain")
		if len(e.Stacks) != 1 || e.Stacks[0].Rank != 1 || len(e.Groups) != 2 || !e.Groups[1].Answered {
			t.Errorf("it tells %+v of %+v", e.Stacks, e.Groups)
		}
		eventually(t, "kill", func() bool { return r.fake.Agent(0).Live() == 1 })
	})
}

func TestRankReports(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		possible := true
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
			if l.Method != "all" {
				echo(l)
				return
			}
			info := spec.RankInfo{WorldSize: 4, TPSize: 2, DPSize: 2, PPSize: 1, CPSize: 1, Rank: l.Worker.Rank, TPRank: l.Worker.Rank / 2, DPRank: l.Worker.Rank % 2}
			if !possible && l.Worker.Rank == 2 {
				info.DPSize, info.DPRank = 7, 6
			}
			l.Report(info, []byte{0xc0})
		}}})
		info := r.cluster("a", 4)
		to := callee{cluster: info.Number, method: "compute_all"}
		same(t, r.owner.value(r.owner.send(to, args([]any{1, 2, 3, 4}))), "[[1] [2] [3] [4]]")
		same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args())), "[<nil> <nil> <nil> <nil>]")
		same(t, r.owner.value(r.owner.send(to, args([]any{1, 2, 3, 4}))), "[[1 2] [3 4] [1 2] [3 4]]")
		var again wire.ClusterInfo
		must(t, r.owner.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, &again))
		if again.Ranks[2].TPRank != 1 {
			t.Errorf("ranks: %+v", again.Ranks)
		}
		possible = false
		e := r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeLayout, "cluster a", "rank 2", "dp_size=7")
		if e.Rank != 2 {
			t.Errorf("about rank %d", e.Rank)
		}
		same(t, r.owner.value(r.owner.send(to, args([]any{1, 2, 3, 4}))), "[[1 2] [3 4] [1 2] [3 4]]") // what was stays
	})
}

func TestWorkerEnv(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	info := r.cluster("a", 2)
	var got wire.Environment
	set := map[string]string{"A": "1"}
	must(t, r.owner.ask("worker.env", &wire.WorkerEnv{Cluster: info.Number, Rank: 1, Set: set}, &got))
	if got.Env["A"] != "1" {
		t.Errorf("got %v", got.Env)
	}
	for _, c := range []struct {
		req  wire.WorkerEnv
		says string
	}{
		{wire.WorkerEnv{Cluster: info.Number + 9}, "is no more"},
		{wire.WorkerEnv{Cluster: info.Number, Rank: 2}, "has ranks 0 to 1, not 2"},
		{wire.WorkerEnv{Cluster: info.Number, Rank: -1}, "has ranks 0 to 1, not -1"},
	} {
		if err := r.owner.ask("worker.env", &c.req, &got); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
}

func TestClearTaint(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	info := r.cluster("a", 2)
	must(t, r.owner.ask("cluster.clear", &wire.ClusterRef{Number: info.Number}, &wire.Empty{}))
}
