package head_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// crashes is a session whose heads end at chosen steps, each followed by another.
type crashes struct {
	t       testing.TB
	dir     string
	virtual string
	fake    *fake.Backend
	options head.Options

	mu     sync.Mutex
	head   *head.Head
	fault  func(string) // of the head of now
	epochs int
	steps  []string      // of all heads, in order
	at     []int         // steps at which heads end, of those that are to come
	next   chan struct{} // a head has ended
	onStep func(epoch int, step string)
	runs   sync.WaitGroup
	err    error
}

func newCrashes(t testing.TB, virtual string, script fake.Script, at ...int) *crashes {
	t.Helper()
	dir, err := os.MkdirTemp("", "mt")
	must(t, err)
	shape, err := spec.ParseVirtual(virtual)
	must(t, err)
	if script.Class.Methods == nil {
		script.Class = testClass()
	}
	c := &crashes{t: t, dir: dir, virtual: virtual, fake: newFake(shape, script), at: at, next: make(chan struct{}, 1)}
	c.options = head.Options{Dir: filepath.Join(dir, "s"), LogDir: dir, Session: "test", Grace: 5 * time.Second}
	must(t, os.MkdirAll(c.options.Dir, 0o700))
	c.start()
	c.runs.Add(1)
	go func() {
		defer c.runs.Done()
		for range c.next {
			c.start()
		}
	}()
	return c
}

// start runs a head until it ends.
func (c *crashes) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.options
	var err error
	if c.epochs == 0 {
		o.Journal, err = journal.Create(o.Dir, func(err error) { c.fail(err) })
	} else {
		var state journal.State
		o.Journal, state, err = journal.Open(o.Dir, func(err error) { c.fail(err) })
		o.Resume = &state
	}
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	c.epochs++
	var h *head.Head
	dead, epoch := false, c.epochs
	o.Fault = func(step string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.onStep != nil {
			c.onStep(epoch, step)
		}
		if dead || h == nil {
			return
		}
		c.steps = append(c.steps, step)
		if len(c.at) == 0 || len(c.steps)-1 < c.at[0] {
			return
		}
		c.at, dead = c.at[1:], true
		h.Crash() // first: nothing that is said may be missing in the journal
		_ = o.Journal.Close()
		c.next <- struct{}{}
	}
	c.fault = o.Fault
	o.Backend = func(spec.Virtual, bool) (backend.Backend, error) {
		return mortal{Backend: c.fake, mu: &c.mu, dead: &dead}, nil
	}
	made, err := head.New(o)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	h, c.head = made, made
	if o.Resume == nil {
		v, _ := spec.ParseVirtual(c.virtual)
		made.StartNodes(v, true)
	}
	c.runs.Add(1)
	go func() {
		defer c.runs.Done()
		_ = made.Run(context.Background(), nil)
		_ = o.Journal.Close()
	}()
}

// mortal is the backend of a head that may be dead: it launches nothing any more,
// though what ran in it goes on for a moment in this process.
type mortal struct {
	*fake.Backend
	mu   *sync.Mutex
	dead *bool
}

func (m mortal) Launch(ctx context.Context, join backend.Join) (backend.Agent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *m.dead {
		return nil, errors.New("this head is dead")
	}
	return m.Backend.Launch(ctx, join)
}

// crash ends the head of now at its next step.
func (c *crashes) crash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = []int{len(c.steps)}
}

func (c *crashes) fail(err error) {
	go func() { // it may be told under the lock
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = errors.Join(c.err, err)
	}()
}

// dial fails for good when the last head has ended in order.
func (c *crashes) dial() (*wire.Conn, error) {
	if _, err := os.Stat(c.options.Dir); err != nil {
		return nil, spec.Errorf(spec.CodeHeadLost, "%v", err)
	}
	return wire.Dial(filepath.Join(c.options.Dir, "head.sock"))
}

func (c *crashes) controller() *returning {
	c.mu.Lock()
	token := c.head.Token()
	c.mu.Unlock()
	return newReturning(c.t, c.dial, wire.Hello{Role: wire.RoleController, Token: token})
}

// gated is a controller that, once a gate is set, dials when that is open.
func (c *crashes) gated() (*returning, func(gate <-chan struct{})) {
	c.mu.Lock()
	token := c.head.Token()
	c.mu.Unlock()
	var mu sync.Mutex
	var at <-chan struct{}
	found := newReturning(c.t, func() (*wire.Conn, error) {
		mu.Lock()
		gate := at
		mu.Unlock()
		if gate != nil {
			<-gate
		}
		return c.dial()
	}, wire.Hello{Role: wire.RoleController, Token: token})
	return found, func(gate <-chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		at = gate
	}
}

// watch has a function told of every step, and of which head it is.
func (c *crashes) watch(told func(epoch int, step string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onStep = told
}

// joined waits for the agents of two nodes.
func (c *crashes) joined() {
	c.t.Helper()
	for node := range 2 {
		eventually(c.t, "an agent", func() bool { return c.fake.Agent(node) != nil })
		within(c.t, c.fake.Agent(node).Joined(), "its welcome")
	}
}

// ends is end after something that may have gone wrong, which is told even where the
// end does not come.
func (c *crashes) ends(by *returning, before ...error) error {
	c.t.Helper()
	wrong := errors.Join(before...)
	if wrong != nil {
		c.t.Log("before its end:", wrong)
	}
	return errors.Join(wrong, c.end(by))
}

// end ends the last head in order and looks for what was left.
func (c *crashes) end(by *returning) error {
	c.mu.Lock()
	c.at = nil
	c.mu.Unlock()
	_ = by.ask("shutdown", &wire.Empty{}, &wire.Mark{}) // the answer to the last word may be lost
	left := by.leave()
	if spec.AsError(left).Code == spec.CodeHeadLost {
		left = nil
	}
	c.mu.Lock()
	wrong := errors.Join(left, c.err)
	c.mu.Unlock()
	if wrong != nil { // the head may not have heard of the end, for which is waited below
		c.t.Log("before the last head's end:", wrong)
	}
	close(c.next)
	ended := make(chan struct{})
	go func() {
		c.runs.Wait()
		close(ended)
	}()
	within(c.t, ended, "the last head's end")
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(left, c.err, os.RemoveAll(c.dir))
}

// runs counts which legs ran, and in which order.
type legRuns struct {
	mu  sync.Mutex
	ran map[string][]uint64 // by worker, origins
}

func (l *legRuns) note(leg *fake.Leg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ran == nil {
		l.ran = map[string][]uint64{}
	}
	l.ran[leg.Worker.Name] = append(l.ran[leg.Worker.Name], leg.Origin)
}

// check says what is wrong: a leg that ran twice, or two ranks that saw different
// orders.
func (l *legRuns) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for name, ran := range l.ran {
		seen := map[uint64]int{}
		for i, origin := range ran {
			if _, ok := seen[origin]; ok {
				errs = append(errs, fmt.Errorf("%s ran call %x twice: %x", name, origin, ran))
			}
			seen[origin] = i
		}
		for other, theirs := range l.ran {
			last := -1
			for _, origin := range theirs {
				if at, ok := seen[origin]; ok {
					if at < last {
						errs = append(errs, fmt.Errorf("%s and %s saw different orders: %x, %x", name, other, ran, theirs))
					}
					last = at
				}
			}
		}
	}
	return errors.Join(errs...)
}

// workload is a script's life: a pool, a cluster, calls of every kind, the end.
func workload(c *returning) error {
	var p spec.Pool
	if err := c.ask("pool.create", &wire.PoolCreate{Nodes: 2, Timeout: 10}, &p); err != nil {
		return err
	}
	info := &wire.ClusterInfo{}
	if err := c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: clusterSpec("c", 3)}, info); err != nil {
		return err
	}
	to := func(method string) callee { return callee{cluster: info.Number, method: method} }
	var calls []*outgoing
	want := map[*outgoing]string{}
	add := func(o *outgoing, value string) {
		if o == nil {
			return // what it names was answered already
		}
		calls = append(calls, o)
		want[o] = value
	}
	for i := range 3 {
		add(c.call(to("all"), args(i)), fmt.Sprint([]any{int64(i), int64(i), int64(i)}))
		one := to("plain")
		one.how, one.ranks = 2, []int{i}
		add(c.call(one, args(10+i)), fmt.Sprint(int64(10+i)))
	}
	made := to("compute")
	made.flags = keep
	first := c.call(made, args([]any{1, 2, 3, 4, 5}))
	add(first, "[1 2 3 4 5]")
	used := to("compute")
	used.flags = marked | keep
	add(c.call(used, args(future(first.ID, -1)), first.ID), "[1 2 3 4 5]")
	whole := to("all")
	whole.flags = marked
	add(c.call(whole, args(future(first.ID, -1)), first.ID), "[[1 2 3 4 5] [1 2 3 4 5] [1 2 3 4 5]]")
	byRank := to("plain")
	byRank.how, byRank.ranks, byRank.flags = 1, []int{0, 1, 2}, split
	parts := c.call(byRank, args("x"))
	for range 3 {
		if _, err := c.wait(parts); err != nil {
			return err
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
	add(c.call(to("all"), args("last")), "[last last last]")
	if _, err := c.wait(calls[len(calls)-1]); err != nil {
		return err
	}
	if err := c.ask("cluster.stop", &wire.ClusterRef{Number: info.Number, Name: "c"}, &wire.Mark{}); err != nil {
		return err
	}
	return c.ask("pool.release", &wire.PoolRelease{Pool: p.ID}, &wire.Empty{})
}

// life is the workload under heads that end at these steps.
func life(t testing.TB, virtual string, at ...int) (steps []string, err error) {
	t.Helper()
	var ran legRuns
	s := newCrashes(t, virtual, fake.Script{Answer: func(leg *fake.Leg) {
		ran.note(leg)
		echo(leg)
	}}, at...)
	c := s.controller()
	err = workload(c)
	s.mu.Lock()
	steps = slices.Clone(s.steps)
	s.mu.Unlock()
	return steps, s.ends(c, err, ran.check())
}

// A head that ends at any step of requests and calls is followed by another, and
// the script does not notice: every answer comes, once, and every leg runs once.
func TestTakeoverAtEveryStep(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		steps, err := life(t, "2x1"+relay)
		must(t, err)
		t.Logf("%d steps: %s", len(steps), strings.Join(steps, ", "))
		for at := range steps {
			if _, err := life(t, "2x1"+relay, at); err != nil {
				t.Errorf("a head that ended at step %d (%s): %v", at, steps[at], err)
			}
		}
	})
}

// Heads that follow each other quickly, some before they have heard of everybody.
func TestTakeoverOfTakeovers(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := rand.New(rand.NewPCG(6, uint64(len(relay))))
		for range 60 {
			var at []int
			for step := r.IntN(100); len(at) < 4; step += 1 + r.IntN(20) {
				at = append(at, step)
			}
			if steps, err := life(t, "2x1"+relay, at...); err != nil {
				t.Errorf("heads that ended at steps %v (%s): %v", at, strings.Join(steps, ", "), err)
			}
		}
	})
}
