package head_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Several controllers call all kinds of things while connections are cut and heads
// end around them: every call is answered with what it should be, no leg runs twice,
// and all ranks see one order.
func TestTurmoil(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		for seed := range uint64(4) {
			if err := turmoil(t, "2x2"+relay, seed); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
	})
}

func turmoil(t *testing.T, virtual string, seed uint64) error {
	t.Helper()
	var ran legRuns
	r := rand.New(rand.NewPCG(seed, 66))
	var later []*fake.Leg
	var mu sync.Mutex
	s := newCrashes(t, virtual, fake.Script{Answer: func(leg *fake.Leg) {
		ran.note(leg)
		mu.Lock()
		if r.IntN(3) == 0 { // it is answered after others
			later = append(later, leg)
			leg = nil
		}
		var ended []*fake.Leg
		if len(later) > r.IntN(6) {
			ended, later = later, nil
		}
		mu.Unlock()
		for _, l := range ended {
			echo(l)
		}
		if leg != nil {
			echo(leg)
		}
	}})
	owner := s.controller()
	var p spec.Pool
	must(t, owner.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: 10}, &p))
	info := &wire.ClusterInfo{}
	must(t, owner.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: clusterSpec("c", 4)}, info))

	stop := make(chan struct{})
	var faults, callers sync.WaitGroup
	controllers := []*returning{owner, s.controller(), s.controller()}
	errs := make([]error, len(controllers))
	for i, c := range controllers {
		callers.Go(func() { errs[i] = busy(c, info.Number, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	pass := func() { // what was put off is not put off for ever
		mu.Lock()
		ended := later
		later = nil
		mu.Unlock()
		for _, l := range ended {
			echo(l)
		}
	}
	faults.Go(func() {
		fr := rand.New(rand.NewPCG(seed, 99))
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			pass()
			switch k := fr.IntN(40); {
			case n > 60: // enough: it has to end
			case k == 0:
				s.crashNow()
			case k < 10:
				s.fake.Agent(fr.IntN(2)).Cut()
			case k < 25:
				if w := s.fake.Worker(fmt.Sprintf("c-%d", fr.IntN(4))); w != nil {
					w.Cut()
				}
			default:
				controllers[fr.IntN(len(controllers))].cut()
			}
			s.breathe()
		}
	})
	callers.Wait()
	close(stop)
	faults.Wait()
	for _, c := range controllers[1:] {
		errs = append(errs, c.leave())
	}
	return s.ends(owner, append(errs, ran.check())...)
}

// breathe waits until the head has come some steps further, so that faults are
// spread over what happens.
func (c *crashes) breathe() {
	c.mu.Lock()
	from := len(c.steps)
	c.mu.Unlock()
	for range 200 {
		c.mu.Lock()
		now := len(c.steps)
		c.mu.Unlock()
		if now > from+12 {
			return
		}
		<-tick()
	}
}

// busy makes calls, some behind others, and checks what comes back.
func busy(c *returning, cluster uint32, r *rand.Rand) error {
	for round := range 25 {
		var calls []*outgoing
		want := map[*outgoing]string{}
		for n := range 1 + r.IntN(6) {
			value := int64(round*10 + n)
			to := callee{cluster: cluster, method: "all", flags: keep}
			switch r.IntN(4) {
			case 0:
				to = callee{cluster: cluster, method: "plain", how: 2, ranks: []int{r.IntN(4)}, flags: keep}
				o := c.call(to, args(value))
				calls, want[o] = append(calls, o), fmt.Sprint(value)
			case 1:
				if len(calls) > 0 {
					dep := calls[r.IntN(len(calls))]
					uses := to
					uses.flags |= marked
					if o := c.call(uses, args(future(dep.ID, -1)), dep.ID); o != nil {
						calls, want[o] = append(calls, o), fmt.Sprintf("[%s %s %s %s]", want[dep], want[dep], want[dep], want[dep])
						continue
					}
				}
				fallthrough
			default:
				o := c.call(to, args(value))
				calls, want[o] = append(calls, o), fmt.Sprint([]int64{value, value, value, value})
			}
		}
		for _, o := range calls {
			f, err := c.wait(o)
			if err != nil {
				return err
			}
			if got := fmt.Sprint(decode(c.t, f.Body)); got != want[o] {
				return fmt.Errorf("call %d gave %s, expected %s", o.ID, got, want[o])
			}
		}
	}
	return nil
}
