package muster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	startWait = 60 * time.Second // for a head's welcome, where ctx sets no deadline
	endWait   = 60 * time.Second // workers get their grace, then are killed
	exitWait  = 10 * time.Second
	drainWait = 5 * time.Second
)

// Options say where the head is, or what an embedded one is like. The zero
// Options start a head for this machine.
type Options struct {
	// Virtual asks for stand-ins instead of real GPUs: "4x8" is 4 nodes of 8 on
	// this machine, "4x8+relay" also sends calls through the nodes' agents,
	// "4x8+net" has them join over TCP as between machines. Default: $MUSTER_VIRTUAL.
	Virtual string
	// Address is that of a head which runs already: its socket, its folder, or
	// its session's name. Default, where Virtual is not given: $MUSTER_ADDRESS.
	Address string
	// Binary is the muster program, for an embedded head. Default:
	// $MUSTER_BINARY, then PATH.
	Binary string
	// Python is the interpreter of clusters of Python classes; it needs the
	// muster package, and ray with MUSTER_BACKEND=ray. Default: $MUSTER_PYTHON,
	// then python3 on PATH.
	Python string
	// Log gets the workers' output, each line with its worker's name. Default:
	// os.Stderr; io.Discard for none. It is written to by one goroutine.
	Log io.Writer
	// Progress, where set, is told how far starts are, by the same goroutine.
	Progress func(Progress)
}

// bridge is what the head is told for the case that nodes come from Ray: the
// interpreter that speaks to it.
func (o Options) bridge() []string {
	if o.Python == "" {
		return nil // it looks at MUSTER_PYTHON itself
	}
	return []string{"--python", o.Python}
}

// Progress is how far a cluster or pool is.
type Progress = wire.Progress

// Session is a connection to a head, and all that was made through it.
type Session struct {
	conn    *conn
	head    *headProcess   // nil where it is not ours; another one after it was killed
	events  *events        // nil inside workers
	stores  *object.Stores // of the head
	shared  bool           // the stores are the worker's that this is in
	options Options

	// The way back to the head, when the connection is cut.
	hello    wire.Hello // Back is 0 where there is none
	address  string
	name     string      // of the head's session
	binary   string      // of an embedded head
	restarts []time.Time // of it, used by the connection's reader alone

	mu          sync.Mutex
	clusters    map[uint32]*Cluster
	interpreter map[string]spec.Runtime // by the python that was asked

	closing sync.Once
	closed  chan struct{}
	err     error
}

// Start starts a head of this program's own, or attaches to one that runs. ctx
// bounds the start alone. An embedded head ends with Close, and with this
// process however that ends, and everything below it with it.
func Start(ctx context.Context, options Options) (*Session, error) {
	if options.Address != "" && options.Virtual != "" {
		return nil, spec.Errorf(CodeInvalid, "Virtual says what an embedded head pretends to have; the head at an address has its own nodes. Give one of the two")
	}
	if options.Virtual == "" && options.Address == "" {
		if options.Address = os.Getenv("MUSTER_ADDRESS"); options.Address == "" {
			options.Virtual = os.Getenv("MUSTER_VIRTUAL")
		}
	}
	if options.Log == nil {
		options.Log = os.Stderr
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	if options.Address != "" {
		return attach(ctx, options)
	}
	return embed(ctx, options)
}

func embed(ctx context.Context, options Options) (*Session, error) {
	binary, err := findBinary(options.Binary)
	if err != nil {
		return nil, err
	}
	head, nc, err := startHead(binary, options.bridge()...)
	if err != nil {
		return nil, err
	}
	s := newSession(nc, options)
	s.head, s.binary = head, binary
	welcome, err := s.join(ctx, wire.Hello{Role: wire.RoleOwner, Virtual: options.Virtual})
	if err == nil {
		s.address = welcome.Address
		err = s.listen(welcome.Address, welcome.Token)
	}
	if err != nil {
		_ = nc.Close()
		head.end(exitWait)
		var told *Error
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the start of a head was given up: %w", err)
		}
		if errors.As(err, &told) {
			return nil, failed(told)
		}
		return nil, failed(spec.Errorf(CodeHeadLost, "the head did not start: %v. %s", err, head.howEnded()))
	}
	go s.conn.read(s.back)
	return s, nil
}

// attach dials a head that runs.
func attach(ctx context.Context, options Options) (*Session, error) {
	socket := findSocket(options.Address)
	token, err := os.ReadFile(filepath.Join(filepath.Dir(socket), "token"))
	if err != nil {
		return nil, spec.Errorf(CodeHeadLost, "no head at %q: its token cannot be read: %v", options.Address, err)
	}
	s, err := dial(ctx, options, socket, nil, wire.Hello{
		Role: wire.RoleController, Token: strings.TrimSpace(string(token)),
	})
	if err != nil {
		return nil, err
	}
	if err := s.listen(socket, strings.TrimSpace(string(token))); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// findSocket takes a socket, the folder it is in, or the name of its session.
func findSocket(address string) string {
	if info, err := os.Stat(address); err == nil && info.IsDir() {
		return filepath.Join(address, "head.sock")
	}
	for _, s := range session.List() {
		if s.Name == address {
			return s.Socket()
		}
	}
	return address
}

// InWorker attaches from inside a worker, with the worker's own token and its
// way to the stores. Package worker calls it; others use Start.
func InWorker(ctx context.Context, address, token string, number uint32, stores *object.Stores) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	return dial(ctx, Options{Log: io.Discard}, address, stores, wire.Hello{
		Role: wire.RoleController, Token: token, Worker: number,
	})
}

// dial joins the head at a socket. stores are what this process has of the same
// head already, if anything.
func dial(ctx context.Context, options Options, socket string, stores *object.Stores, hello wire.Hello) (*Session, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, spec.Errorf(CodeHeadLost, "no head answers at %s: %v. Is it still running?", socket, err)
	}
	s := newSession(nc, options)
	s.stores, s.shared, s.address = stores, stores != nil, socket
	if _, err := s.join(ctx, hello); err != nil {
		_ = nc.Close()
		return nil, failed(err)
	}
	go s.conn.read(s.back)
	return s, nil
}

func newSession(nc net.Conn, options Options) *Session {
	return &Session{
		conn: newConn(wire.NewConn(nc)), options: options, clusters: map[uint32]*Cluster{},
		interpreter: map[string]spec.Runtime{}, closed: make(chan struct{}),
	}
}

// join says the session's first hello.
func (s *Session) join(ctx context.Context, hello wire.Hello) (wire.Welcome, error) {
	s.hello = hello
	hello.Runtime = ownRuntime()
	welcome, err := join(ctx, s.conn.wire, hello)
	if s.stores == nil {
		s.stores = object.NewStores(welcome)
	}
	s.conn.link = object.NewLink(s.conn.wire, s.stores)
	s.conn.link.Ack = &s.conn.acked
	s.hello.Back, s.name = welcome.Caller, welcome.Session
	if s.hello.Token == "" {
		s.hello.Token = welcome.Token
	}
	return welcome, err
}

// join says hello, as long as ctx lets it.
func join(ctx context.Context, w *wire.Conn, hello wire.Hello) (wire.Welcome, error) {
	nc := w.NetConn()
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	welcome, err := wire.Join(w, hello)
	if !stop() && ctx.Err() != nil {
		return welcome, fmt.Errorf("no welcome from the head: %w", context.Cause(ctx))
	}
	return welcome, err
}

// ownRuntime is this process as workers inherit it.
func ownRuntime() spec.Runtime {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		if name, text, ok := strings.Cut(entry, "="); ok && name != "" {
			env[name] = text
		}
	}
	dir, _ := os.Getwd() // without one, workers start where the agent is
	return spec.Runtime{Env: env, Dir: dir}
}

// Done is closed when the session is over: closed, or its head lost.
func (s *Session) Done() <-chan struct{} { return s.conn.over }

// Close stops every cluster of the session, and the head that it started, and
// waits until all of it is gone and all output is written. It may be called
// any number of times.
func (s *Session) Close() error {
	s.closing.Do(func() {
		defer close(s.closed)
		ctx, cancel := context.WithTimeout(context.Background(), endWait)
		defer cancel()
		embedded := s.headProcess() != nil
		switch {
		case embedded: // also one that is being started anew: everything below ends with it
			s.err = s.conn.ask(ctx, "shutdown", &wire.Empty{}, &wire.Mark{})
		case !s.conn.isAway(): // else it notices by itself
			s.err = s.stopAll(ctx)
		}
		if CodeOf(s.err) == CodeHeadLost {
			s.err = nil // who wanted something of it was told; now it is gone as it should
		}
		s.conn.hangUp()
		if !s.shared {
			s.stores.Close()
		}
		<-s.conn.over
		if embedded {
			s.headProcess().end(exitWait)
		}
		if s.events != nil {
			s.events.end(embedded)
		}
		if embedded {
			s.headProcess().forget()
		}
	})
	<-s.closed
	return s.err
}

func (s *Session) stopAll(ctx context.Context) error {
	s.mu.Lock()
	var mine []*Cluster
	for _, c := range s.clusters {
		mine = append(mine, c)
	}
	s.mu.Unlock()
	var all error
	for _, c := range mine {
		all = errors.Join(all, c.Shutdown(ctx))
	}
	return all
}

// StoreReport is what lies in the stores of a head's nodes: for each its budget
// and objects, who made them, and who has their bytes in use since when.
type StoreReport = wire.StoreReport

// Stores tells what lies in shared memory, as the command muster store does.
func (s *Session) Stores(ctx context.Context) (StoreReport, error) {
	var report StoreReport
	err := s.conn.ask(ctx, "store", &wire.Empty{}, &report)
	return report, err
}
