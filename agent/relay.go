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
// connection to the head, as links. It neither decodes nor orders. With that
// connection its links end; their workers dial again.
//
// One loop reads all links, and passes what it found at once on in one write: the
// answers of a node's workers to a call come together.
type relay struct {
	head *uplink
	loop *wire.Loop // nil: every link has a goroutine

	unsent *wire.Conn // what the loop has queued on, and not flushed; its alone

	mu    sync.Mutex
	over  *wire.Conn // the connection that the links go over
	next  uint32     // counts from 1 on each
	links map[uint32]*link
	shut  bool

	flushing []*link      // links with queued frames; of the head's reader alone
	conns    []*wire.Conn // theirs, for flush
}

type link struct {
	number    uint32
	conn      *wire.Conn
	head      *wire.Conn
	welcomed  chan struct{} // closed when the head's answer to its hello went by
	once      sync.Once
	unflushed bool // of the head's reader alone
}

// newRelay makes a relay, which lasts as long as its process.
func newRelay(head *uplink) *relay {
	r := &relay{head: head, links: map[uint32]*link{}}
	if loop, err := wire.NewLoop(r.sent); err == nil {
		r.loop = loop
	}
	return r
}

// serve carries one connection until it ends. hello is what it began with. While
// there is no head, it waits for one.
func (r *relay) serve(conn *wire.Conn, hello wire.Hello) {
	body, err := hello.MarshalMsg(nil)
	if err != nil {
		wire.Refuse(conn, spec.AsError(err))
		return
	}
	l := &link{conn: conn, head: r.head.wait(), welcomed: make(chan struct{})}
	if !r.add(l) {
		_ = conn.Close()
		return
	}
	l.head.Send(wire.Header{Kind: wire.KindOpen, Peer: l.number}, body, nil)

	<-l.welcomed // until then the other end has nothing to say
	conn.SetLimit(wire.MaxFrame)
	if conn.Buffered() || !r.attend(l) {
		r.forward(l)
	}
}

// ended lets go of a link that is not read any more.
func (r *relay) ended(l *link, err error) {
	_ = l.conn.Close()
	if r.drop(l) { // the head does not know yet
		body := msgp.AppendNil(nil)
		var told *spec.Error
		if errors.As(err, &told) {
			body = wire.AppendError(nil, told)
		}
		l.head.Send(wire.Header{Kind: wire.KindClose, Peer: l.number}, body, nil)
	}
}

// add takes a link in, unless its head is gone again.
func (r *relay) add(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut || l.head == nil || r.head.current() != l.head {
		return false
	}
	if r.over != l.head {
		r.over, r.next = l.head, 0
	}
	if r.next == wire.MaxPeer { // the next connection counts anew
		l.head.Cut()
		return false
	}
	r.next++
	l.number = r.next
	r.links[l.number] = l
	return true
}

// attend has the loop read a link, and says whether it does.
func (r *relay) attend(l *link) bool {
	return r.loop != nil && l.conn.Attend(r.loop, func() { r.readable(l) })
}

// readable passes what has come on a link to the head. Called by the loop.
func (r *relay) readable(l *link) {
	err := l.conn.Fetch()
	for err == nil && l.conn.Buffered() && !l.behind() {
		err = l.pass()
		if r.unsent != l.head {
			r.sent() // of a head that was there before
			r.unsent = l.head
		}
	}
	switch {
	case err != nil:
		l.conn.Leave()
		go r.ended(l, err)
	case l.behind(): // the loop has others to read
		l.conn.Leave()
		go r.forward(l)
	}
}

// sent flushes what the loop has passed on, when it has seen to all that had come.
func (r *relay) sent() (looks, shares bool) {
	if r.unsent != nil {
		r.unsent.Flush()
		r.unsent = nil
	}
	return false, false
}

// forward passes frames of a link to the head by itself, until it ends, or the
// loop can.
func (r *relay) forward(l *link) {
	for {
		l.head.Flush()
		for l.behind() {
			time.Sleep(relayPause)
		}
		if !l.conn.Buffered() && r.attend(l) {
			return
		}
		if err := l.pass(); err != nil {
			r.ended(l, err)
			return
		}
	}
}

// pass queues the next frame of a link for the head.
func (l *link) pass() error {
	f, err := l.conn.Read()
	if err != nil {
		return err
	}
	own(&f)
	f.Peer = l.number
	l.head.Queue(f.Header, nil, f.Body, f.Bufs)
	return nil
}

// behind says that the head has enough to read.
func (l *link) behind() bool { return l.head.Pending() > relayBehind && l.head.Err() == nil }

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

// drop takes a link out; false if it was out already.
func (r *relay) drop(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[l.number] != l {
		return false
	}
	delete(r.links, l.number)
	return true
}

// deliver passes a frame of the head on to its link. Called by the head's reader.
func (r *relay) deliver(f wire.Frame) {
	l := r.find(f.Peer)
	if l == nil {
		return // it ended, and the head is about to hear
	}
	if f.Kind == wire.KindClose {
		r.drop(l)
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
	if _, err := wire.ParseFrame(frame); err != nil {
		return err
	}
	n, body, err := msgp.ReadArrayHeaderBytes(f.Body)
	for ; err == nil && n > 0; n-- {
		var number uint32
		if number, body, err = msgp.ReadUint32Bytes(body); err != nil {
			break
		}
		if l := r.find(number); l != nil {
			l.conn.QueueFrame(frame)
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
	for _, l := range r.flushing {
		l.unflushed = false
		r.conns = append(r.conns, l.conn)
	}
	r.loop.FlushAll(r.conns)
	clear(r.flushing)
	clear(r.conns)
	r.flushing, r.conns = r.flushing[:0], r.conns[:0]
}

// close ends every link, and takes no more.
func (r *relay) close() {
	r.mu.Lock()
	r.shut = true
	r.mu.Unlock()
	r.cut()
}

// cut ends every link. Called by the head's reader, or when there is none.
func (r *relay) cut() {
	r.mu.Lock()
	links := r.links
	r.links = map[uint32]*link{}
	r.mu.Unlock()
	for _, l := range links {
		l.welcome()
		_ = l.conn.Close()
	}
}

func (l *link) welcome() { l.once.Do(func() { close(l.welcomed) }) }
