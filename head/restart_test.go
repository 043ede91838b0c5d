package head_test

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// restartClass has an initialize, a method that may be run again, and one that may not.
func restartClass() spec.Description {
	again := method("again", "ONE_TO_ALL")
	again.Idempotent = true
	shards := method("shards", "DP_MP_COMPUTE")
	shards.Idempotent = true
	return spec.Description{Class: "Fake", Serial: true, Methods: []spec.Method{
		method("initialize", "ALL_TO_ALL"), method("all", "ONE_TO_ALL"), again, shards,
	}}
}

func restarting(how string, most int) func(*spec.Cluster) {
	return func(s *spec.Cluster) {
		s.OnFailure, s.MaxRestarts, s.GraceSeconds = how, most, 1
	}
}

// lifeOf is a script of workers that initialize at once and hold everything else.
func lifeOf() (legs, begun chan *fake.Leg, script fake.Script) {
	legs, begun = make(chan *fake.Leg, 1024), make(chan *fake.Leg, 1024)
	return legs, begun, fake.Script{Class: restartClass(), Answer: func(l *fake.Leg) {
		if l.Method == "initialize" {
			begun <- l
			l.Return([]byte{0xc0})
			return
		}
		legs <- l
	}}
}

func (r *rig) described(number uint32) *wire.ClusterInfo {
	r.t.Helper()
	info := &wire.ClusterInfo{}
	must(r.t, r.owner.ask("cluster.describe", &wire.ClusterRef{Number: number}, info))
	return info
}

func TestRestartWorker(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, begun, script := lifeOf()
		r := newRig(t, setup{virtual: "2x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 3, restarting("restart_worker", 3))
		must(t, err)
		events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
		begin := r.owner.send(callee{cluster: info.Number, method: "initialize"}, args([]any{"r0", "r1", "r2"}))
		same(t, r.owner.value(begin), "[<nil> <nil> <nil>]")
		take(t, begun, 3)

		again := r.owner.send(callee{cluster: info.Number, method: "again"}, args("x"))
		out := take(t, legs, 3)
		shards := r.owner.send(callee{cluster: info.Number, method: "shards"}, args([]any{1, 2, 3}))
		take(t, legs, 3)
		never := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		take(t, legs, 3)
		out[0].Return([]byte{0})
		eventually(t, "rank 0's result", func() bool { // it comes by another connection than the death
			var status wire.Status
			must(t, r.owner.ask("status", &wire.StatusRequest{}, &status))
			return !slices.Contains(status.Calls[0].Out, 0)
		})
		died := out[1].Worker
		died.Die(wire.Exited{Signal: "SIGKILL", Logs: []string{"bye"}})
		e := r.owner.fails(never, spec.CodeWorkerDied, "a.all", "a-1 on node-1", "SIGKILL", "bye",
			"rank 0: in a.shards", "with 1 more queued", "rank 2: in a.again", "with 2 more queued")
		if e.Rank != 1 || len(e.Others) != 2 {
			t.Errorf("it is about %+v", e)
		}
		later := r.owner.send(callee{cluster: info.Number, method: "all"}, args()) // held until it is back

		first := within(t, begun, "initialize of the new process")
		if first.Worker == died || first.Worker.Rank != 1 || !bytes.Equal(firstArg(first), encode(nil, "r1")) {
			t.Errorf("initialized with % x on %s", firstArg(first), first.Worker.Name)
		}
		sent := map[int][]string{} // by rank
		var answers []*fake.Leg
		for range 2 + 3 { // what rank 1 had out, and the call that was held
			l := within(t, legs, "leg")
			sent[l.Worker.Rank] = append(sent[l.Worker.Rank], l.Method)
			answers = append(answers, l)
			if l.Method == "shards" && !bytes.Equal(firstArg(l), encode(nil, []any{2})) {
				t.Errorf("shards again with % x", firstArg(l))
			}
		}
		same(t, sent, "map[0:[all] 1:[again shards all] 2:[all]]")
		out[2].Return([]byte{2})
		for _, l := range answers {
			if l.Method == "again" {
				l.Return([]byte{1})
			}
		}
		same(t, r.owner.value(again), "[0 1 2]")
		for _, l := range answers {
			if l.Method == "all" {
				l.Return([]byte{9})
			}
		}
		same(t, r.owner.value(later), "[9 9 9]")
		_ = shards
		now := r.described(info.Number)
		if now.Restarts != 1 || now.Workers[1].Restarts != 1 || now.Workers[1].State != "ready" || now.Workers[0].Restarts != 0 || now.Workers[1].Number == info.Workers[1].Number {
			t.Errorf("it tells %+v", now)
		}
		said(t, events, "rank 1 died (SIGKILL); restarting it, 1 of 3 within 10 min")
	})
}

// A process that is killed because somebody asked is one that died: what its cluster
// says about that holds, and its budget is used.
func TestKillIsADeath(t *testing.T) {
	legs, _, script := lifeOf()
	r := newRig(t, setup{virtual: "1x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 1), "a", 1, restarting("restart_worker", 1))
	must(t, err)
	for range 2 {
		call := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		take(t, legs, 1)
		must(t, r.owner.ask("cluster.kill", &wire.ClusterRef{Number: info.Number}, &wire.Empty{}))
		r.owner.fails(call, spec.CodeWorkerDied, "a-0", "SIGKILL")
	}
	if now := r.described(info.Number); now.Restarts != 1 {
		t.Errorf("it tells %+v", now)
	}
	err = r.owner.ask("cluster.kill", &wire.ClusterRef{Name: "b"}, &wire.Empty{})
	if err == nil || spec.AsError(err).Code != spec.CodeNotFound {
		t.Errorf("of a cluster that is not there: %v", err)
	}
}

// said waits for a line about a cluster.
func said(t *testing.T, events *controller, want string) {
	t.Helper()
	for {
		f := within(t, events.notices, "notice of "+want)
		verb, body, err := wire.ReadVerb(f.Body)
		must(t, err)
		var log wire.Log
		if verb == "log" {
			_, err = log.UnmarshalMsg(body)
			must(t, err)
		}
		for _, line := range log.Lines {
			if strings.Contains(line.Text, want) {
				return
			}
		}
	}
}

func TestRestartCluster(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, begun, script := lifeOf()
		script.Class.Methods[2].Collective = true
		r := newRig(t, setup{virtual: "2x0" + relay, script: script})
		info, err := r.create(r.owner, r.pool(0, 2), "a", 2, restarting("restart_cluster", 2))
		must(t, err)
		r.owner.value(r.owner.send(callee{cluster: info.Number, method: "initialize"}, args([]any{"r0", "r1"})))
		take(t, begun, 2)
		for round := range 2 {
			again := r.owner.send(callee{cluster: info.Number, method: "again"}, args("x"))
			out := take(t, legs, 2)
			never := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
			take(t, legs, 2)
			out[0].Return([]byte{5}) // of a run that is taken back
			out[1].Worker.Die(wire.Exited{Code: 3})
			r.owner.fails(never, spec.CodeWorkerDied, "a-1 on node-1", "exit code 3")
			held := r.owner.send(callee{cluster: info.Number, method: "all"}, args()) // after it was told
			take(t, begun, 2)
			sent := map[int][]string{}
			for range 4 {
				l := within(t, legs, "leg")
				sent[l.Worker.Rank] = append(sent[l.Worker.Rank], l.Method)
				l.Return([]byte{byte(l.Worker.Rank)})
			}
			same(t, sent, "map[0:[again all] 1:[again all]]")
			same(t, r.owner.value(again), "[0 1]")
			same(t, r.owner.value(held), "[0 1]")
			if now := r.described(info.Number); now.Restarts != round+1 || now.Workers[0].Restarts != round+1 {
				t.Errorf("it tells %+v", now)
			}
		}
		// The budget is used up: now it is as with "fail".
		id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
		out := take(t, legs, 2)
		out[0].Worker.Die(wire.Exited{Signal: "SIGSEGV"})
		r.owner.fails(id, spec.CodeWorkerDied, "SIGSEGV", "not restarted", "2 of 2 within 10 min")
		r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeWorkerDied, "SIGSEGV", "2 of 2")
	})
}

// A restart that fails is tried again until the budget is used up; then all that
// waited fails with the death that began it.
func TestRestartFails(t *testing.T) {
	legs, _, script := lifeOf()
	var mu sync.Mutex
	var broken []string // of ranks that come up again
	script.Begin = func(w *fake.Worker) {
		mu.Lock()
		defer mu.Unlock()
		if broken == nil || w.Rank != 0 {
			w.Ready(nil)
			return
		}
		broken = append(broken, w.Name)
		if len(broken) == 2 {
			w.Fail(spec.Errorf(spec.CodeUser, "no checkpoint"))
		} else {
			w.Die(wire.Exited{Code: 9})
		}
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 2))
	must(t, err)
	mu.Lock()
	broken = []string{}
	mu.Unlock()
	waits := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
	out := take(t, legs, 2)
	out[0].Worker.Die(wire.Exited{Signal: "SIGKILL"})
	held := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
	r.owner.fails(waits, spec.CodeWorkerDied)
	for _, id := range []uint64{held, r.owner.send(callee{cluster: info.Number, method: "all"}, args())} {
		e := r.owner.fails(id, spec.CodeWorkerDied, "a-0 on node-0", "SIGKILL", "restarting rank 0 failed, 2 of 2 within 10 min", "no checkpoint")
		if e.Signal != "SIGKILL" {
			t.Errorf("it is about %+v", e)
		}
	}
	// What is left of the tries is ended, and the other rank lives on.
	eventually(t, "the end of the last try", func() bool { return r.fake.Agent(0).Live() == 1 })
	one := r.owner.send(callee{cluster: info.Number, method: "all", how: 2, ranks: []int{1}}, args())
	for l := within(t, legs, "leg"); ; l = within(t, legs, "leg") {
		if l.Method == "all" { // what was sent before was cancelled
			l.Return([]byte{4})
			break
		}
	}
	same(t, r.owner.value(one), "4")
	mu.Lock()
	defer mu.Unlock()
	if len(broken) != 2 {
		t.Errorf("%d tries", len(broken))
	}
}

// A process whose initialize raises again and again is not left behind.
func TestRestartGivesUpOnInitialize(t *testing.T) {
	legs, begun, script := lifeOf()
	answer := script.Answer
	var count atomic.Int32
	script.Answer = func(l *fake.Leg) {
		if l.Method == "initialize" && count.Add(1) > 2 {
			l.Raise(&spec.Error{Code: spec.CodeUser, Message: "no room", Traceback: "line 7", Rank: -1})
			return
		}
		answer(l)
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_cluster", 2))
	must(t, err)
	r.owner.value(r.owner.send(callee{cluster: info.Number, method: "initialize"}, args([]any{1, 2})))
	take(t, begun, 2)
	id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
	out := take(t, legs, 2)
	out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
	r.owner.fails(id, spec.CodeWorkerDied, "a-1 on node-0", "SIGKILL", "restarting ranks 0-1 failed", "no room", "line 7")
	eventually(t, "the end of the last try", func() bool { return r.fake.Agent(0).Live() == 0 })
	r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all", how: 2, ranks: []int{0}}, args()), spec.CodeWorkerDied, "a-1", "no room")
}

func TestRestartReplaysFail(t *testing.T) {
	legs, begun, script := lifeOf()
	answer := script.Answer
	var once sync.Once
	first := true
	script.Answer = func(l *fake.Leg) {
		if l.Method == "initialize" && l.Worker.Rank == 1 {
			raised := false
			if !first {
				once.Do(func() { raised = true })
			}
			first = false
			if raised {
				begun <- l
				l.Raise(spec.Errorf(spec.CodeUser, "no room"))
				return
			}
		}
		answer(l)
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 3))
	must(t, err)
	events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	r.owner.value(r.owner.send(callee{cluster: info.Number, method: "initialize"}, args([]any{1, 2})))
	take(t, begun, 2)
	id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
	out := take(t, legs, 2)
	out[0].Return([]byte{0})
	out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
	within(t, begun, "the initialize that raises")
	within(t, begun, "the one after it")
	within(t, legs, "leg").Return([]byte{1})
	same(t, r.owner.value(id), "[0 1]")
	said(t, events, "restarting rank 1 failed (no room); trying again, 2 of 3 within 10 min")
}

// The end of a cluster ends its restarts, and nothing is left of them.
func TestStopDuringRestart(t *testing.T) {
	for name, end := range map[string]func(r *rig, number uint32){
		"stop": func(r *rig, number uint32) {
			must(r.t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: number}, &wire.Mark{}))
			eventually(r.t, "the end of all workers", func() bool { return r.fake.Agent(0).Live() == 0 })
		},
		"shutdown": func(r *rig, _ uint32) { must(r.t, r.owner.ask("shutdown", &wire.Empty{}, &wire.Mark{})) },
		"owner":    func(*rig, uint32) {},
	} {
		t.Run(name, func(t *testing.T) {
			legs, begun, script := lifeOf()
			var mu sync.Mutex
			quiet := false
			script.Begin = func(w *fake.Worker) {
				mu.Lock()
				defer mu.Unlock()
				if quiet {
					begun <- nil
				} else {
					w.Ready(nil)
				}
			}
			r := newRig(t, setup{virtual: "1x0", script: script})
			info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 3))
			must(t, err)
			mu.Lock()
			quiet = true
			mu.Unlock()
			id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
			out := take(t, legs, 2)
			out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
			within(t, begun, "new process") // which never becomes ready
			end(r, info.Number)
			if name == "stop" {
				r.owner.fails(id, spec.CodeWorkerDied, "shut down")
			}
		})
	}
}

func TestNodeLostIsNotRestarted(t *testing.T) {
	legs, _, script := lifeOf()
	r := newRig(t, setup{virtual: "2x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 2), "a", 2, restarting("restart_worker", 3))
	must(t, err)
	id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
	take(t, legs, 2)
	r.fake.Agent(1).Kill()
	r.owner.fails(id, spec.CodeNodeLost, "node-1")
}

func TestCollectiveRefusesRestartWorker(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"}) // its class has a collective method
	_, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 1))
	wantError(t, err, spec.CodeInvalid, "Fake.together", "collective", "restart_cluster")
	_, err = r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_cluster", 1))
	must(t, err)
}

// While ranks are away, a deadline still comes, and so does a cancel.
func TestEndsDuringRestart(t *testing.T) {
	legs, begun, script := lifeOf()
	var mu sync.Mutex
	var late []*fake.Worker
	hold := false
	script.Begin = func(w *fake.Worker) {
		mu.Lock()
		defer mu.Unlock()
		if hold {
			late = append(late, w)
			begun <- nil
		} else {
			w.Ready(nil)
		}
	}
	r := newRig(t, setup{virtual: "1x0", script: script})
	info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 3))
	must(t, err)
	mu.Lock()
	hold = true
	mu.Unlock()
	to := callee{cluster: info.Number, method: "again"}
	cancelled := r.owner.send(to, args())
	out := take(t, legs, 2)
	to.timeout = 300 * time.Millisecond
	expires := r.owner.send(to, args())
	take(t, legs, 2)
	out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
	within(t, begun, "new process")
	heldToo := r.owner.send(to, args())
	r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: cancelled}, []byte{0xc0}, nil)
	r.owner.fails(cancelled, spec.CodeCancelled)
	r.owner.fails(expires, spec.CodeTimeout, "2 of 2 ranks")
	r.owner.fails(heldToo, spec.CodeTimeout, "rank 1 is being restarted")
	mu.Lock()
	w := late[0]
	mu.Unlock()
	w.Ready(nil)
	to.timeout = 0
	next := r.owner.send(to, args())
	var methods []string
	for range 2 {
		l := within(t, legs, "leg")
		methods = append(methods, l.Worker.Name)
		l.Return([]byte{1})
	}
	slices.Sort(methods)
	same(t, methods, "[a-0 a-1]")
	same(t, r.owner.value(next), "[1 1]")
}

// What a cluster was initialized with stays in the stores for the next process of a
// rank, until it is initialized otherwise or ends.
func TestRestartKeepsObjects(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, begun, script := lifeOf()
		r, told := stored(t, "1x0"+relay, script)
		info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_worker", 3))
		must(t, err)
		c, to := r.owner, callee{cluster: info.Number, method: "initialize", how: 1}
		initialize := func(n uint64) {
			t.Helper()
			id := c.sendBufs(to, args(raw(array)), object(0, n))
			for _, l := range take(t, begun, 2) {
				release(l.Worker, 0, n, 1)
			}
			c.value(id)
			c.release(0, n, 1)
		}
		initialize(1)
		tells(t, told, "0 hold 1")
		id := c.send(callee{cluster: info.Number, method: "again"}, args())
		out := take(t, legs, 2)
		out[0].Return([]byte{0})
		out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
		again := within(t, begun, "initialize")
		if ref, ok := again.Bufs[0].Ref(); !ok || ref.Object != 1 {
			t.Fatalf("initialized again with %+v", again.Bufs)
		}
		release(again.Worker, 0, 1, 1)
		within(t, legs, "leg").Return([]byte{1})
		same(t, c.value(id), "[0 1]")
		initialize(2) // as acknowledged with the next call
		tells(t, told, "0 hold 2", "0 drop 1")
		must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
		tells(t, told, "0 drop 2")
	})
}
