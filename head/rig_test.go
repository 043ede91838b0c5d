package head_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// rig is a head with a fake backend and an owner.
type rig struct {
	t     testing.TB
	head  *head.Head
	fake  *fake.Backend
	owner *controller
	ended chan error
}

// setup says what a rig is like; the zero value is 2 nodes of 4 devices.
type setup struct {
	virtual string
	script  fake.Script
	options head.Options
	backend func(spec.Virtual, bool) (backend.Backend, error)
}

// newRig starts a head. When the test is over it ends it and looks for
// goroutines that were left behind.
func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	if s.virtual == "" {
		s.virtual = "2x4"
	}
	shape, err := spec.ParseVirtual(s.virtual)
	must(t, err)
	dir, err := os.MkdirTemp("", "mh") // short: a socket's path has few bytes
	must(t, err)
	if s.script.Class.Methods == nil {
		s.script.Class = testClass()
	}
	r := &rig{t: t, fake: newFake(shape, s.script), ended: make(chan error, 1)}
	s.options.Dir, s.options.LogDir, s.options.Session = filepath.Join(dir, "s"), dir, "test"
	s.options.Backend = func(spec.Virtual, bool) (backend.Backend, error) { return r.fake, nil }
	if s.backend != nil {
		s.options.Backend = s.backend
	}
	r.head, err = head.New(s.options)
	must(t, err)
	ours, theirs := socketPair(t)
	go func() { r.ended <- r.head.Run(context.Background(), theirs) }()
	r.owner = join(t, wire.NewConn(ours), wire.Hello{Role: wire.RoleOwner, Virtual: s.virtual})
	t.Cleanup(func() {
		r.owner.close()
		within(t, r.ended, "the head's end")
		if _, err := os.Stat(s.options.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder of sockets is still there: %v", err)
		}
		must(t, os.RemoveAll(dir))
		noGoroutines(t)
	})
	return r
}

// newFake is the backend for a shape.
func newFake(shape spec.Virtual, script fake.Script) *fake.Backend {
	b := fake.New(shape.Nodes, script)
	if shape.Net {
		b.OverNet()
	}
	return b
}

// both runs a test with workers that dial the head and with relayed ones, also of
// agents that come over the network.
func both(t *testing.T, test func(t *testing.T, relay string)) {
	t.Run("direct", func(t *testing.T) { test(t, "") })
	t.Run("relay", func(t *testing.T) { test(t, "+relay") })
	t.Run("net", func(t *testing.T) { test(t, "+net") })
}

// method is a registered method for descriptions.
func method(name, dispatch string) spec.Method {
	return spec.Method{Name: name, Registered: true, Dispatch: dispatch, Execute: "ALL", Params: []spec.Param{}, Custom: []byte{}}
}

func testClass() spec.Description {
	zero := method("zero", "ONE_TO_ALL")
	zero.Execute = "RANK_ZERO"
	together := method("together", "ONE_TO_ALL")
	together.Collective = true
	deadly := method("deadly", "ONE_TO_ALL")
	deadly.OnTimeout = "kill"
	bounded := method("bounded", "ONE_TO_ALL")
	bounded.OnTimeout = "cancel"
	plain := method("plain", "")
	plain.Registered = false
	return spec.Description{Class: "Fake", Serial: true, Methods: []spec.Method{
		method("all", "ONE_TO_ALL"), method("one", "ONE_TO_ALL_ONE"), method("each", "ALL_TO_ALL"),
		method("compute", "DP_MP_COMPUTE"), method("compute_all", "DP_MP_COMPUTE_COLLECT_ALL"),
		method("first", "DP_MP_DISPATCH_FIRST"), method("first_all", "DP_MP_DISPATCH_FIRST_COLLECT_ALL"),
		method("custom", "CUSTOM"), zero, together, deadly, bounded, plain,
	}}
}

// pool reserves all that the rig has.
func (r *rig) pool(perNode, nodes int) int {
	r.t.Helper()
	var p spec.Pool
	must(r.t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: perNode, Nodes: nodes, Timeout: 10}, &p))
	return p.ID
}

// cluster starts one of world workers, CPU ones unless options say more.
func (r *rig) cluster(name string, world int, options ...func(*spec.Cluster)) *wire.ClusterInfo {
	r.t.Helper()
	info, err := r.create(r.owner, r.pool(0, 1), name, world, options...)
	must(r.t, err)
	return info
}

func (r *rig) create(c *controller, pool int, name string, world int, options ...func(*spec.Cluster)) (*wire.ClusterInfo, error) {
	s := clusterSpec(name, world)
	for _, o := range options {
		o(&s)
	}
	info := &wire.ClusterInfo{}
	err := c.ask("cluster.create", &wire.ClusterCreate{Pool: pool, Spec: s}, info)
	return info, err
}

func clusterSpec(name string, world int) spec.Cluster {
	return spec.Cluster{
		Name: name, World: world, Mapping: []int{}, Env: map[string]string{}, Config: []byte{0xc0},
		Class: spec.Class{Module: "m", Name: "Fake", Pickle: []byte{}},
		Runtime: spec.Runtime{
			Python: "python", Flags: []string{}, SysPath: []string{}, Preload: []string{}, Env: map[string]string{},
		},
	}
}

func shaped(tp, pp, cp int) func(*spec.Cluster) {
	return func(s *spec.Cluster) { s.Shape.TP, s.Shape.PP, s.Shape.CP = tp, pp, cp }
}

// attach makes a further controller of the session.
func (r *rig) attach() *controller {
	r.t.Helper()
	return r.dial(wire.Hello{Role: wire.RoleController, Token: r.head.Token()})
}

// inside makes a controller within a worker's process.
func (r *rig) inside(w *fake.Worker) *controller {
	r.t.Helper()
	return r.dial(wire.Hello{Role: wire.RoleController, Token: w.Token, Worker: w.Number})
}

func (r *rig) dial(hello wire.Hello) *controller {
	r.t.Helper()
	conn, err := wire.Dial(r.head.Address())
	must(r.t, err)
	c := join(r.t, conn, hello)
	r.t.Cleanup(c.close)
	return c
}

// worker waits for a worker by name, in case it is still on its way.
func (r *rig) worker(name string) *fake.Worker {
	r.t.Helper()
	var w *fake.Worker
	eventually(r.t, "worker "+name, func() bool { w = r.fake.Worker(name); return w != nil })
	return w
}

// controller speaks the wire to a head, frame by frame.
type controller struct {
	t       testing.TB
	conn    *wire.Conn
	welcome wire.Welcome
	asker   *wire.Asker
	next    atomic.Uint64
	read    atomic.Uint32 // Answer frames so far
	silent  atomic.Bool   // acknowledges nothing
	reading sync.Mutex    // held by a test: it reads nothing more

	mu      sync.Mutex
	answers map[uint64]chan wire.Frame
	notices chan wire.Frame
	gone    chan struct{}
	err     error // after gone
}

func join(t testing.TB, conn *wire.Conn, hello wire.Hello) *controller {
	t.Helper()
	if hello.Runtime.Env == nil {
		hello.Runtime = clusterSpec("", 1).Runtime
	}
	w, err := wire.Join(conn, hello)
	must(t, err)
	c := &controller{
		t: t, conn: conn, welcome: w, asker: wire.NewAsker(conn),
		answers: map[uint64]chan wire.Frame{}, notices: make(chan wire.Frame, 10000), gone: make(chan struct{}),
	}
	go c.serve()
	return c
}

func (c *controller) serve() {
	defer close(c.gone)
	for {
		f, err := c.conn.Read()
		if err != nil {
			c.err = err
			c.asker.Fail(fmt.Errorf("the head is gone: %w", err))
			return
		}
		f.Keep()
		c.reading.Lock()
		c.reading.Unlock() //nolint:staticcheck // held by others for as long as they like
		switch f.Kind {
		case wire.KindAnswer:
			c.read.Add(1)
			c.answersOf(f.ID) <- f
		case wire.KindNotice, wire.KindClose:
			c.notices <- f
		default:
			if !c.asker.Deliver(f) {
				c.err = fmt.Errorf("a frame of kind %d", f.Kind)
				return
			}
		}
	}
}

func (c *controller) answersOf(id uint64) chan wire.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.answers[id]
	if ch == nil {
		ch = make(chan wire.Frame, 2048)
		c.answers[id] = ch
	}
	return ch
}

func (c *controller) close() {
	_ = wire.Notify(c.conn, "leave", &wire.Empty{})
	_ = c.conn.CloseWhenFlushed()
	<-c.gone
}

func (c *controller) ask(verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.asker.Ask(ctx, verb, req, resp)
}

// callee says what a call is to.
type callee struct {
	cluster uint32
	method  string
	how     int
	ranks   []int
	timeout time.Duration
	parent  uint64
	flags   int
}

const (
	split   = 1
	waiting = 2
	marked  = 4
	keep    = 8
	apart   = 32
)

func (to callee) route() []byte {
	b := []byte{0x92, 0x97}
	b = msgp.AppendUint32(b, to.cluster)
	b = msgp.AppendString(b, to.method)
	b = msgp.AppendInt(b, to.how)
	if to.ranks == nil {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendArrayHeader(b, uint32(len(to.ranks)))
		for _, r := range to.ranks {
			b = msgp.AppendInt(b, r)
		}
	}
	b = msgp.AppendInt64(b, to.timeout.Milliseconds())
	b = msgp.AppendUint64(b, to.parent)
	return msgp.AppendInt(b, to.flags)
}

// send sends a call and returns its id.
func (c *controller) send(to callee, payload []byte, bufs ...[]byte) uint64 {
	id := c.next.Add(1)
	h := wire.Header{Kind: wire.KindCall, ID: id, Ack: c.read.Load()}
	if c.silent.Load() {
		h.Ack = 0
	}
	c.conn.Send(h, append(to.route(), payload...), wire.Bytes(bufs...))
	return id
}

// answer waits for an answer to a call.
func (c *controller) answer(id uint64) wire.Frame {
	c.t.Helper()
	select {
	case f := <-c.answersOf(id):
		return f
	case <-c.gone:
		c.t.Fatalf("the connection ended before call %d was answered: %v", id, c.err)
	case <-time.After(patience):
		c.t.Fatalf("call %d was not answered within %v; goroutines:\n%s", id, patience, stacks())
	}
	return wire.Frame{}
}

// value waits for a call's answer, which must be a value.
func (c *controller) value(id uint64) any {
	c.t.Helper()
	f := c.answer(id)
	if f.Flags&wire.FlagError != 0 {
		c.t.Fatalf("call %d failed: %v", id, wire.ReadError(f.Body))
	}
	return decode(c.t, f.Body)
}

// fails waits for a call's answer, which must be an error of this code that
// tells of all these words.
func (c *controller) fails(id uint64, code spec.Code, words ...string) *spec.Error {
	c.t.Helper()
	f := c.answer(id)
	if f.Flags&wire.FlagError == 0 {
		c.t.Fatalf("call %d gave %v instead of failing", id, decode(c.t, f.Body))
	}
	e := wire.ReadError(f.Body)
	wantError(c.t, e, code, words...)
	return e
}

func wantError(t testing.TB, err error, code spec.Code, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, expected %s about %q", code, words)
	}
	if got := spec.AsError(err).Code; got != code {
		t.Fatalf("code %s, expected %s: %v", got, code, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("the error does not tell of %q: %v", word, err)
		}
	}
}

// args encodes a payload of positional arguments.
func args(values ...any) []byte {
	b := []byte{0x92}
	b = msgp.AppendArrayHeader(b, uint32(len(values)))
	for _, v := range values {
		b = encode(b, v)
	}
	return append(b, 0x80)
}

// raw is a value that is encoded already.
type raw []byte

func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case raw:
		return append(b, v...)
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = encode(b, e)
		}
		return b
	}
	b, err := msgp.AppendIntf(b, v)
	if err != nil {
		panic(err)
	}
	return b
}

// perRank and broadcast mark an argument; future stands for another call.
func perRank(values ...any) raw { return extension(5, encode(nil, values)) }
func broadcast(v any) raw       { return extension(6, encode(nil, v)) }
func future(id uint64, rank int) raw {
	b := make([]byte, 12)
	for i := range 8 {
		b[i] = byte(id >> (8 * i))
	}
	for i := range 4 {
		b[8+i] = byte(uint32(int32(rank)) >> (8 * i))
	}
	return extension(21, b)
}

func extension(code byte, payload []byte) raw {
	return append(raw{0xc8, byte(len(payload) >> 8), byte(len(payload)), code}, payload...)
}

func decode(t testing.TB, b []byte) any {
	t.Helper()
	v, rest, err := msgp.ReadIntfBytes(b)
	if err != nil || len(rest) > 0 {
		t.Fatalf("a value that cannot be read: %v, %d bytes left of % x", err, len(rest), b)
	}
	return v
}

// firstArg is the first positional argument of a leg, as bytes.
func firstArg(leg *fake.Leg) []byte {
	p, err := wire.ParsePayload(leg.Payload, leg.Bufs)
	if err != nil {
		panic(err)
	}
	if len(p.Args) == 0 {
		return []byte{0xc0}
	}
	return bytes.Clone(p.Args[0].Raw)
}

// echo answers with the first argument.
func echo(leg *fake.Leg) { leg.Return(firstArg(leg)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v; goroutines:\n%s", what, patience, stacks())
	}
	panic("not reached")
}

// eventually waits for a state that nobody announces.
func eventually(t testing.TB, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !reached(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not come within %v; goroutines:\n%s", what, patience, stacks())
		}
	}
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}

// noGoroutines waits until nothing of ours runs but the test itself.
func noGoroutines(t testing.TB) {
	t.Helper()
	eventually(t, "the end of every goroutine", func() bool {
		for i, g := range strings.Split(stacks(), "\n\n") {
			// The first is the one that asks.
			if i > 0 && strings.Contains(g, "muster-rl/muster/") && !strings.Contains(g, "testing.(*T).Run(") && !strings.Contains(g, "testing.(*B)") {
				return false
			}
		}
		return true
	})
}

func socketPair(t testing.TB) (ours, theirs net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		conns[i], err = net.FileConn(file)
		must(t, err)
		_ = file.Close()
	}
	return conns[0], conns[1]
}

// tick is soon, for who looks for something that nobody announces.
func tick() <-chan time.Time { return time.After(time.Millisecond) }
