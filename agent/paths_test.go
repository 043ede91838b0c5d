package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestZygotesThatFail(t *testing.T) {
	b := newBench(t, nil)
	for how, c := range map[string]struct {
		code spec.Code
		says []string
	}{
		"early":   {spec.CodeStartup, []string{"zygote of node node-1", "exit code 9", "while it was loading"}},
		"preload": {spec.CodeImport, []string{"no module named nonsense"}},
		"forking": {spec.CodeStartup, []string{"zygote of node node-1", "SIGKILL", "while it was forking actor-", `start="spawn"`}},
	} {
		start := b.workers(2, "stubborn wait")
		start.Runtime.Env["FAKE_DIES"] = how
		start.Runtime.Dir = t.TempDir() // a key, so a zygote, of its own
		err := b.ask("start", start, &wire.Empty{})
		e := spec.AsError(err)
		if err == nil || e.Code != c.code || e.Node != "node-1" || e.Worker == "" {
			t.Errorf("%s: got %+v", how, err)
			continue
		}
		for _, text := range c.says {
			if !strings.Contains(e.Message, text) {
				t.Errorf("%s: %q does not say %q", how, e.Message, text)
			}
		}
		if how == "early" && strings.Join(e.Logs, "|") != "about to crash" {
			t.Errorf("logs: %q", e.Logs)
		}
		if err := b.ask("stop", &wire.Stop{All: true}, &wire.Empty{}); err != nil {
			t.Fatal(err)
		}
		if left := b.below("fake-worker"); len(left) > 0 {
			t.Errorf("%s: %v are left", how, left)
		}
	}
	for what, change := range map[string]func(*spec.Runtime){
		"/no/such/python": func(rt *spec.Runtime) { rt.Python = "/no/such/python" },
		"/no/such/dir":    func(rt *spec.Runtime) { rt.Dir = "/no/such/dir" },
	} {
		start := b.workers(1, "wait")
		change(&start.Runtime)
		if err := b.ask("start", start, &wire.Empty{}); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "node-1") {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestSpawn(t *testing.T) {
	b := newBench(t, nil)
	start := b.workers(2, "control wait")
	start.Start = "spawn"
	b.start(start)
	b.untilSaid(2, "spawned", 1)
	b.untilSaid(2, "up", 1)
	if len(b.below("zygote")) > 0 {
		t.Error("there is a zygote nobody needs")
	}
	if err := b.ask("stop", &wire.Stop{Workers: []uint32{1, 2}, GraceSeconds: 5}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	unsafe := b.workers(1, "wait")
	unsafe.Runtime.Env["FAKE_UNSAFE"] = "torch has run"
	b.start(unsafe)
	b.untilSaid(1, "spawned", 2)
	b.untilSaid(0, "spawned instead of forked, which is slower: torch has run", 1)
}

func TestStacks(t *testing.T) {
	b := newBench(t, nil)
	start := b.workers(3, "stacks control wait")
	start.Workers[1].Env = map[string]string{"FAKE_DOES": "control wait"} // does not heed the signal
	start.Workers[2].Env = map[string]string{"FAKE_DOES": "say:running wait"}
	b.start(start)
	b.untilSaid(1, "up", 1)
	b.untilSaid(2, "up", 1)
	b.untilSaid(3, "running", 1)
	var got wire.StacksAnswer
	if err := b.ask("stacks", &wire.StacksRequest{Workers: []uint32{1, 2, 3, 4}}, &got); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{`File "x.py", line 7 in step`, "did not tell its stacks within 1s", "not up yet", "it has ended"} {
		if s := got.Stacks[i]; !strings.Contains(s.Text, text) || s.Node != "node-1" {
			t.Errorf("%d: got %+v", i, s)
		}
	}
	if got.Stacks[0].Worker != "actor-0" || strings.Count(got.Stacks[0].Text, "thread") != 1 {
		t.Errorf("got %+v", got.Stacks[0])
	}
}

func TestCancel(t *testing.T) {
	b := newBench(t, nil)
	start := b.workers(2, "control wait")
	start.Workers[1].Env = map[string]string{"FAKE_DOES": "control:silent wait"}
	b.start(start)
	b.untilSaid(1, "up", 1)
	b.untilSaid(2, "up", 1)
	for _, c := range []struct {
		req  wire.CancelLeg
		want string
	}{
		{wire.CancelLeg{Worker: 1, Call: 7}, "interrupted"},
		{wire.CancelLeg{Worker: 9, Call: 7}, "gone"},
		{wire.CancelLeg{Worker: 2, Call: 7}, "still in C"},
		{wire.CancelLeg{Worker: 2, Call: 7, Kill: true}, "killed"},
	} {
		var got wire.Cancelled
		if err := b.ask("cancel", &c.req, &got); err != nil || got.State != c.want {
			t.Errorf("%+v: got %v, %v", c.req, got, err)
		}
	}
	if e := b.untilExited(2); e.Signal != "SIGKILL" || !strings.Contains(e.Why, "cancelled") {
		t.Errorf("got %+v", e)
	}
	var got wire.Cancelled
	if err := b.ask("clear", &wire.CancelLeg{Worker: 1}, &got); err != nil || got.State != "cleared" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestRelay(t *testing.T) {
	b := newBench(t, func(b *bench) { b.join.Relay = true })
	b.start(b.workers(2, "calls wait"))
	links := map[uint32]uint32{} // worker -> link
	b.until("two links", func() bool {
		for _, f := range b.links {
			if f.Kind == wire.KindOpen {
				hello, err := wire.ParseHello(f.Body)
				if err != nil || hello.Role != wire.RoleWorker {
					t.Fatalf("got %+v, %v", hello, err)
				}
				links[hello.Worker] = f.Peer
			}
		}
		return len(links) == 2
	})
	welcome, _ := (&wire.Welcome{}).MarshalMsg(nil)
	for _, link := range links {
		b.conn.Send(wire.Header{Kind: wire.KindWelcome, Peer: link}, welcome, nil)
	}
	b.untilLinks(wire.KindNotice, 2)
	large := make([]byte, 3<<20)
	b.conn.Send(wire.Header{Kind: wire.KindLeg, ID: 5, Peer: links[1]}, msgp.AppendString(nil, "one"), wire.Bytes(large))
	frame := wire.AppendFrame(nil, wire.Header{Kind: wire.KindLeg, ID: 6}, msgp.AppendString(nil, "all"), nil)
	list := msgp.AppendUint32(msgp.AppendUint32(msgp.AppendArrayHeader(nil, 2), links[1]), links[2])
	b.conn.Send(wire.Header{Kind: wire.KindFanout}, list, wire.Bytes(frame))
	for _, f := range b.untilLinks(wire.KindResult, 3) {
		switch {
		case f.ID == 5 && f.Peer == links[1] && len(f.Bufs) == 1 && len(f.Bufs[0].Data) == len(large):
		case f.ID == 6 && string(f.Body) == string(msgp.AppendString(nil, "all")):
		default:
			t.Errorf("got %+v", f.Header)
		}
	}
	b.conn.Send(wire.Header{Kind: wire.KindClose, Peer: links[1]}, msgp.AppendNil(nil), nil)
	if e := b.untilExited(1); e.Code != 0 {
		t.Errorf("got %+v", e)
	}
	for _, pid := range b.below("fake-worker") {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
	if got := b.untilLinks(wire.KindClose, 1); got[0].Peer != links[2] {
		t.Errorf("got %+v", got[0].Header)
	}
}

func (b *bench) untilLinks(kind wire.Kind, n int) []wire.Frame {
	b.Helper()
	var got []wire.Frame
	b.until("frames of links", func() bool {
		got = got[:0]
		for _, f := range b.links {
			if f.Kind == kind {
				got = append(got, f)
			}
		}
		return len(got) >= n
	})
	return got
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	b := newBench(t, nil)
	for verb, says := range map[string]string{"dance": `no request "dance"`, "start": "cannot be read"} {
		if err := b.ask(verb, msgp.Raw(msgp.AppendInt(nil, 1)), &wire.Empty{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", verb, err)
		}
	}
	if err := b.ask("env", &wire.WorkerEnv{Worker: 9}, &wire.Environment{}); err == nil || !strings.Contains(err.Error(), "no worker 9 any more") {
		t.Errorf("env: got %v", err)
	}
	many := b.workers(1, "wait")
	for len(many.Workers) < 100_000 {
		w := many.Workers[0]
		w.Number = uint32(len(many.Workers) + 1)
		w.Env = map[string]string{}
		many.Workers = append(many.Workers, w)
	}
	if e := spec.AsError(b.ask("start", many, &wire.Empty{})); e.Code != spec.CodeLimit || !strings.Contains(e.Message, "ulimit -n") {
		t.Errorf("got %v", e)
	}
	twice := b.workers(1, "wait")
	twice.Workers = append(twice.Workers, twice.Workers[0])
	if err := b.ask("start", twice, &wire.Empty{}); err == nil || !strings.Contains(err.Error(), "worker 1 twice") {
		t.Errorf("got %v", err)
	}
	b.start(b.workers(1, "wait")) // nothing of the above stayed
	c, err := wire.Dial(socketPath(b.join))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := wire.Join(c, wire.Hello{Role: wire.RoleControl, Worker: 1, Token: "wrong"}); spec.AsError(err).Code != spec.CodeAuth {
		t.Errorf("got %v", err)
	}
	var ports wire.Ports
	if err := b.ask("hold_ports", &wire.HoldPorts{Cluster: 1, Count: 2}, &ports); err != nil || len(ports.Ports) != 2 {
		t.Errorf("got %v, %v", ports, err)
	}
	if err := b.ask("release_ports", &wire.HoldPorts{Cluster: 1}, &wire.Empty{}); err != nil {
		t.Error(err)
	}
}

func TestStopWhileStarting(t *testing.T) {
	b := newBench(t, nil)
	start := b.workers(2, "wait")
	start.Runtime.Env["FAKE_LOADS"] = "never"
	failed := make(chan error, 1)
	go func() { failed <- b.ask("start", start, &wire.Empty{}) }()
	b.untilSaid(0, "loading for ever", 1)
	if err := b.ask("stop", &wire.Stop{Workers: []uint32{1, 2}, GraceSeconds: 10, Why: "given up"}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	if e := spec.AsError(<-failed); e.Code != spec.CodeCancelled || !strings.Contains(e.Message, "given up") {
		t.Errorf("got %v", e)
	}
}
