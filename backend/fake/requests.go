package fake

import (
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// What the head asks of an agent, and its answers.

// respond queues an answer; the reader flushes it.
func (a *Agent) respond(id uint64, m msgp.Marshaler, err error) {
	h := wire.Header{Kind: wire.KindResponse, ID: id}
	var body []byte
	if err == nil {
		body, err = m.MarshalMsg(nil)
	}
	if err != nil {
		h.Flags = wire.FlagError
		body = wire.AppendError(nil, spec.AsError(err))
	}
	if conn := a.current(); conn != nil {
		conn.Queue(h, nil, body, nil)
	}
}

func (a *Agent) request(verb string, body []byte) (msgp.Marshaler, error) {
	switch verb {
	case "warm":
		return &wire.Empty{}, nil
	case "start":
		var req wire.Start
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		return a.start(&req), nil
	case "stop":
		var req wire.Stop
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		a.stop(&req)
		return &wire.Empty{}, nil
	case "stacks":
		var req wire.StacksRequest
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		return a.stacks(&req), nil
	case "cancel":
		var req wire.CancelLeg
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		return a.cancel(&req), nil
	case "clear":
		return &wire.Cancelled{State: "done"}, nil
	case "env":
		var req wire.WorkerEnv
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		return &wire.Environment{Env: req.Set}, nil
	case "hold_ports":
		var req wire.HoldPorts
		if _, err := req.UnmarshalMsg(body); err != nil {
			return nil, err
		}
		held := &wire.Ports{Ports: make([]int, req.Count)}
		for i := range held.Ports {
			a.port++
			held.Ports[i] = a.port
		}
		return held, nil
	case "store":
		return &wire.StoreStatus{Node: a.join.Node}, nil
	case "release_ports":
		return &wire.Empty{}, nil
	}
	return nil, spec.Errorf(spec.CodeProtocol, "an agent knows no request %q", verb)
}

func (a *Agent) start(req *wire.Start) *wire.Empty {
	for i := range req.Workers {
		w := &Worker{WorkerStart: req.Workers[i], Setup: req.Setup, agent: a}
		a.mu.Lock()
		if slices.ContainsFunc(a.born, func(o *Worker) bool { return o.Number == w.Number }) {
			a.mu.Unlock()
			continue // it was asked for before
		}
		a.workers[w.Number] = w
		a.born = append(a.born, w)
		if a.join.Relay {
			a.next++
			w.peer = a.next
			a.links[w.peer] = w
		} else {
			a.dialled.Add(1)
		}
		a.mu.Unlock()
		if a.join.Relay {
			w.open()
		} else {
			go w.run()
		}
	}
	return &wire.Empty{}
}

func (a *Agent) stop(req *wire.Stop) {
	numbers := req.Workers
	a.mu.Lock()
	a.dismissed = a.dismissed || req.All
	a.mu.Unlock()
	defer func() { // as the real one: when all of them are gone
		a.mu.Lock()
		a.exits = slices.DeleteFunc(a.exits, func(e wire.Exited) bool { return slices.Contains(req.Workers, e.Worker) })
		a.mu.Unlock()
	}()
	if req.All {
		numbers = nil
	} else if len(numbers) == 0 {
		return
	}
	for _, w := range a.live(numbers) {
		if a.script.Spared != nil && a.script.Spared(w) {
			continue
		}
		if a.script.Stop != nil {
			a.script.Stop(w)
		}
		exit := wire.Exited{Asked: true, Why: req.Why}
		if req.GraceSeconds == 0 {
			exit.Signal, exit.Why = "SIGKILL", "killed by SIGKILL ("+req.Why+")"
		}
		w.Die(exit)
	}
}

func (a *Agent) stacks(req *wire.StacksRequest) *wire.StacksAnswer {
	answer := &wire.StacksAnswer{Stacks: []spec.Stack{}}
	for _, number := range req.Workers {
		s := spec.Stack{Text: "no such worker"}
		if found := a.live([]uint32{number}); len(found) == 1 {
			w := found[0]
			s = spec.Stack{Rank: w.Rank, Worker: w.Name, Node: a.join.Name, Text: w.stack()}
		}
		answer.Stacks = append(answer.Stacks, s)
	}
	return answer
}

func (a *Agent) cancel(req *wire.CancelLeg) *wire.Cancelled {
	found := a.live([]uint32{req.Worker})
	if len(found) == 0 {
		return &wire.Cancelled{State: "gone"}
	}
	w := found[0]
	if req.Kill {
		w.Die(wire.Exited{Signal: "SIGKILL", Asked: true})
		return &wire.Cancelled{State: "killed"}
	}
	leg := w.leg(req.Call)
	switch {
	case leg == nil:
		return &wire.Cancelled{State: "done"}
	case a.script.Cancel != nil:
		return &wire.Cancelled{State: a.script.Cancel(w, leg)}
	}
	leg.Raise(spec.Errorf(spec.CodeCancelled, "%s was cancelled", leg.Method))
	return &wire.Cancelled{State: "interrupted"}
}
