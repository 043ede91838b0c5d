package muster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/worker"
)

// The test binary is also the workers of the tests. The programs that tests and
// examples start are built once, from this tree, and found on PATH.
func TestMain(m *testing.M) {
	if worker.Running() {
		worker.Main(testClass)
	}
	dir, err := os.MkdirTemp("", "muster-test-")
	if err == nil {
		err = build(dir, "muster", "./cmd/muster")
	}
	if err == nil {
		err = build(dir, "go-verifiers", "./examples/go-verifiers")
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		_ = os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
		_ = os.Setenv("MUSTER_BINARY", filepath.Join(dir, "muster"))
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir, name, folder string) error {
	if said, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), folder).CombinedOutput(); err != nil {
		return fmt.Errorf("%s cannot be built: %w: %s", folder, err, said)
	}
	return nil
}

// testClass offers what the tests call.
func testClass(info worker.Info) (*worker.Class, error) {
	var config struct {
		Fail    string
		Label   string
		Weights []byte
	}
	if err := info.Config.Decode(&config); err != nil && info.Config.Type() != "NoneType" {
		return nil, err
	}
	switch config.Fail {
	case "error":
		return nil, errors.New("the model is not there")
	case "panic":
		panic("made of glass")
	case "exit":
		fmt.Println("about to leave")
		os.Exit(17)
	}
	c := worker.NewClass("Tester").Doc("What the tests call.")
	var running sync.Mutex
	now, together := 0, make(chan struct{})
	c.Register("double", worker.DPCompute, func(rows []int) []int {
		for i := range rows {
			rows[i] *= 2
		}
		return rows
	}, worker.Params("rows"))
	c.Register("who", worker.OneToAll, func() map[string]any {
		return map[string]any{"rank": info.Rank, "name": info.Worker, "label": config.Label, "env": os.Getenv("RANK"), "args": info.Args, "pid": os.Getpid()}
	})
	c.Register("first", worker.OneToAll, func() int { return info.Rank + 100 }, worker.RankZero())
	c.Register("scatter", worker.AllToAll, func(x string, n int) string { return fmt.Sprint(info.Rank, x, n) }, worker.Params("x", "n"))
	c.Method("echo", func(x muster.Raw) muster.Raw { return x })
	c.Method("add", func(x, y int) int { return x + y }, worker.Params("x", "y"))
	c.Method("sum", func(first float64, rest ...float64) float64 {
		for _, f := range rest {
			first += f
		}
		return first
	})
	c.Method("named", func(x int, kwargs muster.Kwargs) string { return fmt.Sprint(x, kwargs) })
	c.Method("fail", func(rank int) error {
		if info.Rank == rank {
			return fmt.Errorf("row %d is bad", rank)
		}
		return nil
	})
	c.Method("panic", func(m map[string]int) { m["x"] = 1 })
	c.Method("weights", func() []int {
		w := config.Weights
		at := []int{len(w), int(w[0]), int(w[len(w)-1])}
		w[0]++ // of its own
		return at
	})
	c.Method("size", func(b []byte) int { return len(b) })
	c.Method("bytes", func(n int) []byte { return bytes.Repeat([]byte{7}, n) })
	c.Method("unsendable", func() any { return func() {} })
	c.Method("stuck", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	c.Method("hang", func() {
		fmt.Println("hanging")
		hangHere()
	})
	c.Method("die", func() { fmt.Println("last words"); os.Exit(23) })
	c.Method("print", func(text string) { fmt.Println(text) })
	c.Method("meet", func(ctx context.Context, want int) (int, error) {
		running.Lock()
		if now++; now == want {
			close(together)
		}
		running.Unlock()
		select {
		case <-together:
			return want, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	c.Method("ask", func(ctx context.Context, cluster, method string, args ...any) (muster.Raw, error) {
		s, err := info.Session(ctx)
		if err != nil {
			return muster.Raw{}, err
		}
		other, err := s.Attached(ctx, cluster)
		if err != nil {
			return muster.Raw{}, err
		}
		return muster.Call[muster.Raw](ctx, other.RankZero(), method, args...)
	})
	c.Method("until", func(ctx context.Context, dir string, n int) (int, error) {
		return info.Rank*1000 + n, runUntil(ctx, dir, n, info.Rank)
	})
	c.Method("child", func() (int, error) {
		cmd := exec.Command("sleep", "1000")
		err := cmd.Start()
		return cmd.Process.Pid, err
	})
	c.Register("initialize", worker.OneToAll, func(label string) { config.Label = label })
	c.Register("fragile", worker.OneToAll, func(dir string, rank int) (int, error) { return fragile(info, dir, rank) }, worker.Idempotent())
	c.Register("fragile_once", worker.OneToAll, func(dir string, rank int) (int, error) { return fragile(info, dir, rank) })
	batchMethods(c, info)
	if config.Label == "concurrent" {
		c.Concurrency(8)
	}
	return c.OnEnd(func() { fmt.Println("bye from", info.Worker) }), nil
}

// fragile notes that it runs, and ends a rank that does for the first time.
func fragile(info worker.Info, dir string, rank int) (int, error) {
	name := filepath.Join(dir, fmt.Sprint("ran-", info.Rank))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if _, err := file.WriteString("x"); err != nil {
		return 0, err
	}
	if ran, err := os.ReadFile(name); err != nil || len(ran) > 1 || info.Rank != rank {
		return info.Rank, err
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// runUntil notes that it runs, and returns when it is let go.
func runUntil(ctx context.Context, dir string, n, rank int) error {
	log, err := os.OpenFile(filepath.Join(dir, "ran"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, "%d on %d\n", n, rank)
	_ = log.Close()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, fmt.Sprint("go", n))); missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return err
}

//go:noinline
func hangHere() { select {} }

// rig is a session, and what is left to check when it is closed.
type rig struct {
	*muster.Session
	t   *testing.T
	log lockedBuffer

	killed bool // its head was: then others clear up, and Close does not wait for them
}

type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.Lock()
	defer b.Unlock()
	return b.Buffer.String()
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// start makes a session that leaves nothing: no process, no goroutine.
func start(t *testing.T, options muster.Options) *rig {
	t.Helper()
	r := &rig{t: t}
	mark := fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano())
	t.Setenv("MUSTER_TEST_MARK", mark)
	t.Setenv("MUSTER_DIR", shortDir(t))
	before := runtime.NumGoroutine()
	if options.Log == nil {
		options.Log = &r.log
	}
	s, err := muster.Start(testContext(t), options)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if left := marked(mark); len(left) > 0 && !r.killed {
			t.Errorf("after Close there still is %s", strings.Join(left, ", "))
		}
		eventually(t, "no process is left", func() (bool, string) {
			left := marked(mark)
			return len(left) == 0, strings.Join(left, ", ")
		})
		eventually(t, "no goroutine is left", func() (bool, string) {
			stacks := make([]byte, 1<<16)
			return runtime.NumGoroutine() <= before, string(stacks[:runtime.Stack(stacks, true)])
		})
		if t.Failed() {
			t.Logf("output of the workers:\n%s", r.log.String())
		}
	})
	return r
}

// shortDir is a folder whose name leaves room for sockets.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "mt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// marked are the processes that have the mark in their environment.
func marked(mark string) []string {
	var found []string
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		env, err := os.ReadFile(filepath.Join(folder, "environ"))
		if err == nil && bytes.Contains(env, []byte("MUSTER_TEST_MARK="+mark+"\x00")) {
			line, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
			found = append(found, filepath.Base(folder)+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// eventually looks until it holds: an end that nobody tells of.
func eventually(t *testing.T, what string, holds func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		ok, why := holds()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Errorf("not so within %v: %s: %s", patience, what, why)
			return
		}
	}
}

// cluster starts Go workers.
func (r *rig) cluster(name string, config muster.ClusterConfig) *muster.Cluster {
	r.t.Helper()
	c, err := r.Cluster(testContext(r.t), workers(r.t, name, config))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func workers(t *testing.T, name string, config muster.ClusterConfig) muster.ClusterConfig {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config.Name = name
	config.Command = append([]string{program}, config.Command...)
	if config.World == 0 && config.Devices == "" && config.DeviceIDs == nil {
		config.World = 1
	}
	return config
}
