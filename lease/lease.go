package lease

import (
	"cmp"
	"slices"
)

// Object is the number of an object: its node in the high 16 bits.
type Object uint64

// Node is the node whose store made the object.
func (o Object) Node() int { return int(o >> 48) }

// Holder is a process or a call.
type Holder uint64

// Worker is the holder of a worker's process.
func Worker(number uint32) Holder { return Holder(number) }

// Caller is the holder of a controller's process.
func Caller(number uint32) Holder { return 1<<32 | Holder(number) }

// Call is the holder of a call in flight.
func Call(id uint64) Holder { return 1<<63 | Holder(id) }

// Table has all counts. The zero Table is empty and ready.
type Table struct {
	objects map[Object]int // how many holders it has
	holders map[Holder]map[Object]int
	fresh   []Object
	freed   []Object
}

// Add counts an object for a holder once more.
func (t *Table) Add(h Holder, o Object) {
	if t.objects == nil {
		t.objects, t.holders = map[Object]int{}, map[Holder]map[Object]int{}
	}
	held := t.holders[h]
	if held == nil {
		held = map[Object]int{}
		t.holders[h] = held
	}
	held[o]++
	if held[o] > 1 {
		return
	}
	t.objects[o]++
	if t.objects[o] == 1 {
		t.fresh = append(t.fresh, o)
	}
}

// Once counts an object for a holder unless it has it already.
func (t *Table) Once(h Holder, o Object) {
	if t.holders[h][o] == 0 {
		t.Add(h, o)
	}
}

// Release takes n off a holder's count of an object. It says whether the count
// was that high.
func (t *Table) Release(h Holder, o Object, n int) bool {
	held := t.holders[h]
	had := held[o]
	switch {
	case had == 0 || n <= 0:
		return false
	case had > n:
		held[o] = had - n
		return true
	}
	delete(held, o)
	if len(held) == 0 {
		delete(t.holders, h)
	}
	t.let(o)
	return had == n
}

// End drops all that a holder has.
func (t *Table) End(h Holder) {
	held, ok := t.holders[h]
	if !ok {
		return
	}
	delete(t.holders, h)
	first := len(t.freed)
	for o := range held {
		t.let(o)
	}
	slices.Sort(t.freed[first:]) // the same events give the same orders
}

func (t *Table) let(o Object) {
	t.objects[o]--
	if t.objects[o] == 0 {
		delete(t.objects, o)
		t.freed = append(t.freed, o)
	}
}

// Changed says that Changes would tell of something.
func (t *Table) Changed() bool { return len(t.fresh)+len(t.freed) > 0 }

// Changes returns what was seen for the first time and what nobody knows of any
// more, since it was last asked; an object may be in both, and is then gone. The
// slices are valid until the table changes.
func (t *Table) Changes() (fresh, freed []Object) {
	fresh, freed = t.fresh, t.freed
	t.fresh, t.freed = t.fresh[:0], t.freed[:0]
	return fresh, freed
}

// Len is how many objects somebody knows of.
func (t *Table) Len() int { return len(t.objects) }

// Share is one holder's count of an object.
type Share struct {
	Holder Holder
	Count  int
}

// Holders lists who knows of an object.
func (t *Table) Holders(o Object) []Share {
	var shares []Share
	for h, held := range t.holders {
		if n := held[o]; n > 0 {
			shares = append(shares, Share{h, n})
		}
	}
	slices.SortFunc(shares, func(a, b Share) int { return cmp.Compare(a.Holder, b.Holder) })
	return shares
}
