package session

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestMain is also the processes that these tests look at, by its first argument:
// one that only looks like a head, one that has a session as a head does, a
// warden with a child below it, and one that just is there. They end with their
// input, and say a line when they are up.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		switch os.Args[1] {
		case "session":
			owner, _ := strconv.Atoi(os.Args[2])
			s, err := New(owner)
			fmt.Println(s.Name, err)
		case "warden":
			_, err := HoldNode(os.Args[2], 0)
			child := exec.Command("/proc/self/exe", "idle")
			input, _ := child.StdinPipe()
			_ = child.Start()
			defer input.Close()
			fmt.Println(child.Process.Pid, err)
		default:
			fmt.Println("up")
		}
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// played is one of those.
type played struct {
	*exec.Cmd
	said string
}

func play(t *testing.T, env []string, args ...string) played {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "muster"
	cmd.Env = append(os.Environ(), env...)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := played{Cmd: cmd}
	t.Cleanup(func() {
		p.kill() // at once: the race detector lingers at an orderly exit
		input.Close()
	})
	said, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	p.said, _, _ = strings.Cut(strings.TrimSpace(said), " ")
	return p
}

// kill ends it as nothing else does, and waits until it is gone.
func (p played) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// pretend starts a process that looks like a head.
func pretend(t *testing.T) int {
	t.Helper()
	return play(t, nil, "head").Process.Pid
}

// folder makes MUSTER_DIR and returns the place in it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ms") // short, for sockets' sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("MUSTER_DIR", dir)
	t.Setenv("MUSTER_LOG_DIR", "")
	return Places()[0]
}

func makeDir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyLivingHeadsAreListed(t *testing.T) {
	base := folder(t)
	if got := List(); len(got) != 0 {
		t.Errorf("nothing runs, and there is %v", got)
	}
	if _, err := os.Stat(base); err == nil {
		t.Error("looking has made a folder")
	}
	alive, dead := fmt.Sprintf("%d-0123456789ab", pretend(t)), "99999999-0123456789ab"
	other := fmt.Sprintf("%d-0123456789ab", os.Getpid()) // alive, but no head
	for _, name := range []string{alive, dead, other, "logs", "no-number", "12"} {
		makeDir(t, filepath.Join(base, name))
	}
	got := List()
	if len(got) != 1 || got[0].Name != alive || got[0].Dir != filepath.Join(base, alive) {
		t.Errorf("listed %v, want %s", got, alive)
	}
}

func TestNewSweepsAndPrunes(t *testing.T) {
	base := folder(t)
	running := fmt.Sprintf("%d-0123456789ab", pretend(t))
	dead := filepath.Join(base, "99999999-0123456789ab")
	makeDir(t, dead)
	makeDir(t, filepath.Join(base, running))
	logs := LogsOf(base)
	long := filepath.Join(logs, "20200101-000000-"+running) // the oldest, and its script still runs
	makeDir(t, long)
	for i := range keptLogs + 5 {
		makeDir(t, filepath.Join(logs, fmt.Sprintf("202601%02d-000000-99999999-%d", i+1, i)))
	}
	makeDir(t, filepath.Join(logs, "mine"))
	s, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Error("the folder for sockets:", info, err)
	}
	for path, there := range map[string]bool{
		dead: false, filepath.Join(base, running): true, long: true, s.LogDir: true, filepath.Join(logs, "mine"): true,
		filepath.Join(logs, "20260101-000000-99999999-0"): false, filepath.Join(logs, "20260125-000000-99999999-24"): true,
	} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, past := range Ended() {
		if past.Name == running || past.Name == s.Name {
			t.Error("what runs is told as ended:", past.Name)
		}
	}
	s.Close()
	if ended := Ended(); len(ended) == 0 || filepath.Base(ended[0].LogDir) != filepath.Base(s.LogDir) {
		t.Errorf("the newest comes first: %v", ended)
	}
}

// A folder that others could have made, or that sockets do not fit in, is not
// used, and the error says what to do.
func TestBadFolders(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("MUSTER_DIR", dir+strings.Repeat("/long-name", 12))
	if _, err := New(0); err == nil || !strings.Contains(err.Error(), "too long to hold sockets, by") || !strings.Contains(err.Error(), "Set MUSTER_DIR") {
		t.Error(err)
	}
	base := folder(t)
	if err := os.Symlink(dir, base); err != nil {
		t.Fatal(err)
	}
	if _, err := New(0); err == nil || !strings.Contains(err.Error(), "is not a folder of this user's") {
		t.Error(err)
	}
	makeDir(t, filepath.Join(dir, fmt.Sprintf("%d-0123456789ab", pretend(t))))
	if got := List(); len(got) != 0 {
		t.Errorf("a session behind a link is listed: %v", got)
	}
}

// Without MUSTER_DIR a script is found from a terminal that has other variables.
func TestEveryPlaceIsLookedAt(t *testing.T) {
	runtime := folder(t)
	t.Setenv("MUSTER_DIR", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", filepath.Dir(runtime))
	name := fmt.Sprintf("%d-0123456789ab", pretend(t))
	makeDir(t, filepath.Join(runtime, name))
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, s := range List() {
		if s.Name == name {
			return
		}
	}
	t.Errorf("%s was not found in %v", name, Places())
}

func TestFoldersOfWardensThatWereKilled(t *testing.T) {
	base := t.TempDir()
	made := func(name string, files ...string) string {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	hold := func(dir string) func() {
		release, err := HoldNode(dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	own, killed, held := made("muster-own"), made("muster-killed"), made("muster-held")
	begun, whole := made("muster-begun", "warden-1.lock"), made("muster-whole", "head.lock")
	other := made("other")
	for _, dir := range []string{own, held} {
		defer hold(dir)()
	}
	for _, dir := range []string{killed, whole, other} {
		hold(dir)()
	}
	ClearBeside(own)
	for _, dir := range []string{own, held, begun, whole, other} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", killed, err)
	}
}
