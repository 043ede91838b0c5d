package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// cancelBound is how long a worker may take to react to a cancel. Its control
// thread needs the GIL for that; code in C may keep it.
const cancelBound = 5 * time.Second

// control is the connection over which a worker hears from its agent.
type control struct {
	conn     *wire.Conn
	asker    *wire.Asker
	stacksFd int
}

// serveControl takes a worker's control connection until it ends.
func (a *agent) serveControl(conn *wire.Conn, hello wire.Hello) {
	w := a.worker(hello.Worker)
	if w == nil || !wire.SameToken(hello.Token, w.start.Token) {
		wire.Refuse(conn, spec.Errorf(spec.CodeAuth, "no worker %d with that token on node %s", hello.Worker, a.join.Name))
		return
	}
	c := &control{conn: conn, asker: wire.NewAsker(conn), stacksFd: hello.StacksFd}
	w.mu.Lock()
	before := w.control
	w.control = c
	w.mu.Unlock()
	if before != nil {
		_ = before.conn.Close()
	}
	wire.Accept(conn, wire.Welcome{Address: a.socket, LogDir: a.join.LogDir})
	for {
		f, err := conn.Read()
		if err != nil {
			c.asker.Fail(err)
			_ = conn.Close()
			return
		}
		c.asker.Deliver(f)
	}
}

// cancel passes a cancel on to a worker, or kills it.
func (a *agent) cancel(ctx context.Context, req wire.CancelLeg) (*wire.Cancelled, error) {
	w := a.worker(req.Worker)
	if w == nil {
		return &wire.Cancelled{State: "gone"}, nil
	}
	w.mu.Lock()
	control := w.control
	w.mu.Unlock()
	switch {
	case req.Kill:
		w.end(0, "killed with a call that was cancelled")
		return &wire.Cancelled{State: "killed"}, nil
	case control == nil:
		return nil, a.workerError(w, spec.CodeStartup, "%s on node %s is not up yet, so it runs no call to cancel", w.start.Name, a.join.Name)
	}
	var answer wire.Cancelled
	err := control.ask(ctx, "cancel", cancelCall{req.Call}, &answer)
	if errors.Is(err, context.DeadlineExceeded) {
		return &wire.Cancelled{State: "still in C"}, nil
	}
	return orGone(&answer, err)
}

// lift has a worker run calls again after an exception was put into it.
func (a *agent) lift(ctx context.Context, req wire.CancelLeg) (*wire.Cancelled, error) {
	w := a.worker(req.Worker)
	if w == nil {
		return &wire.Cancelled{State: "gone"}, nil
	}
	w.mu.Lock()
	control := w.control
	w.mu.Unlock()
	if control == nil {
		return nil, a.workerError(w, spec.CodeStartup, "%s on node %s is not up yet, so there is nothing to clear", w.start.Name, a.join.Name)
	}
	err := control.ask(ctx, "clear", &wire.Empty{}, &wire.Empty{})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, a.workerError(w, spec.CodeTimeout, "%s on node %s did not answer within %v: it is still in C", w.start.Name, a.join.Name, cancelBound)
	}
	return orGone(&wire.Cancelled{State: "cleared"}, err)
}

// env reads and changes a worker's environment.
func (a *agent) env(ctx context.Context, req wire.WorkerEnv) (*wire.Environment, error) {
	w := a.worker(req.Worker)
	if w == nil {
		return nil, spec.Errorf(spec.CodeWorkerDied, "node %s has no worker %d any more", a.join.Name, req.Worker)
	}
	w.mu.Lock()
	control := w.control
	w.mu.Unlock()
	if control == nil {
		return nil, a.workerError(w, spec.CodeStartup, "%s on node %s is not up yet, so it has no environment", w.start.Name, a.join.Name)
	}
	answer := &wire.Environment{}
	err := control.ask(ctx, "env", &req, answer)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, a.workerError(w, spec.CodeTimeout, "%s on node %s did not answer within %v: it is still in C", w.start.Name, a.join.Name, cancelBound)
	}
	return answer, err
}

func (c *control) ask(ctx context.Context, verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	ctx, cancel := context.WithTimeout(ctx, cancelBound)
	defer cancel()
	return c.asker.Ask(ctx, verb, req, resp)
}

// orGone passes on what a worker answered. A connection that ended instead
// means that the worker is on its way out.
func orGone(answer *wire.Cancelled, err error) (*wire.Cancelled, error) {
	var told *spec.Error
	switch {
	case err == nil:
		return answer, nil
	case errors.As(err, &told):
		return nil, told
	}
	return &wire.Cancelled{State: "gone"}, nil
}
