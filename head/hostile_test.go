package head_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestHelloThatIsRefused(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	r.cluster("a", 1)
	w := r.worker("a-0")
	good := wire.Hello{
		Magic: "muster", Version: wire.Version, Release: "9.9", Role: wire.RoleController,
		Token: r.head.Token(), Runtime: clusterSpec("", 1).Runtime,
	}
	for name, test := range map[string]struct {
		change func(*wire.Hello)
		code   spec.Code
		words  string
	}{
		"wrong token":            {func(h *wire.Hello) { h.Token = "no" }, spec.CodeAuth, "the token is not that of this session"},
		"no token":               {func(h *wire.Hello) { h.Token = "" }, spec.CodeAuth, "token"},
		"wrong version":          {func(h *wire.Hello) { h.Version = 99 }, spec.CodeProtocol, "version 99"},
		"another protocol":       {func(h *wire.Hello) { h.Magic = "http" }, spec.CodeProtocol, "does not speak"},
		"unknown role":           {func(h *wire.Hello) { h.Role = "king" }, spec.CodeProtocol, `role "king"`},
		"an owner who dials":     {func(h *wire.Hello) { h.Role = wire.RoleOwner }, spec.CodeAuth, "owner"},
		"events without token":   {func(h *wire.Hello) { h.Role, h.Token = wire.RoleEvents, "x" }, spec.CodeAuth, "token"},
		"an unknown worker":      {func(h *wire.Hello) { h.Role, h.Worker = wire.RoleWorker, 4711 }, spec.CodeAuth, "worker 4711"},
		"a worker's wrong token": {func(h *wire.Hello) { h.Role, h.Worker = wire.RoleWorker, w.Number }, spec.CodeAuth, "worker"},
		"a worker twice": {
			func(h *wire.Hello) { h.Role, h.Worker, h.Token = wire.RoleWorker, w.Number, w.Token }, spec.CodeInvalid, "a-0 has a call connection already",
		},
		"an agent without a node": {func(h *wire.Hello) { h.Role = wire.RoleAgent }, spec.CodeProtocol, "which node"},
		"an agent's wrong token": {
			func(h *wire.Hello) { h.Role, h.Node = wire.RoleAgent, &spec.Node{Devices: []spec.Device{}} }, spec.CodeAuth, "node 0",
		},
		"an agent of no node": {
			func(h *wire.Hello) { h.Role, h.Node = wire.RoleAgent, &spec.Node{Index: -3, Devices: []spec.Device{}} }, spec.CodeAuth, "node -3",
		},
		"another's controller": {func(h *wire.Hello) { h.Worker, h.Token = w.Number, r.head.Token() }, spec.CodeAuth, "token"},
	} {
		t.Run(name, func(t *testing.T) {
			hello := good
			test.change(&hello)
			body, err := hello.MarshalMsg(nil)
			must(t, err)
			f := firstAnswer(t, r, wire.AppendFrame(nil, wire.Header{Kind: wire.KindHello}, body, nil))
			if f.Kind != wire.KindWelcome || f.Flags != wire.FlagError {
				t.Fatalf("answered by %+v", f.Header)
			}
			wantError(t, wire.ReadError(f.Body), test.code, test.words)
		})
	}
	r.owner.value(r.owner.send(callee{cluster: r.cluster("b", 1).Number, method: "all"}, args()))
}

func TestFirstBytesThatAreNoHello(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	for name, test := range map[string]struct {
		bytes []byte
		words string
	}{
		"http":             {[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "is the other end Muster?"},
		"a huge frame":     {[]byte{0xff, 0xff, 0xff, 0x3f, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "the limit here is"},
		"an unknown kind":  {wire.AppendFrame(nil, wire.Header{Kind: 200}, nil, nil), "unknown kind 200"},
		"a call at once":   {wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall}, []byte{0xc0}, nil), "expected hello"},
		"rubbish as hello": {wire.AppendFrame(nil, wire.Header{Kind: wire.KindHello}, []byte{0xc1, 1, 2}, nil), "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			f := firstAnswer(t, r, test.bytes)
			wantError(t, wire.ReadError(f.Body), spec.CodeProtocol, test.words)
		})
	}
	// One that ends in the middle of a frame has nobody to tell.
	nc, err := net.Dial("unix", r.head.Address())
	must(t, err)
	_, err = nc.Write([]byte{10, 0, 0})
	must(t, err)
	must(t, nc.Close())
	r.cluster("a", 1)
}

// firstAnswer sends bytes on a connection of its own and reads one frame.
func firstAnswer(t *testing.T, r *rig, b []byte) wire.Frame {
	t.Helper()
	nc, err := net.Dial("unix", r.head.Address())
	must(t, err)
	defer nc.Close()
	_, err = nc.Write(b)
	must(t, err)
	f, err := wire.NewConn(nc).Read()
	must(t, err)
	return f
}

// What a controller sends wrong ends its connection with a reason, and nothing
// else.
func TestControllerThatSendsRubbish(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: echo}})
	info := r.cluster("a", 2)
	route := callee{cluster: info.Number, method: "all"}.route()
	for name, frame := range map[string][]byte{
		"a body that is no array":  wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0xc0}, nil),
		"an empty body":            wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, nil, nil),
		"a short route":            wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0x92, 0x91, 1, 0xc0}, nil),
		"a route cut off":          wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, route[:len(route)-2], nil),
		"more ranks than bytes":    wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0x92, 0x97, 1, 0xa1, 'm', 1, 0xdd, 0xff, 0xff, 0xff, 0xff}, nil),
		"an answer":                wire.AppendFrame(nil, wire.Header{Kind: wire.KindAnswer, ID: 1}, []byte{0xc0}, nil),
		"a request without a verb": wire.AppendFrame(nil, wire.Header{Kind: wire.KindRequest, ID: 1}, []byte{0x91, 1}, nil),
		"a second hello":           wire.AppendFrame(nil, wire.Header{Kind: wire.KindHello}, []byte{0x80}, nil),
		"an unknown kind":          wire.AppendFrame(nil, wire.Header{Kind: 77}, nil, nil),
		"buffers beyond the frame": append(wire.AppendFrame(nil, wire.Header{Kind: wire.KindCall, ID: 1}, nil, nil)[:6], 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			c := r.attach()
			c.conn.QueueBytes(frame)
			c.conn.Flush()
			within(t, c.gone, "the end of its connection")
			f := within(t, c.notices, "the reason")
			if f.Kind != wire.KindClose {
				t.Fatalf("told by %+v", f.Header)
			}
			wantError(t, wire.ReadError(f.Body), spec.CodeProtocol)
			same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))), "[1 1]")
		})
	}
	c := r.attach()
	err := c.ask("make.coffee", &wire.Empty{}, &wire.Empty{})
	wantError(t, err, spec.CodeProtocol, "make.coffee")
	err = c.ask("pool.create", &wire.Mark{Mark: 1}, &wire.Empty{})
	wantError(t, err, spec.CodeInvalid) // fields that are missing are zero
}

// A payload that cannot be read fails the call alone.
func TestPayloadsThatCannotBeRead(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: echo}})
	info := r.cluster("a", 2)
	c := r.owner
	for name, payload := range map[string][]byte{
		"nothing":             {},
		"no pair":             {0xc0},
		"arguments cut off":   {0x92, 0x93, 1},
		"no keywords":         {0x92, 0x90},
		"keywords no map":     {0x92, 0x90, 0x90},
		"a keyword no string": {0x92, 0x90, 0x81, 1, 1},
		"bytes after it":      {0x92, 0x90, 0x80, 1},
		"a future too short":  {0x92, 0x91, 0xc7, 3, 21, 0, 0, 0, 0x80},
		"rubbish":             {0xc1},
	} {
		t.Run(name, func(t *testing.T) {
			e := c.fails(c.send(callee{cluster: info.Number, method: "compute", flags: marked}, payload), spec.CodeProtocol, "malformed")
			if e.Cluster != "a" || e.Method != "compute" {
				t.Errorf("about %q.%q", e.Cluster, e.Method)
			}
		})
	}
	deep := []byte{0x92, 0x91}
	for range wire.MaxDepth + 10 {
		deep = append(deep, 0x91)
	}
	c.fails(c.send(callee{cluster: info.Number, method: "compute"}, append(deep, 1, 0x80)), spec.CodeEncoding, "nested")
	// A buffer that is not there.
	c.fails(c.send(callee{cluster: info.Number, method: "each"}, args([]any{buffered(3), 1}), []byte{1}), spec.CodeProtocol, "names buffers 3")
	same(t, c.value(c.send(callee{cluster: info.Number, method: "all"}, args(1))), "[1 1]")
}

// What a worker sends wrong ends that worker, and says so to whoever needs it.
func TestWorkerThatSendsRubbish(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		for name, send := range map[string]func(l *fake.Leg){
			"a call":        func(l *fake.Leg) { l.Worker.Send(wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0xc0}) },
			"an odd notice": func(l *fake.Leg) { l.Worker.Send(wire.Header{Kind: wire.KindNotice}, []byte{0x92, 0xa1, 'x', 0x80}) },
			"a cut notice":  func(l *fake.Leg) { l.Worker.Send(wire.Header{Kind: wire.KindNotice}, []byte{0x92, 0xa5}) },
			"a report of no rank": func(l *fake.Leg) {
				l.Worker.Send(wire.Header{Kind: wire.KindResult, Flags: wire.FlagInfo, ID: l.Call}, []byte{0xc0})
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Answer: func(l *fake.Leg) {
					if l.Worker.Rank == 1 && l.Method == "all" {
						send(l)
						return
					}
					echo(l)
				}}})
				info, other := r.cluster("a", 2), r.cluster("b", 1)
				e := r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1)), spec.CodeProtocol, "a-1 on node-0")
				if e.Rank != 1 || e.Worker != "a-1" {
					t.Errorf("about %+v", e)
				}
				same(t, r.owner.value(r.owner.send(callee{cluster: other.Number, method: "all"}, args(1))), "[1]")
				same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}, args(4))), "4")
			})
		}
	})
}

// Results that are no values fail the call where the head has to look at them;
// where it does not, the controller does.
func TestResultsThatAreNoValues(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Answer: func(l *fake.Leg) {
		switch l.Method {
		case "compute":
			l.Return([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
		case "each":
			l.Return(buffered(7), []byte{1})
		case "one":
			l.Worker.Send(wire.Header{Kind: wire.KindResult, Flags: wire.FlagError, ID: l.Call}, []byte{0xc1})
		default:
			l.Return([]byte{1})
		}
	}}})
	info := r.cluster("a", 2)
	c := r.owner
	c.fails(c.send(callee{cluster: info.Number, method: "compute"}, args([]any{1})), spec.CodeProtocol, "a.compute", "malformed")
	c.fails(c.send(callee{cluster: info.Number, method: "each"}, args([]any{1, 2})), spec.CodeProtocol, "a.each", "names buffers 7")
	c.fails(c.send(callee{cluster: info.Number, method: "one"}, args()), spec.CodeProtocol, "an error that cannot be read")
	same(t, c.value(c.send(callee{cluster: info.Number, method: "all"}, args())), "[1 1]")
}

// An agent that breaks the rules is lost, with its node, and nothing else.
func TestAgentThatSendsRubbish(t *testing.T) {
	for name, send := range map[string]func(*fake.Agent){
		"a call": func(a *fake.Agent) { a.Send(wire.Header{Kind: wire.KindCall}, []byte{0xc0}) },
		"odd exit": func(a *fake.Agent) {
			a.Send(wire.Header{Kind: wire.KindNotice}, msgp.AppendString([]byte{0x92}, "exited"))
		},
		"cut notice":  func(a *fake.Agent) { a.Send(wire.Header{Kind: wire.KindNotice}, []byte{0x92}) },
		"odd opening": func(a *fake.Agent) { a.Send(wire.Header{Kind: wire.KindOpen, Peer: 9}, []byte{0xc1}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{virtual: "2x1+relay", script: fake.Script{Answer: echo}})
			pool := r.pool(1, 2)
			info, err := r.create(r.owner, pool, "a", 2)
			must(t, err)
			a := r.fake.Agent(1)
			a.Send(wire.Header{Kind: wire.KindResult, Peer: 4711, ID: 1}, []byte{0xc0})       // a link that is not
			a.Send(wire.Header{Kind: wire.KindResponse, ID: 1 << 50}, []byte{0x80})           // nobody asked
			a.Send(wire.Header{Kind: wire.KindNotice}, append([]byte{0x92, 0xa1, 'x'}, 0x80)) // from a newer release
			send(a)
			if name == "odd opening" { // that link alone is refused
				same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))), "[1 1]")
				return
			}
			within(t, a.Done(), "the agent's end")
			r.owner.fails(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1)), spec.CodeNodeLost, "node-1")
			same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}, args(4))), "4")
		})
	}
}

// An exit that is told by the agent of another node is no one's.
func TestExitOfAnothersWorker(t *testing.T) {
	r := newRig(t, setup{virtual: "2x0", script: fake.Script{Answer: echo}})
	info, err := r.create(r.owner, r.pool(0, 2), "a", 2)
	must(t, err)
	for _, number := range []uint32{r.worker("a-0").Number, 4711} {
		body, err := wire.AppendVerb(nil, "exited", &wire.Exited{Worker: number, Signal: "SIGKILL", Logs: []string{}})
		must(t, err)
		r.fake.Agent(1).Send(wire.Header{Kind: wire.KindNotice}, body)
	}
	for i := range 3 {
		same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(i))), fmt.Sprintf("[%d %d]", i, i))
	}
}
