package store

import (
	"container/list"
	"math"
	"math/bits"
)

// state of an object; doc.go has the table.
type state uint8

const (
	writing state = iota
	sealed
	spilled
	broken
)

func (s state) String() string {
	return [...]string{"writing", "sealed", "spilled", "broken"}[s]
}

const (
	slack       = 64 << 10 // what may come on top of a round number of bytes: headers
	minCapacity = 256<<10 + slack
	pageSize    = 4096
	searched    = 64 // segments of one size that are looked at for one that is mapped already
	never       = math.MaxUint64
)

// segment is a piece of memory, or a file of a spilled object.
type segment struct {
	id       uint64
	capacity uint64
	spare    uint64 // part of it that its object does not need
	file     bool
	making   bool          // reserved, not there yet
	pooled   *list.Element // in ledger.pool
	fd       int           // the effects' own, as is
	mem      []byte        // its bytes, where they were needed here
	used     []bool        // chunks of them whose pages are mapped here
}

// object is one object. Its size is what was asked for until it is sealed.
type object struct {
	id       uint64
	size     uint64
	state    state
	segment  *segment // nil when broken and the memory is given back
	what     string
	why      string // it is broken
	maker    *peer
	held     bool // the head says so
	released bool // nobody will ask for it any more: dropped, freed, or its maker is gone; never while it is held
	removed  bool // not in the ledger any more; its segment is still being copied
	copying  bool // on its way to disk
	since    float64
	views    int
	lent     map[uint64]float64 // holders that read it where it lies, and since when
	lru      *list.Element      // in ledger.idle: it could be spilled
	copy     *copied            // it lies on another node
	sums     map[uint32]uint32  // of chunks, as far as somebody asked for them
}

// peer is a connection, and after that its process until it ends.
type peer struct {
	holder uint64
	pid    int
	left   bool
	knows  map[uint64]bool  // segments whose descriptor it was sent
	stale  []uint64         // those of them that are gone, not told yet
	views  map[uint64]*view // by object
	makes  map[*object]bool // writing, or broken with memory that it may write
	keeps  bool             // it waited for memory of its own to come back, and none has since
}

// view is what one connection has leased of one object.
type view struct {
	count int
	since float64
}

// ledger is the accounting of a store: who has what, and what there is room
// for. It has no effects. What must follow from its decisions is left in todo.
type ledger struct {
	budget      uint64
	spillLimit  uint64
	maxSegments int
	ids         uint64 // node and epoch, where they stand in ids

	used     uint64 // capacity of memory segments with an object
	spare    uint64 // part of used that is more than those objects need
	pooled   uint64 // of those without
	spilled  uint64 // bytes of objects in files, or on their way there
	coming   uint64 // part of used that is being copied out
	lastID   uint32
	lastSeg  uint64
	segments map[uint64]*segment
	objects  map[uint64]*object
	peers    map[*peer]bool
	went     map[uint64]bool       // holders that are gone, of which each is another process
	pool     *list.List            // of *segment, the longest unused first
	sizes    map[uint64][]*segment // the same by capacity
	idle     *list.List            // of *object that could be spilled, the longest unused first

	todo todo
}

// todo is what the ledger's decisions ask of the effects.
type todo struct {
	discard []*segment // given up: cut and closed
	wake    []uint64   // objects that are not waited for any more
	room    bool       // somebody who waits for room should ask again
	gone    []uint64   // copies that are no more
}

func newLedger(ids, budget, spillLimit uint64, maxSegments int) *ledger {
	return &ledger{
		budget: budget, spillLimit: spillLimit, maxSegments: maxSegments, ids: ids,
		segments: map[uint64]*segment{}, objects: map[uint64]*object{}, peers: map[*peer]bool{}, went: map[uint64]bool{},
		pool: list.New(), sizes: map[uint64][]*segment{}, idle: list.New(),
	}
}

// capacity is how large a segment for size bytes is: sizes that differ by
// little share segments. Steps are eighths of a power of two, with some slack:
// content is often a power of two and a little.
func capacity(size uint64) uint64 {
	if size <= minCapacity {
		return minCapacity
	}
	content := size - slack
	step := uint64(1) << (bits.Len64(content-1) - 4)
	return (content+step-1)/step*step + slack
}

// fits is capacity within a budget: what the steps would add must not be what
// is one too many.
func (l *ledger) fits(size uint64) uint64 {
	if c := capacity(size); c <= l.budget {
		return c
	}
	return (size + pageSize - 1) / pageSize * pageSize
}

// plan is the answer to a wish for room.
type plan struct {
	object *object // there is room, in the object's segment
	fresh  bool    // which has to be made
	spill  *object // this one has to be copied out first
	wait   bool    // room may be on its way
	full   bool    // there is none to be had
}

// take gives a new object a segment of the pool, if there is one of about that
// size; best one that the peer has mapped already.
func (l *ledger) take(p *peer, size uint64, now float64) *object {
	return l.takeUpTo(p, size, largest(size), now)
}

// largest is how large a segment of the pool may be for an object of that size.
func largest(size uint64) uint64 { return max(capacity(size), size+size/4) }

func (l *ledger) takeUpTo(p *peer, size, most uint64, now float64) *object {
	for c := l.fits(size); c <= most; c = capacity(c + 1) {
		same := l.sizes[c]
		if len(same) == 0 {
			continue
		}
		best := len(same) - 1 // the last used is the warmest
		for i := best; i >= max(0, len(same)-searched); i-- {
			if p.knows[same[i].id] {
				best = i
				break
			}
		}
		seg := same[best]
		p.keeps = false
		l.unpool(seg)
		seg.spare = excess(seg.capacity, l.fits(size))
		l.used += seg.capacity
		l.spare += seg.spare
		return l.begin(p, seg, size, now)
	}
	return nil
}

// comesBack says whether a maker's object may be about to give its memory back,
// and that would do for another one of that size.
func (l *ledger) comesBack(p *peer, size uint64) bool {
	if p.keeps {
		return false // it makes one after the other
	}
	least, most := l.fits(size), largest(size)
	for _, o := range l.objects {
		if o.maker == p && o.state == sealed && o.segment.capacity >= least && o.segment.capacity <= most {
			return true
		}
	}
	return false
}

// cameNot says that a maker's memory was waited for in vain.
func (l *ledger) cameNot(p *peer) { p.keeps = true }

// room makes room for a new object outside the pool. free is how much memory
// the machine can spare. Whether something may be spilled for it is the
// caller's to say: what is in the way may be about to go by itself.
func (l *ledger) room(p *peer, size, free uint64, maySpill bool, now float64) plan {
	need := l.fits(size)
	if size > l.budget {
		return plan{full: true}
	}
	over := max(excess(l.used+l.pooled+need, l.budget), excess(need, free))
	crowded := len(l.segments) >= l.maxSegments
	if over == 0 && !crowded {
		return plan{object: l.makeSegment(p, size, need, now), fresh: true}
	}
	// Rather a touched segment that is too large than a new one, but not such
	// that much of the budget is what nobody needs.
	if o := l.takeUpTo(p, size, min(2*size, need+excess(l.budget/8, l.spare)), now); o != nil {
		return plan{object: o}
	}
	switch {
	case over <= l.pooled && (!crowded || l.pool.Len() > 0):
		for gone := uint64(0); gone < over || len(l.segments) >= l.maxSegments; {
			gone += l.giveUpOldest()
		}
		return plan{object: l.makeSegment(p, size, need, now), fresh: true}
	case l.pooled+l.coming >= over && l.coming > 0:
		return plan{wait: true}
	}
	if o := l.idleCopy(); o != nil {
		if !maySpill {
			return plan{wait: true}
		}
		l.remove(o)
		return l.room(p, size, free, maySpill, now)
	}
	if crowded && l.pool.Len() == 0 {
		return plan{full: true} // a file takes a descriptor as well
	}
	for e := l.idle.Front(); e != nil; e = e.Next() {
		o := e.Value.(*object)
		if l.spilled+o.size > l.spillLimit {
			continue
		}
		if !maySpill {
			return plan{wait: true}
		}
		o.copying = true
		l.coming += o.segment.capacity
		l.spilled += o.size
		l.rest(o)
		return plan{spill: o}
	}
	if l.coming > 0 {
		return plan{wait: true}
	}
	return plan{full: true}
}

func excess(a, b uint64) uint64 {
	if a <= b {
		return 0
	}
	return a - b
}

// begin is a new object in a segment.
func (l *ledger) begin(p *peer, seg *segment, size uint64, now float64) *object {
	for l.lastID++; l.lastID == 0 || l.objects[l.ids|uint64(l.lastID)] != nil; l.lastID++ {
	}
	o := &object{id: l.ids | uint64(l.lastID), size: size, segment: seg, maker: p, since: now}
	l.objects[o.id] = o
	p.makes[o] = true
	return o
}

func (l *ledger) makeSegment(p *peer, size, need uint64, now float64) *object {
	seg := &segment{id: l.newSegment(), capacity: need, making: true, fd: -1}
	l.segments[seg.id] = seg
	l.used += need
	return l.begin(p, seg, size, now)
}

func (l *ledger) newSegment() uint64 {
	l.lastSeg++
	return l.lastSeg
}

// made says that the segment of a fresh object is there.
func (l *ledger) made(o *object, fd int) { o.segment.making, o.segment.fd = false, fd }

// unmade says that it could not be made.
func (l *ledger) unmade(o *object) {
	delete(l.objects, o.id)
	delete(l.segments, o.segment.id)
	delete(o.maker.makes, o)
	l.used -= o.segment.capacity
	o.removed = true
	l.todo.wake = append(l.todo.wake, o.id)
	l.todo.room = true
}

// copied says that an object is in a file now. Where it was opened meanwhile
// the file is not needed.
func (l *ledger) copied(o *object, fd int) {
	file := &segment{id: l.newSegment(), capacity: o.size, file: true, fd: fd}
	l.endCopy(o)
	memory := o.segment
	switch {
	case o.removed:
		l.spilled -= o.size
		l.todo.discard = append(l.todo.discard, file)
		l.toPool(memory)
	case o.inUse():
		l.spilled -= o.size
		l.todo.discard = append(l.todo.discard, file)
	default:
		l.segments[file.id] = file
		o.segment, o.state = file, spilled
		l.toPool(memory)
		if len(l.segments) > l.maxSegments {
			l.giveUpOldest()
		}
	}
	l.rest(o)
}

// notCopied says that the copy failed.
func (l *ledger) notCopied(o *object) {
	l.endCopy(o)
	l.spilled -= o.size
	if o.removed {
		l.toPool(o.segment)
	}
	l.rest(o)
}

func (l *ledger) endCopy(o *object) {
	o.copying = false
	l.coming -= o.segment.capacity
	l.todo.room = true
}

// toPool keeps a memory segment for later objects.
func (l *ledger) toPool(seg *segment) {
	l.used -= seg.capacity
	l.spare -= seg.spare
	seg.spare = 0
	l.pooled += seg.capacity
	seg.pooled = l.pool.PushBack(seg)
	l.sizes[seg.capacity] = append(l.sizes[seg.capacity], seg)
	l.todo.room = true
}

func (l *ledger) unpool(seg *segment) {
	l.pool.Remove(seg.pooled)
	seg.pooled = nil
	l.pooled -= seg.capacity
	same := l.sizes[seg.capacity]
	for i := range same {
		if same[i] == seg {
			same = append(same[:i], same[i+1:]...)
			break
		}
	}
	if len(same) == 0 {
		delete(l.sizes, seg.capacity)
	} else {
		l.sizes[seg.capacity] = same
	}
}

// giveUp has a segment that nothing lies in any more go.
func (l *ledger) giveUp(seg *segment) {
	delete(l.segments, seg.id)
	l.outdate(seg.id)
	l.todo.discard = append(l.todo.discard, seg)
}

// giveUpOldest has the segment of the pool go that was unused for longest.
func (l *ledger) giveUpOldest() uint64 {
	seg := l.pool.Front().Value.(*segment)
	l.unpool(seg)
	l.giveUp(seg)
	return seg.capacity
}

// outdate has everybody who knows a segment forget it.
func (l *ledger) outdate(id uint64) {
	for p := range l.peers {
		if p.knows[id] {
			delete(p.knows, id)
			p.stale = append(p.stale, id)
		}
	}
}

// takeTodo is what the decisions since the last time ask for.
func (l *ledger) takeTodo() todo {
	t := l.todo
	l.todo = todo{}
	return t
}
