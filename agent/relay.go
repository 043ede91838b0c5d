package agent

import (
	"errors"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// relayBehind is how much may wait for the head before links are no longer
	// read; the other way the head itself bounds what it sends to a worker.
	relayBehind = 64 << 20
	relayPause  = 2 * time.Millisecond
	// ownFrom is the size from which a connection refers to what it is given
	// instead of copying it.
	ownFrom = 16 << 10
)

// relay carries the connections of this node's workers over the agent's one
// connection to the head, as links. It neither decodes nor orders.
type relay struct {
	head *wire.Conn

	mu    sync.Mutex
	next  uint32
	links map[uint32]*link
	shut  bool

	flushing []*link // links with queued frames; of the head's reader alone
}

type link struct {
	number    uint32
	conn      *wire.Conn
	welcomed  chan struct{} // closed when the head's answer to its hello went by
	once      sync.Once
	unflushed bool // of the head's reader alone
}

func newRelay(head *wire.Conn) *relay { return &relay{head: head, links: map[uint32]*link{}} }

// serve carries one connection until it ends. hello is what it began with.
func (r *relay) serve(conn *wire.Conn, hello wire.Hello) {
	body, err := hello.MarshalMsg(nil)
	if err != nil {
		wire.Refuse(conn, spec.AsError(err))
		return
	}
	l := &link{conn: conn, welcomed: make(chan struct{})}
	r.mu.Lock()
	if r.shut {
		r.mu.Unlock()
		_ = conn.Close()
		return
	}
	r.next++
	l.number = r.next
	r.links[l.number] = l
	r.mu.Unlock()
	r.head.Send(wire.Header{Kind: wire.KindOpen, Peer: l.number}, body, nil)

	<-l.welcomed // until then the other end has nothing to say
	conn.SetLimit(wire.MaxFrame)
	err = r.forward(l)
	_ = conn.Close()
	if r.drop(l.number) != nil { // the head does not know yet
		body := msgp.AppendNil(nil)
		var told *spec.Error
		if errors.As(err, &told) {
			body = wire.AppendError(nil, told)
		}
		r.head.Send(wire.Header{Kind: wire.KindClose, Peer: l.number}, body, nil)
	}
}

// forward passes frames of a link to the head until it ends.
func (r *relay) forward(l *link) error {
	for {
		f, err := l.conn.Read()
		if err != nil {
			r.head.Flush()
			return err
		}
		own(&f)
		f.Peer = l.number
		r.head.Queue(f.Header, nil, f.Body, f.Bufs)
		if !l.conn.Buffered() {
			r.head.Flush()
		}
		for r.head.Pending() > relayBehind && r.head.Err() == nil {
			time.Sleep(relayPause)
		}
	}
}

// own makes a frame fit to be queued: large parts are kept by reference.
func own(f *wire.Frame) {
	if wire.Size(nil, f.Body, f.Bufs) >= ownFrom {
		f.Keep()
	}
}

func (r *relay) find(number uint32) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[number]
}

// drop takes a link out; nil if it was gone already.
func (r *relay) drop(number uint32) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.links[number]
	delete(r.links, number)
	return l
}

// deliver passes a frame of the head on to its link. Called by the head's reader.
func (r *relay) deliver(f wire.Frame) {
	l := r.find(f.Peer)
	if l == nil {
		return // it ended, and the head is about to hear
	}
	if f.Kind == wire.KindClose {
		r.drop(l.number)
		l.welcome()
		go func() { _ = l.conn.CloseWhenFlushed() }()
		return
	}
	own(&f)
	f.Peer = 0
	l.conn.Queue(f.Header, nil, f.Body, f.Bufs)
	r.mark(l)
	if f.Kind == wire.KindWelcome {
		l.welcome()
	}
}

// fanout writes one frame to many links. Called by the head's reader.
func (r *relay) fanout(f wire.Frame) error {
	if len(f.Bufs) != 1 {
		return spec.Errorf(spec.CodeProtocol, "a fanout with %d buffers instead of one frame", len(f.Bufs))
	}
	own(&f)
	frame := f.Bufs[0].Data
	n, body, err := msgp.ReadArrayHeaderBytes(f.Body)
	for ; err == nil && n > 0; n-- {
		var number uint32
		if number, body, err = msgp.ReadUint32Bytes(body); err != nil {
			break
		}
		if l := r.find(number); l != nil {
			l.conn.QueueBytes(frame)
			r.mark(l)
		}
	}
	if err != nil {
		return spec.Errorf(spec.CodeProtocol, "a fanout that cannot be read: %v", err)
	}
	return nil
}

func (r *relay) mark(l *link) {
	if !l.unflushed {
		l.unflushed = true
		r.flushing = append(r.flushing, l)
	}
}

// flush writes what deliver and fanout queued. Called by the head's reader.
func (r *relay) flush() {
	for i, l := range r.flushing {
		l.unflushed = false
		l.conn.Flush()
		r.flushing[i] = nil
	}
	r.flushing = r.flushing[:0]
}

// close ends every link.
func (r *relay) close() {
	r.mu.Lock()
	r.shut = true
	links := r.links
	r.links = map[uint32]*link{}
	r.mu.Unlock()
	for _, l := range links {
		l.welcome()
		_ = l.conn.Close()
	}
}

func (l *link) welcome() { l.once.Do(func() { close(l.welcomed) }) }
