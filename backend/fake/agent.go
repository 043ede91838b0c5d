package fake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const dialBound = time.Second

var errKilled = errors.New("killed by SIGKILL")

// Agent is one node. It implements backend.Agent.
type Agent struct {
	join   backend.Join
	script *Script
	done   chan struct{}
	err    error // after done
	joined chan struct{}

	// handling: the reader is between frames of a burst and will flush, so that
	// the answers of a node's workers leave in one write.
	handling atomic.Bool
	mute     atomic.Bool // it answers no pings

	mu       sync.Mutex
	dialling *wire.Conn // the last one
	conn     *wire.Conn // once it has joined; nil while there is no head
	workers  map[uint32]*Worker
	born     []*Worker
	links    map[uint32]*Worker // of relayed workers, by link
	next     uint32             // link
	port     int                // last one held
	killed   bool
	over     bool
	exits    []wire.Exited
	until    time.Time // no head is waited for any longer

	dismissed bool           // the head has asked for the end of everything
	dialled   sync.WaitGroup // workers with connections of their own
}

func newAgent(join backend.Join, s *Script) *Agent {
	return &Agent{
		join: join, script: s, done: make(chan struct{}), joined: make(chan struct{}),
		workers: map[uint32]*Worker{}, links: map[uint32]*Worker{}, port: 20000 + join.Node%1000*16,
	}
}

// Done is closed when the agent and its workers are gone.
func (a *Agent) Done() <-chan struct{} { return a.done }

// Err is what ended the agent, after Done.
func (a *Agent) Err() error { return a.err }

// Handle stands for the process that it is not.
func (a *Agent) Handle() backend.Handle { return backend.Handle{Pid: a.join.Node + 1} }

// Joined is closed when the head has welcomed the agent.
func (a *Agent) Joined() <-chan struct{} { return a.joined }

// Kill ends the agent and its workers; nobody tells the head of their exits.
func (a *Agent) Kill() {
	a.mu.Lock()
	a.killed = true
	conn := a.dialling
	a.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// HangUp ends the agent's connection for good, and so the agent.
func (a *Agent) HangUp() {
	a.mu.Lock()
	conn := a.conn
	a.dismissed = true
	a.mu.Unlock()
	_ = conn.Close()
}

// Cut ends the agent's connection as a network would: it comes back.
func (a *Agent) Cut() {
	if conn := a.current(); conn != nil {
		conn.Cut()
	}
}

// Send sends a frame to the head as it is.
func (a *Agent) Send(h wire.Header, body []byte, bufs ...[]byte) {
	a.mu.Lock()
	conn := a.conn
	a.mu.Unlock()
	conn.Send(h, body, wire.Bytes(bufs...))
}

// Live is how many workers the agent has.
func (a *Agent) Live() int { return len(a.live(nil)) }

// run is the agent's life.
func (a *Agent) run() {
	err := a.serve()
	a.mu.Lock()
	a.over = true
	born := a.born
	a.mu.Unlock()
	for _, w := range born { // those that ended too: a socket may have been left
		w.vanish()
	}
	a.dialled.Wait()
	a.err = err
	close(a.done)
}

// serve speaks with the head, and with those that come after it.
func (a *Agent) serve() error {
	for back := uint32(0); ; back = 1 {
		conn, err := a.dial(back)
		if err != nil {
			if a.isKilled() {
				return errKilled
			}
			if back != 0 {
				return nil // nobody is left to tell
			}
			return fmt.Errorf("node %s cannot join: %w", a.join.Name, err)
		}
		if back == 0 {
			a.mu.Lock()
			a.conn = conn
			a.mu.Unlock()
			close(a.joined)
		} else {
			a.goBack(conn)
		}
		a.read(conn)
		_ = conn.Close()
		a.mu.Lock()
		a.conn = nil
		if a.join.Relay {
			for _, w := range a.workers {
				w.mu.Lock()
				w.conn = nil
				w.mu.Unlock()
			}
			a.links = map[uint32]*Worker{}
		}
		a.mu.Unlock()
		if a.isKilled() {
			return errKilled
		}
		if a.ends() {
			return nil // the head let go
		}
	}
}

func (a *Agent) read(conn *wire.Conn) {
	for {
		f, err := conn.Read()
		if err != nil {
			return
		}
		a.handling.Store(true)
		a.handle(&f)
		if !conn.Buffered() {
			a.handling.Store(false)
			conn.Flush()
		}
	}
}

// dial joins the head. It tries for as long as the grace lasts.
func (a *Agent) dial(back uint32) (*wire.Conn, error) {
	a.mu.Lock()
	a.until = time.Now().Add(time.Duration(a.join.Grace * float64(time.Second)))
	a.mu.Unlock()
	for {
		conn, err := a.connect()
		if err == nil {
			a.mu.Lock()
			a.dialling = conn // so that Kill finds it
			a.mu.Unlock()
			if a.isKilled() {
				_ = conn.Close()
				return nil, errKilled
			}
			node := a.node()
			_, err = wire.Join(conn, wire.Hello{Role: wire.RoleAgent, Token: a.join.Token, Node: &node, Back: back})
			if err == nil {
				return conn, nil
			}
			_ = conn.Close()
		}
		var told *spec.Error
		if errors.As(err, &told) || !a.pause() {
			return nil, err
		}
	}
}

// connect reaches the head: by its socket, or over the network.
func (a *Agent) connect() (*wire.Conn, error) {
	if len(a.join.Hosts) == 0 {
		return wire.Dial(a.join.Head)
	}
	var secret *tls.Config
	if a.join.Transport != backend.Plain {
		var err error
		if secret, err = secure.Pinned(a.join.Pin); err != nil {
			return nil, err
		}
	}
	return wire.DialFar(context.Background(), a.join.Hosts, secret, dialBound)
}

// ends says that there is no head to wait for.
func (a *Agent) ends() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over || a.killed || a.dismissed || a.join.Grace <= 0
}

// pause waits a little before the next try; false: there is to be none.
func (a *Agent) pause() bool {
	if a.ends() {
		return false
	}
	time.Sleep(time.Millisecond) // a head tells nobody when it begins to listen
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.until.IsZero() || time.Now().Before(a.until)
}

func (a *Agent) isKilled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.killed
}

// current is the connection to the head; nil while there is none.
func (a *Agent) current() *wire.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn
}

// goBack tells the head what there is on this node.
func (a *Agent) goBack(conn *wire.Conn) {
	a.mu.Lock()
	m := wire.AgentBack{Workers: []wire.WorkerAt{}, Exits: a.exits, Objects: []wire.ObjectAt{}}
	for _, w := range a.workers {
		m.Workers = append(m.Workers, wire.WorkerAt{Number: w.Number, Pid: w.Pid()})
	}
	if a.script.Stored != nil {
		m.Objects = a.script.Stored(a.join.Node)
	}
	_ = wire.Notify(conn, "back", &m) // numbers can be encoded
	_ = wire.Notify(conn, "resent", &wire.Empty{})
	a.conn = conn
	a.next = 0
	var relayed []*Worker
	if a.join.Relay {
		for _, w := range a.workers {
			a.next++
			w.mu.Lock()
			w.peer = a.next
			w.mu.Unlock()
			a.links[w.peer] = w
			relayed = append(relayed, w)
		}
	}
	a.mu.Unlock()
	for _, w := range relayed {
		w.open()
	}
	conn.Flush()
}

// reopen gives a relayed worker another link.
func (a *Agent) reopen(w *Worker) {
	a.mu.Lock()
	conn := a.conn
	if conn == nil {
		a.mu.Unlock()
		return // it gets one anyway
	}
	delete(a.links, w.peer)
	w.mu.Lock()
	old := w.peer
	a.next++
	w.peer, w.conn = a.next, nil
	w.mu.Unlock()
	a.links[w.peer] = w
	conn.Queue(wire.Header{Kind: wire.KindClose, Peer: old}, nil, []byte{0xc0}, nil)
	a.mu.Unlock()
	w.open()
	conn.Flush()
}

// exited tells the head of a worker's end, and the next one.
func (a *Agent) exited(e *wire.Exited) {
	a.mu.Lock()
	a.exits = append(a.exits, *e)
	conn, killed := a.conn, a.killed
	a.mu.Unlock()
	if !killed && conn != nil {
		_ = wire.Notify(conn, "exited", e) // no field of it can fail to encode
	}
}

func (a *Agent) node() spec.Node {
	node := spec.Node{Cores: 8, Memory: 64 << 30, Files: 1 << 20, Virtual: true, Address: "127.0.0.1"}
	for i := range max(a.join.Virtual, 0) {
		node.Devices = append(node.Devices, spec.Device{Index: i, Kind: "virtual", Name: "virtual GPU"})
	}
	if a.script.Node != nil {
		node = a.script.Node(a.join)
	}
	node.Index, node.Name, node.Life = a.join.Node, a.join.Name, fmt.Sprintf("%p", a)
	return node
}

func (a *Agent) handle(f *wire.Frame) {
	switch {
	case f.Kind == wire.KindFanout:
		a.fanout(f)
	case f.Peer != 0:
		a.mu.Lock()
		w := a.links[f.Peer]
		a.mu.Unlock()
		if w != nil {
			w.handle(f)
		}
	case f.Kind == wire.KindRequest:
		verb, body, err := wire.ReadVerb(f.Body)
		var answer msgp.Marshaler
		if err == nil {
			answer, err = a.request(verb, body)
		}
		a.respond(f.ID, answer, err)
	case f.Kind == wire.KindNotice:
		a.notice(f)
	}
}

func (a *Agent) notice(f *wire.Frame) {
	var o wire.Objects
	verb, body, err := wire.ReadVerb(f.Body)
	switch {
	case err != nil:
	case verb == "ping":
		if conn := a.current(); conn != nil && !a.mute.Load() {
			_ = wire.Notify(conn, "pong", &wire.Empty{})
		}
		return
	case verb == "sources" && a.script.Sources != nil:
		var s wire.Sources
		if _, err = s.UnmarshalMsg(body); err == nil {
			a.script.Sources(a.join.Node, s)
			return
		}
	case verb == "holders" && a.script.Holders != nil:
		var m wire.Holders
		if _, err = m.UnmarshalMsg(body); err == nil {
			a.script.Holders(a.join.Node, m)
			return
		}
	case verb == "pong", a.script.Objects == nil:
		return
	default:
		_, err = o.UnmarshalMsg(body)
	}
	if err != nil || verb != "objects" {
		panic(fmt.Sprintf("a notice %q that cannot be read: %v", verb, err))
	}
	a.script.Objects(a.join.Node, o)
}

// Mute has the agent answer pings no more, or again.
func (a *Agent) Mute(on bool) { a.mute.Store(on) }

// fanout gives one frame to many links.
func (a *Agent) fanout(f *wire.Frame) {
	n, list, err := msgp.ReadArrayHeaderBytes(f.Body)
	if err != nil || len(f.Bufs) != 1 {
		panic(fmt.Sprintf("a fanout that cannot be read: %v, %d buffers", err, len(f.Bufs)))
	}
	in, err := wire.ParseFrame(f.Bufs[0].Data)
	if err != nil {
		panic(err)
	}
	cast, err := readLeg(&in)
	if err != nil {
		panic(err)
	}
	for range n {
		var number uint32
		if number, list, err = msgp.ReadUint32Bytes(list); err != nil {
			panic(err)
		}
		a.mu.Lock()
		w := a.links[number]
		a.mu.Unlock()
		if w != nil {
			w.take(cast)
		}
	}
}

// live lists workers that have not ended: those named, or all.
func (a *Agent) live(numbers []uint32) []*Worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []*Worker
	if numbers == nil {
		for _, w := range a.workers {
			found = append(found, w)
		}
		return found
	}
	for _, number := range numbers {
		if w := a.workers[number]; w != nil {
			found = append(found, w)
		}
	}
	return found
}

// drop forgets a worker and says whether this was its end.
func (a *Agent) drop(w *Worker) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended := a.workers[w.Number] == w
	delete(a.workers, w.Number)
	delete(a.links, w.peer)
	return ended
}
