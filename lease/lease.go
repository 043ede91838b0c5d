package lease

import (
	"cmp"
	"slices"
	"time"
)

// Object is the number of an object: its node in the high 16 bits.
type Object uint64

// Node is the node whose store made the object.
func (o Object) Node() int { return int(o >> 48) }

// Holder is a process or a call.
type Holder uint64

// Worker is the holder of a worker's process.
func Worker(number uint32) Holder { return Holder(number) }

// IsWorker says whether a holder is a worker's process: only those are lent objects.
func (h Holder) IsWorker() bool { return h>>32 == 0 }

// Caller is the holder of a controller's process.
func Caller(number uint32) Holder { return 1<<32 | Holder(number) }

// Setup is the holder of what the workers of a cluster are made with.
func Setup(number uint32) Holder { return 1<<33 | Holder(number) }

// Call is the holder of a call in flight.
func Call(id uint64) Holder { return 1<<63 | Holder(id) }

// Comeback stands for who has not told yet what it knows of.
const Comeback Holder = 1 << 62

// Kept is the holder of the arguments of a call that may be made again.
func Kept(id uint64) Holder { return 1<<62 | Holder(id) }

// Table has all counts. The zero Table is empty and ready.
type Table struct {
	// Clock says how late it is when a holder hears of an object; nil: nobody asks.
	Clock func() time.Duration

	objects map[Object]*entry
	on      []int // how many, by node
	holders map[Holder]map[Object]share
	fresh   []Object
	freed   []Object
	lent    []Lent // loans that began and were not told, as far as they have not ended
	ended   []Lent // loans that were told, and ended
	assumed []Lent // loans of which another head may have told, or not
}

// entry is what is known of an object.
type entry struct {
	holders int
	segment uint32 // where it lies; 0: not to be told
}

// share is what a holder has of an object.
type share struct {
	count int
	loans int  // how many of the count came with where it lies, and may be read there
	told  bool // its store knows that there are some
	since time.Duration
}

// Lent is a loan that began, or ended.
type Lent struct {
	Object Object
	Holder Holder
	Ended  bool
}

// Add counts an object for a holder once more.
func (t *Table) Add(h Holder, o Object) {
	if t.objects == nil {
		t.objects, t.holders = map[Object]*entry{}, map[Holder]map[Object]share{}
	}
	held := t.holders[h]
	if held == nil {
		held = map[Object]share{}
		t.holders[h] = held
	}
	s := held[o]
	s.count++
	if s.count == 1 && t.Clock != nil {
		s.since = t.Clock()
	}
	held[o] = s
	if s.count > 1 {
		return
	}
	e := t.objects[o]
	if e == nil {
		e = &entry{}
		t.objects[o] = e
		t.on = append(t.on, make([]int, max(0, o.Node()+1-len(t.on)))...)
		t.on[o.Node()]++
		t.fresh = append(t.fresh, o)
	}
	e.holders++
}

// Place says where an object lies, as its maker knows.
func (t *Table) Place(o Object, segment uint32) {
	if e := t.objects[o]; e != nil {
		e.segment = segment
	}
}

// Where says where an object lies; 0: nobody is to be told.
func (t *Table) Where(o Object) uint32 {
	if e := t.objects[o]; e != nil {
		return e.segment
	}
	return 0
}

// Move has nobody told any more where an object lies.
func (t *Table) Move(o Object) { t.Place(o, 0) }

// Lend says where an object lies, for a holder that has it and may then read it
// there until it gives that back, or has it no more; 0: it has to ask the store.
func (t *Table) Lend(h Holder, o Object) uint32 {
	e, s := t.objects[o], t.holders[h][o]
	if e == nil || e.segment == 0 || s.count == 0 {
		return 0
	}
	if s.loans == 0 {
		t.lent = append(t.lent, Lent{Object: o, Holder: h})
	}
	if s.loans < s.count {
		s.loans++
		t.holders[h][o] = s
	}
	return e.segment
}

// Unlend says that a holder has given n loans of an object back, and still knows
// of it.
func (t *Table) Unlend(h Holder, o Object, n int) {
	s := t.holders[h][o]
	if s.loans == 0 || n <= 0 {
		return
	}
	s.loans = max(0, s.loans-n)
	t.holders[h][o] = t.unlent(h, o, s)
}

// unlent is what is left of a share that may have lost its last loan.
func (t *Table) unlent(h Holder, o Object, s share) share {
	if s.loans == 0 && s.told { // else its store never hears of it
		s.told = false
		t.ended = append(t.ended, Lent{Object: o, Holder: h, Ended: true})
	}
	return s
}

// Once counts an object for a holder unless it has it already.
func (t *Table) Once(h Holder, o Object) {
	if t.holders[h][o].count == 0 {
		t.Add(h, o)
	}
}

// Release takes n off a holder's count of an object. It says whether the count
// was that high.
func (t *Table) Release(h Holder, o Object, n int) bool {
	held := t.holders[h]
	s := held[o]
	had := s.count
	switch {
	case had == 0 || n <= 0:
		return false
	case had > n: // of which the holder says if it was lent
		s.count -= n
		s.loans = min(s.loans, s.count)
		held[o] = s
		return true
	}
	delete(held, o)
	if len(held) == 0 {
		delete(t.holders, h)
	}
	t.let(h, o, s)
	return had == n
}

// End drops all that a holder has.
func (t *Table) End(h Holder) {
	held, ok := t.holders[h]
	if !ok {
		return
	}
	delete(t.holders, h)
	objects := make([]Object, 0, len(held))
	for o := range held {
		objects = append(objects, o)
	}
	slices.Sort(objects) // the same events give the same orders
	for _, o := range objects {
		t.let(h, o, held[o])
	}
}

func (t *Table) let(h Holder, o Object, s share) {
	s.loans = 0
	t.unlent(h, o, s)
	e := t.objects[o]
	e.holders--
	if e.holders == 0 {
		delete(t.objects, o)
		t.on[o.Node()]--
		t.freed = append(t.freed, o)
	}
}

// Changed says that Changes would tell of something.
func (t *Table) Changed() bool { return len(t.fresh)+len(t.freed)+len(t.ended) > 0 }

// Changes returns what was seen for the first time, which loans have ended, and
// what nobody knows of any more, since it was last asked; an object may be in all,
// and is then gone. The slices are valid until the table changes.
func (t *Table) Changes() (fresh []Object, ended []Lent, freed []Object) {
	fresh, ended, freed = t.fresh, t.ended, t.freed
	t.fresh, t.ended, t.freed = t.fresh[:0], t.ended[:0], t.freed[:0]
	return fresh, ended, freed
}

// Lending says that Loans may tell of something.
func (t *Table) Lending() bool { return len(t.lent)+len(t.assumed) > 0 }

// Loans returns the loans that began since it was last asked and have not ended.
// Most end soon, so it pays to ask late; what ended before that is told by nobody.
func (t *Table) Loans() []Lent {
	loans := t.lent[:0]
	for _, l := range t.lent {
		s := t.holders[l.Holder][l.Object]
		if s.loans > 0 && !s.told {
			s.told = true
			t.holders[l.Holder][l.Object] = s
			loans = append(loans, l)
		}
	}
	t.lent = t.lent[:0]
	for _, l := range t.assumed {
		if t.holders[l.Holder][l.Object].loans > 0 {
			loans = append(loans, l)
		}
	}
	t.assumed = nil
	return loans
}

// Len is how many objects somebody knows of.
func (t *Table) Len() int { return len(t.objects) }

// Share is one holder's count of an object.
type Share struct {
	Holder Holder
	Count  int
	Since  time.Duration // as Clock had it
}

// Holders lists who knows of the objects for which want is true, the first of
// each object first.
func (t *Table) Holders(want func(Object) bool) map[Object][]Share {
	all := map[Object][]Share{}
	for h, held := range t.holders {
		for o, s := range held {
			if want(o) {
				all[o] = append(all[o], Share{h, s.count, s.since})
			}
		}
	}
	for _, shares := range all {
		slices.SortFunc(shares, func(a, b Share) int {
			return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Holder, b.Holder))
		})
	}
	return all
}

// Replace sets the counts of a holder to what it says that it has.
func (t *Table) Replace(h Holder, counts map[Object]int) {
	t.Raise(h, counts)
	var rest []Object
	for o, s := range t.holders[h] {
		switch n := counts[o]; {
		case n <= 0:
			rest = append(rest, o)
		case n < s.count:
			s.count = n
			s.loans = min(s.loans, n)
			t.holders[h][o] = s
		}
	}
	slices.Sort(rest)
	for _, o := range rest {
		t.Release(h, o, t.holders[h][o].count)
	}
}

// Raise sets the counts of a holder to at least these.
func (t *Table) Raise(h Holder, counts map[Object]int) {
	objects := make([]Object, 0, len(counts))
	for o := range counts {
		objects = append(objects, o)
	}
	slices.Sort(objects) // the same events give the same orders
	for _, o := range objects {
		n := counts[o]
		if n <= t.holders[h][o].count {
			continue
		}
		t.Once(h, o)
		s := t.holders[h][o]
		s.count = n
		t.holders[h][o] = s
	}
}

// Assume takes it that a holder was lent all that it has: another head has done
// so, or not, and may have told its store.
func (t *Table) Assume(h Holder) {
	loans := map[Object]int{}
	for o, s := range t.holders[h] {
		loans[o] = s.count
	}
	t.Borrows(h, loans)
}

// Borrows sets the loans of a holder to what it says that it has. What its store
// heard of them is not known: it is told of each, and of the end of all others.
func (t *Table) Borrows(h Holder, loans map[Object]int) {
	objects := make([]Object, 0, len(t.holders[h]))
	for o := range t.holders[h] {
		objects = append(objects, o)
	}
	slices.Sort(objects) // the same events give the same orders
	for _, o := range objects {
		s := t.holders[h][o]
		s.loans, s.told = min(max(0, loans[o]), s.count), true
		if s.loans > 0 {
			t.assumed = append(t.assumed, Lent{Object: o, Holder: h})
		}
		t.holders[h][o] = t.unlent(h, o, s)
	}
}

// Any says that somebody knows of an object that the store of a node made.
func (t *Table) Any(node int) bool { return node < len(t.on) && t.on[node] > 0 }

// Has says that somebody knows of an object.
func (t *Table) Has(o Object) bool { return t.objects[o] != nil }

// On lists what somebody knows of on one node, and who was lent it: all that its
// store has to know, and counts as told from now on.
func (t *Table) On(node int) (objects []Object, lent []Lent) {
	for o := range t.objects {
		if o.Node() == node {
			objects = append(objects, o)
		}
	}
	for h, held := range t.holders {
		for o, s := range held {
			if s.loans > 0 && o.Node() == node {
				s.told = true
				held[o] = s
				lent = append(lent, Lent{Object: o, Holder: h})
			}
		}
	}
	slices.Sort(objects)
	slices.SortFunc(lent, func(a, b Lent) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Holder, b.Holder))
	})
	return objects, lent
}
