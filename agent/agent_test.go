package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/local"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const patience = 20 * time.Second

// bench is a head's side of one agent: it hears what the agent says.
type bench struct {
	*testing.T
	reaper *process.Reaper
	join   backend.Join
	agent  backend.Agent
	conn   *wire.Conn
	asker  *wire.Asker
	hello  wire.Hello
	listen listening
	far    *secure.Authority // of a head on another machine; nil: it is here
	silent bool              // the head answers no pings

	mu      sync.Mutex
	changed chan struct{}
	lines   []wire.LogLine
	exited  map[uint32]wire.Exited
	links   []wire.Frame // whatever has a peer
	notices []string     // verbs, of this connection
	back    wire.AgentBack
}

type listening interface {
	net.Listener
	SetDeadline(deadline time.Time) error
}

func newBench(t *testing.T, change func(*bench)) *bench {
	t.Helper()
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "muster")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, reaper: reaper, changed: make(chan struct{}), exited: map[uint32]wire.Exited{}}
	b.join = backend.Join{
		Head: filepath.Join(dir, "head.sock"), Token: "secret", Node: 1, Name: "node-1",
		Dir: filepath.Join(dir, "run"), LogDir: t.TempDir(), Virtual: 8,
	}
	if err := os.Mkdir(b.join.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(b)
	}
	if b.listen, err = b.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.listen.Close()
		os.RemoveAll(dir)
	})
	if b.agent, err = local.New(reaper, "", 2).Launch(context.Background(), b.join); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.end)
	b.accept()
	return b
}

// open listens, here or for another machine.
func (b *bench) open() (listening, error) {
	if b.far == nil {
		return net.ListenUnix("unix", &net.UnixAddr{Name: b.join.Head, Net: "unix"})
	}
	address := "127.0.0.1:0"
	if len(b.join.Hosts) > 0 {
		address = b.join.Hosts[0]
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	b.join.Hosts = []string{l.Addr().String()}
	return l.(*net.TCPListener), nil
}

// accept lets the agent in, once more where it was there before.
func (b *bench) accept() {
	b.Helper()
	_ = b.listen.SetDeadline(time.Now().Add(patience))
	nc, err := b.listen.Accept()
	if err != nil {
		b.Fatal(err)
	}
	conn := wire.NewConn(nc)
	if b.far != nil {
		if conn, err = wire.Over(nc.(*net.TCPConn), b.far.ServerConfig(), false); err != nil {
			b.Fatal(err)
		}
	}
	if b.hello, err = wire.ReadHello(conn); err != nil {
		b.Fatal(err)
	}
	welcome := wire.Welcome{StoreToken: "the stores'"}
	if b.hello.Request != nil {
		welcome.CA = b.far.CA()
		if welcome.Cert, err = b.far.Sign(b.hello.Request, "node-1", 1); err != nil {
			b.Fatal(err)
		}
	}
	wire.Accept(conn, welcome)
	b.mu.Lock()
	b.conn, b.asker = conn, wire.NewAsker(conn)
	b.notices, b.links, b.back = nil, nil, wire.AgentBack{}
	b.mu.Unlock()
	go b.read(conn, b.asker)
}

// end sees that the agent leaves, and that nothing is left.
func (b *bench) end() {
	if b.conn != nil {
		b.conn.Close()
	} else {
		b.agent.Kill()
	}
	b.await(b.agent.Done(), "the agent's end")
	left, err := process.Descendants(os.Getpid())
	if err != nil || len(left) > 0 {
		b.Errorf("left behind: %+v, %v", left, err)
	}
	b.reaper.Close()
	// Only with the warden killed as well is the socket left to the head, which
	// removes the whole folder.
	if _, err := os.Stat(socketPath(b.join)); err == nil && !strings.Contains(b.Name(), "warden") {
		b.Errorf("%s is left", socketPath(b.join))
	}
	if b.Failed() {
		text, _ := os.ReadFile(filepath.Join(b.join.LogDir, "agent-1.log"))
		b.Logf("agent said: %s", text)
	}
}

func (b *bench) read(conn *wire.Conn, asker *wire.Asker) {
	for {
		f, err := conn.Read()
		if err != nil {
			asker.Fail(err)
			return
		}
		if asker.Deliver(f) {
			continue
		}
		b.mu.Lock()
		switch {
		case f.Peer != 0:
			f.Keep()
			b.links = append(b.links, f)
		case f.Kind == wire.KindNotice:
			verb, rest, err := wire.ReadVerb(f.Body)
			if err != nil {
				panic(err)
			}
			var log wire.Log
			var exited wire.Exited
			b.notices = append(b.notices, verb)
			switch verb {
			case "ping":
				if !b.silent {
					_ = wire.Notify(conn, "pong", &wire.Empty{})
				}
			case "back":
				if _, err := b.back.UnmarshalMsg(rest); err != nil {
					panic(err)
				}
			case "log":
				if _, err := log.UnmarshalMsg(rest); err != nil {
					panic(err)
				}
				b.lines = append(b.lines, log.Lines...)
			case "exited":
				if _, err := exited.UnmarshalMsg(rest); err != nil {
					panic(err)
				}
				b.exited[exited.Worker] = exited
			}
		}
		close(b.changed)
		b.changed = make(chan struct{})
		b.mu.Unlock()
	}
}

// until waits until ok, called with the lock held, says so.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		fine, changed := ok(), b.changed
		b.mu.Unlock()
		if fine {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			b.mu.Lock()
			defer b.mu.Unlock()
			b.Fatalf("waited in vain for %s; lines: %+v, exits: %+v", what, b.lines, b.exited)
		}
	}
}

func (b *bench) await(done <-chan struct{}, what string) {
	b.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		b.Fatalf("waited in vain for %s", what)
	}
}

func (b *bench) ask(verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.asker.Ask(ctx, verb, req, resp)
}

// workers makes a start of so many workers, numbered from 1, that all do the same.
func (b *bench) workers(n int, does string) *wire.Start {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	start := &wire.Start{
		Cluster: "actor", Number: 1, Start: "fork",
		Runtime: spec.Runtime{Python: self, Package: "/pkg", Dir: b.TempDir(), Env: map[string]string{"FROM": "controller", "BOTH": "controller", "GORACE": os.Getenv("GORACE")}},
		Setup:   wire.WorkerSetup{Cluster: "actor", CallAddress: b.join.Head},
	}
	for i := range n {
		start.Workers = append(start.Workers, wire.WorkerStart{
			Number: uint32(i + 1), Rank: i, Name: fmt.Sprintf("actor-%d", i), Token: fmt.Sprintf("token-%d", i),
			Env: map[string]string{"FAKE_DOES": does, "BOTH": "worker"},
		})
	}
	return start
}

func (b *bench) start(start *wire.Start) {
	b.Helper()
	if err := b.ask("start", start, &wire.Empty{}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) untilExited(number uint32) wire.Exited {
	b.Helper()
	b.until(fmt.Sprintf("the exit of worker %d", number), func() bool { _, ok := b.exited[number]; return ok })
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.exited[number]
}

// said returns the lines of a worker so far.
func (b *bench) said(number uint32) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.saidLocked(number)
}

func (b *bench) saidLocked(number uint32) []string {
	var lines []string
	for _, l := range b.lines {
		if l.Number == number {
			lines = append(lines, l.Text)
		}
	}
	return lines
}

func (b *bench) untilSaid(number uint32, text string, times int) {
	b.Helper()
	b.until(fmt.Sprintf("worker %d to say %q", number, text), func() bool {
		return strings.Count(strings.Join(b.saidLocked(number), "\n"), text) >= times
	})
}

// littered returns the pids that workers said they left.
func (b *bench) littered(number uint32) []int {
	var pids []int
	for _, line := range b.said(number) {
		if text, ok := strings.CutPrefix(line, "litter "); ok {
			pid, err := strconv.Atoi(text)
			if err != nil {
				b.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func alive(pid int) bool {
	e, err := process.Read(pid)
	return err == nil && !e.Gone()
}

func (b *bench) untilDead(pids ...int) {
	b.Helper()
	for _, pid := range pids {
		if w, err := process.NewWatch(pid); err == nil {
			b.await(w.Done(), fmt.Sprintf("the end of process %d", pid))
			w.Close()
		}
	}
}

// below finds the processes of a name under this test.
func (b *bench) below(cmdline string) []int {
	var pids []int
	all, err := process.Descendants(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range all {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.Pid))
		if strings.Contains(strings.ReplaceAll(string(text), "\x00", " "), cmdline) {
			pids = append(pids, e.Pid)
		}
	}
	return pids
}

func TestHelloReportsTheNode(t *testing.T) {
	b := newBench(t, nil)
	n := b.hello.Node
	if b.hello.Role != wire.RoleAgent || b.hello.Token != "secret" || n == nil {
		t.Fatalf("got %+v", b.hello)
	}
	if n.Index != 1 || n.Name != "node-1" || !n.Virtual || len(n.Devices) != 8 || n.Cores < 1 || n.Memory == 0 || n.Files == 0 || n.Pid != b.hello.Pid {
		t.Errorf("got %+v", n)
	}
	info, err := os.Stat(socketPath(b.join))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if b.conn.Close(); !waits(b.agent.Done()) || b.agent.Err() != nil {
		t.Errorf("not an orderly end: %v", b.agent.Err())
	}
	if _, err := os.Stat(b.join.Dir); err == nil {
		t.Error("the folder outlived the head")
	}
}

func waits(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(patience):
		return false
	}
}

func TestExits(t *testing.T) {
	b := newBench(t, nil)
	b.start(b.workers(1, "say:hello rubbish env:FROM env:BOTH exit:17"))
	e := b.untilExited(1)
	want := []string{"hello", `a\xff\x00b`, "100%", "controller", "worker"}
	if e.Code != 17 || e.Signal != "" || e.Asked || e.OOM || e.Pid == 0 || e.Why != "exit code 17" {
		t.Errorf("got %+v", e)
	}
	if strings.Join(e.Logs, "|") != strings.Join(want, "|") || strings.Join(b.said(1), "|") != strings.Join(want, "|") {
		t.Errorf("logs %q, lines %q", e.Logs, b.said(1))
	}
	raw, err := os.ReadFile(filepath.Join(b.join.LogDir, "actor", "actor-0.log"))
	if err != nil || string(raw) != "hello\na\xff\x00b\n50%\r100%\ncontroller\nworker\n" {
		t.Errorf("the file has %q, %v", raw, err)
	}
	b.start(b.workers(1, "control wait"))
	b.untilSaid(1, "up", 1)
	b.mu.Lock()
	delete(b.exited, 1)
	b.mu.Unlock()
	for _, pid := range b.below("fake-worker") {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	if e := b.untilExited(1); e.Signal != "SIGKILL" || e.Asked || !strings.Contains(e.Why, "killed by SIGKILL") {
		t.Errorf("got %+v", e)
	}
}

func TestManyWorkersAndStop(t *testing.T) {
	b := newBench(t, nil)
	began := time.Now()
	b.start(b.workers(8, "control wait"))
	if got := b.below("fake-worker"); len(got) != 8 {
		t.Fatalf("got %v", got)
	}
	t.Logf("8 workers in %v", time.Since(began))
	if err := b.ask("stop", &wire.Stop{Workers: []uint32{1, 2, 3, 99}, GraceSeconds: 5, Why: "as asked"}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	for _, n := range []uint32{1, 2, 3} { // told before the answer
		if e := b.exited[n]; !e.Asked || e.Signal != "SIGTERM" || !strings.Contains(e.Why, "as asked") {
			t.Errorf("got %+v", e)
		}
	}
	if len(b.exited) != 3 {
		t.Errorf("got %v", b.exited)
	}
	b.mu.Unlock()
	if err := b.ask("stop", &wire.Stop{All: true, GraceSeconds: 5}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	if left := append(b.below("fake-worker"), b.below("zygote")...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	b.start(b.workers(1, "exit:0")) // it starts again
	b.untilExited(1)
}

func TestStubbornWorkersAndTheirLitterGo(t *testing.T) {
	b := newBench(t, nil)
	b.start(b.workers(2, "stubborn litter:3 control wait"))
	b.untilSaid(1, "litter", 3)
	b.untilSaid(2, "litter", 3)
	if err := b.ask("stop", &wire.Stop{Workers: []uint32{1}, GraceSeconds: 0.1}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	for _, pid := range b.littered(1) {
		if alive(pid) {
			t.Errorf("%d is left of worker 1", pid)
		}
	}
	for _, pid := range b.littered(2) {
		if !alive(pid) {
			t.Errorf("%d of worker 2 went too", pid)
		}
	}
	if e := b.untilExited(1); e.Signal != "SIGKILL" || !e.Asked || e.OOM {
		t.Errorf("got %+v", e)
	}
}

func TestEndingsLeaveNothing(t *testing.T) {
	for _, who := range []string{"muster agent", "muster warden", "zygote", "fake-worker", "head", "owner"} {
		t.Run(who, func(t *testing.T) {
			var owner *process.Child
			b := newBench(t, func(b *bench) {
				var err error
				owner, err = b.reaper.Start(process.Command{Path: "/proc/self/exe", Args: []string{"owner", "fake-owner"}})
				if err != nil {
					t.Fatal(err)
				}
				b.join.Owner = owner.Pid()
			})
			defer func() { // it is this test's, and must be gone when the bench looks for what is left
				owner.Signal(syscall.SIGKILL)
				b.await(owner.Done(), "the owner's end")
			}()
			b.start(b.workers(2, "stubborn litter:2 control wait"))
			b.untilSaid(1, "litter", 2)
			b.untilSaid(2, "litter", 2)
			litter := append(b.littered(1), b.littered(2)...)
			switch who {
			case "head":
				b.conn.Close()
			case "owner":
				owner.Signal(syscall.SIGKILL)
			default:
				for _, pid := range b.below(who) {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			switch who {
			case "zygote": // its workers do not mind
				b.untilSaid(1, "up", 1)
				for _, pid := range litter {
					if !alive(pid) {
						t.Errorf("%d went with the zygote", pid)
					}
				}
				more := b.workers(3, "control wait")
				more.Workers = more.Workers[2:]
				b.start(more) // a new zygote is made
			case "fake-worker":
				b.untilExited(1)
				b.untilExited(2)
				for _, pid := range litter {
					if alive(pid) {
						t.Errorf("%d is left", pid)
					}
				}
			default:
				b.untilDead(litter...)
				b.await(b.agent.Done(), "the agent's end")
				if orderly := who == "head" || who == "owner"; orderly != (b.agent.Err() == nil) {
					t.Errorf("the agent's end: %v", b.agent.Err())
				}
			}
		})
	}
}
