package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

const (
	// lostGrace is from TERM to KILL when nobody is left who could wish for more.
	lostGrace = 2 * time.Second
	// settleEvery is how long the kernel's OOM kills may wait for a worker's
	// death to explain.
	settleEvery = 5 * time.Second
	helloBound  = 10 * time.Second
)

// agent is the state of a running agent.
type agent struct {
	join    backend.Join
	socket  string
	files   uint64
	reaper  *process.Reaper
	node    *spec.Node // what it reports of itself
	head    *uplink
	out     *outbox
	oom     *oomLedger
	zygotes *zygotes
	relay   *relay
	ports   ports
	store   *store.Store
	holders holders

	identity *identity
	serving  *serving // nil: the stores of other nodes do not come here

	mu      sync.Mutex
	workers map[uint32]*worker
	exits   []exit
	dismiss bool // the head asked for the end of everything
	ending  bool
}

// Run is the agent of one node, from joining the head until everything that it
// started is gone. It returns nil after an orderly end: ctx ended, or the head
// or the owner left. The process becomes a child subreaper and waits for every
// child of its own, so it must have no other work.
func Run(ctx context.Context, join backend.Join) error {
	var owner <-chan struct{}
	if join.Owner != 0 {
		watch, err := process.NewWatch(join.Owner)
		if errors.Is(err, syscall.ESRCH) {
			return nil // whom all this is for has left already
		}
		if err != nil {
			return err
		}
		defer watch.Close()
		owner = watch.Done()
	}
	// Before there is a reaper, which would take the ends of programs run here.
	// Without its devices the node still serves, and says what is wrong.
	devices, trouble := findDevices(ctx, join, owner)
	a := &agent{join: join, head: newUplink(), files: raiseFiles(), workers: map[uint32]*worker{}, oom: newOOMLedger(os.DirFS("/"))}
	var err error
	if a.reaper, err = process.NewReaper(); err != nil {
		return err
	}
	defer a.reaper.Close()
	if trouble != nil {
		fmt.Fprintf(os.Stderr, "muster agent: node %s: %v\n", join.Name, trouble)
		adoptStuck(a.reaper)
	}
	if a.identity, err = newIdentity(join); err != nil {
		return err
	}
	holdings, err := storeOptions(join, a.files)
	if err != nil {
		return err
	}
	listener, err := a.listen()
	if err != nil {
		return err
	}
	defer listener.Close() // removes the socket too
	a.node = report(join, devices, trouble, a.files)
	conn, welcome, err := a.firstJoin(ctx, owner)
	if errors.Is(err, context.Canceled) {
		return nil // nobody waits for it any more
	}
	if err != nil {
		return err
	}
	holdings.Token, holdings.Process = welcome.StoreToken, a.processName
	holdings.Moving = a.moving
	holdings.Holders = func(ctx context.Context, objects []uint64) []wire.Held { return a.holders.ask(ctx, a.head, objects) }
	a.store = store.New(holdings)
	defer a.store.Close()
	if a.serving, err = a.meetStores(welcome, conn); err != nil {
		return err
	}
	defer a.serving.close()
	a.tellServing(conn)
	a.head.set(conn)
	a.relay = newRelay(a.head)
	a.out = newOutbox(a.head)
	a.zygotes = &zygotes{
		node: join.Name, logDir: join.LogDir, reaper: a.reaper, out: a.out,
		byKey: map[string]*zygote{}, all: map[*zygote]bool{},
	}
	background, stop := context.WithCancel(context.Background())
	defer stop()
	go a.out.run(background)
	go a.settleOOM(background)
	go a.tellLoad(background)
	go a.accept(listener)

	headGone := make(chan error, 1)
	go func() { headGone <- a.follow(background, conn) }()
	var lost error
	why := "the agent was told to end"
	select {
	case <-ctx.Done():
		a.head.notify("leaving", &wire.Leaving{Why: a.toldToEnd()})
	case <-owner:
		why = "the process that all this was for has ended"
	case lost = <-headGone:
		why = "the head is gone"
	}
	a.endAll(why)
	listener.Close()
	a.head.end()
	if orderly(lost) {
		return nil
	}
	return fmt.Errorf("lost the head: %w", lost)
}

// toldToEnd is why an agent leaves that was told to.
func (a *agent) toldToEnd() string {
	if a.join.Leash != 0 {
		return "what kept it on its node has ended, or it was told to end"
	}
	return "it was told to end"
}

// firstJoin joins the head. One that was killed before it could answer may be
// followed by another.
func (a *agent) firstJoin(ctx context.Context, owner <-chan struct{}) (*wire.Conn, wire.Welcome, error) {
	if a.join.Grace <= 0 {
		return a.dial(ctx, 0)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(a.join.Grace), errNoHead)
	defer cancel()
	go func() {
		select {
		case <-owner:
			cancel()
		case <-ctx.Done():
		}
	}()
	return a.dialUntil(ctx, 0)
}

// listen opens the socket that workers dial.
func (a *agent) listen() (*net.UnixListener, error) {
	a.socket = socketPath(a.join)
	if limit := len(syscall.RawSockaddrUnix{}.Path); len(a.socket) >= limit {
		return nil, spec.Errorf(spec.CodeInvalid, "the socket's path %s has %d bytes, the kernel takes %d: set XDG_RUNTIME_DIR or TMPDIR to a shorter folder", a.socket, len(a.socket), limit-1)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("node %s cannot listen for its workers: %w", a.join.Name, err)
	}
	if err := os.Chmod(a.socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("node %s cannot listen for its workers: %w", a.join.Name, err)
	}
	return listener, nil
}

func socketPath(join backend.Join) string {
	return filepath.Join(join.Dir, fmt.Sprintf("agent-%d.sock", join.Node))
}

// accept takes connections of workers until the listener is closed.
func (a *agent) accept(listener *net.UnixListener) {
	for {
		nc, err := listener.Accept()
		switch {
		case err == nil:
			go a.serve(nc)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			e := limitError(spec.Errorf(spec.CodeLimit, "muster: node %s cannot take a worker's connection: %v", a.join.Name, err), err)
			a.out.add(0, "agent", "", e.Message)
			a.out.ring()
			time.Sleep(time.Second) // it will not be better at once
		}
	}
}

func (a *agent) serve(nc net.Conn) {
	conn := wire.NewConn(nc)
	_ = nc.SetReadDeadline(time.Now().Add(helloBound))
	hello, err := wire.ReadHello(conn)
	if err != nil {
		wire.Refuse(conn, spec.AsError(err))
		return
	}
	_ = nc.SetReadDeadline(time.Time{})
	switch hello.Role {
	case wire.RoleControl:
		a.serveControl(conn, hello)
	case wire.RoleWorker, wire.RoleController, wire.RoleEvents:
		a.relay.serve(conn, hello)
	case wire.RoleStore:
		a.store.Serve(conn, hello)
	default:
		wire.Refuse(conn, spec.Errorf(spec.CodeProtocol, "an agent takes no connection of role %q", hello.Role))
	}
}

func (a *agent) worker(number uint32) *worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[number]
}

func (a *agent) forget(w *worker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.workers, w.start.Number)
}

func (a *agent) settleOOM(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.oom.settle()
		case <-ctx.Done():
			return
		}
	}
}

// endAll ends everything that the agent has, for good.
func (a *agent) endAll(why string) {
	a.mu.Lock()
	a.ending = true
	var all []*worker
	for _, w := range a.workers {
		all = append(all, w)
	}
	a.mu.Unlock()
	a.relay.close()
	zygotes := a.zygotes.kill(true) // first: a fork under way should fail now
	for _, w := range all {
		w.end(lostGrace, why)
	}
	if err := waitGone(all, lostGrace); err != nil {
		fmt.Fprintln(os.Stderr, "muster agent:", err)
	}
	for _, z := range zygotes {
		<-z.gone
	}
	if err := a.clear(); err != nil {
		fmt.Fprintln(os.Stderr, "muster agent:", err)
	}
	a.ports.releaseAll()
}
