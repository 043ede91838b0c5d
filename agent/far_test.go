package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/wire"
)

// afar makes an agent whose head is on another machine.
func afar(b *bench) {
	patient(b)
	authority, err := secure.NewAuthority()
	if err != nil {
		b.Fatal(err)
	}
	b.far = authority
	b.join.Far = backend.Far{
		Transport: backend.TLS, Pin: authority.Pin(), NodeGrace: patience.Seconds(), Ping: 0.05, Silent: 2, // which nobody is who only has no core for a while
	}
	b.join.Relay = true
}

func (b *bench) complained() string {
	text, _ := os.ReadFile(filepath.Join(b.join.LogDir, "agent-1.log"))
	return string(text)
}

func TestAHeadOnAnotherMachine(t *testing.T) {
	b := newBench(t, afar)
	b.start(b.workers(1, "control wait"))
	b.untilSaid(1, "up", 1)
	if b.hello.Node.Address != "127.0.0.1" || b.hello.Node.Boot == "" || b.hello.Node.Life == "" || b.hello.Request == nil {
		t.Errorf("it says %+v", b.hello)
	}
	b.until("its load", func() bool { return slices.Contains(b.notices, "load") })
	b.until("a ping", func() bool { return slices.Contains(b.notices, "ping") })
	pids, life := b.below("fake-worker"), b.hello.Node.Life
	b.leave()
	if got := b.below("fake-worker"); !slices.Equal(got, pids) {
		t.Errorf("workers %v, then %v", pids, got)
	}
	state := b.conn.NetConn().(*tls.Conn).ConnectionState()
	if n, ok := secure.Node(state); !ok || n != 1 || b.hello.Request != nil || b.hello.Node.Life != life {
		t.Errorf("it comes back as node %d, %v, with %+v", n, ok, b.hello)
	}
	b.dismissed()
}

// Where nothing comes, it dials again, and has kept all.
func TestAHeadThatIsSilent(t *testing.T) {
	b := newBench(t, func(b *bench) {
		afar(b)
		b.join.Silent = 0.3
	})
	b.start(b.workers(1, "control wait"))
	b.untilSaid(1, "up", 1)
	pids := b.below("fake-worker")
	b.mu.Lock()
	b.silent = true
	b.mu.Unlock()
	b.accept()
	b.until("what it has", func() bool { return slices.Contains(b.notices, "resent") })
	b.mu.Lock()
	b.silent = false
	b.mu.Unlock()
	if got := b.below("fake-worker"); !slices.Equal(got, pids) || len(b.back.Workers) != 1 {
		t.Errorf("workers %v, then %v, told %+v", pids, got, b.back)
	}
	if !strings.Contains(b.complained(), "nothing has come from the head for") {
		t.Errorf("it said %s", b.complained())
	}
	b.dismissed()
}

// A head that does not hear of the node, though the node hears of it, is dialled
// again.
func TestANetworkThatLosesOneDirection(t *testing.T) {
	b := newBench(t, afar)
	if err := wire.Notify(b.conn, "ping", &wire.Ping{Silent: 0.3}); err != nil {
		t.Fatal(err)
	}
	b.until("an answer", func() bool { return slices.Contains(b.notices, "pong") })
	if err := wire.Notify(b.conn, "ping", &wire.Ping{Silent: 10}); err != nil {
		t.Fatal(err)
	}
	b.accept()
	b.until("what it has", func() bool { return slices.Contains(b.notices, "resent") })
	if !strings.Contains(b.complained(), "the head has heard nothing of it for 10.0 s") {
		t.Errorf("it said %s", b.complained())
	}
	b.dismissed()
}

// Where nothing listens any more the head is gone, and the grace for that counts.
func TestAHeadThatIsGoneOnAnotherMachine(t *testing.T) {
	b := newBench(t, func(b *bench) {
		afar(b)
		b.join.Grace, b.join.NodeGrace = 1, 3600
	})
	b.listen.Close()
	b.conn.Close()
	b.await(b.agent.Done(), "the agent's end")
	if err := b.agent.Err(); err != nil {
		t.Errorf("not an orderly end: %v", err)
	}
}

// Another head where the first one was is told by name, and is none to wait for.
func TestAnotherHeadInItsPlace(t *testing.T) {
	b := newBench(t, afar)
	other, err := secure.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	b.far = other
	conn := b.conn
	b.conn = nil
	go func() {
		nc, err := b.listen.Accept()
		if err == nil {
			_ = tls.Server(nc, other.ServerConfig()).Handshake()
			_ = nc.Close()
		}
	}()
	conn.Close()
	b.await(b.agent.Done(), "the agent's end")
	if err := b.agent.Err(); err == nil || !strings.Contains(err.Error(), "another head") {
		t.Errorf("got %v", err)
	}
}

func TestWhatAnAgentIsToldOfTheNetwork(t *testing.T) {
	for name, far := range map[string]backend.Far{
		"no pin":            {Hosts: []string{"h:1"}, Transport: backend.TLS},
		"a wrong pin":       {Hosts: []string{"h:1"}, Transport: backend.TLS, Pin: "abc"},
		"another transport": {Hosts: []string{"h:1"}, Transport: "smoke", Pin: strings.Repeat("0", 64)},
		"no transport":      {Hosts: []string{"h:1"}, Pin: strings.Repeat("0", 64)},
	} {
		if _, err := newIdentity(backend.Join{Name: "node-1", Far: far}); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
	for name, far := range map[string]backend.Far{
		"here": {}, "plain": {Hosts: []string{"h:1"}, Transport: backend.Plain},
	} {
		if id, err := newIdentity(backend.Join{Far: far}); err != nil || id.key != nil || id.dial != nil {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
}

func TestWhenAConnectionIsMadeAnew(t *testing.T) {
	const bound = 3 * time.Second
	for _, test := range []struct {
		data, ack time.Duration
		want      bool
	}{
		{0, 0, false}, {2 * time.Second, 10 * time.Second, false}, {3 * time.Second, 3 * time.Second, true},
		{3 * time.Second, 0, false}, {11 * time.Second, time.Second, false}, {12 * time.Second, 0, true},
	} {
		if got := silenced(wire.Quiet{Data: test.data, Ack: test.ack}, bound); got != test.want {
			t.Errorf("%v without data, %v without a word of the machine: %v", test.data, test.ack, got)
		}
	}
	var r refusals
	if r.tooMany(errors.New("no route"), 0) || !r.tooMany(fmt.Errorf("x: %w", syscall.ECONNREFUSED), 0) || r.tooMany(syscall.ECONNREFUSED, time.Hour) {
		t.Error("it counts wrongly")
	}
	one, other := fmt.Errorf("x: %w", syscall.ECONNREFUSED), syscall.EHOSTUNREACH
	if !refused(fmt.Errorf("y: %w", errors.Join(one, one))) || refused(fmt.Errorf("y: %w", errors.Join(one, other))) {
		t.Error("one address is not all")
	}
}

func TestLoad(t *testing.T) {
	root := fstest.MapFS{
		"proc/loadavg": {Data: []byte("1.25 0.50 0.10 2/345 6789\n")},
		"proc/meminfo": {Data: []byte("MemTotal: 8000 kB\nMemAvailable: 4000 kB\n")},
	}
	if got := loadOf(root); *got != (wire.Load{Load: 1.25, Available: 4000 << 10, Known: true}) {
		t.Errorf("got %+v", got)
	}
	if got := loadOf(fstest.MapFS{}); got.Known {
		t.Errorf("got %+v", got)
	}
	if got := loadOf(fstest.MapFS{"proc/loadavg": {Data: []byte("much")}}); got.Known {
		t.Errorf("got %+v", got)
	}
}
