package agent

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

// patient makes an agent that waits for a head, and, unless it is told
// otherwise, an owner that lives.
func patient(b *bench) { b.join.Grace = patience.Seconds() }

// leave ends the connection as a head that was killed does, and waits until the
// agent has come back by the next.
func (b *bench) leave() {
	b.Helper()
	b.conn.Close()
	b.accept()
	if b.hello.Back != 1 || b.hello.Node == nil || b.hello.Node.Index != 1 {
		b.Fatalf("came back with %+v", b.hello)
	}
	b.until("what it has", func() bool { return slices.Contains(b.notices, "resent") })
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.notices[:2], []string{"back", "resent"}) {
		b.Errorf("the first that it says is %v", b.notices)
	}
}

// dismissed has the agent end as a head does that ends in order.
func (b *bench) dismissed() {
	b.Helper()
	if err := b.ask("stop", &wire.Stop{All: true, GraceSeconds: 1}, &wire.Empty{}); err != nil {
		b.Fatal(err)
	}
	b.conn.Close()
	b.await(b.agent.Done(), "the agent's end")
}

func TestEverythingIsKeptForTheNextHead(t *testing.T) {
	t.Setenv("MUSTER_STORE_BYTES", "4MiB")
	b := newBench(t, patient)
	b.start(b.workers(2, "control wait"))
	b.untilSaid(1, "up", 1)
	b.untilSaid(2, "up", 1)
	pids := b.below("fake-worker")
	var ports wire.Ports
	if err := b.ask("hold_ports", &wire.HoldPorts{Cluster: 1, Count: 2}, &ports); err != nil {
		t.Fatal(err)
	}
	c, err := store.Dial(b.join.Dir, 1, "the stores'", 9)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	held, _, err := c.Put("a batch", []byte("bytes"))
	if err != nil {
		t.Fatal(err)
	}
	loose, _, err := c.Put("another", []byte("bytes"))
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.Notify(b.conn, "objects", &wire.Objects{Hold: []uint64{held}}); err != nil {
		t.Fatal(err)
	}
	b.storeUntil("it to be held", func(s *wire.StoreStatus) bool {
		return slices.ContainsFunc(s.Objects, func(o wire.StoreObject) bool { return o.Held })
	})
	for range 2 { // and for the one after that
		if _, err := b.conn.NetConn().Write(make([]byte, 7)); err != nil { // killed inside a frame
			t.Fatal(err)
		}
		b.leave()
		if got := b.below("fake-worker"); !slices.Equal(got, pids) {
			t.Errorf("workers %v, then %v", pids, got)
		}
		slices.SortFunc(b.back.Workers, func(x, y wire.WorkerAt) int { return int(x.Number) - int(y.Number) })
		if w := b.back.Workers; len(w) != 2 || w[0].Number != 1 || w[1].Number != 2 || !slices.Contains(pids, w[0].Pid) || len(b.back.Exits) > 0 {
			t.Errorf("it has %+v", b.back)
		}
		if o := b.back.Objects; len(o) != 2 || o[0].Object != held || o[0].Held != 1 || o[0].Segment == 0 || o[1].Object != loose || o[1].Held != 0 {
			t.Errorf("objects %+v", o)
		}
	}
	// What the head asks for again is there.
	b.start(b.workers(2, "exit:1"))
	var again wire.Ports
	if err := b.ask("hold_ports", &wire.HoldPorts{Cluster: 1, Count: 2}, &again); err != nil || !slices.Equal(again.Ports, ports.Ports) {
		t.Errorf("held %v, then %v, %v", ports, again, err)
	}
	if got := b.below("fake-worker"); !slices.Equal(got, pids) {
		t.Errorf("workers %v, then %v", pids, got)
	}
	b.dismissed()
	if err := b.agent.Err(); err != nil {
		t.Errorf("not an orderly end: %v", err)
	}
	if _, err := os.Stat(b.join.Dir); err == nil {
		t.Error("the folder is left")
	}
}

func TestEndsAndLinesWhileThereIsNoHead(t *testing.T) {
	b := newBench(t, patient)
	b.start(b.workers(2, "control wait"))
	b.untilSaid(2, "up", 1)
	pids := b.below("fake-worker")
	b.listen.Close() // nobody to come back to, for the time being
	b.conn.Close()
	b.untilLog("keeps its workers")
	syscall.Kill(pids[0], syscall.SIGKILL)
	b.untilDead(pids[0])
	b.listenAgain()
	b.accept()
	b.until("what it has", func() bool { return slices.Contains(b.notices, "resent") })
	b.mu.Lock()
	told := len(b.back.Exits) + len(b.exited) // its end was seen before, or is told now
	b.mu.Unlock()
	if told == 0 {
		b.until("the end to be told", func() bool { return len(b.exited) == 1 })
	}
	b.leave() // and for as long as its cluster is not stopped
	if e := b.back.Exits; len(e) != 1 || e[0].Signal != "SIGKILL" || len(b.back.Workers) != 1 {
		t.Fatalf("it has %+v", b.back)
	}
	// Asked for again, it is not started again.
	b.start(b.workers(2, "control wait"))
	if got := b.below("fake-worker"); len(got) != 1 {
		t.Errorf("workers %v", got)
	}
	if err := b.ask("stop", &wire.Stop{Workers: []uint32{1, 2}, GraceSeconds: 1}, &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.leave()
	if len(b.back.Exits)+len(b.back.Workers) > 0 {
		t.Errorf("of a cluster that was stopped it has %+v", b.back)
	}
	b.start(b.workers(1, "say:hello wait"))
	b.untilSaid(1, "hello", 1)
	b.dismissed()
}

// Without anybody who could come back, or for whom, it does not wait; and a head
// that does not want it is not asked again.
func TestWhenThereIsNothingToWaitFor(t *testing.T) {
	for _, why := range []string{"grace", "owner", "refused"} {
		t.Run(why, func(t *testing.T) {
			var owner *process.Child
			b := newBench(t, func(b *bench) {
				b.join.Grace = patience.Seconds() * 10
				if why == "grace" {
					b.join.Grace = 1 // it is also how long a head may take to let it in
				}
				var err error
				if owner, err = b.reaper.Start(process.Command{Path: "/proc/self/exe", Args: []string{"owner", "fake-owner"}}); err != nil {
					t.Fatal(err)
				}
				b.join.Owner = owner.Pid()
			})
			defer func() {
				owner.Signal(syscall.SIGKILL)
				b.await(owner.Done(), "the owner's end")
			}()
			b.start(b.workers(2, "stubborn litter:2 control wait"))
			b.untilSaid(1, "litter", 2)
			litter := b.littered(1)
			if why != "refused" {
				b.listen.Close()
			}
			b.conn.Close()
			switch why {
			case "owner":
				b.untilLog("keeps its workers")
				owner.Signal(syscall.SIGKILL)
			case "refused":
				nc, err := b.listen.Accept()
				if err != nil {
					t.Fatal(err)
				}
				wire.Refuse(wire.NewConn(nc), errUnknown)
			}
			b.untilDead(litter...)
			b.await(b.agent.Done(), "the agent's end")
			if _, err := os.Stat(b.join.Dir); err == nil {
				t.Error("the folder is left")
			}
		})
	}
}

// The folder is left alone while a head has it, or may come for it.
func TestTheFolderStaysWhileItIsNeeded(t *testing.T) {
	dir, err := os.MkdirTemp("", "ms") // short, for sockets' sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("MUSTER_DIR", dir)
	head, err := session.New(0)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(b *bench) {
		patient(b)
		b.join.Dir = head.Dir
	})
	head.Close() // as if it was killed
	b.listen.Close()
	b.conn.Close()
	b.untilLog("keeps its workers")
	for _, pid := range b.below("muster agent") {
		syscall.Kill(pid, syscall.SIGKILL)
		b.untilDead(pid)
	}
	// The warden stays until a head has come.
	if left := b.below("muster warden"); len(left) != 1 {
		t.Fatalf("wardens: %v", left)
	}
	next, err := session.Resume(head.Name, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.await(b.agent.Done(), "the warden's end")
	if _, err := os.Stat(head.Dir); err != nil {
		t.Error("the folder went although there is a head")
	}
	next.Close()
	if err := session.RemoveLast(head.Dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(head.Dir); err == nil {
		t.Error("the folder is left")
	}
}

// Relayed connections end with the head's, and wait for the next one.
func TestRelayedConnectionsDialAgain(t *testing.T) {
	b := newBench(t, func(b *bench) {
		patient(b)
		b.join.Relay = true
	})
	dial := func() *wire.Conn {
		c, err := wire.Dial(socketPath(b.join))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	hello := func(c *wire.Conn) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := wire.Join(c, wire.Hello{Role: wire.RoleWorker, Token: "t", Worker: 1, Back: 1})
			done <- err
		}()
		return done
	}
	welcome := func() {
		b.until("a link", func() bool { return len(b.links) == 1 })
		f := b.links[0]
		if f.Kind != wire.KindOpen || f.Peer != 1 {
			t.Errorf("got %+v", f.Header)
		}
		body, err := (&wire.Welcome{Version: wire.Version}).MarshalMsg(nil)
		if err != nil {
			t.Fatal(err)
		}
		b.conn.Send(wire.Header{Kind: wire.KindWelcome, Peer: f.Peer}, body, nil)
	}
	first := dial()
	defer first.Close()
	joined := hello(first)
	welcome()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	b.listen.Close()
	b.conn.Close()
	if _, err := first.Read(); err == nil {
		t.Error("a link outlived the head's connection")
	}
	second := dial() // while there is no head
	defer second.Close()
	joined = hello(second)
	b.listenAgain()
	b.accept()
	b.until("what it has", func() bool { return slices.Contains(b.notices, "resent") })
	welcome() // link 1 of the new connection
	if err := <-joined; err != nil {
		t.Error(err)
	}
	b.dismissed()
}

// untilLog waits for the agent to say something in its log.
func (b *bench) untilLog(text string) {
	b.Helper()
	path := filepath.Join(b.join.LogDir, "agent-1.log")
	for deadline := time.Now().Add(patience); ; {
		log, _ := os.ReadFile(path)
		if strings.Contains(string(log), text) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain for the agent to say %q; it said %q", text, log)
		}
	}
}

// listenAgain is a head that comes back.
func (b *bench) listenAgain() {
	b.Helper()
	var err error
	if b.listen, err = net.ListenUnix("unix", &net.UnixAddr{Name: b.join.Head, Net: "unix"}); err != nil {
		b.Fatal(err)
	}
}

var errUnknown = spec.Errorf(spec.CodeAuth, "the token is not that of the agent of node 1")
