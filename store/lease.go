package store

import (
	"fmt"

	"github.com/muster-rl/muster/spec"
)

// join is a new connection.
func (l *ledger) join(holder uint64, pid int) *peer {
	p := &peer{holder: holder, pid: pid, knows: map[uint64]bool{}, views: map[uint64]*view{}, makes: map[*object]bool{}}
	l.peers[p] = true
	return p
}

// leave is the end of a connection. What it was writing is broken; its leases
// stay until ended, which says that its process is gone too.
func (l *ledger) leave(p *peer) {
	p.left, p.knows, p.stale = true, nil, nil
	for o := range p.makes {
		if o.state == writing {
			l.breakUp(o, "its connection ended before the object was sealed")
		}
	}
}

// idleLeft says that a connection that ended leaves nothing behind that its
// process could still use.
func (p *peer) idleLeft() bool { return len(p.views) == 0 && len(p.makes) == 0 }

// ended is the end of its process. The head's word that it is gone may have come
// before: then also before an object was begun that it had asked for.
func (l *ledger) ended(p *peer) {
	delete(l.peers, p)
	for o := range p.makes {
		o.released = o.released || !o.held && l.went[p.holder]
		l.giveBack(o)
	}
	for id, v := range p.views {
		l.unview(p, id, v.count)
	}
	if l.went[p.holder] { // what it has sealed since, and the head has not heard of
		for _, o := range l.objects {
			if o.maker == p && !o.held {
				o.released = true
				l.rest(o)
			}
		}
	}
}

// breakUp is the end of an object that will not be sealed. Its segment stays
// out of use for as long as its maker could write into it.
func (l *ledger) breakUp(o *object, why string) {
	o.state, o.why = broken, why
	l.todo.wake = append(l.todo.wake, o.id)
}

// giveBack frees the memory of a broken object.
func (l *ledger) giveBack(o *object) {
	delete(o.maker.makes, o)
	if o.segment == nil {
		return
	}
	seg := o.segment
	o.segment = nil
	l.toPool(seg)
	l.rest(o)
}

// seal ends an object's writing.
func (l *ledger) seal(p *peer, id, size uint64, what string) {
	o := l.objects[id]
	if o == nil || o.maker != p || o.state != writing || o.segment.making {
		return
	}
	o.what = what
	if size > o.size {
		l.breakUp(o, fmt.Sprintf("it was sealed with %d bytes, and %d were asked for", size, o.size))
		return
	}
	o.size, o.state = size, sealed
	delete(p.makes, o)
	l.todo.wake = append(l.todo.wake, id)
	l.rest(o)
}

// pending says which of some objects is still being written, 0 for none; and
// whether one is not to be had at all.
func (l *ledger) pending(ids []uint64, name func(pid int) string) (uint64, error) {
	wait := uint64(0)
	for _, id := range ids {
		switch o := l.objects[id]; {
		case o == nil:
			return 0, l.unknown(id)
		case o.state == broken:
			what := o.what
			if what == "" {
				what = fmt.Sprintf("object %x", o.id)
			}
			return 0, spec.Errorf(spec.CodeWorkerDied, "%s cannot be read: %s was to write it, and %s", what, name(o.maker.pid), o.why)
		case o.state == writing:
			wait = id
		}
	}
	return wait, nil
}

func (l *ledger) unknown(id uint64) error {
	if id>>32 != l.ids>>32 {
		return spec.Errorf(spec.CodeNotFound, "object %x is not of this store: it is of node %d, or of a store that is no more", id, id>>48)
	}
	return spec.Errorf(spec.CodeNotFound, "object %x is not in the store of node %d any more: everything that named it was released", id, l.ids>>48)
}

// view leases an object that is not pending.
func (l *ledger) view(p *peer, id uint64, now float64) *object {
	o := l.objects[id]
	v := p.views[id]
	if v == nil {
		v = &view{since: now}
		p.views[id] = v
	}
	v.count++
	o.views++
	l.rest(o)
	return o
}

// unview gives leases back, at most those that there are.
func (l *ledger) unview(p *peer, id uint64, count int) {
	v := p.views[id]
	if v == nil || count <= 0 {
		return
	}
	count = min(count, v.count)
	if v.count -= count; v.count == 0 {
		delete(p.views, id)
	}
	o := l.objects[id]
	if o.views -= count; o.views > 0 {
		return
	}
	if o.segment.file {
		// A file is mapped for as long as it is read, and no longer: with a new
		// number it can be sent again.
		delete(l.segments, o.segment.id)
		l.outdate(o.segment.id)
		o.segment.id = l.newSegment()
		l.segments[o.segment.id] = o.segment
	}
	l.rest(o)
}

// free is the maker's word that it never told anybody of an object.
func (l *ledger) free(p *peer, id uint64) {
	o := l.objects[id]
	if o == nil || o.maker.holder != p.holder || o.held || o.segment != nil && o.segment.making {
		return
	}
	o.released = true
	switch o.state {
	case writing: // and it writes no more
		delete(o.maker.makes, o)
		l.remove(o)
		l.todo.wake = append(l.todo.wake, id)
	case broken:
		l.giveBack(o)
		l.rest(o)
	default:
		l.rest(o)
	}
}

// inUse says that somebody reads the object.
func (o *object) inUse() bool { return o.views > 0 || len(o.lent) > 0 }

// lend is the head's word that a holder may read an object where it lies, or
// not any more.
func (l *ledger) lend(id, holder uint64, count int, now float64) {
	o := l.objects[id]
	switch {
	case o == nil:
		return
	case count < 0:
		delete(o.lent, holder)
	default:
		if o.lent == nil {
			o.lent = map[uint64]float64{}
		}
		o.lent[holder] = now
	}
	l.rest(o)
}

// unlendAll is the head's word that it tells all loans anew.
func (l *ledger) unlendAll() {
	for _, o := range l.objects {
		if len(o.lent) > 0 {
			clear(o.lent)
			l.rest(o)
		}
	}
}

// hold, drop and gone are the head's words.
func (l *ledger) hold(id uint64) {
	if o := l.objects[id]; o != nil {
		o.held, o.released = true, false
	}
}

func (l *ledger) drop(id uint64) {
	if o := l.objects[id]; o != nil {
		o.held, o.released = false, true
		clear(o.lent) // nobody knows of it; a head that was killed may not have told the end of each
		l.rest(o)
	}
}

func (l *ledger) gone(holder uint64) {
	l.went[holder] = true
	for _, o := range l.objects {
		if o.maker.holder != holder || o.held {
			continue
		}
		if o.state == writing {
			l.breakUp(o, "it ended before the object was sealed")
		}
		o.released = true
		l.rest(o)
	}
}

// rest puts an object where it belongs after something about it changed: freed
// when nobody needs it, among those to spill when nobody reads it.
func (l *ledger) rest(o *object) {
	if o.removed {
		return
	}
	unneeded := o.released && !o.inUse()
	switch {
	case unneeded && (o.state == sealed || o.state == spilled || o.state == broken && o.segment == nil):
		l.remove(o)
	case o.state == sealed && !o.inUse() && !o.copying:
		if o.lru == nil {
			o.lru = l.idle.PushBack(o)
			l.todo.room = true // whoever waits may spill it
		}
	case o.lru != nil:
		l.idle.Remove(o.lru)
		o.lru = nil
	}
}

// remove forgets an object and keeps its segment for the next.
func (l *ledger) remove(o *object) {
	o.removed = true
	delete(l.objects, o.id)
	if o.copy != nil {
		l.todo.gone = append(l.todo.gone, o.id)
	}
	if o.lru != nil {
		l.idle.Remove(o.lru)
		o.lru = nil
	}
	switch {
	case o.copying || o.segment == nil:
	case o.segment.file:
		l.spilled -= o.size
		l.giveUp(o.segment)
		l.todo.room = true
	default:
		l.toPool(o.segment)
	}
}
