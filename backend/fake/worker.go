package fake

import (
	"errors"
	"fmt"
	"slices"
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

	mu       sync.Mutex
	conn     *wire.Conn // its own, or its agent's; nil while there is none
	legs     []*Leg     // not answered yet, oldest first
	kept     []*Leg     // not released yet, oldest first
	received uint32     // legs, ever
	begun    bool
	ready    *wire.Ready
	gone     bool
	hung     bool // it hung up by itself
}

// Pid is the number it has for people.
func (w *Worker) Pid() int { return firstPid + int(w.Number) }

// Node is the name of the node it is on.
func (w *Worker) Node() string { return w.agent.join.Name }

// open begins a relayed worker, or goes on with it: a hello on a link of its own.
// One that is back tells the rest when it is welcome.
func (w *Worker) open() {
	back := uint32(0)
	w.mu.Lock()
	if w.begun {
		back = 1
	}
	w.mu.Unlock()
	hello := wire.Hello{
		Magic: "muster", Version: wire.Version, Release: wire.Release,
		Role: wire.RoleWorker, Token: w.Token, Worker: w.Number, Pid: w.Pid(), Back: back,
	}
	body, err := hello.MarshalMsg(nil)
	if err != nil { // no field of a Hello can fail to encode
		panic(err)
	}
	conn := w.agent.current()
	if conn == nil {
		return // it is opened again when there is one
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	conn.Queue(wire.Header{Kind: wire.KindOpen, Peer: w.peer}, nil, body, nil)
}

// run is the life of a worker with a connection of its own, and of others when
// that is cut.
func (w *Worker) run() {
	defer w.agent.dialled.Done()
	back := uint32(0)
	for {
		conn, err := w.dial(back)
		if err != nil {
			w.Exit(wire.Exited{Code: 1, Why: err.Error()})
			return
		}
		w.mu.Lock()
		over := w.gone || w.hung
		if !over && back != 0 {
			w.tellBack(conn)
		}
		w.conn = conn
		w.mu.Unlock()
		if over {
			_ = conn.Close()
			return
		}
		if back == 0 {
			w.begin()
		}
		w.read(conn)
		w.mu.Lock()
		w.conn = nil
		over, hung := w.gone, w.hung
		w.mu.Unlock()
		_ = conn.Close()
		if hung || over {
			return
		}
		if w.agent.ends() {
			w.Exit(wire.Exited{}) // as a worker does: quietly
			return
		}
		back = 1
	}
}

func (w *Worker) read(conn *wire.Conn) {
	for {
		f, err := conn.Read()
		if err != nil {
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

// dial joins the head. Who was there before tries for as long as its agent does.
func (w *Worker) dial(back uint32) (*wire.Conn, error) {
	for {
		conn, err := wire.Dial(w.Setup.CallAddress)
		if err == nil {
			_, err = wire.Join(conn, wire.Hello{Role: wire.RoleWorker, Token: w.Token, Worker: w.Number, Back: back})
			if err == nil {
				return conn, nil
			}
			_ = conn.Close()
		}
		w.mu.Lock()
		over := w.gone || w.hung
		w.mu.Unlock()
		var told *spec.Error
		if over || errors.As(err, &told) || !w.agent.pause() {
			return nil, err
		}
	}
}

// tellBack tells the head what the worker has got and keeps. Called with mu held,
// so that a result either is among it or is sent after it.
func (w *Worker) tellBack(conn *wire.Conn) {
	m := wire.WorkerBack{Received: w.received, Legs: []wire.LegBack{}, Objects: []wire.Released{}, Lent: []wire.Released{}}
	m.Ready.Description = w.agent.script.Class
	if w.ready != nil {
		m.Ready = *w.ready
	}
	if w.agent.script.Holds != nil {
		m.Objects = w.agent.script.Holds(w)
	}
	if w.agent.script.Lent != nil {
		m.Lent = w.agent.script.Lent(w)
	}
	for _, l := range w.kept {
		at := wire.LegBack{Seq: l.seq, Call: l.Call, Origin: l.Origin}
		if l.done {
			at.Done = 1
		}
		m.Legs = append(m.Legs, at)
	}
	w.queueNotice(conn, "back", &m)
	for _, l := range w.kept {
		if l.done {
			hd := l.head
			hd.Flags |= wire.FlagAgain
			hd.Peer = w.peer
			conn.Queue(hd, nil, l.body, l.bufs)
		}
	}
	w.queueNotice(conn, "resent", &wire.Empty{})
	conn.Flush()
}

func (w *Worker) queueNotice(conn *wire.Conn, verb string, m msgp.Marshaler) {
	body, err := wire.AppendVerb(nil, verb, m)
	if err != nil {
		panic(err)
	}
	conn.Queue(wire.Header{Kind: wire.KindNotice, Peer: w.peer}, nil, body, nil)
}

// Cut ends the worker's call connection as a network would: it comes back. That of
// a relayed one is a link, which it closes.
func (w *Worker) Cut() {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	switch {
	case conn == nil:
	case !w.agent.join.Relay:
		conn.Cut()
	default:
		w.agent.reopen(w)
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
		conn := w.agent.current()
		w.mu.Lock()
		first := !w.begun
		w.begun = true
		if !first && conn != nil {
			w.tellBack(conn)
		}
		w.conn = conn
		w.mu.Unlock()
		if first {
			w.begin()
		}
	case wire.KindNotice:
		w.notice(f)
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
	if lost := w.agent.script.Lost; lost != nil && lost(leg) {
		return
	}
	w.mu.Lock()
	w.release(leg.ack, nil)
	if n := len(w.kept); n > 0 && leg.Call <= w.kept[n-1].Call && !w.agent.script.Unordered {
		panic(fmt.Sprintf("%s got call %x after call %x", w.Name, leg.Call, w.kept[n-1].Call))
	}
	w.received++
	leg.seq = w.received
	w.legs, w.kept = append(w.legs, leg), append(w.kept, leg)
	w.mu.Unlock()
	if w.agent.script.Answer != nil {
		w.agent.script.Answer(leg)
		return
	}
	leg.Return([]byte{0xc0})
}

// release drops the results of legs up to a number, and of calls.
func (w *Worker) release(through uint32, calls []uint64) {
	for len(w.kept) > 0 && w.kept[0].done && int32(w.kept[0].seq-through) <= 0 { //nolint:gosec // sequence arithmetic
		w.kept[0] = nil
		w.kept = w.kept[1:]
	}
	if len(calls) == 0 {
		return // what is behind one that runs on goes with it
	}
	w.kept = slices.DeleteFunc(w.kept, func(l *Leg) bool {
		return l.done && (int32(l.seq-through) <= 0 || slices.Contains(calls, l.Call)) //nolint:gosec // sequence arithmetic
	})
}

// Kept is how many results the worker keeps.
func (w *Worker) Kept() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.kept)
}

func (w *Worker) notice(f *wire.Frame) {
	verb, body, err := wire.ReadVerb(f.Body)
	var m wire.Acked
	if err == nil && verb == "acked" {
		_, err = m.UnmarshalMsg(body)
	}
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release(m.Through, m.Calls)
}

// Ready tells the head that the worker can be called; info is the place that its
// constructor chose, if it did.
func (w *Worker) Ready(info *spec.RankInfo) {
	r := &wire.Ready{Pid: w.Pid(), Description: w.agent.script.Class, Info: info}
	w.mu.Lock()
	w.ready = r
	w.mu.Unlock()
	w.notify("ready", r)
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
	h.Peer = w.peer
	w.mu.Unlock()
	if conn == nil {
		return // what matters is kept
	}
	conn.Queue(h, nil, body, bufs)
	handling := &w.handling
	if w.agent.join.Relay {
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
	if conn := w.agent.current(); conn != nil {
		_ = wire.Notify(conn, "log", &log) // no line can fail to encode
	}
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
	conn, peer := w.conn, w.peer
	w.mu.Unlock()
	switch {
	case conn == nil: // not dialled yet
	case w.agent.join.Relay:
		conn.Queue(wire.Header{Kind: wire.KindClose, Peer: peer}, nil, []byte{0xc0}, nil)
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
	w.agent.exited(&e)
}

// vanish ends the worker with its agent: nobody tells.
func (w *Worker) vanish() {
	w.mu.Lock()
	w.gone = true
	conn := w.conn
	w.mu.Unlock()
	w.agent.drop(w)
	if !w.agent.join.Relay && conn != nil {
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
