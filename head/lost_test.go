package head_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A rank has done its part of a call, dies and is restarted; then the head ends
// while the call still runs elsewhere. The next head does not have the rank's new
// process do it once more.
func TestNothingRunsAgainOnARestartedRank(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, _, script := lifeOf()
		var mu sync.Mutex
		var ran []string
		answer := script.Answer
		script.Answer = func(l *fake.Leg) {
			mu.Lock()
			ran = append(ran, l.Worker.Name+" "+l.Method)
			mu.Unlock()
			answer(l)
		}
		s := newCrashes(t, "2x1"+relay, script)
		c := s.controller()
		var p spec.Pool
		must(t, c.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: 10}, &p))
		cluster := clusterSpec("c", 2)
		restarting("restart_worker", 3)(&cluster)
		info := &wire.ClusterInfo{}
		must(t, c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: cluster}, info))
		call := c.call(callee{cluster: info.Number, method: "all"}, args("x"))
		out := take(t, legs, 2)
		out[0].Return([]byte{7})
		number := out[0].Worker.Number
		first := c.call(callee{cluster: info.Number, method: "all", how: 2, ranks: []int{0}}, args())
		take(t, legs, 1)[0].Return([]byte{1})
		_, err := c.wait(first) // so the head has got the result before it
		must(t, err)
		out[0].Worker.Die(wire.Exited{Signal: "SIGKILL"})
		eventually(t, "the rank is there again", func() bool {
			now := &wire.ClusterInfo{}
			must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: info.Number}, now))
			return now.Workers[0].Number != number && now.Workers[0].State == "ready"
		})
		s.crash()
		one := callee{cluster: info.Number, method: "again", how: 2, ranks: []int{0}}
		after := c.call(one, args())
		take(t, legs, 1)[0].Return([]byte{2})
		if _, err := c.wait(after); err != nil {
			t.Error(err)
		}
		_, err = c.wait(call)
		if e := spec.AsError(err); err == nil || e.Code != spec.CodeWorkerDied || !strings.Contains(e.Message, "not run again") {
			t.Errorf("it ended so: %v", err)
		}
		out[1].Return([]byte{8})
		mu.Lock()
		got := strings.Join(ran, ", ")
		mu.Unlock()
		if got != "c-0 all, c-1 all, c-0 all, c-0 again" && got != "c-1 all, c-0 all, c-0 all, c-0 again" {
			t.Error("what ran: ", got)
		}
		must(t, s.end(c))
	})
}
