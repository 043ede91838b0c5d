package agent

import (
	"context"
	"slices"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// serveHead handles the head's frames until the connection ends: in the loop that
// reads the links as well, so that a call goes through this process in one thread.
func (a *agent) serveHead(ctx context.Context, head *wire.Conn) error {
	ended := make(chan error, 1)
	readable := func() {
		err := head.Fetch()
		for err == nil && head.Buffered() {
			err = a.fromHead(ctx, head)
		}
		a.relay.flush()
		if err != nil {
			head.Leave()
			ended <- err
		}
	}
	for {
		if !head.Buffered() && a.relay.loop != nil && head.Attend(a.relay.loop, readable) {
			return <-ended
		}
		err := a.fromHead(ctx, head)
		if err != nil || !head.Buffered() {
			a.relay.flush()
		}
		if err != nil {
			return err
		}
	}
}

// fromHead handles the next frame. Nothing in it waits.
func (a *agent) fromHead(ctx context.Context, head *wire.Conn) error {
	f, err := head.Read()
	if err != nil {
		return err
	}
	switch {
	case f.Kind == wire.KindClose && f.Peer == 0:
		if f.Body != nil && !msgp.IsNil(f.Body) {
			return wire.ReadError(f.Body) // it hangs up because of what was sent
		}
	case f.Peer != 0:
		a.relay.deliver(f)
	case f.Kind == wire.KindFanout:
		return a.relay.fanout(f)
	case f.Kind == wire.KindRequest:
		a.request(ctx, head, f)
	case f.Kind == wire.KindNotice:
		return a.notice(head, f)
	}
	return nil
}

// request answers a request of the head. What must keep the order of requests
// (who is started, who is asked to end) happens here, the waiting elsewhere.
//
// A head that was away, or a new one, asks again for what it got no answer to:
// start, stop and hold_ports find what is there already, by its number.
func (a *agent) request(ctx context.Context, head *wire.Conn, f wire.Frame) {
	verb, body, err := wire.ReadVerb(f.Body)
	var do func() (msgp.Marshaler, error)
	if err == nil {
		do, err = a.prepare(ctx, head, verb, body)
	}
	id := f.ID
	if err != nil {
		a.respond(head, id, nil, err)
		return
	}
	go func() {
		m, err := do()
		a.respond(head, id, m, err)
	}()
}

func (a *agent) respond(head *wire.Conn, id uint64, m msgp.Marshaler, err error) {
	if err != nil {
		e := *spec.AsError(err)
		if e.Node == "" {
			e.Node = a.join.Name
		}
		err = &e
	}
	wire.Respond(head, id, m, err)
}

func read(verb string, body []byte, m msgp.Unmarshaler) error {
	if _, err := m.UnmarshalMsg(body); err != nil {
		return spec.Errorf(spec.CodeProtocol, "the request %s cannot be read: %v", verb, err)
	}
	return nil
}

func (a *agent) prepare(ctx context.Context, head *wire.Conn, verb string, body []byte) (func() (msgp.Marshaler, error), error) {
	switch verb {
	case "warm":
		var req wire.Warm
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) { return &wire.Empty{}, a.warm(req) }, err
	case "start":
		req := &wire.Start{}
		if err := read(verb, body, req); err != nil {
			return nil, err
		}
		fresh, there, err := a.register(req, head)
		return func() (msgp.Marshaler, error) { return a.startWorkers(req, fresh, there) }, err
	case "stop":
		var req wire.Stop
		if err := read(verb, body, &req); err != nil {
			return nil, err
		}
		workers := a.askToEnd(req)
		return func() (msgp.Marshaler, error) { return &wire.Empty{}, a.waitForEnd(req, workers) }, nil
	case "stacks":
		var req wire.StacksRequest
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) { return a.stacks(req), nil }, err
	case "cancel":
		var req wire.CancelLeg
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) { return a.cancel(ctx, req) }, err
	case "clear":
		var req wire.CancelLeg
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) { return a.lift(ctx, req) }, err
	case "env":
		var req wire.WorkerEnv
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) { return a.env(ctx, req) }, err
	case "hold_ports":
		var req wire.HoldPorts
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) {
			held, err := a.ports.hold(req.Cluster, req.Count)
			return &wire.Ports{Ports: held}, err
		}, err
	case "release_ports":
		var req wire.HoldPorts
		err := read(verb, body, &req)
		return func() (msgp.Marshaler, error) {
			a.ports.release(req.Cluster)
			return &wire.Empty{}, nil
		}, err
	case "store":
		return func() (msgp.Marshaler, error) { return a.store.Status(), nil }, nil
	}
	return nil, spec.Errorf(spec.CodeProtocol, "an agent knows no request %q", verb)
}

// warm starts a zygote and says how its loading went.
func (a *agent) warm(req wire.Warm) error {
	z, err := a.zygotes.get(req.Runtime, nil)
	if err != nil {
		return err
	}
	a.zygotes.wait(z, nil)
	return z.loadErr
}

// register takes note of the workers of a start, so that a stop that comes
// after it finds them. Those that it has already, because the head asks again,
// are there; those that have even ended since are passed over.
func (a *agent) register(req *wire.Start, head *wire.Conn) (fresh, there []*worker, err error) {
	per := filesPerWorker
	if a.join.Relay {
		per += filesPerRelay
		req.Setup.CallAddress = a.socket
	}
	if req.Start == "spawn" || len(req.Runtime.Command) > 0 {
		per += filesPerSpawn
	}
	req.Setup.ControlAddress = a.socket
	req.Setup.Node = a.join.Name
	req.Setup.LogDir = a.join.LogDir
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return nil, nil, spec.Errorf(spec.CodeStartup, "node %s is stopping and starts no workers", a.join.Name)
	}
	var starts []wire.WorkerStart
	numbers := map[uint32]bool{}
	for _, start := range req.Workers {
		if numbers[start.Number] {
			return nil, nil, spec.Errorf(spec.CodeInvalid, "a start has worker %d twice", start.Number)
		}
		numbers[start.Number] = true
		if w := a.workers[start.Number]; w != nil {
			there = append(there, w)
		} else if !a.endedLocked(start.Number, head) {
			starts = append(starts, start)
		}
	}
	if err := checkFiles(a.join.Name, len(starts), per, openFiles(), a.files); err != nil {
		return nil, nil, err
	}
	for _, start := range starts {
		a.lengthen(&start)
		w := newWorker(start)
		w.python = req.Runtime.Python
		a.workers[start.Number] = w
		fresh = append(fresh, w)
	}
	return fresh, there, nil
}

// endedLocked says that a worker was started, and has ended, before the head
// came back by this connection.
func (a *agent) endedLocked(number uint32, head *wire.Conn) bool {
	i := slices.IndexFunc(a.exits, func(e exit) bool { return e.Worker == number })
	if i < 0 {
		return false
	}
	if a.exits[i].told != head {
		return true
	}
	a.exits = slices.Delete(a.exits, i, i+1) // it knows, and means another of that number
	return false
}

// startWorkers gives every worker a process, all at once, or none: when one
// fails the others are ended, and the error is that of the first to fail. Those
// that are there already are waited for.
func (a *agent) startWorkers(req *wire.Start, fresh, there []*worker) (*wire.Empty, error) {
	failures := make(chan error, len(fresh)+len(there))
	for _, w := range fresh {
		go func() {
			w.startErr = a.launch(w, req)
			close(w.launched)
			if w.startErr != nil {
				a.abandon(w)
			}
			failures <- w.startErr
		}()
	}
	for _, w := range there {
		go func() {
			<-w.launched
			failures <- w.startErr
		}()
	}
	workers := slices.Concat(fresh, there)
	var first error
	for range workers {
		err := <-failures
		if err == nil || first != nil {
			continue
		}
		first = err
		for _, other := range workers {
			other.end(0, "another worker of its cluster could not be started")
		}
	}
	if first != nil {
		_ = waitGone(workers, 0)
		return nil, first
	}
	return &wire.Empty{}, nil
}

// abandon forgets a worker that got no process.
func (a *agent) abandon(w *worker) {
	w.mu.Lock()
	output := w.output
	w.mu.Unlock()
	if output != nil {
		output.drain()
		a.out.flush(nil)
	}
	a.forget(w)
	close(w.gone)
}

// askToEnd begins a stop and returns whom it is about. Workers that are gone
// already are no error: their end and the request crossed.
func (a *agent) askToEnd(req wire.Stop) []*worker {
	a.mu.Lock()
	var workers []*worker
	if req.All {
		a.dismiss = true
		for _, w := range a.workers {
			workers = append(workers, w)
		}
	} else {
		for _, number := range req.Workers {
			if w := a.workers[number]; w != nil {
				workers = append(workers, w)
			}
		}
	}
	a.mu.Unlock()
	for _, w := range workers {
		w.end(seconds(req.GraceSeconds), req.Why)
	}
	return workers
}

func (a *agent) waitForEnd(req wire.Stop, workers []*worker) error {
	err := waitGone(workers, seconds(req.GraceSeconds))
	if req.All {
		for _, z := range a.zygotes.kill(false) {
			<-z.gone
		}
		if left := a.clear(); err == nil {
			err = left
		}
	}
	a.forgetExits(req.All, req.Workers)
	return err
}

// waitGone waits until nothing of the workers is left; not for ever, for a
// process in an uninterruptible wait does not die even of SIGKILL.
func waitGone(workers []*worker, grace time.Duration) error {
	timer := time.NewTimer(grace + clearBound + 2*drainBound)
	defer timer.Stop()
	for _, w := range workers {
		select {
		case <-w.gone:
			continue
		case <-timer.C:
		}
		said := "it has no process"
		if child := w.process(); child != nil {
			said = describe(child.Pid())
		}
		return spec.Errorf(spec.CodeTimeout, "%s does not end although it was killed (%s): the kernel keeps it, often for a device or a network file system", w.start.Name, said)
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
