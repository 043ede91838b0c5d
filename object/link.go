package object

import (
	"sync"
	"sync/atomic"

	"github.com/muster-rl/muster/wire"
)

// Link is a connection to the head, by which objects are named and given back.
// Its methods may be called concurrently.
type Link struct {
	// Ack, where set, is what frames that give back acknowledge.
	Ack *atomic.Uint32

	stores *Stores
	oneWay bool

	mu      sync.Mutex
	conn    *wire.Conn     // nil while it is cut
	times   uint32         // how often it was cut
	back    map[uint64]int // credits to give back
	lent    map[uint64]int // loans to give back
	giving  bool           // a goroutine is about to
	settles int            // how many are about to, with an answer
}

// NewLink makes the link of a connection; stores may be nil. Whoever sends calls
// over it keeps what they name until they are answered.
func NewLink(conn *wire.Conn, stores *Stores) *Link {
	return &Link{stores: stores, conn: conn, back: map[uint64]int{}, lent: map[uint64]int{}}
}

// NewOneWayLink is a link over which frames go that nobody answers. So what they
// name is given back over it, even if it came by another: behind them, that is.
func NewOneWayLink(conn *wire.Conn, stores *Stores) *Link {
	l := NewLink(conn, stores)
	l.oneWay = true
	return l
}

// Stores are those of the head at the other end; nil where there are none.
func (l *Link) Stores() *Stores { return l.stores }

// Arrived takes note of the objects that a frame from the head names. They are
// this process's for as long as it needs the set; nil where there are none.
func (l *Link) Arrived(bufs []wire.Buf) *Set { return l.arrived(bufs, false) }

// Lent is Arrived for a leg, with which objects come that may be read where they
// lie until the loan is given back. Nobody here does, as mapping an object asks
// its store, which then keeps it. So loans end with the call, by Settle.
func (l *Link) Lent(bufs []wire.Buf) *Set { return l.arrived(bufs, true) }

func (l *Link) arrived(bufs []wire.Buf, leg bool) *Set {
	if l.stores == nil || !wire.HasRefs(bufs) {
		return nil
	}
	set := NewSet()
	if leg {
		l.mu.Lock()
		set.in.times = l.times
		l.mu.Unlock()
	}
	for i := range bufs {
		ref, ok := bufs[i].Ref()
		if !ok || set.in.find(ref.Object) != nil {
			continue
		}
		l.stores.held.add(ref.Length)
		o := &Object{ID: ref.Object, stores: l.stores, size: ref.Length, uses: 1, credits: []credit{{l, 1}}}
		l.stores.know(o.ID, 1)
		if leg && ref.Segment != 0 {
			set.in.lent = append(set.in.lent, o.ID)
		}
		set.in.objects = append(set.in.objects, o)
	}
	return set
}

// Send has queue put a frame with these buffers, all of whose objects are in the
// set, on the connection. Objects that this process made and that it never named
// over the link are marked as New first; frames with them leave in that order.
func (l *Link) Send(set *Set, bufs []wire.Buf, queue func()) {
	var named []*Object
	l.mu.Lock()
	for i := range bufs {
		ref, ok := bufs[i].Ref()
		if !ok {
			continue
		}
		if o := set.Find(ref.Object); o != nil {
			named = append(named, o)
			if ref.New = o.firstBy(l); ref.New {
				bufs[i] = ref.Buf()
			}
		}
	}
	queue()
	l.mu.Unlock()
	for _, o := range named { // which may give it back, by this link
		o.Release()
	}
}

// give gives credits back, together with all that come at about the same time.
func (l *Link) give(object uint64, count int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stores.know(object, -count)
	if l.conn == nil {
		return // Back tells the rest
	}
	l.back[object] += count
	if !l.giving && l.settles == 0 {
		l.giving = true
		go l.giveAll()
	}
}

func (l *Link) giveAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giving = false
	if l.queueLocked() {
		l.conn.Flush()
	}
}

// Settle ends the loans of a leg whose answer was queued, and has release give
// back what else is needed no more. Both are queued as one notice, which leaves
// with the answer: the caller flushes the connection.
func (l *Link) Settle(set *Set, release func()) {
	l.mu.Lock()
	l.settles++
	if set != nil && set.in.times == l.times { // else the head was told that there are none
		for _, object := range set.in.lent {
			l.lent[object]++
		}
	}
	l.mu.Unlock()
	release()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settles--
	l.queueLocked()
}

// queueLocked queues the notice of all that is given back, if anything is.
func (l *Link) queueLocked() bool {
	if l.conn == nil || len(l.back)+len(l.lent) == 0 {
		return false // or it was cut meanwhile
	}
	r := wire.Releases{Objects: released(l.back), Lent: released(l.lent)}
	clear(l.back)
	clear(l.lent)
	body, err := wire.AppendVerb(nil, "release", &r)
	if err != nil { // numbers can be encoded
		return false
	}
	// Under the lock: what this follows on the connection counts before it.
	h := wire.Header{Kind: wire.KindNotice}
	if l.Ack != nil {
		h.Ack = l.Ack.Load()
	}
	l.conn.Queue(h, nil, body, nil)
	return true
}

func released(counts map[uint64]int) []wire.Released {
	all := make([]wire.Released, 0, len(counts))
	for object, count := range counts {
		all = append(all, wire.Released{Object: object, Count: count})
	}
	return all
}
