package muster_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// fakeHead is a head that a controller is attached to, and whose word the tests
// say themselves.
type fakeHead struct {
	t        *testing.T
	dir      string
	listener *net.UnixListener
	conn     *wire.Conn // the controller's last
	hello    wire.Hello
	session  *muster.Session
	cluster  *muster.Cluster
}

const fakeCaller = 4711

// attachFake attaches a session to a fake head, on which there is a cluster c.
func attachFake(t *testing.T) *fakeHead {
	t.Helper()
	f := &fakeHead{t: t, dir: filepath.Join(shortDir(t), "s")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "token"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.listen()
	type started struct {
		s   *muster.Session
		err error
	}
	ready := make(chan started)
	go func() {
		s, err := muster.Start(testContext(t), muster.Options{Address: f.dir, Log: io.Discard})
		ready <- started{s, err}
	}()
	f.accept(2)
	s := <-ready
	if s.err != nil {
		t.Fatal(s.err)
	}
	f.session = s.s
	t.Cleanup(func() {
		f.drop()
		if err := f.session.Close(); err != nil {
			t.Error(err)
		}
	})
	done := make(chan error)
	go func() {
		var err error
		f.cluster, err = s.s.Attached(testContext(t), "c")
		done <- err
	}()
	asked := f.next("request 1 cluster.describe")
	info := wire.ClusterInfo{Number: 7, Name: "c", Workers: make([]wire.WorkerInfo, 2), Description: spec.Description{
		Class: "C", Methods: []spec.Method{{Name: "m", Params: []spec.Param{{Name: "x", Kind: 2}}}},
	}}
	wire.Respond(f.conn, asked.ID, &info, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return f
}

// listen is the start of a head.
func (f *fakeHead) listen() {
	f.t.Helper()
	path := filepath.Join(f.dir, "head.sock")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		f.t.Fatal(err)
	}
	f.listener = l.(*net.UnixListener)
	f.listener.SetUnlinkOnClose(false)
	f.t.Cleanup(func() { _ = l.Close() })
}

// accept welcomes n connections, of which one is the controller's.
func (f *fakeHead) accept(n int) {
	f.t.Helper()
	for range n {
		_ = f.listener.SetDeadline(time.Now().Add(20 * time.Second))
		nc, err := f.listener.Accept()
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { _ = nc.Close() })
		_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
		conn := wire.NewConn(nc)
		hello, err := wire.ReadHello(conn)
		if err != nil {
			f.t.Fatal(err)
		}
		if hello.Role == wire.RoleController {
			f.conn, f.hello = conn, hello
		}
		wire.Accept(conn, wire.Welcome{Session: "fake", Address: f.listener.Addr().String(), Caller: fakeCaller, Epoch: 1})
	}
}

// drop cuts the controller's connection and is not there for it.
func (f *fakeHead) drop() {
	_ = f.listener.Close()
	_ = f.conn.Close()
}

// next is the next frame, which must be like that in short.
func (f *fakeHead) next(want string) wire.Frame {
	f.t.Helper()
	fr, err := f.conn.Read()
	if err != nil {
		f.t.Fatalf("%v; want %s", err, want)
	}
	fr.Keep()
	again := ""
	if fr.Flags&wire.FlagAgain != 0 {
		again = " again"
	}
	got := fmt.Sprintf("kind %d of %d", fr.Kind, fr.ID)
	switch fr.Kind {
	case wire.KindCall:
		got = fmt.Sprintf("call %d%s ack %d", fr.ID, again, fr.Ack)
	case wire.KindAnswer:
		got = fmt.Sprintf("answer %d flags %d rank %d %x", fr.ID, fr.Flags, fr.Ack, fr.Body)
	case wire.KindCancel:
		got = fmt.Sprintf("cancel %d", fr.ID)
	case wire.KindRequest, wire.KindNotice:
		verb, body, err := wire.ReadVerb(fr.Body)
		if err != nil {
			f.t.Fatal(err)
		}
		got = verb
		if fr.Kind == wire.KindRequest {
			got = fmt.Sprintf("request %d %s%s", fr.ID, verb, again)
		}
		if verb == "back" {
			var back wire.CallerBack
			if _, err := back.UnmarshalMsg(body); err != nil {
				f.t.Fatal(err)
			}
			got = fmt.Sprint("back ", back.Answers, " ", back.Objects)
		}
	}
	if got != want {
		f.t.Fatalf("it said %q; want %q", got, want)
	}
	return fr
}

func (f *fakeHead) answer(id uint64, flags wire.Flags, rank uint32, value int) {
	f.conn.Send(wire.Header{Kind: wire.KindAnswer, Flags: flags, ID: id, Ack: rank}, msgp.AppendInt(nil, value), nil)
}

// What is not answered is sent again, in order, with what it needs; what was made
// meanwhile goes along.
func TestUnansweredCallsAreSentAgain(t *testing.T) {
	f := attachFake(t)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	a := muster.Go[int](ctx, f.cluster.All(), "m", 1)
	f.next("call 2 ack 0")
	b := muster.Go[int](ctx, f.cluster.All(), "m", a)
	f.next("call 3 ack 0")
	split := muster.Each[int](ctx, f.cluster, "m")
	f.next("call 4 ack 0")
	f.answer(2, 0, 0, 11)
	if n, err := a.Get(ctx); n != 11 || err != nil {
		t.Fatal(n, err)
	}
	f.answer(4, wire.FlagRank, 1, 41)
	if n, err := split[1].Get(ctx); n != 41 || err != nil {
		t.Fatal(n, err)
	}
	asked := make(chan error, 1)
	go func() {
		_, err := f.session.Stores(ctx)
		asked <- err
	}()
	f.next("request 5 store")
	dropped := muster.Go[int](ctx, f.cluster.All(), "m", "dropped")
	f.next("call 6 ack 2")
	dropped.Cancel()
	f.next("cancel 6")
	f.drop()
	during := muster.Go[int](ctx, f.cluster.All(), "m", a, b) // a's value, b as a future
	f.listen()
	f.accept(1)
	if f.hello.Back != fakeCaller || f.hello.Token != "secret" {
		t.Error(f.hello)
	}
	f.next("back 2 []")
	f.next("answer 2 flags 0 rank 0 0b") // which call 3 names
	f.next("call 3 again ack 2")
	f.next("call 4 again ack 2")
	f.next("request 5 store again")
	f.next("call 6 again ack 2")
	f.next("cancel 6")
	f.next("call 7 again ack 2")
	f.next("resent")
	f.answer(4, wire.FlagRank, 1, 99) // which is here already
	f.answer(4, wire.FlagRank, 0, 40)
	f.answer(3, 0, 0, 31)
	for _, want := range []struct {
		future *muster.Future[int]
		value  int
	}{{split[0], 40}, {split[1], 41}, {b, 31}} {
		if n, err := want.future.Get(ctx); n != want.value || err != nil {
			t.Error(n, err, "; want", want.value)
		}
	}
	wire.Respond(f.conn, 5, &wire.StoreReport{}, nil)
	if err := <-asked; err != nil {
		t.Error(err)
	}
	// The head needs some of them once more.
	if err := wire.Notify(f.conn, "again", &wire.Again{Calls: []uint64{7, 3, 6}}); err != nil {
		t.Fatal(err)
	}
	f.next("call 6 again ack 2")
	f.next("call 7 again ack 2")
	f.answer(7, 0, 0, 71)
	if n, err := during.Get(ctx); n != 71 || err != nil {
		t.Error(n, err)
	}
	muster.Go[int](ctx, f.cluster.All(), "m")
	f.next("call 8 ack 6")
}

// A deadline goes on while the head is away.
func TestDeadlinesGoOnWhileTheHeadIsAway(t *testing.T) {
	f := attachFake(t)
	ctx, cancel := context.WithTimeout(testContext(t), 30*time.Second)
	defer cancel()
	muster.Go[int](ctx, f.cluster.All(), "m")
	first := timeoutOf(t, f.next("call 2 ack 0"))
	f.drop()
	f.listen()
	f.accept(1)
	f.next("back 0 []")
	again := timeoutOf(t, f.next("call 2 again ack 0"))
	if again == 0 || again > first {
		t.Errorf("it has %d ms left after %d", again, first)
	}
}

func timeoutOf(t *testing.T, f wire.Frame) uint64 {
	_, b, _ := msgp.ReadArrayHeaderBytes(f.Body)
	_, b, _ = msgp.ReadArrayHeaderBytes(b)
	for range 4 {
		b, _ = msgp.Skip(b)
	}
	ms, _, err := msgp.ReadUint64Bytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// Many answers without another call are acknowledged by themselves.
func TestAnswersAreAcknowledged(t *testing.T) {
	f := attachFake(t)
	ctx := testContext(t)
	var futures []*muster.Future[int]
	for i := range 64 {
		futures = append(futures, muster.Go[int](ctx, f.cluster.All(), "m"))
		f.next(fmt.Sprintf("call %d ack 0", i+2))
	}
	for i := range 64 {
		f.answer(uint64(i)+2, 0, 0, i)
	}
	if _, err := muster.GetAll(ctx, futures); err != nil {
		t.Error(err)
	}
	if told := f.next("release"); told.Ack != 64 {
		t.Error(told.Ack)
	}
}

func TestTheGraceEnds(t *testing.T) {
	t.Setenv("MUSTER_HEAD_GRACE", "0.3")
	f := attachFake(t)
	ctx := testContext(t)
	call := muster.Go[int](ctx, f.cluster.All(), "m")
	f.drop()
	_, err := call.Get(ctx)
	code(t, err, muster.CodeHeadLost, "Is it still running?", "within the grace of 300ms")
	code(t, muster.Do(ctx, f.cluster.All(), "m"), muster.CodeHeadLost)
	<-f.session.Done()
}

// A head that left in order, or that will not have us, is not waited for.
func TestNobodyWaitsForAHeadThatLeft(t *testing.T) {
	f := attachFake(t)
	call := muster.Go[int](testContext(t), f.cluster.All(), "m")
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.drop()
	_, err := call.Get(testContext(t))
	code(t, err, muster.CodeHeadLost, "Is it still running?")
	if strings.Contains(err.Error(), "grace") {
		t.Error(err)
	}
	f = attachFake(t)
	call = muster.Go[int](testContext(t), f.cluster.All(), "m")
	f.drop()
	f.listen()
	nc, err := f.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(nc)
	for hello := (wire.Hello{}); hello.Role != wire.RoleController; {
		if hello, err = wire.ReadHello(conn); err != nil {
			t.Fatal(err)
		}
		if hello.Role != wire.RoleController {
			_ = nc.Close()
			if nc, err = f.listener.Accept(); err != nil {
				t.Fatal(err)
			}
			conn = wire.NewConn(nc)
		}
	}
	wire.Refuse(conn, spec.Errorf(spec.CodeAuth, "who is that?"))
	_, err = call.Get(testContext(t))
	code(t, err, muster.CodeHeadLost, "did not take this process back", "who is that?")
}

// Close while the head is away ends the wait for it.
func TestCloseWhileTheHeadIsAway(t *testing.T) {
	f := attachFake(t)
	call := muster.Go[int](testContext(t), f.cluster.All(), "m")
	f.next("call 2 ack 0")
	f.drop()
	if err := f.session.Close(); err != nil {
		t.Error(err)
	}
	_, err := call.Get(testContext(t))
	code(t, err, muster.CodeHeadLost)
}
