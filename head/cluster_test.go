package head_test

import (
	"strings"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestClusterFromStartToStop(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		starts := make(chan *fake.Worker, 8)
		r := newRig(t, setup{virtual: "2x4" + relay, script: fake.Script{Begin: func(w *fake.Worker) {
			starts <- w
			w.Ready(nil)
		}}})
		info, err := r.create(r.owner, r.pool(4, 2), "actor", 0, shaped(2, 1, 1), func(s *spec.Cluster) { s.MappingText = "7,0-6" })
		must(t, err)
		if info.Name != "actor" || len(info.Workers) != 8 || info.MasterPort == 0 || info.MasterAddr != "127.0.0.1" {
			t.Fatalf("info: %+v", info)
		}
		for rank, w := range info.Workers {
			if w.Rank != rank || w.State != "ready" || w.Pid == 0 || !strings.HasSuffix(w.LogFile, "/actor/"+w.Name+".log") {
				t.Errorf("worker %d: %+v", rank, w)
			}
		}
		if info.Workers[0].NodeName != "node-1" || info.Workers[0].Name != "actor-0-G3" {
			t.Errorf("rank 0 sits at %+v", info.Workers[0])
		}
		if info.Ranks[5].TPRank != 1 || info.Ranks[5].DPRank != 2 {
			t.Errorf("rank 5: %+v", info.Ranks[5])
		}
		for range 8 {
			w := within(t, starts, "start")
			if w.Env["WORLD_SIZE"] != "8" || w.Env["WORKER_NAME"] != w.Name || w.Setup.Cluster != "actor" {
				t.Errorf("%s was told %v", w.Name, w.Env)
			}
		}

		var again wire.ClusterInfo
		must(t, r.attach().ask("cluster.describe", &wire.ClusterRef{Name: "actor"}, &again))
		if again.Number != info.Number || len(again.Description.Methods) != len(testClass().Methods) {
			t.Errorf("described as %+v", again)
		}
		_, err = r.create(r.owner, r.pool(0, 1), "actor", 1)
		wantError(t, err, spec.CodeInvalid, `a live cluster named "actor"`, "8 workers")
		err = r.owner.ask("cluster.describe", &wire.ClusterRef{Name: "acter"}, &again)
		wantError(t, err, spec.CodeNotFound, `did you mean "actor"`)

		must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number, Name: "actor"}, &wire.Mark{}))
		if r.fake.Worker("actor-0-G3") != nil {
			t.Error("a worker outlives the stop")
		}
		must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number, Name: "actor"}, &wire.Mark{}))
		err = r.owner.ask("cluster.describe", &wire.ClusterRef{Number: info.Number, Name: "actor"}, &again)
		wantError(t, err, spec.CodeNotFound, "actor is no more")
		r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args()), spec.CodeNotFound, "no more")
		_, err = r.create(r.owner, r.pool(0, 1), "actor", 1) // the name is free again
		must(t, err)
	})
}

func TestStartFailures(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		for name, test := range map[string]struct {
			begin func(w *fake.Worker)
			code  spec.Code
			words []string
		}{
			"a constructor raises": {
				func(w *fake.Worker) {
					w.Fail(&spec.Error{Code: spec.CodeUser, Message: "no such weights", Traceback: "line 3", Rank: -1})
				},
				spec.CodeUser, []string{"no such weights", "line 3"},
			},
			"it exits": {
				func(w *fake.Worker) { w.Die(wire.Exited{Code: 17, Logs: []string{"its last words"}}) },
				spec.CodeWorkerDied, []string{"a-1", "node-0", "ended before it was ready", "exit code 17", "its last words"},
			},
			"it is killed": {
				func(w *fake.Worker) { w.Die(wire.Exited{Signal: "SIGKILL"}) },
				spec.CodeWorkerDied, []string{"killed by SIGKILL", "it had printed nothing"},
			},
			"its exit comes first": {
				func(w *fake.Worker) {
					w.Exit(wire.Exited{Code: 3})
					w.HangUp()
				},
				spec.CodeWorkerDied, []string{"exit code 3"},
			},
			"an impossible layout": {
				func(w *fake.Worker) { w.Ready(&spec.RankInfo{WorldSize: 7}) },
				spec.CodeLayout, []string{"cluster a", "rank 1"},
			},
			"rubbish instead of ready": {
				func(w *fake.Worker) { w.Send(wire.Header{Kind: wire.KindNotice}, []byte{0xc1}) },
				spec.CodeProtocol, []string{"a-1", "cannot be read"},
			},
		} {
			t.Run(name, func(t *testing.T) {
				broken := true
				r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Begin: func(w *fake.Worker) {
					if w.Rank == 1 && broken {
						test.begin(w)
					} else {
						w.Ready(nil)
					}
				}}})
				pool := r.pool(0, 1)
				_, err := r.create(r.owner, pool, "a", 3)
				wantError(t, err, test.code, test.words...)
				if e := spec.AsError(err); e.Rank != 1 || e.Cluster != "a" {
					t.Errorf("it is about rank %d of %q", e.Rank, e.Cluster)
				}
				if n := r.fake.Agent(0).Live(); n != 0 {
					t.Errorf("%d workers were left", n)
				}
				broken = false
				_, err = r.create(r.owner, pool, "a", 3) // nothing of the first is in its way
				must(t, err)
			})
		}
	})
}

func TestStartTimeoutHasStacks(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x0" + relay, script: fake.Script{
			Begin: func(w *fake.Worker) {
				if w.Rank != 2 {
					w.Ready(nil)
				}
			},
			Stack: func(w *fake.Worker) string { return "loading " + w.Name },
		}})
		_, err := r.create(r.owner, r.pool(0, 2), "slow", 4, func(s *spec.Cluster) { s.StartupSeconds = 1 })
		wantError(t, err, spec.CodeTimeout, "1 of 4 workers", "startup_timeout", "slow-2 on node-0", "loading slow-2")
	})
}

func TestUnknownModeIsRefusedAtStart(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Class: spec.Description{
		Methods: []spec.Method{method("odd", "SIDEWAYS")},
	}}})
	_, err := r.create(r.owner, r.pool(0, 1), "a", 2)
	wantError(t, err, spec.CodeInvalid, "a.odd", "SIDEWAYS", "ONE_TO_ALL")
}

func TestLaterClassWithoutPool(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	_, err := r.create(r.owner, 99, "a", 2)
	wantError(t, err, spec.CodeNotFound, "pool 99")
	_, err = r.create(r.owner, r.pool(0, 1), "bad name", 2)
	wantError(t, err, spec.CodeInvalid, "cannot be in a name")
}

func TestConstructorsMayChooseTheLayout(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{
		Begin: func(w *fake.Worker) {
			w.Ready(&spec.RankInfo{WorldSize: 4, TPSize: 1, DPSize: 4, PPSize: 1, CPSize: 1, Rank: w.Rank, DPRank: 3 - w.Rank})
		},
		Answer: echo,
	}})
	info := r.cluster("a", 4)
	if info.Ranks[0].DPRank != 3 {
		t.Fatalf("ranks: %+v", info.Ranks)
	}
	got := r.owner.value(r.owner.send(callee{cluster: info.Number, method: "compute_all"}, args([]any{1, 2, 3, 4})))
	same(t, got, "[[4] [3] [2] [1]]")
}

func TestControllerGoneStopsItsClusters(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(*fake.Leg) {}}})
		pool := r.pool(0, 1)
		mine, err := r.create(r.owner, pool, "mine", 1)
		must(t, err)
		c := r.attach()
		theirs, err := r.create(c, pool, "theirs", 2)
		must(t, err)
		inCall := r.owner.send(callee{cluster: theirs.Number, method: "all"}, args())
		c.close()
		r.owner.fails(inCall, spec.CodeWorkerDied, "theirs", "its controller is gone")
		eventually(t, "end of its workers", func() bool { return r.fake.Worker("theirs-0") == nil && r.fake.Worker("theirs-1") == nil })
		if r.fake.Worker("mine-0") == nil {
			t.Error("another's cluster was stopped")
		}
		must(t, r.owner.ask("cluster.describe", &wire.ClusterRef{Number: mine.Number}, &wire.ClusterInfo{}))
	})
}

func TestControllerGoneWhileItsClusterStarts(t *testing.T) {
	begun := make(chan *fake.Worker, 2)
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Begin: func(w *fake.Worker) { begun <- w }}})
	pool := r.pool(0, 1)
	c := r.attach()
	failed := make(chan error, 1)
	go func() {
		_, err := r.create(c, pool, "slow", 1)
		failed <- err
	}()
	within(t, begun, "start")
	c.close()
	within(t, failed, "end of the start")
	eventually(t, "end of its worker", func() bool { return r.fake.Worker("slow-0") == nil })
}

func TestOwnerGoneEndsTheHead(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "2x1" + relay, script: fake.Script{Answer: func(*fake.Leg) {}}})
		info := r.cluster("a", 2)
		c := r.attach()
		id := c.send(callee{cluster: info.Number, method: "all"}, args())
		r.owner.close()
		c.fails(id, spec.CodeWorkerDied, "a is no more", "owner has left")
		err := within(t, r.ended, "end of the head")
		r.ended <- err
		must(t, err)
		within(t, c.gone, "end of the other connection")
		for node := range 2 {
			a := r.fake.Agent(node)
			within(t, a.Done(), "end of an agent")
			must(t, a.Err())
		}
	})
}

func TestOnlyTheOwnerShutsDown(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	c := r.attach()
	must(t, c.ask("shutdown", &wire.Empty{}, &wire.Mark{}))
	r.cluster("a", 1) // still there
	must(t, r.owner.ask("shutdown", &wire.Empty{}, &wire.Mark{}))
	err := within(t, r.ended, "end of the head")
	r.ended <- err
	must(t, err)
	if r.fake.Agent(0).Live() != 0 {
		t.Error("workers are left")
	}
}

func TestTheEndDoesNotWaitForASlowReader(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", options: head.Options{}, script: fake.Script{Answer: echo}})
	info := r.cluster("a", 1)
	big := make([]byte, 1<<20)
	for range 4 { // each has an answer that it never reads
		conn, err := wire.Dial(r.head.Address())
		must(t, err)
		defer conn.Close()
		_, err = wire.Join(conn, wire.Hello{Role: wire.RoleController, Token: r.head.Token(), Runtime: clusterSpec("", 1).Runtime})
		must(t, err)
		to := callee{cluster: info.Number, method: "all"}
		conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, append(to.route(), args(big)...), nil)
	}
	eventually(t, "answers under way", func() bool {
		return r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args())) != nil
	})
	r.owner.close()
	err := within(t, r.ended, "end of the head")
	r.ended <- err
	must(t, err)
}
