package backendtest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// patience is how long anything may take on a slow machine.
const patience = 30 * time.Second

// Kit is what the suite needs of a backend's own tests.
type Kit struct {
	// New makes a backend of two nodes or more.
	New func(t *testing.T) backend.Backend
	// Owner starts a process for agents to watch, and a function that ends it;
	// nil for backends whose agents watch none.
	Owner func(t *testing.T) (pid int, end func())
	// Left names processes that are left; nil where there are none to look at.
	Left func(t *testing.T) []string
}

// Run runs the suite.
func Run(t *testing.T, kit Kit) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Kit)
	}{
		{"nodes have names", nodesHaveNames},
		{"agents join with what they were told", agentsJoin},
		{"agents leave in order when the head hangs up", agentsLeave},
		{"a refused agent ends with an error", refusedAgentEnds},
		{"an agent without a head ends with an error", agentWithoutHeadEnds},
		{"kill ends a joined agent", killEndsAgent},
		{"kill ends an agent that has not joined", killEndsEarly},
		{"launch heeds its context", launchHeedsContext},
		{"agents end with their owner", agentsEndWithOwner},
		{"agents can be taken over", agentsAreAdopted},
	} {
		if kit.Owner == nil && c.name == "agents end with their owner" {
			continue // this backend's agents watch none
		}
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() { // runs last
				if kit.Left == nil {
					return
				}
				if left := kit.Left(t); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			})
			c.test(t, kit)
		})
	}
}

// stage is a head's side.
type stage struct {
	*testing.T
	backend  backend.Backend
	listener *net.UnixListener
	dir      string
	logs     string
	owner    int
}

func newStage(t *testing.T, kit Kit) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "muster") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stage{T: t, backend: kit.New(t), dir: dir, logs: t.TempDir()}
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "head.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.listener.Close() })
	return s
}

func (s *stage) names() []string {
	s.Helper()
	names, err := s.backend.Nodes(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	return names
}

func (s *stage) join(node int) backend.Join {
	s.Helper()
	run := filepath.Join(s.dir, "run")
	if err := os.MkdirAll(run, 0o700); err != nil {
		s.Fatal(err)
	}
	return backend.Join{
		Head: s.listener.Addr().String(), Token: "token of " + s.names()[node], Node: node, Name: s.names()[node],
		Dir: run, LogDir: s.logs, Owner: s.owner, Virtual: 3,
	}
}

// launch starts an agent, and has its test end it whatever happens.
func (s *stage) launch(join backend.Join) backend.Agent {
	s.Helper()
	agent, err := s.backend.Launch(context.Background(), join)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		agent.Kill()
		s.ends(agent)
	})
	return agent
}

// accept takes the next agent's hello.
func (s *stage) accept() (*wire.Conn, wire.Hello) {
	s.Helper()
	_ = s.listener.SetDeadline(time.Now().Add(patience))
	nc, err := s.listener.Accept()
	if err != nil {
		s.Fatalf("no agent dialled: %v", err)
	}
	_ = nc.SetDeadline(time.Now().Add(patience))
	conn := wire.NewConn(nc)
	s.Cleanup(func() { _ = conn.Close() })
	hello, err := wire.ReadHello(conn)
	if err != nil {
		s.Fatalf("no hello: %v", err)
	}
	return conn, hello
}

func (s *stage) welcome() *wire.Conn {
	s.Helper()
	conn, _ := s.accept()
	wire.Accept(conn, wire.Welcome{})
	return conn
}

// ends waits for an agent's end. Done stays closed: receiving twice is fine.
func (s *stage) ends(agent backend.Agent) {
	s.Helper()
	for range 2 {
		select {
		case <-agent.Done():
		case <-time.After(patience):
			s.Fatal("the agent does not end")
		}
	}
}

func (s *stage) noSockets() {
	s.Helper()
	entries, err := os.ReadDir(filepath.Join(s.dir, "run"))
	if err != nil && !os.IsNotExist(err) {
		s.Fatal(err)
	}
	for _, e := range entries {
		s.Errorf("%s is left", e.Name())
	}
}

func nodesHaveNames(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	names := s.names()
	if len(names) < 2 || slices.Contains(names, "") {
		t.Fatalf("got %q", names)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("two nodes of one name: %q", names)
	}
	if again := s.names(); !slices.Equal(names, again) {
		t.Errorf("%q, then %q", names, again)
	}
}

func agentsJoin(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	names := s.names()
	agents := make([]backend.Agent, 2)
	for i := range agents {
		agents[i] = s.launch(s.join(i))
	}
	seen := map[int]bool{}
	for range agents {
		conn, hello := s.accept()
		if hello.Role != wire.RoleAgent || hello.Node == nil {
			t.Fatalf("got %+v", hello)
		}
		n := hello.Node
		seen[n.Index] = true
		if n.Index < 0 || n.Index > 1 || n.Name != names[n.Index] || hello.Token != "token of "+n.Name {
			t.Errorf("got token %q from %+v", hello.Token, n)
		}
		if len(n.Devices) != 3 || n.Cores < 1 {
			t.Errorf("a report of %+v", n)
		}
		wire.Accept(conn, wire.Welcome{})
	}
	if len(seen) != 2 {
		t.Errorf("nodes that joined: %v", seen)
	}
	for i, agent := range agents {
		select {
		case <-agent.Done():
			t.Errorf("agent %d ended by itself: %v", i, agent.Err())
		default:
		}
	}
}

func agentsLeave(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	agent := s.launch(s.join(0))
	other := s.launch(s.join(1))
	first, second := s.welcome(), s.welcome()
	_ = first.Close()
	_ = second.Close()
	for _, a := range []backend.Agent{agent, other} {
		s.ends(a)
		if err := a.Err(); err != nil {
			t.Errorf("an orderly end with %v", err)
		}
	}
	s.noSockets()
}

func refusedAgentEnds(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	agent := s.launch(s.join(0))
	conn, _ := s.accept()
	wire.Refuse(conn, spec.Errorf(spec.CodeAuth, "not that token"))
	s.ends(agent)
	if agent.Err() == nil {
		t.Error("no error")
	}
	s.noSockets()
}

func agentWithoutHeadEnds(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	join := s.join(0)
	join.Head += ".not"
	agent, err := s.backend.Launch(context.Background(), join)
	if err != nil {
		return // as good
	}
	s.ends(agent)
	if agent.Err() == nil {
		t.Error("no error")
	}
	s.noSockets()
}

func killEndsAgent(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	agent := s.launch(s.join(0))
	conn := s.welcome()
	for range 3 {
		go agent.Kill()
	}
	s.ends(agent)
	if agent.Err() == nil {
		t.Error("killed without an error")
	}
	for err := error(nil); err == nil; { // after what it had sent before
		if _, err = conn.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection of a killed agent lives")
		}
	}
	agent.Kill()
}

func killEndsEarly(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	agent := s.launch(s.join(0))
	agent.Kill()
	s.listener.Close()
	s.ends(agent)
}

func launchHeedsContext(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if agent, err := s.backend.Launch(ctx, s.join(0)); err == nil {
		agent.Kill()
		t.Error("launched although its context had ended")
	}
}

func agentsEndWithOwner(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	pid, end := kit.Owner(t)
	s.owner = pid
	agent := s.launch(s.join(0))
	s.welcome()
	end()
	s.ends(agent)
	if err := agent.Err(); err != nil {
		t.Errorf("an orderly end with %v", err)
	}
	late := s.launch(s.join(0)) // whose owner is gone before it starts
	s.ends(late)
	if err := late.Err(); err != nil {
		t.Errorf("an orderly end with %v", err)
	}
	s.noSockets()
}

func agentsAreAdopted(t *testing.T, kit Kit) {
	s := newStage(t, kit)
	doomed, leaving := s.launch(s.join(0)), s.launch(s.join(1))
	conns := map[int]*wire.Conn{}
	for range 2 {
		conn, hello := s.accept()
		wire.Accept(conn, wire.Welcome{})
		conns[hello.Node.Index] = conn
	}
	adopt := func(node int, agent backend.Agent) backend.Agent {
		t.Helper()
		taken, err := s.backend.Adopt(context.Background(), s.join(node), agent.Handle())
		if err != nil {
			t.Fatal(err)
		}
		if taken.Handle() != agent.Handle() {
			t.Errorf("%v was taken over as %v", agent.Handle(), taken.Handle())
		}
		return taken
	}
	killed, left := adopt(0, doomed), adopt(1, leaving)
	for range 3 {
		go killed.Kill()
	}
	s.ends(killed)
	s.ends(doomed)
	if killed.Err() == nil {
		t.Error("killed without an error")
	}
	_ = conns[1].Close()
	s.ends(left)
	if err := left.Err(); err != nil {
		t.Errorf("an orderly end with %v", err)
	}
	s.noSockets()
	for node, agent := range []backend.Agent{doomed, leaving} {
		if _, err := s.backend.Adopt(context.Background(), s.join(node), agent.Handle()); !errors.Is(err, backend.ErrGone) {
			t.Errorf("node %d, which is gone: %v", node, err)
		}
	}
}
