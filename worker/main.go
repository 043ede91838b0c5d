package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

const (
	orderFd = 3 // where the agent says what to become
	// leaveWait is how long calls may take to notice that the worker ends. The
	// agent's grace is longer.
	leaveWait = 2 * time.Second
)

// Info is who a worker is.
type Info struct {
	Cluster   string
	Worker    string // its name, as "verify-3"
	Node      string
	Rank      int
	WorldSize int
	RankInfo  muster.RankInfo
	Args      []string  // the arguments of the cluster's command
	Config    value.Raw // the cluster's worker_config; Decode reads it, Release gives back what is large of it

	calls *calling
}

// calling is the worker's own connection as a controller, made when it first
// calls someone.
type calling struct {
	address, token string
	number         uint32
	stores         *object.Stores

	mu      sync.Mutex
	session *muster.Session
}

// Session is the worker as a controller, to call other clusters with: pass on the
// context of the method that calls, so that calls which wait for each other are
// found.
func (i Info) Session(ctx context.Context) (*muster.Session, error) {
	c := i.calls
	if c == nil {
		return nil, spec.Errorf(spec.CodeInvalid, "this Info was not given by Main, so it belongs to no head")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		s, err := muster.InWorker(ctx, c.address, c.token, c.number, c.stores)
		if err != nil {
			return nil, err
		}
		c.session = s
	}
	return c.session, nil
}

// Running says that this process was started as a worker: a program can so be a
// controller and its own workers.
func Running() bool {
	return len(os.Args) > 2 && os.Args[0] == "muster" && os.Args[1] == "worker"
}

// Main is the worker, from what the agent tells it to its end; it does not
// return. Call it first in main: nobody waits long for a worker.
func Main(create func(Info) (*Class, error)) {
	if !Running() {
		fmt.Fprintf(os.Stderr, "%s is a Muster worker: a cluster starts it, as ClusterConfig{Command: …} in Go or Cluster(worker_cls=\"exec:%s\") in Python says\n", os.Args[0], os.Args[0])
		os.Exit(2)
	}
	err := run(create)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s ends: %v\n", os.Args[2], err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(create func(Info) (*Class, error)) error {
	ending := notifyEnd()
	stacks, err := watchStacks()
	if err != nil {
		return err
	}
	o, err := takeOrder()
	if err != nil {
		return err
	}
	if os.Getppid() != o.agentPid { // it ended before the kernel knew to tell us
		return nil
	}
	if err := process.Subreaper(); err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("muster worker"), 0) // for those who look; nothing hangs on it

	var current atomic.Pointer[host]
	line, _, err := join(o.setup.ControlAddress, o, wire.Hello{Role: wire.RoleControl, StacksFd: stacks})
	if err != nil {
		return err
	}
	go control(line, current.Load, ending.ask)
	go ending.see(current.Load)
	conn, welcome, err := join(o.setup.CallAddress, o, wire.Hello{Role: wire.RoleWorker})
	if err != nil {
		return err
	}
	link := object.NewOneWayLink(conn, object.NewStores(welcome))
	info := o.info(link)
	class, err := build(create, info)
	if err != nil {
		_ = wire.Notify(conn, "failed", &wire.Failed{Error: *failure(err)})
		_ = conn.CloseWhenFlushed()
		os.Exit(1)
	}
	limit := class.concurrency
	if o.setup.MaxConcurrency > 0 {
		limit = o.setup.MaxConcurrency
	}
	h := newHost(class, &info, link, conn, limit)
	h.ready = wire.Ready{Pid: os.Getpid(), Description: class.description(limit == 1)}
	if welcome.Epoch > 0 {
		h.dial = func() (*wire.Conn, error) {
			conn, _, err := join(o.setup.CallAddress, o, wire.Hello{Role: wire.RoleWorker, Back: 1})
			return conn, err
		}
	}
	current.Store(h)
	if err := wire.Notify(conn, "ready", &h.ready); err != nil {
		return err
	}
	if err := h.serve(); err != nil {
		return fmt.Errorf("its calls cannot be read any more: %w", err)
	}
	ending.ask()
	select {} // that ends the process
}

// build has the user's function make the class.
func build(create func(Info) (*Class, error), info Info) (class *Class, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = panicError(what)
		}
	}()
	class, err = create(info)
	switch {
	case err != nil:
		return nil, err
	case class == nil:
		return nil, spec.Errorf(spec.CodeInvalid, "%s: the function given to worker.Main returned no class", info.Worker)
	}
	return class, class.err
}

// failure is why a worker could not become ready.
func failure(err error) *spec.Error {
	var told *spec.Error
	if errors.As(err, &told) {
		return told
	}
	e := spec.Errorf(spec.CodeUser, "%v", err)
	var p *panicked
	if errors.As(err, &p) {
		e.Traceback = p.stack
	}
	return e
}

// end is the orderly end of a worker, asked for once.
type end struct {
	asked chan struct{}
	once  sync.Once
}

func (e *end) ask() { e.once.Do(func() { close(e.asked) }) }

// notifyEnd takes SIGTERM for the wish to end. Ctrl-C is the controller's.
func notifyEnd() *end {
	e := &end{asked: make(chan struct{})}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM {
				e.ask()
			}
		}
	}()
	return e
}

// see ends the process when that is asked for, after its calls have left, as
// far as they do, and the class has.
func (e *end) see(current func() *host) {
	<-e.asked
	h := current()
	if h == nil {
		os.Exit(0)
	}
	late := time.NewTimer(leaveWait)
	select {
	case <-h.leave():
	case <-late.C:
	}
	code := 0
	if err := h.class.end(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: OnEnd: %v\n", h.info.Worker, err)
		code = 1
	}
	_ = h.hangUp() // what calls still answered goes out first
	os.Exit(code)
}

// end runs what the class wants to be run at the end.
func (c *Class) end() (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = panicError(what)
		}
	}()
	if c.onEnd != nil {
		c.onEnd()
	}
	return nil
}

// order is what the agent tells a worker to become.
type order struct {
	setup    wire.WorkerSetup
	start    wire.WorkerStart
	agentPid int
}

// takeOrder reads the agent's request over descriptor 3 and answers it.
func takeOrder() (*order, error) {
	file := os.NewFile(orderFd, "agent")
	nc, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return nil, fmt.Errorf("descriptor %d is not the agent's: %w", orderFd, err)
	}
	conn := wire.NewConn(nc)
	conn.SetLimit(wire.MaxFrame)
	f, err := conn.Read()
	if err != nil {
		return nil, fmt.Errorf("no word from the agent: %w", err)
	}
	verb, body, err := wire.ReadVerb(f.Body)
	if err != nil || verb != "become" {
		wire.Respond(conn, f.ID, nil, spec.Errorf(spec.CodeProtocol, "a worker to be does not know the request %q", verb))
		_ = conn.CloseWhenFlushed()
		return nil, fmt.Errorf("the agent asked for %q: %w", verb, errors.Join(err, errors.New("is it of the same release?")))
	}
	o := &order{}
	if err := o.read(body); err != nil {
		return nil, fmt.Errorf("the agent's order cannot be read: %w", err)
	}
	wire.Respond(conn, f.ID, pidAnswer(os.Getpid()), nil)
	return o, conn.CloseWhenFlushed()
}

func (o *order) read(body []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(body)
	for ; err == nil && n > 0; n-- {
		var key string
		if key, b, err = msgp.ReadStringBytes(b); err != nil {
			break
		}
		switch key {
		case "setup":
			b, err = o.setup.UnmarshalMsg(b)
		case "worker":
			b, err = o.start.UnmarshalMsg(b)
		case "agent_pid":
			o.agentPid, b, err = msgp.ReadIntBytes(b)
		default: // the environment came with the process
			b, err = msgp.Skip(b)
		}
	}
	return err
}

type pidAnswer int

func (p pidAnswer) MarshalMsg(b []byte) ([]byte, error) {
	b = msgp.AppendString(msgp.AppendMapHeader(b, 1), "pid")
	return msgp.AppendInt(b, int(p)), nil
}

func (o *order) info(link *object.Link) Info {
	var bufs []wire.Buf
	for _, b := range o.setup.ConfigBufs {
		bufs = append(bufs, wire.Buf(b))
	}
	return Info{
		Cluster: o.setup.Cluster, Worker: o.start.Name, Node: o.setup.Node, Rank: o.start.Rank,
		WorldSize: o.start.Info.WorldSize, RankInfo: o.start.Info, Args: os.Args[3:],
		Config: value.RawOf(o.setup.Config, bufs, link.Arrived(bufs)),
		calls:  &calling{address: o.setup.CallAddress, token: o.start.Token, number: o.start.Number, stores: link.Stores()},
	}
}

func join(address string, o *order, hello wire.Hello) (*wire.Conn, wire.Welcome, error) {
	conn, err := wire.Dial(address)
	if err != nil {
		return nil, wire.Welcome{}, err
	}
	hello.Worker, hello.Token = o.start.Number, o.start.Token
	welcome, err := wire.Join(conn, hello)
	if err != nil {
		_ = conn.Close()
		err = fmt.Errorf("%s was not welcome as %s: %w", o.start.Name, hello.Role, err)
	}
	return conn, welcome, err
}
