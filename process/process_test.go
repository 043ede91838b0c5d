package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays the programs that it starts: a first argument names the
// part. Each says its pid, and those of its children, on a line of descriptor 1.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "idle":
			idle()
		case "exit":
			code, _ := strconv.Atoi(os.Args[2])
			os.Exit(code)
		case "family":
			family()
		case "supervisor":
			supervisor()
		}
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for those: else each ends a second late
	os.Exit(m.Run())
}

func idle() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	fmt.Println(os.Getpid())
	select {}
}

// family starts a child in a session of its own that starts another, then waits.
func family() {
	depth, _ := strconv.Atoi(os.Args[2])
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	fmt.Println(os.Getpid())
	if depth > 0 {
		_, err := syscall.ForkExec("/proc/self/exe", []string{"family", "family", strconv.Itoa(depth - 1)},
			&syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
		if err != nil {
			panic(err)
		}
	}
	select {}
}

// supervisor starts a child tied to it.
func supervisor() {
	r, err := NewReaper()
	if err != nil {
		panic(err)
	}
	if _, err := r.Start(Command{Path: "/proc/self/exe", Args: []string{"idle", "idle"}, Files: []*os.File{nil, os.Stdout, os.Stderr}}); err != nil {
		panic(err)
	}
	fmt.Println(os.Getpid())
	select {}
}

type fixture struct {
	t *testing.T
	*Reaper
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	r, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{t, r}
	t.Cleanup(func() {
		f.killAll()
		r.Close()
		left, err := Descendants(os.Getpid())
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return f
}

func (f fixture) killAll() {
	f.mu.Lock()
	var children []*Child
	for _, c := range f.known {
		children = append(children, c)
	}
	f.mu.Unlock()
	for _, c := range children {
		c.Signal(syscall.SIGKILL)
		f.wait(c.Done())
	}
	if err := f.Clear(f.deadline()); err != nil {
		f.t.Error(err)
	}
}

func (f fixture) deadline() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

func (f fixture) wait(done <-chan struct{}) {
	f.t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		f.t.Fatal("waited 20 s in vain")
	}
}

// play starts a part and returns the pids that it and its children say.
func (f fixture) play(pids int, args ...string) (*Child, []int) {
	f.t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		f.t.Fatal(err)
	}
	defer out.Close()
	child, err := f.Start(Command{
		Path: "/proc/self/exe", Args: append([]string{"part"}, args...), Env: os.Environ(),
		Files: []*os.File{nil, in, os.Stderr},
	})
	in.Close()
	if err != nil {
		f.t.Fatal(err)
	}
	_ = out.SetReadDeadline(time.Now().Add(20 * time.Second))
	lines := bufio.NewReader(out)
	var got []int
	for range pids {
		line, err := lines.ReadString('\n')
		if err != nil {
			f.t.Fatalf("%v after %v", err, got)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			f.t.Fatal(err)
		}
		got = append(got, pid)
	}
	return child, got
}

func alive(pid int) bool {
	e, err := Read(pid)
	return err == nil && !e.Gone()
}

func TestExitsAreToldApart(t *testing.T) {
	f := newFixture(t)
	child, _ := f.play(0, "exit", "17")
	f.wait(child.Done())
	if got := child.Exit(); got.String() != "exit code 17" || got.Shell() != 17 {
		t.Errorf("got %v", got)
	}
	child, _ = f.play(1, "idle")
	child.Signal(syscall.SIGKILL)
	f.wait(child.Done())
	if got := child.Exit(); got.String() != "killed by SIGKILL" || got.Shell() != 137 {
		t.Errorf("got %v", got)
	}
	child.Signal(syscall.SIGKILL) // nothing any more
}

// What is closed takes no ends any more: they are those of whoever comes next.
func TestClosedReapersTakeNothing(t *testing.T) {
	old, err := NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	old.Close()
	f := newFixture(t)
	f.mu.Lock() // it does not come to it by itself
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"part", "exit", "17"}, &syscall.ProcAttr{})
	if err != nil {
		f.mu.Unlock()
		t.Fatal(err)
	}
	for alive(pid) {
	}
	old.reap()
	child := &Child{reaper: f.Reaper, pid: pid, done: make(chan struct{})}
	f.known[pid] = child
	f.mu.Unlock()
	f.wait(child.Done())
	if got := child.Exit(); got.String() != "exit code 17" {
		t.Errorf("got %v", got)
	}
}

func TestStartOfWhatIsNotThere(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Start(Command{Path: "/no/such/program", Args: []string{"x"}}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("got %v", err)
	}
}

func TestClearEndsWhatTheDeadLeft(t *testing.T) {
	f := newFixture(t)
	other, _ := f.play(1, "idle")
	child, pids := f.play(4, "family", "3")
	if err := f.Clear(f.deadline()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if !alive(pid) {
			t.Errorf("%d was cleared although its parent lives", pid)
		}
	}
	child.Signal(syscall.SIGKILL)
	f.wait(child.Done())
	errs := make(chan error)
	for range 20 { // at once: they share the work
		go func() { errs <- f.Clear(f.deadline()) }()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("%d is left", pid)
		}
	}
	if !alive(other.Pid()) {
		t.Error("a child that was started is gone")
	}
}

func TestHeldChildrenCanBeAdopted(t *testing.T) {
	f := newFixture(t)
	release := f.Hold()
	child, pids := f.play(3, "family", "2")
	child.Signal(syscall.SIGKILL)
	f.wait(child.Done())
	adopted := f.Adopt(pids[1])
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := f.Clear(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cleared while held: %v", err)
	}
	release()
	release()
	if err := f.Clear(f.deadline()); err != nil {
		t.Fatal(err)
	}
	if !alive(pids[1]) || !alive(pids[2]) {
		t.Error("what was adopted, or what is below it, is gone")
	}
	adopted.Signal(syscall.SIGKILL)
	f.wait(adopted.Done())
	if got := adopted.Exit().Signal; got != "SIGKILL" {
		t.Errorf("got %q", got)
	}
}

func TestAdoptAfterTheEnd(t *testing.T) {
	f := newFixture(t)
	release := f.Hold()
	defer release()
	child, pids := f.play(2, "family", "1")
	child.Signal(syscall.SIGKILL)
	f.wait(child.Done())
	for alive(pids[1]) {
		_ = syscall.Kill(pids[1], syscall.SIGKILL)
	}
	for { // until it has been reaped: then its number is free
		if _, err := Read(pids[1]); err != nil {
			break
		}
	}
	f.reap() // waits for a reaping in progress
	adopted := f.Adopt(pids[1])
	f.wait(adopted.Done())
	if got := adopted.Exit().Signal; got != "SIGKILL" {
		t.Errorf("got %q", got)
	}
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	f := newFixture(t)
	child, pids := f.play(2, "supervisor")
	var watches []*Watch
	for _, pid := range pids {
		w, err := NewWatch(pid)
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	child.Signal(syscall.SIGKILL)
	for _, w := range watches {
		f.wait(w.Done())
		w.Close()
	}
}

func TestWatch(t *testing.T) {
	f := newFixture(t)
	child, _ := f.play(1, "idle")
	closed, err := NewWatch(child.Pid())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	w, err := NewWatch(child.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	f.wait(w.Done())
	f.wait(child.Done())
	for range 3 { // nothing any more
		if err := w.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewWatch(child.Pid()); !errors.Is(err, unix.ESRCH) {
		t.Errorf("got %v", err)
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b\n(c)) S 7 " + strings.Repeat("1 ", 17) + "99 0 0"
	got, err := parseStat([]byte(line))
	if err != nil || got != (Entry{Pid: 42, Parent: 7, Name: "a) b\n(c)", State: 'S', Started: 99}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "1", "1 (x", "x (y) S 1", "1 (y) S 1 2 3", ")("} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) S 7 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseStat(b) })
}

func TestWhatIsDeepestIsKilledFirst(t *testing.T) {
	entries := []Entry{{Pid: 5, Parent: 4}, {Pid: 2, Parent: 1}, {Pid: 4, Parent: 3}, {Pid: 3, Parent: 2}, {Pid: 6, Parent: 1}}
	killed := map[int]bool{}
	killAll(Below(entries, func(e Entry) bool { return e.Parent == 1 }), func(e Entry) error {
		for _, other := range entries {
			if other.Parent == e.Pid && !killed[other.Pid] {
				t.Errorf("%d was killed before %d, which is below it", e.Pid, other.Pid)
			}
		}
		killed[e.Pid] = true
		return nil
	})
	if len(killed) != len(entries) {
		t.Errorf("killed %v, want all of %v", killed, entries)
	}
}

func TestBelow(t *testing.T) {
	entries := []Entry{{Pid: 5, Parent: 4}, {Pid: 2, Parent: 1}, {Pid: 3, Parent: 2}, {Pid: 4, Parent: 3}, {Pid: 9, Parent: 1}}
	var pids []int
	for _, e := range Below(entries, func(e Entry) bool { return e.Pid == 2 }) {
		pids = append(pids, e.Pid)
	}
	if fmt.Sprint(pids) != "[2 3 4 5]" {
		t.Errorf("got %v", pids)
	}
}
