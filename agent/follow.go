package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// Between two tries to reach a head that is away.
	firstPause = 20 * time.Millisecond
	lastPause  = 200 * time.Millisecond
	// keptExits is how many ends of workers are kept for a head that may not
	// have heard of them.
	keptExits = 4096
)

// uplink is the connection to the head, which may be another one after a while.
// Its methods may be called concurrently.
type uplink struct {
	mu      sync.Mutex
	conn    *wire.Conn    // nil: there is no head at the moment
	changed chan struct{} // closed and renewed when that changes
	over    bool          // there will be none any more
}

func newUplink() *uplink { return &uplink{changed: make(chan struct{})} }

// current is the connection; nil while there is no head.
func (u *uplink) current() *wire.Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.conn
}

// set makes conn (nil: none) the one in use. One that is over stays so.
func (u *uplink) set(conn *wire.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		if conn != nil {
			_ = conn.Close()
		}
		conn = nil
	}
	u.conn = conn
	close(u.changed)
	u.changed = make(chan struct{})
}

// wait is current, once there is a head; nil when there will be none.
func (u *uplink) wait() *wire.Conn {
	for {
		u.mu.Lock()
		conn, changed, over := u.conn, u.changed, u.over
		u.mu.Unlock()
		if conn != nil || over {
			return conn
		}
		<-changed
	}
}

// end closes the connection, for good.
func (u *uplink) end() {
	u.mu.Lock()
	conn := u.conn
	u.over, u.conn = true, nil
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// notify sends a Notice to the head, if there is one, and says by which
// connection.
func (u *uplink) notify(verb string, m msgp.Marshaler) *wire.Conn {
	conn := u.current()
	if conn != nil {
		_ = wire.Notify(conn, verb, m)
	}
	return conn
}

// follow serves the head, and those that come after it, until there is none any
// more; the error says why.
func (a *agent) follow(ctx context.Context, conn *wire.Conn) error {
	for {
		watching, unwatch := context.WithCancel(ctx)
		go a.watchHead(watching, conn)
		err := a.serveHead(ctx, conn)
		unwatch()
		a.head.set(nil)
		_ = conn.Close()
		a.relay.cut() // they dial again, and say what they have
		if ctx.Err() != nil || a.patience() <= 0 || a.dismissed() || final(err) {
			return err
		}
		if conn, err = a.rejoin(ctx, err); err != nil {
			return err
		}
	}
}

// final says that it makes no sense to come back: the head is there and wants
// nothing of this agent.
func final(err error) bool {
	var told *spec.Error
	if !errors.As(err, &told) {
		return false
	}
	switch told.Code {
	case spec.CodeAuth, spec.CodeProtocol, spec.CodeHeadLost, spec.CodeNodeLost:
		return true
	}
	return false
}

// orderly says that an error is the head's end, however it came.
func orderly(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, wire.ErrCut) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, errNoHead) || errors.Is(err, context.Canceled)
}

// errNoHead is the end of the grace.
var errNoHead = errors.New("no head came back")

// rejoin dials until a head answers, for as long as the grace lasts, and tells
// it what there is on this node. Meanwhile everything is kept.
func (a *agent) rejoin(ctx context.Context, lost error) (*wire.Conn, error) {
	grace := a.patience()
	ctx, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("%w within %v (it was lost: %w)", errNoHead, grace, lost))
	defer cancel()
	fmt.Fprintf(os.Stderr, "muster agent: node %s lost the head (%v); it keeps its workers for %v\n", a.join.Name, lost, grace)
	conn, _, err := a.dialUntil(ctx, 1)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "muster agent: node %s is back\n", a.join.Name)
	a.goBack(conn)
	return conn, nil
}

// dialUntil joins the head as soon as there is one. back says that this agent
// was there before.
func (a *agent) dialUntil(ctx context.Context, back uint32) (*wire.Conn, wire.Welcome, error) {
	var refused refusals
	for pause := firstPause; ; pause = min(lastPause, pause*2) {
		conn, welcome, err := a.dial(ctx, back)
		if err == nil {
			return conn, welcome, nil
		}
		if final(err) {
			return nil, welcome, err
		}
		if len(a.join.Hosts) > 0 && refused.tooMany(err, seconds(a.join.Grace)) {
			return nil, welcome, fmt.Errorf("%w within %v: %w", errNoHead, seconds(a.join.Grace), err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, welcome, fmt.Errorf("node %s: %w", a.join.Name, context.Cause(ctx))
		}
	}
}

// dial joins the head, or says why that did not go.
func (a *agent) dial(ctx context.Context, back uint32) (*wire.Conn, wire.Welcome, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, wire.Welcome{}, fmt.Errorf("node %s cannot join: %w", a.join.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // a head that answers nothing
	if len(a.join.Hosts) > 0 {
		_ = conn.NetConn().SetReadDeadline(time.Now().Add(helloBound)) // that one may come to nothing, and the next not
	}
	welcome, err := wire.Join(conn, wire.Hello{Role: wire.RoleAgent, Token: a.join.Token, Node: a.node, Back: back, Request: a.identity.request})
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		_ = conn.NetConn().SetReadDeadline(time.Time{})
		err = a.identity.take(&welcome)
	}
	if err != nil {
		_ = conn.Close()
		return nil, welcome, fmt.Errorf("node %s cannot join: %w", a.join.Name, err)
	}
	return conn, welcome, nil
}

// goBack tells the head what there is here, before anything else is said on the
// connection, and then uses it for all that.
func (a *agent) goBack(conn *wire.Conn) {
	objects := a.store.Back()
	a.mu.Lock()
	back := &wire.AgentBack{Workers: []wire.WorkerAt{}, Exits: []wire.Exited{}, Objects: objects}
	for number, w := range a.workers {
		if child := w.process(); child != nil {
			back.Workers = append(back.Workers, wire.WorkerAt{Number: number, Pid: child.Pid()})
		}
	}
	for i := range a.exits {
		a.exits[i].told = nil // what is asked for from now on may be asked for again
		back.Exits = append(back.Exits, a.exits[i].Exited)
	}
	_ = wire.Notify(conn, "back", back) // numbers and text can be encoded
	a.tellServing(conn)
	_ = wire.Notify(conn, "resent", &wire.Empty{})
	a.head.set(conn)
	a.mu.Unlock()
	a.tellCopies()
	a.store.AskAgain()
	a.out.ring()
}

// exit is a worker's end, kept until the head has no more to do with it: it asks
// for its stop, as it does for every worker of a cluster that goes.
type exit struct {
	wire.Exited
	told *wire.Conn // by which the head was told when it happened
}

// ended takes note of a worker's end in the place of the worker.
func (a *agent) ended(w *worker, e *wire.Exited) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.workers, w.start.Number)
	if len(a.exits) >= keptExits {
		a.exits = slices.Delete(a.exits, 0, 1)
	}
	a.exits = append(a.exits, exit{Exited: *e})
}

// tellExit tells the head of it, if there is one.
func (a *agent) tellExit(e *wire.Exited) {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.head.notify("exited", e)
	for i := range a.exits {
		if a.exits[i].Worker == e.Worker {
			a.exits[i].told = told
		}
	}
}

// forgetExits drops what the head has no more to do with; all: of everybody.
func (a *agent) forgetExits(all bool, numbers []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.exits = slices.DeleteFunc(a.exits, func(e exit) bool { return all || slices.Contains(numbers, e.Worker) })
}

// dismissed says that the head has asked for the end of everything.
func (a *agent) dismissed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dismiss
}
