package head_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// network stands between agents and the head: bytes can be held up, in one
// direction or in both, and connections cut.
type network struct {
	listener *net.TCPListener
	served   sync.WaitGroup

	mu      sync.Mutex
	to      string // the head
	conns   map[net.Conn]bool
	held    map[string]bool // directions, "up" and "down"
	changed chan struct{}
	carried int
	cutAt   int // bytes, of all connections; 0: none
	over    bool
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	n := &network{listener: listener, conns: map[net.Conn]bool{}, held: map[string]bool{}, changed: make(chan struct{})}
	n.served.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			n.served.Go(func() { n.serve(nc) })
		}
	})
	return n
}

// rig makes a head with agents that are behind the network, which goes first.
func (n *network) rig(t testing.TB, s setup) *rig {
	t.Helper()
	r := newRig(t, s)
	t.Cleanup(n.close)
	return r
}

// between has an agent go through it.
func (n *network) between(join *backend.Join) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to = join.Hosts[0]
	join.Hosts = []string{n.listener.Addr().String()}
	return nil
}

func (n *network) serve(near net.Conn) {
	n.mu.Lock()
	to := n.to
	n.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		_ = near.(*net.TCPConn).SetLinger(0) // as one that refuses
		_ = near.Close()
		return
	}
	n.mu.Lock()
	n.conns[near], n.conns[far] = true, true
	if n.over {
		_, _ = near.Close(), far.Close()
	}
	n.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { n.carry(near, far, "up") })
	both.Go(func() { n.carry(far, near, "down") })
	both.Wait()
	_, _ = near.Close(), far.Close()
	n.mu.Lock()
	delete(n.conns, near)
	delete(n.conns, far)
	n.mu.Unlock()
}

func (n *network) carry(from, to net.Conn, way string) {
	b := make([]byte, 1<<10)
	for {
		k, err := from.Read(b)
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
		part, cut := n.pass(way, k)
		if _, err := to.Write(b[:part]); err != nil || cut {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}

// pass waits until bytes may go on in a direction, and says how many, and whether
// the connection ends there.
func (n *network) pass(way string, k int) (part int, cut bool) {
	for {
		n.mu.Lock()
		held, changed := n.held[way] && !n.over, n.changed
		if !held {
			before := n.carried
			n.carried += k
			if at := n.cutAt; at > before && at <= n.carried {
				k, cut = at-before, true
			}
			n.mu.Unlock()
			return k, cut
		}
		n.mu.Unlock()
		<-changed
	}
}

// hold holds up directions, those that are named; none: nothing is.
func (n *network) hold(ways ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = map[string]bool{}
	for _, w := range ways {
		n.held[w] = true
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// cut ends every connection.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		_ = c.Close()
	}
}

func (n *network) close() {
	_ = n.listener.Close()
	n.mu.Lock()
	n.over = true
	n.mu.Unlock()
	n.hold()
	n.cut()
	n.served.Wait()
}

func (r *rig) node(index int) wire.NodeInfo {
	r.t.Helper()
	var s wire.Status
	must(r.t, r.owner.ask("status", &wire.StatusRequest{}, &s))
	return s.Nodes[index]
}

// quick are a head's options under which silence is short.
func quick(grace time.Duration) head.Options {
	return head.Options{PingEvery: 20 * time.Millisecond, SuspectAfter: 100 * time.Millisecond, NodeGrace: grace}
}

// warnings are those that a listener has heard.
func (r *rig) warnings(c *controller, words string) {
	r.t.Helper()
	for {
		f := within(r.t, c.notices, "a warning of "+words)
		verb, rest, err := wire.ReadVerb(f.Body)
		must(r.t, err)
		var w wire.Warning
		if verb != "warning" {
			continue
		}
		_, err = w.UnmarshalMsg(rest)
		must(r.t, err)
		if strings.Contains(w.Text, words) {
			return
		}
	}
}

// A node that is silent for a while is suspect. Its calls wait, and go on.
func TestASilentNodeIsSuspectUntilItIsHeard(t *testing.T) {
	for _, ways := range [][]string{{"up"}, {"down"}, {"up", "down"}} {
		t.Run(strings.Join(ways, " and "), func(t *testing.T) {
			n := newNetwork(t)
			r := n.rig(t, setup{virtual: "1x0+net", options: quick(time.Hour), script: fake.Script{Launch: n.between, Answer: echo}})
			info := r.cluster("a", 2)
			events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
			eventually(t, "a node that is heard of", func() bool { got := r.node(0); return got.State == "up" && got.Far })
			n.hold(ways...)
			call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
			eventually(t, "suspicion", func() bool { return r.node(0).State == "suspect" })
			eventually(t, "the reason", func() bool { return strings.Contains(r.node(0).Why, "though its machine does") })
			r.warnings(events, "its calls wait")
			n.hold()
			same(t, r.owner.value(call), "[1 1]")
			eventually(t, "trust", func() bool { return r.node(0).State == "up" })
			r.warnings(events, "heard of again")
		})
	}
}

// One that stays silent is lost when the grace is over, and its calls say why.
func TestASilentNodeIsLostInTheEnd(t *testing.T) {
	n := newNetwork(t)
	r := n.rig(t, setup{virtual: "1x0+net", options: quick(2 * time.Second), script: fake.Script{Launch: n.between, Answer: echo}})
	info := r.cluster("a", 1)
	n.hold("up")
	call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
	e := r.owner.fails(call, spec.CodeNodeLost, "node-0 is lost", "not proved to be dead")
	if e.Node != "node-0" {
		t.Errorf("of node %q", e.Node)
	}
	if got := r.node(0); got.State != "lost" || !strings.Contains(got.Why, "not proved") {
		t.Errorf("it is %+v", got)
	}
}

// A deadline that ends while a node is silent says so, and does not wait for its
// stacks.
func TestADeadlineOfASilentNode(t *testing.T) {
	n := newNetwork(t)
	r := n.rig(t, setup{virtual: "1x0+net", options: quick(time.Hour), script: fake.Script{Launch: n.between, Answer: echo}})
	info := r.cluster("a", 1)
	n.hold("up", "down")
	eventually(t, "suspicion", func() bool { return r.node(0).State == "suspect" })
	call := r.owner.send(callee{cluster: info.Number, method: "all", timeout: time.Millisecond}, args(1))
	e := r.owner.fails(call, spec.CodeTimeout, "a.all")
	if len(e.Stacks) != 1 || !strings.Contains(e.Stacks[0].Text, "no stack: ") || !strings.Contains(e.Stacks[0].Text, "of node-0") && !strings.Contains(e.Stacks[0].Text, "from node-0") {
		t.Errorf("stacks %+v", e.Stacks)
	}
	n.hold()
}

// Nobody waits for the orderly end of a node that is not heard of.
func TestTheEndWhileANodeIsSilent(t *testing.T) {
	n := newNetwork(t)
	o := quick(time.Hour)
	o.StopWait = time.Hour
	r := n.rig(t, setup{virtual: "1x0+net", options: o, script: fake.Script{Launch: n.between, Answer: echo}})
	r.cluster("a", 1)
	n.hold("up", "down")
	eventually(t, "suspicion", func() bool { return r.node(0).State == "suspect" })
	r.owner.close()
	r.ended <- within(t, r.ended, "the head's end")
}

// An agent that does not reach the head is waited for, and that says where it is
// expected.
func TestAnAgentThatDoesNotReachTheHead(t *testing.T) {
	n := newNetwork(t)
	o := quick(time.Hour)
	o.TellEvery = 20 * time.Millisecond
	n.hold("up", "down")
	r := n.rig(t, setup{virtual: "1x0+net", options: o, script: fake.Script{Launch: n.between}})
	err := r.owner.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 0.3}, &spec.Pool{})
	n.mu.Lock()
	defer n.mu.Unlock()
	wantError(t, err, spec.CodeResources, "still waiting for the agent of node-0", "has not reached the head at "+n.to, "MUSTER_HOST")
}

// An agent whose connection ended, and that does not come back, is lost after the
// grace of nodes, be that of heads longer or shorter; nor are its workers given up
// before it is. (With the shorter one its process may end of itself, which is told.)
func TestAnAgentThatDoesNotComeBack(t *testing.T) {
	for grace, words := range map[time.Duration]string{time.Hour: "did not come back within", time.Millisecond: "node-0"} {
		t.Run(grace.String(), func(t *testing.T) {
			n := newNetwork(t)
			o := quick(2 * time.Second)
			o.Grace = grace
			r := n.rig(t, setup{virtual: "1x0+net", options: o, script: fake.Script{Launch: n.between}})
			info := r.cluster("a", 1)
			_ = n.listener.Close() // nothing to come back by
			n.cut()
			call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
			r.owner.fails(call, spec.CodeNodeLost, words)
			eventually(t, "its end", func() bool { return r.node(0).State == "lost" })
		})
	}
}

// Another agent in the place of one that was there is the proof that it is dead.
func TestAMachineThatWasStartedAnew(t *testing.T) {
	for boot, words := range map[string]string{"b": "was started anew", "a": "another (process"} {
		t.Run(words, func(t *testing.T) {
			n := newNetwork(t)
			var launched launches
			r := n.rig(t, setup{virtual: "1x0+net", options: quick(time.Hour), script: fake.Script{
				Launch: func(j *backend.Join) error { return errors.Join(launched.note(j), n.between(j)) },
				Node:   func(backend.Join) spec.Node { return spec.Node{Cores: 1, Boot: "a", Pid: 7, Devices: []spec.Device{}} },
			}})
			info := r.cluster("a", 1)
			n.hold("up", "down")
			call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
			join := launched.first(t)
			_, err := wire.Join(dialFar(t, join), wire.Hello{Role: wire.RoleAgent, Token: join.Token, Node: &spec.Node{Boot: boot, Pid: 8, Life: "another"}})
			wantError(t, err, spec.CodeNodeLost, words)
			r.owner.fails(call, spec.CodeNodeLost, "node-0 is lost", words)
			n.hold()
		})
	}
}

// cutLifeAt is the workload over a network that cuts a connection after so many
// bytes.
func cutLifeAt(t *testing.T, virtual string, at int) (carried int, err error) {
	t.Helper()
	var ran legRuns
	n := newNetwork(t)
	n.cutAt = at
	s := newCrashes(t, virtual, fake.Script{Launch: n.between, Answer: func(leg *fake.Leg) {
		ran.note(leg)
		echo(leg)
	}})
	c := s.controller()
	err = workload(c)
	n.mu.Lock()
	carried = n.carried
	n.mu.Unlock()
	err = s.ends(c, err, ran.check())
	n.close()
	return carried, err
}

// A connection between machines that is cut at any byte is made anew: every answer
// comes, once, and every leg runs once.
func TestCutAnywhereOverTheNetwork(t *testing.T) {
	for _, shape := range []string{"2x1+net", "2x1+net+plain"} {
		t.Run(shape, func(t *testing.T) {
			all, err := cutLifeAt(t, shape, 0)
			must(t, err)
			t.Logf("%d bytes", all)
			const cuts = 60
			for i := range cuts {
				at := 1 + all*i/cuts
				if _, err := cutLifeAt(t, shape, at); err != nil {
					t.Errorf("cut after byte %d of %d: %v", at, all, err)
				}
			}
		})
	}
}

// An agent that is told to end says so first: what its workers come to is part of
// that, and the backend may say more of why.
func TestAnAgentThatLeaves(t *testing.T) {
	for _, virtual := range []string{"1x0", "1x0+net"} {
		t.Run(virtual, func(t *testing.T) {
			legs := make(chan *fake.Leg, 2)
			r := newRig(t, setup{virtual: virtual, script: fake.Script{Answer: func(leg *fake.Leg) { legs <- leg }}})
			info := r.cluster("a", 2)
			call := r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))
			first, second := within(t, legs, "a leg"), within(t, legs, "a leg")
			body, err := wire.AppendVerb(nil, "leaving", &wire.Leaving{Why: "it was told to end"})
			must(t, err)
			r.fake.Agent(0).Send(wire.Header{Kind: wire.KindNotice}, body)
			first.Worker.Die(wire.Exited{Signal: "SIGTERM"})
			second.Worker.Die(wire.Exited{Signal: "SIGTERM"})
			r.fake.Agent(0).HangUp()
			e := r.owner.fails(call, spec.CodeNodeLost, "the agent of node-0 is gone: it was told to end", "Its workers went with it")
			if e.Node != "node-0" {
				t.Errorf("of node %q", e.Node)
			}
		})
	}
}
