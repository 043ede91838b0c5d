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

	mu     sync.Mutex
	conn   *wire.Conn     // nil while it is cut
	back   map[uint64]int // credits to give back
	giving bool           // a goroutine is about to
}

// NewLink makes the link of a connection; stores may be nil. Whoever sends calls
// over it keeps what they name until they are answered.
func NewLink(conn *wire.Conn, stores *Stores) *Link {
	return &Link{stores: stores, conn: conn, back: map[uint64]int{}}
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
func (l *Link) Arrived(bufs []wire.Buf) *Set {
	if l.stores == nil || !wire.HasRefs(bufs) {
		return nil
	}
	set := NewSet()
	for i := range bufs {
		ref, ok := bufs[i].Ref()
		if !ok || set.in.find(ref.Object) != nil {
			continue
		}
		l.stores.held.add(ref.Length)
		o := &Object{ID: ref.Object, stores: l.stores, size: ref.Length, uses: 1, credits: []credit{{l, 1}}}
		l.stores.know(o.ID, 1)
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
	if !l.giving {
		l.giving = true
		go l.giveAll()
	}
}

func (l *Link) giveAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giving = false
	if len(l.back) == 0 {
		return // it was cut meanwhile
	}
	var r wire.Releases
	for object, count := range l.back {
		r.Objects = append(r.Objects, wire.Released{Object: object, Count: count})
	}
	clear(l.back)
	body, err := wire.AppendVerb(nil, "release", &r)
	if err != nil { // numbers can be encoded
		return
	}
	// Under the lock: what this follows on the connection counts before it.
	h := wire.Header{Kind: wire.KindNotice}
	if l.Ack != nil {
		h.Ack = l.Ack.Load()
	}
	l.conn.Send(h, body, nil)
}
