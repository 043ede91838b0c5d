package muster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/muster-rl/muster"
)

// killHead ends the head of the test without a word.
func killHead(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(pidOf(t, "muster head"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// letGo lets runUntil return.
func letGo(t *testing.T, dir string, n int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("go", n)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// ran are the calls of runUntil that began, each with its rank.
func ran(t *testing.T, dir string, want int) []string {
	t.Helper()
	var lines []string
	eventually(t, fmt.Sprint(want, " legs have begun"), func() (bool, string) {
		text, _ := os.ReadFile(filepath.Join(dir, "ran"))
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		return len(lines) >= want, string(text)
	})
	slices.Sort(lines)
	return lines
}

// A head that is killed is followed by another, and calls just return: those that
// run, those that wait, those that need others, and those that workers make.
func TestTheHeadIsKilled(t *testing.T) {
	for _, shape := range []string{"1x2", "2x2+relay"} {
		t.Run(shape, func(t *testing.T) {
			s := start(t, muster.Options{Virtual: shape})
			ctx, dir := testContext(t), t.TempDir()
			a := s.cluster("a", muster.ClusterConfig{World: 2})
			b := s.cluster("b", muster.ClusterConfig{World: 2})
			c := s.cluster("c", muster.ClusterConfig{World: 1})
			running := muster.Each[int](ctx, a, "until", dir, 1)
			behind := muster.Go[[]int](ctx, a.All(), "add", 20, 3)
			needs := muster.Go[[]int](ctx, c.Rank(0), "echo", behind)
			nested := muster.Go[int](ctx, b.Rank(1), "ask", "b", "until", dir, 2) // from rank 1 to rank 0
			ran(t, dir, 3)
			killHead(t)
			letGo(t, dir, 2)
			if n, err := nested.Get(ctx); n != 2 || err != nil {
				t.Error(n, err)
			}
			killHead(t)
			letGo(t, dir, 1)
			ns, err := muster.GetAll(ctx, running)
			if err != nil || !reflect.DeepEqual(ns, []int{1, 1001}) {
				t.Error(ns, err)
			}
			if sums, err := behind.Get(ctx); err != nil || !reflect.DeepEqual(sums, []int{23, 23}) {
				t.Error(sums, err)
			}
			if sums, err := needs.Get(ctx); err != nil || !reflect.DeepEqual(sums, []int{23, 23}) {
				t.Error(sums, err)
			}
			if got := ran(t, dir, 3); !reflect.DeepEqual(got, []string{"1 on 0", "1 on 1", "2 on 0"}) {
				t.Errorf("what ran: %q", got)
			}
			if n, err := muster.RankZero[int](ctx, a, "add", 2, 3); n != 5 || err != nil {
				t.Error(n, err)
			}
		})
	}
}

// What is asked of a head that is killed is asked of the next.
func TestTheHeadIsKilledWhileAClusterStarts(t *testing.T) {
	begun := make(chan struct{})
	var once sync.Once
	s := start(t, muster.Options{Virtual: "1x2", Progress: func(p muster.Progress) {
		if p.Subject == "cluster c" {
			once.Do(func() { close(begun) })
		}
	}})
	ctx := testContext(t)
	made := make(chan error)
	go func() {
		c, err := s.Cluster(ctx, workers(t, "c", muster.ClusterConfig{World: 2}))
		if err == nil {
			_, err = muster.All[int](ctx, c, "add", 1, 2)
		}
		made <- err
	}()
	<-begun
	killHead(t)
	if err := <-made; err != nil {
		t.Error(err)
	}
}

// Batches and large values survive with the calls that name them.
func TestTheHeadIsKilledUnderBatches(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x2"})
	ctx, dir := testContext(t), t.TempDir()
	c := s.cluster("c", muster.ClusterConfig{World: 2})
	large := make([]byte, 4<<20)
	large[7] = 7
	kept, err := muster.RankZero[muster.Raw](ctx, c, "echo", large) // lies in the store
	if err != nil {
		t.Fatal(err)
	}
	block := muster.Go[int](ctx, c.Rank(0), "until", dir, 1)
	again := muster.Go[[]byte](ctx, c.Rank(0), "echo", kept)
	ran(t, dir, 1)
	killHead(t)
	letGo(t, dir, 1)
	if _, err := block.Get(ctx); err != nil {
		t.Error(err)
	}
	for range 2 {
		back, err := again.Get(ctx)
		if err != nil || len(back) != len(large) || back[7] != 7 {
			t.Error(len(back), err)
		}
		again = muster.Go[[]byte](ctx, c.Rank(1), "echo", kept)
	}
	if _, err := again.Get(ctx); err != nil {
		t.Error(err)
	}
	kept.Release()
	// What is made while there is no head, too.
	killHead(t)
	made := samples(t, 6, 40000, nil)
	first := muster.Go[[]string](ctx, c, "rows", made)
	rows, err := first.Get(ctx)
	if err != nil || len(rows) != 6 {
		t.Error(len(rows), err)
	}
	if same, err := muster.Call[[]string](ctx, c, "rows", made); err != nil || !reflect.DeepEqual(same, rows) {
		t.Error(len(same), err)
	}
	made.Release()
	s.empty(true)
}

// Another process's session goes through it as well, by dialling.
func TestAttachedSessionsSeeTheHeadKilled(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx, dir := testContext(t), t.TempDir()
	s.cluster("c", muster.ClusterConfig{World: 1})
	other, err := muster.Start(ctx, muster.Options{Address: s.address(), Log: &s.log})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, err := other.Attached(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	call := muster.Go[int](ctx, c.Rank(0), "until", dir, 1)
	ran(t, dir, 1)
	killHead(t)
	letGo(t, dir, 1)
	if n, err := call.Get(ctx); n != 1 || err != nil {
		t.Error(n, err)
	}
	if got := ran(t, dir, 1); len(got) != 1 {
		t.Errorf("what ran: %q", got)
	}
}

// Heads that end again and again are given up in the end, and that is told.
func TestHeadLost(t *testing.T) {
	t.Setenv("MUSTER_HEAD_GRACE", "5") // which agents wait out at the end
	s := start(t, muster.Options{Virtual: "1x1"})
	ctx := testContext(t)
	c := s.cluster("c", muster.ClusterConfig{})
	stuck := muster.Go[any](ctx, c.Rank(0), "stuck")
	for range 10 {
		before := pidOf(t, "muster head")
		killHead(t)
		eventually(t, "there is another head", func() (bool, string) {
			for _, p := range marked(os.Getenv("MUSTER_TEST_MARK")) {
				var pid int
				if _, err := fmt.Sscan(p, &pid); err == nil && pid != before && strings.Contains(p, " muster head") {
					return true, ""
				}
			}
			return false, "none"
		})
		if _, err := s.Stores(ctx); err != nil { // it is there
			t.Fatal(err)
		}
	}
	s.killed = true
	killHead(t)
	_, err := stuck.Get(ctx)
	code(t, err, muster.CodeHeadLost, "SIGKILL", "started anew 10 times", "Start another session")
	<-s.Done()
	code(t, muster.Do(ctx, c.Rank(0), "add", 1, 2), muster.CodeHeadLost)
	if _, err := s.Pool(ctx, 1, 0); muster.CodeOf(err) != muster.CodeHeadLost {
		t.Error(err)
	}
}

// A session can be closed while its head is being started anew: nothing stays.
func TestCloseAfterAKill(t *testing.T) {
	s := start(t, muster.Options{Virtual: "1x1"})
	c := s.cluster("c", muster.ClusterConfig{})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stuck := muster.Go[any](ctx, c.Rank(0), "stuck")
	killHead(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := stuck.Get(ctx); err == nil {
		t.Error("it ended well")
	}
}
