package fake

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// firstPid is beyond what Linux gives out, so that no real process is meant.
const firstPid = 1 << 22

// Worker is one rank that pretends to have a process.
type Worker struct {
	wire.WorkerStart // what it was told
	Setup            wire.WorkerSetup

	agent    *Agent
	peer     uint32      // its link, where it is relayed
	handling atomic.Bool // as Agent.handling, where it has a connection of its own

	mu   sync.Mutex
	conn *wire.Conn // its own, or its agent's
	legs []*Leg     // not answered yet, oldest first
	gone bool
	hung bool // it hung up by itself
}

// Pid is the number it has for people.
func (w *Worker) Pid() int { return firstPid + int(w.Number) }

// Node is the name of the node it is on.
func (w *Worker) Node() string { return w.agent.join.Name }

// open begins a relayed worker: a hello on a link of its own.
func (w *Worker) open() {
	hello := wire.Hello{
		Magic: "muster", Version: wire.Version, Release: wire.Release,
		Role: wire.RoleWorker, Token: w.Token, Worker: w.Number, Pid: w.Pid(),
	}
	body, err := hello.MarshalMsg(nil)
	if err != nil { // no field of a Hello can fail to encode
		panic(err)
	}
	w.conn = w.agent.conn
	w.conn.Queue(wire.Header{Kind: wire.KindOpen, Peer: w.peer}, nil, body, nil)
}

// run is the life of a worker with a connection of its own.
func (w *Worker) run() {
	defer w.agent.dialled.Done()
	conn, err := wire.Dial(w.Setup.CallAddress)
	if err == nil {
		_, err = wire.Join(conn, wire.Hello{Role: wire.RoleWorker, Token: w.Token, Worker: w.Number})
	}
	if err != nil {
		w.Exit(wire.Exited{Code: 1, Why: err.Error()})
		return
	}
	w.mu.Lock()
	w.conn = conn
	over := w.gone || w.hung
	w.mu.Unlock()
	if over {
		_ = conn.Close()
		return
	}
	w.begin()
	for {
		f, err := conn.Read()
		if err != nil {
			_ = conn.Close()
			w.mu.Lock()
			hung := w.hung
			w.mu.Unlock()
			if !hung {
				w.Exit(wire.Exited{}) // as a worker does: quietly
			}
			return
		}
		w.handling.Store(true)
		w.handle(&f)
		if !conn.Buffered() {
			w.handling.Store(false)
			conn.Flush()
		}
	}
}

func (w *Worker) begin() {
	if w.agent.script.Begin != nil {
		w.agent.script.Begin(w)
		return
	}
	w.Ready(nil)
}

// handle takes a frame of the worker's connection or link.
func (w *Worker) handle(f *wire.Frame) {
	switch f.Kind {
	case wire.KindWelcome: // relayed ones only
		if f.Flags&wire.FlagError != 0 {
			w.Die(wire.Exited{Code: 1, Why: wire.ReadError(f.Body).Message})
			return
		}
		w.begin()
	case wire.KindLeg:
		leg, err := readLeg(f)
		if err != nil {
			panic(err)
		}
		w.take(leg)
	case wire.KindClose:
		w.Exit(wire.Exited{})
	}
}

// take lets the script answer a leg.
func (w *Worker) take(cast Leg) {
	leg := &cast
	leg.Worker = w
	w.mu.Lock()
	w.legs = append(w.legs, leg)
	w.mu.Unlock()
	if w.agent.script.Answer != nil {
		w.agent.script.Answer(leg)
		return
	}
	leg.Return([]byte{0xc0})
}

// Ready tells the head that the worker can be called; info is the place that its
// constructor chose, if it did.
func (w *Worker) Ready(info *spec.RankInfo) {
	w.notify("ready", &wire.Ready{Pid: w.Pid(), Description: w.agent.script.Class, Info: info})
}

// Fail tells the head why the worker cannot become ready, and ends.
func (w *Worker) Fail(e *spec.Error) {
	w.notify("failed", &wire.Failed{Error: *e})
	w.Die(wire.Exited{Code: 1})
}

func (w *Worker) notify(verb string, m msgp.Marshaler) {
	body, err := wire.AppendVerb(nil, verb, m)
	if err != nil {
		panic(err)
	}
	w.Send(wire.Header{Kind: wire.KindNotice}, body)
}

// Send sends a frame on the worker's connection as it is.
func (w *Worker) Send(h wire.Header, body []byte, bufs ...wire.Buf) {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	h.Peer = w.peer
	conn.Queue(h, nil, body, bufs)
	handling := &w.handling
	if w.peer != 0 {
		handling = &w.agent.handling
	}
	if !handling.Load() {
		conn.Flush()
	}
}

// Print sends lines of output to the head.
func (w *Worker) Print(lines ...string) {
	var log wire.Log
	for _, line := range lines {
		log.Lines = append(log.Lines, wire.LogLine{Number: w.Number, Worker: w.Name, Text: line})
	}
	_ = wire.Notify(w.agent.conn, "log", &log) // no line can fail to encode
}

// Die ends the worker: its connection, then the agent's word on its end. Worker
// and Pid of e are filled in.
func (w *Worker) Die(e wire.Exited) {
	w.HangUp()
	w.Exit(e)
}

// HangUp ends the worker's call connection alone.
func (w *Worker) HangUp() {
	w.mu.Lock()
	w.hung = true
	conn := w.conn
	w.mu.Unlock()
	switch {
	case conn == nil: // not dialled yet
	case w.peer != 0:
		conn.Queue(wire.Header{Kind: wire.KindClose, Peer: w.peer}, nil, []byte{0xc0}, nil)
		conn.Flush()
	default:
		_ = conn.CloseWhenFlushed()
	}
}

// Exit has the agent tell of the worker's end, once.
func (w *Worker) Exit(e wire.Exited) {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	if !w.agent.drop(w) {
		return
	}
	e.Worker, e.Pid = w.Number, w.Pid()
	if e.Logs == nil {
		e.Logs = []string{}
	}
	if e.Why == "" && e.Signal != "" { // as an agent words it
		e.Why = "killed by " + e.Signal
	}
	w.agent.mu.Lock()
	killed := w.agent.killed
	w.agent.mu.Unlock()
	if !killed {
		_ = wire.Notify(w.agent.conn, "exited", &e) // no field of it can fail to encode
	}
}

// vanish ends the worker with its agent: nobody tells.
func (w *Worker) vanish() {
	w.mu.Lock()
	w.gone = true
	conn := w.conn
	w.mu.Unlock()
	w.agent.drop(w)
	if w.peer == 0 && conn != nil {
		_ = conn.Close()
	}
}

// stack says what the worker is doing.
func (w *Worker) stack() string {
	if w.agent.script.Stack != nil {
		return w.agent.script.Stack(w)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.legs) == 0 {
		return "idle"
	}
	return fmt.Sprintf("in %s, call %d", w.legs[0].Method, w.legs[0].Call)
}

// leg is a leg of the worker that is out; nil if it was answered.
func (w *Worker) leg(call uint64) *Leg {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.legs {
		if l.Call == call {
			return l
		}
	}
	return nil
}
