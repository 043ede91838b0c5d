package session

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/process"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func isAlive(pid int) bool { return lives(process.Entry{Pid: pid}) }

func names(all []Session) []string {
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names
}

func TestAHeadTakesOverFromOneThatWasKilled(t *testing.T) {
	base := folder(t)
	head := play(t, nil, "session", strconv.Itoa(os.Getpid()))
	name := head.said
	if got := List(); len(got) != 1 || got[0].Name != name || got[0].Pid != head.Process.Pid || !HeadAlive(got[0].Dir) {
		t.Fatalf("there is %v, want %s of %d", got, name, head.Process.Pid)
	}
	if _, err := Resume(name, 0); err == nil || !strings.Contains(err.Error(), "has a head already: process "+strconv.Itoa(head.Process.Pid)) {
		t.Errorf("taken from a living head: %v", err)
	}
	head.kill()
	if got := List(); len(got) != 0 {
		t.Errorf("listed without a head: %v", got)
	}
	if !slices.Contains(names(Ended()), name) {
		t.Error("its logs are not those of one that ended")
	}
	if s, err := New(0); err != nil || !exists(filepath.Join(base, name)) { // its owner, this process, lives
		t.Error("another's start removed it:", err)
	} else {
		defer s.Close()
	}
	s, err := Resume(name, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != name || s.Dir != filepath.Join(base, name) || !strings.HasSuffix(s.LogDir, name) || !exists(s.LogDir) {
		t.Errorf("got %+v", s)
	}
	if got := List(); !slices.ContainsFunc(got, func(s Session) bool { return s.Name == name && s.Pid == os.Getpid() }) {
		t.Errorf("there is %v", got)
	}
	if slices.Contains(names(Ended()), name) {
		t.Error("what runs again is told as ended")
	}
	s.Close()
	if err := RemoveLast(s.Dir); err != nil || exists(s.Dir) {
		t.Error("it is left:", err)
	}
	for _, bad := range []string{name, "12-abc", "", "..", "../x", "12-abc/../" + name} {
		if _, err := Resume(bad, 0); err == nil || !strings.Contains(err.Error(), "there is no session") || !strings.Contains(err.Error(), base) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A session that its user named is made, or taken over where there is something
// to take over.
func TestNamedSessions(t *testing.T) {
	base := folder(t)
	first, resumed, err := Named("train", 0)
	if err != nil || resumed || first.Dir != filepath.Join(base, "train") {
		t.Fatalf("%+v, %v, %v", first, resumed, err)
	}
	if got := names(List()); !slices.Contains(got, "train") {
		t.Errorf("there is %v", got)
	}
	if _, _, err := Named("train", 0); err == nil || !strings.Contains(err.Error(), "has a head already") {
		t.Errorf("two of one name: %v", err)
	}
	warden := play(t, nil, "warden", first.Dir)
	first.Close() // as if it was killed
	if got := names(Ended()); !slices.Contains(got, "train") || len(List()) > 0 {
		t.Errorf("ended %v, running %v", got, List())
	}
	second, resumed, err := Named("train", 0)
	if err != nil || !resumed || second.Dir != first.Dir || second.LogDir != first.LogDir {
		t.Fatalf("%+v, %v, %v", second, resumed, err)
	}
	mark := filepath.Join(second.Dir, "of before")
	makeDir(t, mark)
	second.Close()
	warden.kill()
	third, resumed, err := Named("train", 0) // nothing is left to take over
	if err != nil || resumed || exists(mark) {
		t.Fatalf("%+v, %v, %v", third, resumed, err)
	}
	third.Close()
	makeDir(t, filepath.Join(base, "not-one"))
	clearRemains(context.Background(), 0, ownMark(), func(what string) { t.Error(what) })
	if exists(third.Dir) || !exists(filepath.Join(base, "not-one")) {
		t.Error("a named session is left, or a folder that is none went")
	}
	for _, bad := range []string{"logs", "12-abc", "", "a/b", "..", ".x", strings.Repeat("a", longestName)} {
		if _, _, err := Named(bad, 0); err == nil || !strings.Contains(err.Error(), "is no name") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Only one gets it, also while it is being removed.
func TestOneTakesOver(t *testing.T) {
	folder(t)
	head := play(t, nil, "session", "0")
	head.kill()
	type taken struct {
		Session
		err error
	}
	results := make(chan taken)
	for range 4 {
		go func() {
			s, err := Resume(head.said, 0)
			results <- taken{s, err}
		}()
	}
	won := 0
	for range 4 {
		if r := <-results; r.err != nil {
			if !strings.Contains(r.err.Error(), "has a head already: process "+strconv.Itoa(os.Getpid())) {
				t.Error(r.err)
			}
		} else {
			won++
			if err := RemoveLast(r.Dir); err != nil || !exists(r.Dir) {
				t.Error("removed although there is a head:", err)
			}
			defer r.Close()
		}
	}
	if won != 1 {
		t.Errorf("%d heads of one session", won)
	}
}

// ownMark is what this process's strays are marked by. Heads that tests beside
// these start end what is marked as it usually is, and would be found here.
func ownMark() string { return Mark + "_" + strconv.Itoa(os.Getpid()) }

func number(t *testing.T, said string) int {
	t.Helper()
	pid, err := strconv.Atoi(said)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRemains(t *testing.T) {
	base := folder(t)
	session := func(owner string) string {
		head := play(t, nil, "session", owner)
		head.kill()
		return filepath.Join(base, head.said)
	}
	running := filepath.Join(base, play(t, nil, "session", "0").said)
	owned := session(strconv.Itoa(os.Getpid())) // head killed, owner lives
	manned := session("0")                      // head killed, its warden lives
	mark := []string{ownMark() + "=" + MarkOf(manned, 0)}
	warden := play(t, mark, "warden", manned)
	below := number(t, warden.said)
	empty := session("0")                                                   // head killed, nothing left; the last, for each start clears
	stray := play(t, mark, "idle")                                          // its warden was killed
	other := play(t, []string{ownMark() + "=" + MarkOf(base, 0)}, "idle")   // of a session that is not there any more
	mine := play(t, nil, "idle")                                            // nothing to do with it
	handed := play(t, []string{mark[0][:len(mark[0])-1] + "x"}, "idle")     // in another cgroup: somebody's job
	spoofed := play(t, []string{"NOT_" + ownMark() + "=" + manned}, "idle") // nor this
	var told []string
	tell := func(what string) { told = append(told, what) }
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // one look, and no waiting for whom the grace is for
	clearRemains(ctx, time.Hour, ownMark(), tell)
	for path, want := range map[string]bool{owned: true, empty: false, manned: true, running: true} {
		if exists(path) != want {
			t.Errorf("%s: there %v, want %v", path, !want, want)
		}
	}
	for pid, want := range map[int]bool{
		warden.Process.Pid: true, below: true, stray.Process.Pid: false, other.Process.Pid: false,
		mine.Process.Pid: true, handed.Process.Pid: true, spoofed.Process.Pid: true,
	} {
		if isAlive(pid) != want {
			t.Errorf("process %d: alive %v, want %v; told %q", pid, !want, want, told)
		}
	}
	if len(told) != 2 {
		t.Errorf("told %q", told)
	}
	clearRemains(context.Background(), 0, ownMark(), tell) // the grace is over
	if exists(manned) || isAlive(warden.Process.Pid) || isAlive(below) {
		t.Errorf("left of %s: folder %v, warden %v, what is below it %v", manned, exists(manned), isAlive(warden.Process.Pid), isAlive(below))
	}
	if !exists(owned) || !exists(running) {
		t.Error("what has an owner or a head is gone")
	}
	if len(told) != 3 || !strings.Contains(told[2], "whose head and owner are gone") {
		t.Errorf("told %q", told)
	}
}

// What a lock's file says may be anything.
func TestRecords(t *testing.T) {
	want := mine(os.Getpid(), "/a folder/logs")
	path := filepath.Join(t.TempDir(), "lock")
	l, err := take(path, want.String())
	if err != nil {
		t.Fatal(err)
	}
	if got := readRecord(path); got != want || !got.here() || !lives(got.who) || !lives(got.owner) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !held(path) {
		t.Error("it is not held")
	}
	short := record{space: want.space}
	if err := l.write(short.String()); err != nil || readRecord(path) != short {
		t.Errorf("got %+v, %v", readRecord(path), err)
	}
	if _, err := take(path, ""); err == nil {
		t.Error("taken twice")
	}
	l.release()
	l.release()
	if held(path) {
		t.Error("it is held still")
	}
	later := want.who
	later.Started++
	if lives(later) || lives(process.Entry{}) || lives(process.Entry{Pid: -1}) {
		t.Error("one that is not there lives")
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(mine(1, "/logs").String()))
	f.Add([]byte("process\nowner x y\nspace\nlogs"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = readRecord(path)
	})
}
