package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCapacity(t *testing.T) {
	for size, want := range map[uint64]uint64{
		0: 320 * kib, 1: 320 * kib, 320 * kib: 320 * kib, 320*kib + 1: 352 * kib, 400 * kib: 416 * kib,
		mib: mib, mib + 100: unit, unit: unit, unit + 1: unit + 128*kib, 100 * mib: 104*mib + slack, 1<<30 + 100: 1<<30 + slack, 1<<30 + slack + 1: 1<<30 + 128*mib + slack,
	} {
		if got := capacity(size); got != want {
			t.Errorf("capacity(%d) = %d, want %d", size, got, want)
		}
	}
	for range 10_000 {
		size := rand.Uint64N(1 << rand.Uint64N(50))
		c := capacity(size)
		if c < size || c%pageSize != 0 || c > max(minCapacity, size+size/7+slack) || capacity(c) != c {
			t.Fatalf("capacity(%d) = %d", size, c)
		}
	}
}

// twin is an object as a much simpler bookkeeper would know it.
type twin struct {
	maker                   *model
	sealed, broken          bool
	held, released, written bool
	views                   map[*model]int
}

// model is a connection, and what its process sees.
type model struct {
	peer   *peer
	holder uint64
	left   bool
	sees   map[uint64]*segment // objects that it has views of, and where
}

// world runs random events through a ledger and checks it against twins. It
// plays the effects too: content is what the segments hold.
type world struct {
	*testing.T
	*rand.Rand
	l       *ledger
	objects map[uint64]*twin
	models  []*model
	content map[*segment]uint64
	copies  []*object
	events  []string
}

func (w *world) event(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.Helper()
	from := max(0, len(w.events)-30)
	w.Fatalf("%s\nafter %d events, the last of them:\n%v", fmt.Sprintf(format, args...), len(w.events), w.events[from:])
}

func (w *world) someone() *model {
	var there []*model
	for _, m := range w.models {
		if !m.left {
			there = append(there, m)
		}
	}
	if len(there) == 0 || len(there) < 6 && w.IntN(10) == 0 {
		m := &model{holder: w.Uint64N(5), sees: map[uint64]*segment{}}
		m.peer = w.l.join(m.holder, 100+len(w.models))
		w.models = append(w.models, m)
		return m
	}
	return there[w.IntN(len(there))]
}

// some is the id of an object that is there, or was, or never was.
func (w *world) some() uint64 {
	ids := slices.Sorted(maps.Keys(w.objects))
	if len(ids) == 0 || w.IntN(50) == 0 {
		return w.Uint64()
	}
	return ids[w.IntN(len(ids))]
}

func (w *world) step() {
	m := w.someone()
	switch w.IntN(13) {
	case 0, 1, 2:
		w.alloc(m)
	case 3, 4:
		w.seal(m)
	case 5:
		w.open(m)
	case 6:
		w.close(m)
	case 7:
		id := w.some()
		w.event("hold %x", id)
		w.l.hold(id)
		if o := w.objects[id]; o != nil {
			o.held, o.released = true, false
		}
	case 8:
		id := w.some()
		w.event("drop %x", id)
		w.l.drop(id)
		if o := w.objects[id]; o != nil {
			o.held, o.released = false, true
		}
	case 9:
		id := w.some()
		w.event("free %x by %d", id, m.holder)
		w.l.free(m.peer, id)
		if o := w.objects[id]; o != nil && o.maker.holder == m.holder && !o.held {
			if !o.sealed && !o.broken {
				delete(w.objects, id)
			}
			o.released, o.written = true, true
		}
	case 10:
		w.endCopy()
	case 11:
		w.end(m)
	case 12:
		short, before := w.Uint64N(4*mib), w.l.pooled
		w.event("ease by %d", short)
		w.l.ease(short)
		if gone := before - w.l.pooled; gone < short && w.l.pooled > 0 {
			w.fail("%d bytes were given back of %d, and %d are kept", gone, short, w.l.pooled)
		}
	}
	w.check()
}

func (w *world) alloc(m *model) {
	size := w.Uint64N(uint64(1) << (8 + w.IntN(15)))
	o := w.l.take(m.peer, size, 0)
	if o == nil {
		free := uint64(never)
		if w.IntN(8) == 0 {
			free = w.Uint64N(8 * mib)
		}
		p := w.l.room(m.peer, size, free, w.IntN(4) > 0, 0)
		w.event("room for %d: %+v", size, p)
		switch {
		case p.spill != nil:
			w.copies = append(w.copies, p.spill)
		case p.fresh && w.IntN(20) == 0:
			w.l.unmade(p.object)
			return
		case p.fresh:
			w.l.made(p.object, 1000)
		}
		if o = p.object; o == nil {
			return
		}
	}
	w.event("alloc %x, %d bytes in segment %d by %d", o.id, size, o.segment.id, m.holder)
	if o.segment.capacity < size || o.segment.file {
		w.fail("%d bytes for %d", o.segment.capacity, size)
	}
	w.content[o.segment] = o.id
	w.objects[o.id] = &twin{maker: m, views: map[*model]int{}}
	m.peer.knows[o.segment.id] = true
}

func (w *world) seal(m *model) {
	id := w.some()
	w.event("seal %x by %d", id, m.holder)
	size := uint64(0)
	if o := w.l.objects[id]; o != nil {
		size = w.Uint64N(o.size + 1)
		if w.IntN(30) == 0 {
			size = o.size + 1
		}
		if t := w.objects[id]; t.maker == m && !t.sealed && !t.broken {
			t.sealed, t.broken = size <= o.size, size > o.size
		}
	}
	w.l.seal(m.peer, id, size, "")
}

func (w *world) open(m *model) {
	ids := []uint64{w.some(), w.some()}
	wait, err := w.l.pending(ids, func(int) string { return "" })
	missing, pending := false, false
	for _, id := range ids {
		o := w.objects[id]
		missing = missing || o == nil || o.broken
		pending = pending || o != nil && !o.sealed && !o.broken
	}
	w.event("open %x by %d: %x, %v", ids, m.holder, wait, err)
	if (err != nil) != missing || err == nil && (wait != 0) != pending {
		w.fail("open waits for %x, error %v", wait, err)
	}
	if err != nil || wait != 0 {
		return
	}
	for _, id := range ids {
		o := w.l.view(m.peer, id, 0)
		m.peer.knows[o.segment.id] = true
		m.sees[id] = o.segment
		w.objects[id].views[m]++
	}
}

func (w *world) close(m *model) {
	for id := range m.sees {
		n := 1 + w.IntN(3) // perhaps more than there are
		w.event("close %x by %d, %d times", id, m.holder, n)
		o := w.objects[id]
		if o.views[m] -= min(n, o.views[m]); o.views[m] == 0 {
			delete(m.sees, id)
		}
		w.l.unview(m.peer, id, n)
		return
	}
}

func (w *world) endCopy() {
	if len(w.copies) == 0 {
		return
	}
	i := w.IntN(len(w.copies))
	o := w.copies[i]
	w.copies = slices.Delete(w.copies, i, i+1)
	if w.IntN(5) == 0 {
		w.event("copy of %x failed", o.id)
		w.l.notCopied(o)
		return
	}
	w.event("copy of %x is done", o.id)
	was := w.content[o.segment]
	if was != o.id {
		w.fail("the copy of %x is of %x", o.id, was)
	}
	w.l.copied(o, 2000)
	if !o.removed && o.state == spilled {
		w.content[o.segment] = o.id
	}
}

// end ends a connection, a process that had one, or a holder.
func (w *world) end(m *model) {
	switch w.IntN(4) {
	case 0:
		w.event("connection of %d ends", m.holder)
		m.left = true
		w.l.leave(m.peer)
		for _, o := range w.objects {
			o.broken = o.broken || o.maker == m && !o.sealed
		}
	case 1:
		holder := w.Uint64N(5)
		w.event("holder %d is gone", holder)
		w.l.gone(holder)
		for _, o := range w.objects {
			if o.maker.holder == holder && !o.held {
				o.broken = o.broken || !o.sealed
				o.released = true
			}
		}
	default:
		i := slices.IndexFunc(w.models, func(m *model) bool { return m.left })
		if i >= 0 {
			w.processEnds(w.models[i])
			w.models = slices.Delete(w.models, i, i+1)
		}
	}
}

func (w *world) processEnds(m *model) {
	w.event("a process of %d ends", m.holder)
	w.l.ended(m.peer)
	for _, o := range w.objects {
		delete(o.views, m)
		o.written = o.written || o.maker == m
		o.released = o.released || o.maker == m && !o.held && w.l.went[m.holder]
	}
	m.sees = nil
}

// check holds the ledger against the twins and against itself.
func (w *world) check() {
	for id, o := range w.objects {
		views := 0
		for _, n := range o.views {
			views += n
		}
		if (o.sealed || o.broken && o.written) && o.released && !o.held && views == 0 {
			delete(w.objects, id)
		}
	}
	if got, want := slices.Sorted(maps.Keys(w.l.objects)), slices.Sorted(maps.Keys(w.objects)); !slices.Equal(got, want) {
		w.fail("there are %x, and should be %x", got, want)
	}
	for _, seg := range w.l.takeTodo().discard {
		delete(w.content, seg)
		if w.l.segments[seg.id] != nil {
			w.fail("segment %d was given up and is kept", seg.id)
		}
	}
	for _, m := range w.models {
		for id, seg := range m.sees {
			if w.content[seg] != id || w.l.objects[id].segment != seg {
				w.fail("a view of %x reads %x", id, w.content[seg])
			}
		}
		for id := range m.peer.knows {
			if w.l.segments[id] == nil {
				w.fail("%d is not told that segment %d is gone", m.holder, id)
			}
		}
		for _, id := range m.peer.stale {
			if w.l.segments[id] != nil {
				w.fail("segment %d is called stale, and is there", id)
			}
		}
	}
	w.checkSums()
}

func (w *world) checkSums() {
	l := w.l
	var used, spare, pooled, spilledBytes, coming uint64
	owners := map[*segment]uint64{}
	own := func(seg *segment, id uint64) {
		if other, taken := owners[seg]; taken {
			w.fail("%x and %x are in one segment", id, other)
		}
		if seg.pooled != nil {
			w.fail("%x is in a segment of the pool", id)
		}
		owners[seg] = id
	}
	for id, o := range l.objects {
		if o.segment == nil {
			continue
		}
		own(o.segment, id)
		if l.segments[o.segment.id] != o.segment {
			w.fail("%x lies in a segment that is not there", id)
		}
		if o.segment.file {
			spilledBytes += o.size
		} else {
			used += o.segment.capacity
			spare += o.segment.spare
		}
		if idle := o.state == sealed && o.views == 0 && !o.copying; idle != (o.lru != nil) {
			w.fail("%x can be spilled: %v, and is listed: %v", id, idle, o.lru != nil)
		}
	}
	for _, o := range w.copies {
		if o.removed {
			own(o.segment, o.id)
			used += o.segment.capacity
			spare += o.segment.spare
		}
		spilledBytes += o.size
		coming += o.segment.capacity
	}
	for e := l.pool.Front(); e != nil; e = e.Next() {
		pooled += e.Value.(*segment).capacity
	}
	listed := 0
	for _, same := range l.sizes {
		listed += len(same)
	}
	if l.used != used || l.pooled != pooled || l.spilled != spilledBytes || l.coming != coming || listed != l.pool.Len() {
		w.fail("the ledger says %d used, %d pooled, %d spilled, %d coming, %d listed; it is %d, %d, %d, %d, %d",
			l.used, l.pooled, l.spilled, l.coming, listed, used, pooled, spilledBytes, coming, l.pool.Len())
	}
	if l.spare != spare {
		w.fail("the ledger says that %d are to spare, and it is %d", l.spare, spare)
	}
	if used+pooled > l.budget || spilledBytes > l.spillLimit || len(l.segments) > l.maxSegments {
		w.fail("%d used and %d pooled of %d; %d spilled of %d; %d segments", used, pooled, l.budget, spilledBytes, l.spillLimit, len(l.segments))
	}
}

// finish has everybody leave, and nothing may be left but the pool.
func (w *world) finish() {
	for len(w.copies) > 0 {
		w.endCopy()
	}
	for _, m := range w.models {
		if !m.left {
			w.l.leave(m.peer)
		}
		w.processEnds(m)
	}
	for holder := range uint64(5) {
		w.l.gone(holder)
	}
	for id := range w.l.objects {
		w.l.drop(id)
	}
	l := w.l
	if len(l.objects) > 0 || l.used != 0 || l.spilled != 0 || l.idle.Len() > 0 || len(l.peers) > 0 || len(l.segments) != l.pool.Len() {
		w.fail("left: %d objects, %d used, %d spilled, %d idle, %d peers, %d segments, %d of them pooled",
			len(l.objects), l.used, l.spilled, l.idle.Len(), len(l.peers), len(l.segments), l.pool.Len())
	}
}

func TestLedgerAgainstAModel(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &world{
			T: t, Rand: r, objects: map[uint64]*twin{}, content: map[*segment]uint64{},
			l: newLedger(3<<48|7<<32, r.Uint64N(12*mib), r.Uint64N(6*mib), 1+r.IntN(20)),
		}
		for range 500 {
			w.step()
		}
		w.finish()
	}
}

// A segment that the asker has mapped is taken before others, the nearest size
// before larger ones, and sizes that differ much share nothing.
func TestPoolChoice(t *testing.T) {
	l := newLedger(0, 1<<30, 0, 100)
	p, q := l.join(1, 1), l.join(2, 2)
	keep := func(size uint64, knower *peer) *segment {
		plan := l.room(p, size, never, false, 0)
		l.made(plan.object, 1)
		seg := plan.object.segment
		l.seal(p, plan.object.id, size, "")
		knower.knows[seg.id] = true
		return seg
	}
	a, b, c := keep(mib, p), keep(mib, q), keep(mib+mib/8, p)
	for id := range l.objects {
		l.free(p, id)
	}
	if o := l.take(q, 4*mib, 0); o != nil {
		t.Errorf("4 MiB were put into %d bytes", o.segment.capacity)
	}
	if o := l.take(p, mib/2, 0); o != nil {
		t.Errorf("512 KiB were put into %d bytes", o.segment.capacity)
	}
	for i, want := range []*segment{b, a, c} {
		if o := l.take(q, mib-5, 0); o == nil || o.segment != want {
			t.Errorf("choice %d: got %+v, want %+v", i, o, want)
		}
	}
	if o := l.take(q, mib-5, 0); o != nil {
		t.Errorf("there should be none left, and it got %+v", o.segment)
	}
}

// Room is made in the order of least harm.
func TestRoom(t *testing.T) {
	l := newLedger(0, 4*mib+slack, 2*mib, 100)
	p := l.join(1, 1)
	alloc := func(size uint64) *object {
		t.Helper()
		o := l.take(p, size, 0)
		if o == nil {
			next := l.room(p, size, never, true, 0)
			if o = next.object; o == nil {
				t.Fatalf("%+v", next)
			}
			if next.fresh {
				l.made(o, 1)
			}
		}
		return o
	}
	first, second := alloc(mib), alloc(mib)
	l.seal(p, first.id, mib, "")
	l.seal(p, second.id, mib, "")
	l.free(p, alloc(2*mib).id) // pooled
	if o := alloc(mib + 600*kib); o.segment.capacity != 2*mib+slack {
		t.Errorf("a larger segment of the pool was at hand, and it got %d", o.segment.capacity)
	} else {
		l.free(p, o.id)
	}
	if o := alloc(300 * kib); o.segment.capacity != 320*kib || len(l.takeTodo().discard) != 1 || l.pooled != 0 {
		t.Errorf("the pool should have been given up, %d are left", l.pooled)
	} else {
		l.free(p, o.id)
	}
	l.view(p, first.id, 0)
	next := l.room(p, 3*mib, never, false, 0)
	if !next.wait {
		t.Errorf("it did not wait before it spilled: %+v", next)
	}
	if next = l.room(p, 3*mib, never, true, 0); next.spill != second {
		t.Fatalf("the one without views should go first: %+v", next)
	}
	if again := l.room(p, 3*mib, never, true, 0); !again.wait {
		t.Errorf("what is being copied will make room: %+v", again)
	}
	l.copied(second, 2)
	if next = l.room(p, 3*mib, never, true, 0); !next.fresh {
		t.Errorf("there is room now: %+v", next)
	}
	l.unmade(next.object)
	if next = l.room(p, 4*mib, never, true, 0); !next.full {
		t.Errorf("what is being read cannot be spilled: %+v", next)
	}
	if next = l.room(p, 5*mib, never, true, 0); !next.full {
		t.Errorf("more than the budget: %+v", next)
	}
	if next = l.room(p, mib, mib/2, true, 0); !next.full {
		t.Errorf("more than the machine has: %+v", next)
	}
}

// What fits into the budget does so also beside an object that was put into
// the memory of a larger one.
func TestTouchedMemoryDoesNotFillTheBudget(t *testing.T) {
	l := newLedger(0, 64*mib, 0, 100)
	p := l.join(1, 1)
	alloc := func(size uint64) *object {
		t.Helper()
		if o := l.take(p, size, 0); o != nil {
			return o
		}
		next := l.room(p, size, never, true, 0)
		if next.object == nil {
			t.Fatalf("no room for %d MiB beside %d MiB: %+v", size/mib, l.used/mib, next)
		}
		if next.fresh {
			l.made(next.object, 1)
		}
		return next.object
	}
	l.free(p, alloc(50*mib).id)
	alloc(30 * mib)
	l.free(p, alloc(25*mib).id)
	l.free(p, alloc(30*mib).id)
	for range 3 {
		alloc(8 * mib)
	}
}

// What is lent is not spilled; a head that tells all loans anew ends the others.
func TestLoansKeepObjectsInMemory(t *testing.T) {
	l := newLedger(0, 4<<20, 64<<20, 100)
	p := l.join(1, 100)
	var ids []uint64
	for range 2 {
		o := l.room(p, 1<<20, never, false, 0).object
		l.made(o, 3)
		l.seal(p, o.id, o.size, "")
		l.hold(o.id)
		l.lend(o.id, 7, 1, 0)
		ids = append(ids, o.id)
	}
	l.lend(ids[0], 8, 1, 0)
	if l.idle.Len() != 0 {
		t.Fatal("what is read where it lies could be spilled")
	}
	l.lend(ids[0], 7, -1, 0)
	if l.idle.Len() != 0 {
		t.Fatal("one of two was given back")
	}
	l.unlendAll()
	l.lend(ids[1], 7, 1, 0)
	if l.idle.Len() != 1 || l.objects[ids[0]].lru == nil {
		t.Fatalf("%d can be spilled", l.idle.Len())
	}
}
