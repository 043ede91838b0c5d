package object

import (
	"runtime"
	"sync"
)

// Object is this process's right to an object of a store. It is counted: what
// needs it has a use of it, and the last to go gives it back.
type Object struct {
	ID     uint64
	stores *Stores
	size   uint64 // as far as it counts for the collector
	made   bool   // by this process

	mu      sync.Mutex
	uses    int
	credits []credit
	via     *Link // over which they are given back; nil: each over its own
}

// credit is how often the head counts this process for the object, by link.
type credit struct {
	link  *Link
	count int
}

// Node is the node whose store has the object.
func (o *Object) Node() int { return int(o.ID >> 48) }

// Stores are those of the head that knows the object.
func (o *Object) Stores() *Stores { return o.stores }

// Retain adds a use.
func (o *Object) Retain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uses++
}

// Release ends a use.
func (o *Object) Release() {
	o.mu.Lock()
	o.uses--
	last, credits, via := o.uses == 0, o.credits, o.via
	o.mu.Unlock()
	if !last {
		return
	}
	o.stores.held.remove(o.size)
	for _, c := range credits {
		if via != nil {
			c.link = via
		}
		c.link.give(o.ID, c.count)
	}
	if o.made && len(credits) == 0 {
		o.stores.free(o)
	}
}

// free gives up what nobody was told of.
func (s *Stores) free(o *Object) {
	s.mu.Lock()
	c := s.clients[o.Node()]
	s.mu.Unlock()
	if c == nil {
		return // with its connection the object is gone too
	}
	if <-c.ready; c.err == nil {
		_ = c.Free(o.ID)
	}
}

// firstBy says that a frame over the link is the first to name what this process
// made, and counts it as that.
func (o *Object) firstBy(l *Link) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.oneWay {
		o.via = l
	}
	if !o.made {
		return false
	}
	for _, c := range o.credits {
		if c.link == l {
			return false
		}
	}
	o.credits = append(o.credits, credit{l, 1})
	o.stores.know(o.ID, 1)
	return true
}

// Set is objects that something needs, until Release, or until nothing can reach
// the set any more. A nil Set is empty. Its methods may be called concurrently.
type Set struct{ in *members }

// members are apart from the set, so that they can outlive it.
type members struct {
	mu       sync.Mutex
	objects  []*Object
	released bool

	lent  []uint64 // which of them were, with the leg that they came with
	times uint32   // how often its link was cut before
}

// NewSet makes a set that has a use of each object.
func NewSet(objects ...*Object) *Set {
	s := &Set{&members{}}
	runtime.AddCleanup(s, (*members).collect, s.in)
	for _, o := range objects {
		s.Add(o)
	}
	return s
}

// Add has the set use an object, once.
func (s *Set) Add(o *Object) {
	defer runtime.KeepAlive(s)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	if s.in.released || s.in.find(o.ID) == o {
		return
	}
	o.Retain()
	s.in.objects = append(s.in.objects, o)
}

// Share is another set of the same objects.
func (s *Set) Share() *Set {
	if s == nil {
		return nil
	}
	defer runtime.KeepAlive(s)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return NewSet(s.in.objects...)
}

// Find is the object of that number, with a use of its own for the caller; nil
// where the set has none.
func (s *Set) Find(id uint64) *Object {
	if s == nil {
		return nil
	}
	defer runtime.KeepAlive(s)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	o := s.in.find(id)
	if o != nil {
		o.Retain()
	}
	return o
}

func (m *members) find(id uint64) *Object {
	for _, o := range m.objects {
		if o.ID == id {
			return o
		}
	}
	return nil
}

// Release gives all of them back; the set is empty then, and stays so.
func (s *Set) Release() {
	if s != nil {
		s.in.release()
	}
}

func (m *members) release() {
	m.mu.Lock()
	objects := m.objects
	m.objects, m.released = nil, true
	m.mu.Unlock()
	for _, o := range objects {
		o.Release()
	}
}

// collect is release by the collector.
func (m *members) collect() {
	m.mu.Lock()
	for _, o := range m.objects {
		o.stores.held.garbage()
	}
	m.mu.Unlock()
	m.release()
}
