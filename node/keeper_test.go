package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-rl/muster/node/course"
	"github.com/muster-rl/muster/node/place"
	"github.com/muster-rl/muster/process"
)

// The test binary plays the front (its Config is in a variable) and, started by
// that, the keeper. Real Ray is tested end to end (e2e/node_*_test.py); here a
// script stands for `ray start`, so that this runs everywhere.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(Keeper())
	}
	if len(os.Args) > 2 && os.Args[1] == "sweeper" {
		os.Exit(Sweeper(os.Args[3:]))
	}
	if text := os.Getenv("NODE_TEST_CONFIG"); text != "" {
		var c Config
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			panic(err)
		}
		_ = os.Unsetenv("NODE_TEST_CONFIG")
		os.Exit(Front(c, NewVoice(os.Stderr, c.JSON, c.Place.Rank)))
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// standIn is a program that behaves as `ray start --block`: it has processes of
// Ray's names, says when it is up, and takes them along when it is told to stop.
// Killed, it leaves them.
const standIn = `#!/bin/sh
dir=$(dirname "$0")
"$dir/raylet" 1000 &
"$dir/gcs_server" 1000 &
[ -e "$dir/broken" ] && { echo "ValueError: the stand-in is broken: on purpose"; kill $!; exit 1; }
[ -e "$dir/slow" ] && { rm "$dir/slow"; echo "Exception: The current node timed out during startup."; kill $!; exit 1; }
trap 'kill $(jobs -p); exit 1' TERM
echo "Ray runtime started."
while :; do wait; sleep 0.1; done
`

// jobs are replicas on this host.
type jobs struct {
	t    *testing.T
	dir  string
	port int
}

func newJobs(t *testing.T) *jobs {
	t.Helper()
	j := &jobs{t: t, dir: t.TempDir(), port: freePorts(t)}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"raylet": program, "gcs_server": program, "ray": []byte(standIn)} {
		if err := os.WriteFile(filepath.Join(j.dir, name), text, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// freePorts finds two that follow each other. Until they are used they are anybody's,
// so they are none of those that the kernel gives to connections.
func freePorts(t *testing.T) int {
	t.Helper()
	most := 32768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &most)
	}
	const least = 20000
	if most < least+1000 {
		t.Fatalf("the kernel gives all ports from %d on to connections", most)
	}
	for range 100 {
		port := least + rand.IntN(most-least-1)
		one, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		two, err := net.Listen("tcp", fmt.Sprintf(":%d", port+1))
		one.Close()
		if err == nil {
			two.Close()
			return port
		}
	}
	t.Fatal("no two free ports in a row")
	return 0
}

// replica is a front that runs.
type replica struct {
	*exec.Cmd
	t    *testing.T
	said syncBuffer
	done chan struct{}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (j *jobs) start(rank, world int, command ...string) *replica {
	j.t.Helper()
	config := Config{
		Place: place.Place{Rank: rank, World: world, Leader: "127.0.0.1"}, Need: world, Port: j.port, NodeIP: "127.0.0.1", Token: "secret", Profile: "default",
		Ray: []string{filepath.Join(j.dir, "ray")}, TempDir: filepath.Join(j.dir, "temp"), Command: command,
		Limits: course.Limits{Join: testBound, Stop: time.Second, Farewell: 5 * time.Second, Silence: 10 * time.Second, Refused: 3},
	}
	text, err := json.Marshal(config)
	if err != nil {
		j.t.Fatal(err)
	}
	r := &replica{Cmd: exec.Command("/proc/self/exe"), t: j.t, done: make(chan struct{})}
	r.Env = append(os.Environ(), "NODE_TEST_CONFIG="+string(text))
	r.Stderr, r.Stdout = &r.said, &r.said
	r.WaitDelay = time.Second
	if err := r.Start(); err != nil {
		j.t.Fatal(err)
	}
	go func() {
		_ = r.Wait()
		close(r.done)
	}()
	j.t.Cleanup(func() {
		_ = r.Process.Kill()
		await(j.t, r.done, "the end of a replica")
	})
	return r
}

func (r *replica) until(text string) {
	r.t.Helper()
	for late := time.Now().Add(testBound); !strings.Contains(r.said.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			r.t.Fatalf("it did not say %q, but\n%s", text, r.said.String())
		}
	}
}

// ends waits for exit code and last line.
func (r *replica) ends(code int, last string) {
	r.t.Helper()
	await(r.t, r.done, "the end of a replica")
	lines := strings.Split(strings.TrimSpace(r.said.String()), "\n")
	if r.ProcessState.ExitCode() != code || !strings.HasPrefix(lines[len(lines)-1], last) {
		r.t.Errorf("it ended with %d, wanted %d and %q last:\n%s", r.ProcessState.ExitCode(), code, last, r.said.String())
	}
}

// nothingLeft waits until no process of the stand-in's is there any more.
func (j *jobs) nothingLeft() {
	j.t.Helper()
	for late := time.Now().Add(testBound); ; time.Sleep(10 * time.Millisecond) {
		entries, err := process.Scan()
		if err != nil {
			j.t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
			if err == nil && strings.HasPrefix(exe, j.dir) {
				left = append(left, fmt.Sprintf("%d %s", e.Pid, exe))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(late) {
			j.t.Fatal("left behind:", left)
		}
	}
}

func TestAJobFromStartToEnd(t *testing.T) {
	j := newJobs(t)
	second := j.start(2, 3)
	second.until("waiting for the leader")
	leader := j.start(0, 3, "sh", "-c", `echo "$RAY_ADDRESS $MUSTER_BACKEND $RAY_AUTH_TOKEN $NCCL_SOCKET_IFNAME"; exit 3`)
	leader.until("1 of 3 nodes joined")
	first := j.start(1, 3)
	leader.ends(3, "muster: the command ended with exit code 3")
	first.ends(3, "muster: the leader ended: the command ended with exit code 3")
	second.ends(3, "muster: the leader ended: the command ended with exit code 3")
	leader.until(fmt.Sprintf("127.0.0.1:%d ray secret lo\n", j.port))
	j.nothingLeft()
}

func TestKillsLeaveNothing(t *testing.T) {
	keeper := func(r *replica) int {
		below, err := process.Descendants(r.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range below {
			if e.Parent == r.Process.Pid {
				return e.Pid
			}
		}
		t.Fatal("no keeper")
		return 0
	}
	for _, who := range []string{"front", "keeper", "both"} {
		t.Run(who, func(t *testing.T) {
			j := newJobs(t)
			leader, other := j.start(0, 2, "sleep", "1000"), j.start(1, 2)
			other.until("the command runs on rank 0")
			if pid := keeper(leader); who != "front" {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			if who != "keeper" {
				_ = leader.Process.Kill()
			}
			switch who {
			case "front":
				other.ends(1, "muster: the leader ended: the leader's muster node was killed")
			case "keeper":
				leader.ends(137, "muster: the process that kept this replica was killed by SIGKILL")
				other.ends(1, "muster: the leader at 127.0.0.1:")
			case "both":
				other.ends(1, "muster: the leader at 127.0.0.1:")
			}
			j.nothingLeft()
		})
	}
}

func TestALostRaylet(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		j := newJobs(t)
		leader := j.start(0, 1, "sleep", "1000")
		leader.until("starting sleep 1000")
		for killed := false; !killed; { // it may not be called so yet
			entries, err := process.Descendants(leader.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name == "raylet" {
					killed = true
					_ = syscall.Kill(e.Pid, sig)
				}
			}
		}
		leader.ends(1, "muster: Ray's head ended while the command ran: raylet has ended")
		j.nothingLeft()
	}
}

func TestSignalsStopAll(t *testing.T) {
	j := newJobs(t)
	leader, other := j.start(0, 2, "sh", "-c", "trap '' HUP; echo on; while :; do sleep 0.1; done"), j.start(1, 2)
	leader.until("on\n")
	_ = leader.Process.Signal(syscall.SIGHUP)
	leader.ends(137, "muster: the command ended with killed by SIGKILL")
	other.ends(137, "muster: the leader ended: the command ended with killed by SIGKILL")
	j.nothingLeft()
}

func TestRayThatIsBroken(t *testing.T) {
	j := newJobs(t)
	if err := os.WriteFile(filepath.Join(j.dir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.start(0, 1, "true").ends(1, "muster: Ray's head did not start: exit code 1: ValueError: the stand-in is broken: on purpose")
	j.nothingLeft()
}

// Ray allows itself 30 s to start; here it has until the deadline.
func TestRayThatIsSlowIsStartedAgain(t *testing.T) {
	j, slow := newJobs(t), newJobs(t)
	slow.port = j.port
	for _, dir := range []string{j.dir, slow.dir} {
		if err := os.WriteFile(filepath.Join(dir, "slow"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	leader, other := j.start(0, 2, "true"), slow.start(1, 2)
	leader.until("It is started again")
	other.until("It is started again")
	leader.ends(0, "")
	other.ends(0, "")
	j.nothingLeft()
	slow.nothingLeft()
}

func TestALeaderHearsWhyAReplicaLeft(t *testing.T) {
	j, broken := newJobs(t), newJobs(t)
	broken.port = j.port
	if err := os.WriteFile(filepath.Join(broken.dir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	leader, other := j.start(0, 2, "true"), broken.start(1, 2)
	other.ends(1, "muster: this node could not join Ray: exit code 1: ValueError: the stand-in is broken: on purpose")
	leader.until("failed: this node could not join Ray: exit code 1: ValueError")
	again := j.start(1, 2)
	leader.ends(0, "")
	again.ends(0, "")
	j.nothingLeft()
	broken.nothingLeft()
}
