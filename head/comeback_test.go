package head_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// forever is a grace that no test lives to see the end of.
const forever = time.Hour

// Who says that it leaves is not waited for; who is cut off is, for the grace.
func TestCallersThatDoNotComeBack(t *testing.T) {
	for name, leaves := range map[string]bool{"leaves": true, "is cut off": false} {
		t.Run(name, func(t *testing.T) {
			stopped := make(chan string, 8)
			grace := forever
			if !leaves {
				grace = 30 * time.Millisecond
			}
			r := newRig(t, setup{
				script:  fake.Script{Stop: func(w *fake.Worker) { stopped <- w.Name }},
				options: head.Options{Grace: grace},
			})
			c := r.attach()
			info, err := r.create(c, r.pool(0, 1), "c", 1)
			must(t, err)
			c.value(c.send(callee{cluster: info.Number, method: "all"}, args(1)))
			if leaves {
				must(t, wire.Notify(c.conn, "leave", &wire.Empty{}))
			}
			_ = c.conn.CloseWhenFlushed()
			if got := within(t, stopped, "end of its cluster"); got != "c-0" {
				t.Errorf("%s was stopped", got)
			}
		})
	}
}

// Who comes back is told what it was not, and only that; one that others take for
// it is refused.
func TestCallerComesBack(t *testing.T) {
	legs := make(chan *fake.Leg, 8)
	r := newRig(t, setup{script: fake.Script{Answer: func(l *fake.Leg) { legs <- l }}, options: head.Options{Grace: forever}})
	info := r.cluster("c", 1)
	to := callee{cluster: info.Number, method: "all"}
	c := r.attach()
	first, second := c.send(to, args(1)), c.send(to, args(2))
	within(t, legs, "first leg").Return([]byte{1})
	c.value(first)
	number := c.welcome.Caller
	held := within(t, legs, "second leg")
	_ = c.conn.Close()
	<-c.gone
	held.Return([]byte{2}) // while it is away

	refused := map[string]wire.Hello{
		"no controller of number": {Role: wire.RoleController, Token: r.head.Token(), Back: number + 1000},
		"the token is not":        {Role: wire.RoleController, Token: "x", Back: number},
		"any more":                {Role: wire.RoleController, Token: r.worker("c-0").Token, Worker: r.worker("c-0").Number, Back: number},
	}
	for text, hello := range refused {
		conn, err := wire.Dial(r.head.Address())
		must(t, err)
		if _, err := wire.Join(conn, hello); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, expected %q", err, text)
		}
		_ = conn.Close()
	}

	conn, err := wire.Dial(r.head.Address())
	must(t, err)
	again := join(t, conn, wire.Hello{Role: wire.RoleController, Token: r.head.Token(), Back: number})
	t.Cleanup(again.close)
	if again.welcome.Caller != number || again.welcome.Epoch != 1 {
		t.Errorf("welcomed as %+v", again.welcome)
	}
	again.next.Store(second)
	again.read.Store(1)
	must(t, wire.Notify(conn, "back", &wire.CallerBack{Answers: 1, Objects: []wire.Released{}}))
	hd := wire.Header{Kind: wire.KindCall, Flags: wire.FlagAgain, ID: second, Ack: 1}
	conn.Send(hd, append(to.route(), args(2)...), nil)
	must(t, wire.Notify(conn, "resent", &wire.Empty{}))
	if got := again.value(second); fmt.Sprint(got) != "[2]" {
		t.Errorf("%v", got)
	}
	conn.Send(hd, append(to.route(), args(2)...), nil) // it was answered: it never runs again
	third := again.send(to, args(3))
	leg := within(t, legs, "third leg")
	if string(leg.Payload) != string(args(3)) {
		t.Errorf("a leg of %x", leg.Payload)
	}
	leg.Return([]byte{3})
	again.value(third)
}

// A worker that hangs up and whose exit nobody tells is waited for, then lost.
func TestWorkerThatDoesNotComeBack(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs := make(chan *fake.Leg, 8)
		r := newRig(t, setup{
			virtual: "2x4" + relay, script: fake.Script{Answer: func(l *fake.Leg) { legs <- l }},
			options: head.Options{Grace: 50 * time.Millisecond},
		})
		info := r.cluster("c", 2)
		id := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
		within(t, legs, "a leg")
		within(t, legs, "a leg").Worker.HangUp()
		r.owner.fails(id, spec.CodeWorkerDied, "neither came back nor was its exit reported")
	})
}

// An agent that is cut off comes back with the exits that it could not tell, and
// what it was asked for meanwhile is asked again.
func TestAgentComesBack(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs := make(chan *fake.Leg, 16)
		r := newRig(t, setup{
			virtual: "1x4" + relay, script: fake.Script{Answer: func(l *fake.Leg) { legs <- l }},
			options: head.Options{Grace: forever},
		})
		info := r.cluster("c", 2)
		to := callee{cluster: info.Number, method: "all"}
		id := r.owner.send(to, args(1))
		one, other := within(t, legs, "a leg"), within(t, legs, "a leg")
		if one.Worker.Rank > 0 {
			one, other = other, one
		}
		agent := r.fake.Agent(0)
		for range 3 {
			agent.Cut()
			var pool spec.Pool // which needs no agent, and so shows that all is well
			must(t, r.owner.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &pool))
			must(t, r.owner.ask("cluster.clear", &wire.ClusterRef{Name: "c"}, &wire.Empty{}))
		}
		one.Return([]byte{7})
		agent.Cut()
		other.Worker.Die(wire.Exited{Signal: "SIGKILL"})
		r.owner.fails(id, spec.CodeWorkerDied, "c-1", "SIGKILL")
		agent.Cut()
		must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "c"}, &wire.Mark{}))
		eventually(t, "the end of the workers", func() bool { return agent.Live() == 0 })
	})
}

// A call is cancelled while there is no connection to the agent that is to end its
// legs: it is told when it is back.
func TestCancelsWaitForTheAgent(t *testing.T) {
	legs, away, back := make(chan *fake.Leg, 8), make(chan bool, 8), make(chan bool)
	r := newRig(t, setup{
		virtual: "1x4",
		script: fake.Script{
			Answer: func(l *fake.Leg) { legs <- l },
			Stored: func(int) []wire.ObjectAt { // as it is asked for when it comes back
				away <- true
				<-back
				return []wire.ObjectAt{}
			},
		},
		options: head.Options{Grace: forever, CancelGrace: forever},
	})
	info := r.cluster("c", 2)
	id := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
	within(t, legs, "a leg")
	within(t, legs, "a leg")
	r.fake.Agent(0).Cut()
	within(t, away, "the end of the connection")
	r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: id}, []byte{0xc0}, nil)
	must(t, r.owner.ask("status", &wire.Empty{}, &wire.Status{})) // by then it is taken
	close(back)
	r.owner.fails(id, spec.CodeCancelled, "c.all was cancelled")
}

// Workers are told which results they may drop: with their next leg or, where legs
// are fanned out or one runs on in front of the others, by themselves.
func TestResultsAreReleased(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		var mu sync.Mutex
		var slow []*fake.Leg
		r := newRig(t, setup{virtual: "2x4" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
			mu.Lock()
			defer mu.Unlock()
			if l.Method == "plain" {
				slow = append(slow, l)
				return
			}
			l.Return([]byte{1})
		}}})
		info := r.cluster("c", 4)
		front := r.owner.send(callee{cluster: info.Number, method: "plain", how: 1}, args(1))
		for range 500 {
			r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1)))
		}
		for rank := range 4 {
			if kept := r.worker(fmt.Sprintf("c-%d", rank)).Kept(); kept > 130 {
				t.Errorf("c-%d keeps %d results", rank, kept)
			}
		}
		mu.Lock()
		for _, l := range slow {
			l.Return([]byte{2})
		}
		mu.Unlock()
		r.owner.value(front)
		for range 70 {
			r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1)))
		}
		for rank := range 4 {
			if kept := r.worker(fmt.Sprintf("c-%d", rank)).Kept(); kept > 70 {
				t.Errorf("c-%d keeps %d results", rank, kept)
			}
		}
	})
}

// What a worker says of itself when it is back is checked.
func TestWorkersThatComeBackWithRubbish(t *testing.T) {
	cases := map[string]func(w *fake.Worker, conn *wire.Conn){
		"did not when it came": func(w *fake.Worker, _ *wire.Conn) {
			body, _ := wire.AppendVerb(nil, "back", &wire.WorkerBack{Legs: []wire.LegBack{}, Objects: []wire.Released{}})
			w.Send(wire.Header{Kind: wire.KindNotice}, body)
		},
		"out of order": func(_ *fake.Worker, conn *wire.Conn) {
			_ = wire.Notify(conn, "back", &wire.WorkerBack{
				Received: 3, Legs: []wire.LegBack{{Seq: 2}, {Seq: 1}}, Objects: []wire.Released{},
			})
		},
		"cannot be read": func(_ *fake.Worker, conn *wire.Conn) {
			body, _ := wire.AppendVerb(nil, "back", &wire.Empty{})
			conn.Send(wire.Header{Kind: wire.KindNotice}, append(body[:len(body)-1], 0xc3), nil)
		},
	}
	for words, says := range cases {
		t.Run(words, func(t *testing.T) {
			r := newRig(t, setup{script: fake.Script{Answer: func(*fake.Leg) {}}, options: head.Options{ExitWait: 50 * time.Millisecond, Grace: forever}})
			info := r.cluster("c", 1)
			id := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
			w := r.worker("c-0")
			conn, err := wire.Dial(r.head.Address())
			must(t, err)
			defer conn.Close()
			if words != "did not when it came" {
				w.HangUp()
				_, err = wire.Join(conn, wire.Hello{Role: wire.RoleWorker, Token: w.Token, Worker: w.Number, Back: 1})
				must(t, err)
			}
			says(w, conn)
			r.owner.fails(id, spec.CodeProtocol, words)
		})
	}
}
