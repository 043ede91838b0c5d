package muster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-rl/muster"
)

func code(t *testing.T, err error, want muster.Code, texts ...string) *muster.Error {
	t.Helper()
	var e *muster.Error
	if !errors.As(err, &e) || e.Code != want || muster.CodeOf(err) != want {
		t.Fatalf("got %v (code %q), want code %q", err, muster.CodeOf(err), want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	return e
}

func TestCalls(t *testing.T) {
	for _, virtual := range []string{"2x4", "2x4+relay"} {
		t.Run(virtual, func(t *testing.T) {
			s := start(t, muster.Options{Virtual: virtual})
			ctx := testContext(t)
			pool, err := s.Pool(ctx, 2, 4)
			if err != nil {
				t.Fatal(err)
			}
			c := s.cluster("actor", muster.ClusterConfig{Pool: pool, Devices: "0-7", TP: 2, Config: map[string]string{"label": "x"}, Command: []string{"-flag", "a b"}})
			rows, err := muster.Call[[]int](ctx, c, "double", []int{1, 2, 3, 4, 5})
			if err != nil || !reflect.DeepEqual(rows, []int{2, 4, 6, 8, 10}) {
				t.Fatal(rows, err)
			}
			if rows, err = muster.Call[[]int](ctx, c, "double", muster.Kwargs{"rows": []int{1}}); err != nil || !reflect.DeepEqual(rows, []int{2}) {
				t.Error(rows, err)
			}
			who, err := muster.Call[[]struct {
				Rank, Pid        int
				Name, Label, Env string
				Args             []string
			}](ctx, c, "who")
			if err != nil || len(who) != 8 || who[5].Rank != 5 || who[5].Name != "actor-5-G1" || who[5].Label != "x" || who[5].Env != "5" || !reflect.DeepEqual(who[5].Args, []string{"-flag", "a b"}) {
				t.Fatal(who, err)
			}
			title, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", who[5].Pid))
			if !strings.HasPrefix(strings.ReplaceAll(string(title), "\x00", " "), "muster worker actor-5-G1 ") {
				t.Errorf("its title is %q", title)
			}
			if n, err := muster.Call[int](ctx, c, "first"); err != nil || n != 100 {
				t.Error(n, err)
			}
			xs, err := muster.Call[[]string](ctx, c, "scatter", strings.Split("abcdefgh", ""), muster.Broadcast(7))
			if err != nil || xs[7] != "7h7" {
				t.Error(xs, err)
			}
			sums, err := muster.All[int](ctx, c, "add", muster.PerRank([]int{0, 1, 2, 3, 4, 5, 6, 7}), 10)
			if err != nil || !reflect.DeepEqual(sums, []int{10, 11, 12, 13, 14, 15, 16, 17}) {
				t.Error(sums, err)
			}
			if n, err := muster.RankZero[float64](ctx, c, "sum", 1, 2.5, 3); err != nil || n != 6.5 {
				t.Error(n, err)
			}
			if text, err := muster.Call[string](ctx, c.Rank(3), "named", 1, muster.Kwargs{"z": []int{2}}); err != nil || text != "1 map[z:[2]]" {
				t.Error(text, err)
			}
			layout, err := c.Layout(ctx)
			if err != nil || layout[7].DPSize != 4 || layout[7].TPRank != 1 {
				t.Error(layout, err)
			}
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			if err := c.Shutdown(ctx); err != nil {
				t.Error("again:", err)
			}
			if !strings.Contains(s.log.String(), "[actor-3-G3] bye from actor-3-G3\n") {
				t.Errorf("the log at shutdown is %q", s.log.String())
			}
			code(t, muster.Do(ctx, c, "who"), muster.CodeNotFound, "no more")
		})
	}
}

func TestMistakesAreFoundBeforeAnythingIsSent(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	code(t, muster.Do(ctx, c, "doubel", 1), muster.CodeNotFound, `did you mean "double"`)
	code(t, muster.Do(ctx, c, "add", 1, 2), muster.CodeNotFound, "not registered")
	code(t, muster.Do(ctx, c.All(), "add", 1), muster.CodeType, "missing y", "add(x, y)")
	code(t, muster.Do(ctx, c.All(), "add", 1, 2, 3), muster.CodeType, "takes 2 positional arguments and 3")
	code(t, muster.Do(ctx, c.All(), "add", 1, 2, muster.Kwargs{"x": 1}), muster.CodeType, "twice")
	code(t, muster.Do(ctx, c.All(), "add", 1, muster.Kwargs{"w": 1}), muster.CodeType, "no parameter w")
	code(t, muster.Do(ctx, c.All(), "echo", muster.PerRank([]int{1})), muster.CodeInvalid, "length 1", "2 ranks")
	code(t, muster.Do(ctx, c.All(), "echo", make(chan int)), muster.CodeEncoding, "c.echo: argument 0", "chan int")
	code(t, muster.Do(ctx, c.Rank(9), "echo", 1), muster.CodeInvalid, "no rank 9")
	code(t, muster.Do(ctx, c, "double", 5), muster.CodeType, "int")
	_, err := muster.Call[string](ctx, c.Rank(0), "add", 1, 2)
	code(t, err, muster.CodeEncoding, "c.add", "a int where a string was expected")
	for name, config := range map[string]muster.ClusterConfig{
		"one of Class and Command":                  {Name: "x", World: 1},
		"cannot be run":                             {Name: "x", World: 1, Command: []string{"./no-such-program"}},
		"are those of a Pool":                       workers(t, "x", muster.ClusterConfig{Devices: "0"}),
		"live cluster":                              workers(t, "c", muster.ClusterConfig{}),
		"had ended|became a worker|become a worker": {Name: "x", World: 1, Command: []string{"true"}},
	} {
		_, err := s.Cluster(ctx, config)
		found := false
		for _, text := range strings.Split(name, "|") {
			found = found || err != nil && strings.Contains(err.Error(), text)
		}
		if !found {
			t.Errorf("%v; want %q", err, name)
		}
	}
	if _, err := s.Attached(ctx, "d"); muster.CodeOf(err) != muster.CodeNotFound {
		t.Error(err)
	}
	if _, err := s.Pool(ctx, 4, 4); muster.CodeOf(err) != muster.CodeResources {
		t.Error(err)
	}
}

func TestValuesThroughWorkers(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{})
	huge := new(big.Int).Lsh(big.NewInt(-3), 100)
	back, err := muster.Call[*big.Int](ctx, c.Rank(0), "echo", huge)
	if err != nil || back.Cmp(huge) != 0 {
		t.Error(back, err)
	}
	array := muster.ArrayOf([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	same, err := muster.Call[muster.Array](ctx, c.Rank(0), "echo", array)
	if err != nil || !reflect.DeepEqual(same, array) {
		t.Error(same, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 64<<20/16)
	if n, err := muster.Call[int](ctx, c.Rank(0), "size", large); err != nil || n != len(large) {
		t.Error(n, err)
	}
	got, err := muster.Call[[]byte](ctx, c.Rank(0), "bytes", 64<<20)
	if err != nil || len(got) != 64<<20 || got[len(got)-1] != 7 {
		t.Error(len(got), err)
	}
	code(t, muster.Do(ctx, c.Rank(0), "unsendable"), muster.CodeEncoding, "the result of unsendable on c-0", "func()")
	code(t, muster.Do(ctx, c.Rank(0), "add", "a", 2), muster.CodeEncoding, "argument 0 of add", "a str where a int")
}

func TestErrorsOfMethods(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 3})
	e := code(t, muster.Do(ctx, c.All(), "fail", 1), muster.CodeUser, "c.fail on c-1 (rank 1, node-0): row 1 is bad")
	if e.Rank != 1 || e.Worker != "c-1" || e.Method != "fail" {
		t.Errorf("%+v", e)
	}
	e = code(t, muster.Do(ctx, c.Rank(2), "panic", nil), muster.CodeUser, "panic: assignment to entry in nil map", "rig_test.go")
	if !strings.HasPrefix(e.Traceback, "goroutine ") || strings.Contains(e.Traceback, "reflect.Value") || strings.Contains(e.Traceback, "debug.Stack") {
		t.Errorf("its traceback is\n%s", e.Traceback)
	}
	if n, err := muster.All[int](ctx, c, "add", 1, 1); err != nil || len(n) != 3 {
		t.Error("they do not live on:", n, err)
	}
}

func TestWorkersThatDoNotStart(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	for fail, texts := range map[string][]string{
		"error": {"the model is not there"}, "panic": {"panic: made of glass", "testClass"}, "exit": {"exit code 17", "about to leave"},
	} {
		_, err := s.Cluster(ctx, workers(t, "c", muster.ClusterConfig{World: 2, Config: map[string]string{"Fail": fail}}))
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v; want %q", fail, err, text)
			}
		}
	}
}

func TestDeadlinesTellStacks(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	c := s.cluster("c", muster.ClusterConfig{World: 2, Grace: time.Second})
	ctx, cancel := context.WithTimeout(testContext(t), 2*time.Second) // by then it has begun
	defer cancel()
	err := muster.Do(ctx, c.Rank(1), "hang")
	e := code(t, err, muster.CodeTimeout, "c-1", "hangHere")
	if !errors.Is(err, context.DeadlineExceeded) || len(e.Stacks) != 1 || e.Stacks[0].Rank != 1 {
		t.Errorf("%v, %+v", err, e.Stacks)
	}
	if err := muster.Do(testContext(t), c.Rank(0), "add", 1, 2); err != nil {
		t.Error(err)
	}
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	code(t, muster.Do(past, c.Rank(0), "add", 1, 2), muster.CodeTimeout)
}

// What does not heed its context is killed, where that was asked for.
func TestKill(t *testing.T) {
	t.Setenv("MUSTER_CANCEL_GRACE", "0.3")
	s := start(t, muster.Options{Virtual: "1x1"})
	c := s.cluster("c", muster.ClusterConfig{})
	hang := muster.Go[any](testContext(t), c.Rank(0), "hang")
	eventually(t, "it hangs", func() (bool, string) {
		text := s.log.String()
		return strings.Contains(text, "hanging"), text
	})
	hang.Kill()
	_, err := hang.Get(testContext(t))
	code(t, err, muster.CodeCancelled)
	if !strings.Contains(err.Error(), "killed, because") {
		t.Error(err)
	}
	code(t, muster.Do(testContext(t), c.Rank(0), "add", 1, 2), muster.CodeWorkerDied)
}

func TestCancel(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	c := s.cluster("c", muster.ClusterConfig{})
	ctx, cancel := context.WithCancel(testContext(t))
	future := muster.Go[any](ctx, c.Rank(0), "stuck")
	behind := muster.Go[int](testContext(t), c.Rank(0), "add", 1, 2)
	cancel()
	_, err := future.Get(testContext(t))
	code(t, err, muster.CodeCancelled)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n, err := behind.Get(testContext(t)); err != nil || n != 3 {
		t.Error(n, err)
	}
	// A call that blocks returns at once, one that had not begun never runs.
	held := muster.Go[any](testContext(t), c.Rank(0), "stuck")
	ctx, cancel = context.WithCancel(testContext(t))
	waiting := make(chan error)
	go func() { waiting <- muster.Do(ctx, c.Rank(0), "die") }()
	cancel()
	code(t, <-waiting, muster.CodeCancelled)
	held.Cancel()
	held.Cancel()
	if _, err := held.Get(testContext(t)); muster.CodeOf(err) != muster.CodeCancelled {
		t.Error(err)
	}
	if err := muster.Do(testContext(t), c.Rank(0), "add", 1, 2); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(testContext(t), time.Millisecond)
	defer cancel()
	again := muster.Go[any](testContext(t), c.Rank(0), "stuck")
	if _, err := again.Get(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	select {
	case <-again.Done():
		t.Error("giving up waiting ended the call")
	default:
	}
}

func TestWorkerDeath(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	e := code(t, muster.Do(ctx, c.Rank(1), "die"), muster.CodeWorkerDied, "c-1", "exit code 23", "last words")
	if e.ExitCode != 23 {
		t.Errorf("%+v", e)
	}
	code(t, muster.Do(ctx, c.All(), "add", 1, 2), muster.CodeWorkerDied, "c-1")
	if err := muster.Do(ctx, c.Rank(0), "add", 1, 2); err != nil {
		t.Error(err)
	}
	stuck := muster.Go[any](ctx, c.Rank(0), "hang")
	if err := syscall.Kill(c.Workers()[0].Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err := stuck.Get(ctx)
	code(t, err, muster.CodeWorkerDied, "SIGKILL", "c-0")
}

func TestFutures(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 3})
	futures := muster.Each[int](ctx, c, "add", muster.PerRank([]int{1, 2, 3}), 10)
	if got, err := muster.GetAll(ctx, futures); err != nil || !reflect.DeepEqual(got, []int{11, 12, 13}) {
		t.Error(got, err)
	}
	for i := range 200 { // answered or not, a future is an argument
		one := muster.Go[int](ctx, c.Rank(0), "add", i, 1)
		two := muster.Go[int](ctx, c.Rank(1), "add", one, 1)
		if i%3 == 0 {
			if _, err := one.Get(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := muster.Call[int](ctx, c.Rank(2), "add", two, one); err != nil || n != 2*i+3 {
			t.Fatal(i, n, err)
		}
	}
	bad := muster.Each[any](ctx, c, "fail", 1)
	if _, err := bad[0].Get(ctx); err != nil {
		t.Error(err)
	}
	if _, err := bad[1].Get(ctx); muster.CodeOf(err) != muster.CodeUser {
		t.Error(err)
	}
	_, err := muster.Go[any](ctx, c.Rank(0), "nothing").Get(ctx)
	code(t, err, muster.CodeNotFound)
	failing := muster.Go[int](ctx, c.Rank(1), "fail", 1)
	code(t, muster.Do(ctx, c.Rank(0), "add", failing, 1), muster.CodeUser, "row 1 is bad")
}

func TestManyCallersAtOnce(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 4})
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 50 {
				future := muster.Go[[]int](ctx, c.All(), "add", g, i)
				if got, err := muster.All[int](ctx, c, "add", i, muster.PerRank([]int{0, 1, 2, g})); err != nil || got[3] != i+g {
					t.Error(got, err)
					return
				}
				if got, err := future.Get(ctx); err != nil || got[2] != g+i {
					t.Error(got, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestConcurrency(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	for name, config := range map[string]muster.ClusterConfig{
		"by class": {Config: map[string]string{"label": "concurrent"}}, "by cluster": {MaxConcurrency: 8},
	} {
		c := s.cluster(strings.ReplaceAll(name, " ", "-"), config)
		var futures []*muster.Future[int]
		for range 8 {
			futures = append(futures, muster.Go[int](ctx, c.Rank(0), "meet", 8))
		}
		if got, err := muster.GetAll(ctx, futures); err != nil || got[0] != 8 {
			t.Error(name, got, err)
		}
		stuck := muster.Go[any](ctx, c.Rank(0), "stuck")
		if err := muster.Do(ctx, c.Rank(0), "add", 1, 2); err != nil {
			t.Error(name, err)
		}
		stuck.Cancel()
		if _, err := stuck.Get(ctx); muster.CodeOf(err) != muster.CodeCancelled {
			t.Error(name, err)
		}
	}
}

func TestWorkersCallWorkers(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	a := s.cluster("a", muster.ClusterConfig{})
	s.cluster("b", muster.ClusterConfig{World: 2})
	sums, err := muster.All[int](ctx, a, "ask", "b", "add", 1, 2)
	if err != nil || sums[0] != 3 {
		t.Error(sums, err)
	}
	code(t, muster.Do(ctx, a.RankZero(), "ask", "b", "addd"), muster.CodeNotFound, `did you mean "add"`)
	code(t, muster.Do(ctx, a.RankZero(), "ask", "b", "fail", 0), muster.CodeUser, "row 0 is bad")
	code(t, muster.Do(ctx, a.RankZero(), "ask", "b", "ask", "a", "who"), muster.CodeDeadlock, "a.who", "b.ask")
}

func TestShutdownInsideCalls(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	pid, err := muster.Call[int](ctx, c.Rank(0), "child")
	if err != nil {
		t.Fatal(err)
	}
	hangs := []*muster.Future[any]{muster.Go[any](ctx, c.Rank(0), "hang"), muster.Go[any](ctx, c.Rank(1), "stuck")}
	if err := c.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range hangs {
		if _, err := h.Get(ctx); muster.CodeOf(err) != muster.CodeWorkerDied {
			t.Error(err)
		}
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the worker's child %d lives on: %v", pid, err)
	}
}

func TestAgentLost(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	if _, err := muster.Call[int](ctx, c.Rank(0), "child"); err != nil {
		t.Fatal(err)
	}
	stuck := muster.Go[any](ctx, c.Rank(0), "stuck")
	if err := syscall.Kill(pidOf(t, "muster agent"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Get(ctx); muster.CodeOf(err) != muster.CodeNodeLost && muster.CodeOf(err) != muster.CodeWorkerDied {
		t.Error(err)
	}
}

// pidOf is the process of this test whose command line begins so.
func pidOf(t *testing.T, title string) int {
	for _, p := range marked(os.Getenv("MUSTER_TEST_MARK")) {
		var pid int
		if strings.Contains(p, " "+title) {
			if _, err := fmt.Sscan(p, &pid); err == nil {
				return pid
			}
		}
	}
	t.Fatalf("there is no %s", title)
	return 0
}

// address is the name of the test's session.
func (r *rig) address() string {
	r.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("%s/muster-%d", os.Getenv("MUSTER_DIR"), os.Getuid()))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "logs" {
			return e.Name()
		}
	}
	r.t.Fatal("there is no session")
	return ""
}

func TestAttached(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	s.cluster("c", muster.ClusterConfig{})
	address := s.address()
	for _, a := range []string{address, fmt.Sprintf("%s/muster-%d/%s", os.Getenv("MUSTER_DIR"), os.Getuid(), address)} {
		other, err := muster.Start(ctx, muster.Options{Address: a, Log: &s.log})
		if err != nil {
			t.Fatal(err)
		}
		c, err := other.Attached(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := muster.Call[int](ctx, c.Rank(0), "add", 1, 2); err != nil || n != 3 {
			t.Error(n, err)
		}
		own, err := other.Cluster(ctx, workers(t, "own", muster.ClusterConfig{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if err := muster.Do(ctx, own, "who"); muster.CodeOf(err) != muster.CodeHeadLost {
			t.Error(err)
		}
		if _, err := s.Attached(ctx, "own"); muster.CodeOf(err) != muster.CodeNotFound {
			t.Error(err)
		}
	}
	if _, err := muster.Start(ctx, muster.Options{Address: "/nowhere/head.sock"}); muster.CodeOf(err) != muster.CodeHeadLost {
		t.Error(err)
	}
}

func TestStartsThatFail(t *testing.T) {
	ctx := testContext(t)
	for _, test := range []struct {
		options muster.Options
		code    muster.Code
		text    string
	}{
		{muster.Options{Binary: "/bin/false"}, muster.CodeHeadLost, "exit code 1"},
		{muster.Options{Binary: "/no/such/program"}, muster.CodeInvalid, "Options.Binary"},
		{muster.Options{Virtual: "many"}, muster.CodeInvalid, `"many"`},
		{muster.Options{Virtual: "1x1", Address: "x"}, muster.CodeInvalid, "one of the two"},
	} {
		s, err := muster.Start(ctx, test.options)
		if err == nil {
			_ = s.Close()
		}
		code(t, err, test.code, test.text)
	}
	given, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := muster.Start(given, muster.Options{Virtual: "1x1"}); !errors.Is(err, context.Canceled) {
		t.Error("a start that was given up:", err)
	}
}
