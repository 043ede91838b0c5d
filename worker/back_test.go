package worker

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/wire"
)

const patience = 20 * time.Second

// fakeHead is the other end of a worker's connections.
type fakeHead struct {
	t        *testing.T
	listener net.Listener
	conn     *wire.Conn
	hello    wire.Hello
}

// newWorker starts a host whose method "wait" ends when it is told to.
func newWorker(t *testing.T, limit int) (*fakeHead, *host, chan int) {
	dir, err := os.MkdirTemp("/tmp", "mw")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeHead{t: t, listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		_ = os.RemoveAll(dir)
	})
	release := make(chan int, 10)
	class := NewClass("C").Method("wait", func() int { return <-release }).Method("add", func(x, y int) int { return x + y })
	dial := func(back uint32) (*wire.Conn, error) {
		conn, err := wire.Dial(path)
		if err == nil {
			_, err = wire.Join(conn, wire.Hello{Role: wire.RoleWorker, Back: back})
		}
		return conn, err
	}
	type dialled struct {
		conn *wire.Conn
		err  error
	}
	first := make(chan dialled)
	go func() {
		conn, err := dial(0)
		first <- dialled{conn, err}
	}()
	f.accept()
	d := <-first
	if d.err != nil {
		t.Fatal(d.err)
	}
	h := newHost(class, &Info{Worker: "w-0"}, object.NewOneWayLink(d.conn, nil), d.conn, limit)
	h.dial = func() (*wire.Conn, error) { return dial(1) }
	h.ready = wire.Ready{Pid: 77}
	over := make(chan error, 1)
	go func() { over <- h.serve() }()
	t.Cleanup(func() {
		h.cancel()
		_ = f.conn.Close()
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the worker does not end")
		}
	})
	return f, h, release
}

// accept takes the worker's next connection.
func (f *fakeHead) accept() {
	f.t.Helper()
	_ = f.listener.(*net.UnixListener).SetDeadline(time.Now().Add(patience))
	nc, err := f.listener.Accept()
	if err != nil {
		f.t.Fatal(err)
	}
	_ = nc.SetReadDeadline(time.Now().Add(patience))
	f.conn = wire.NewConn(nc)
	if f.hello, err = wire.ReadHello(f.conn); err != nil {
		f.t.Fatal(err)
	}
	wire.Accept(f.conn, wire.Welcome{Epoch: 1})
}

// leg sends [method, parent, origin, payload].
func (f *fakeHead) leg(call, origin uint64, ack uint32, method string, args ...byte) {
	body := append([]byte{0x94, 0xa0 | byte(len(method))}, method...)
	body = append(body, 0, byte(origin), 0x92, 0x90|byte(len(args)))
	body = append(append(body, args...), 0x80)
	f.conn.Send(wire.Header{Kind: wire.KindLeg, ID: call, Ack: ack}, body, nil)
}

// hears is the next frames, in short.
func (f *fakeHead) hears(want ...string) {
	f.t.Helper()
	for _, w := range want {
		fr, err := f.conn.Read()
		if err != nil {
			f.t.Fatalf("%v; want %s", err, w)
		}
		got := fmt.Sprintf("kind %d", fr.Kind)
		switch fr.Kind {
		case wire.KindResult:
			got = fmt.Sprintf("result %d flags %d %x", fr.ID, fr.Flags, fr.Body)
		case wire.KindNotice:
			verb, body, err := wire.ReadVerb(fr.Body)
			if err != nil {
				f.t.Fatal(err)
			}
			got = verb
			if verb == "back" {
				var back wire.WorkerBack
				if _, err := back.UnmarshalMsg(body); err != nil {
					f.t.Fatal(err)
				}
				if back.Lent == nil {
					f.t.Error("it does not say that it was lent nothing")
				}
				got = fmt.Sprint("back ", back.Received, back.Legs, back.Ready.Pid)
			}
		}
		if got != w {
			f.t.Errorf("it said %q; want %q", got, w)
		}
	}
}

// A worker comes back with what it has got: what runs, and the results that are
// not acknowledged.
func TestWorkersComeBack(t *testing.T) {
	f, h, proceed := newWorker(t, 1)
	f.leg(100, 1, 0, "add", 1, 2)
	f.leg(101, 2, 0, "add", 3, 4)
	f.hears("result 100 flags 0 03", "result 101 flags 0 07")
	f.leg(102, 3, 1, "wait") // the first is acknowledged
	f.leg(103, 4, 1, "add", 5, 6)
	eventually(t, "102 runs", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.running[102] != nil
	})
	_ = f.conn.Close()
	f.accept() // while 102 runs: nobody reads the connection
	if f.hello.Back != 1 {
		t.Error(f.hello)
	}
	// 103 lay in a connection that is no more, so it does not count as received.
	f.hears("back 3 [{2 101 2 1} {3 102 3 0}] 77", "result 101 flags 32 07", "resent")
	f.leg(103, 4, 0, "add", 5, 6)
	proceed <- 9
	f.hears("result 102 flags 0 09", "result 103 flags 0 0b")
	if err := wire.Notify(f.conn, "acked", &wire.Acked{Through: 2, Calls: []uint64{103}}); err != nil {
		t.Fatal(err)
	}
	f.leg(104, 5, 1, "add", 1, 1) // an older mark means nothing
	f.hears("result 104 flags 0 02")
	_ = f.conn.Close()
	f.accept()
	f.hears("back 5 [{3 102 3 1} {5 104 5 1}] 77", "result 102 flags 32 09", "result 104 flags 32 02", "resent")
	f.leg(104, 5, 0, "add", 1, 1) // here already
	f.leg(105, 6, 5, "add", 2, 2)
	f.hears("result 105 flags 0 04")
	_ = f.conn.Close()
	f.accept()
	f.hears("back 6 [{6 105 6 1}] 77", "result 105 flags 32 04", "resent")
}

// What ends while there is no head is told to the next one.
func TestResultsWaitForAHead(t *testing.T) {
	f, h, proceed := newWorker(t, 4)
	f.leg(100, 1, 0, "wait")
	f.leg(101, 2, 0, "wait")
	eventually(t, "both run", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.running) == 2
	})
	h.returning.Lock() // so that nobody looks for a head yet
	_ = f.conn.Close()
	proceed <- 1
	eventually(t, "one has ended", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.running) == 1
	})
	h.returning.Unlock()
	f.accept()
	fr, err := f.conn.Read()
	if err != nil || fr.Kind != wire.KindNotice {
		t.Fatal(fr.Kind, err)
	}
	fr, err = f.conn.Read()
	if err != nil || fr.Kind != wire.KindResult || fr.Flags != wire.FlagAgain || fr.Body[0] != 1 {
		t.Fatal(fr, err)
	}
	f.hears("resent")
	proceed <- 2
	if again, err := f.conn.Read(); err != nil || again.ID == fr.ID || again.Flags != 0 || again.Body[0] != 2 {
		t.Error(again, err)
	}
}

// What is released while it runs is not kept, but told of as long as it runs.
func TestReleasedWhileRunning(t *testing.T) {
	var k kept
	a, b := k.take(5, 1), k.take(6, 2)
	if k.take(6, 2) != nil {
		t.Error("the same leg twice")
	}
	k.through(1)
	if got := k.back(); !reflect.DeepEqual(got, []wire.LegBack{{Seq: 1, Call: 5, Origin: 1}, {Seq: 2, Call: 6, Origin: 2}}) {
		t.Error(got)
	}
	k.done(a, 0, wire.Value{})
	data := []byte("as it was")
	k.done(b, 0, wire.Value{Bufs: wire.Bytes(data)})
	copy(data, "is changed")
	if len(k.legs) != 1 || string(k.legs[0].result.Bufs[0].Data) != "as it was" {
		t.Error(k.legs)
	}
	k.received, k.mark = 1<<32-1, 1<<32-2
	c := k.take(7, 3) // number 0, after 2^32-1
	k.done(c, 0, wire.Value{})
	if k.through(0); len(k.legs) != 1 || c.Seq != 0 {
		t.Error(k.legs, c.Seq)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not so: ", what)
		}
	}
}
