package object_test

import (
	"testing"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/object/objecttest"
	"github.com/muster-rl/muster/wire"
)

// lent is a reference as a leg has it that lends its object.
func lent(id uint64) wire.Buf { return wire.Ref{Object: id, Length: 1000, Segment: 9}.Buf() }

// theirs is an object of another process.
func theirs(r *objecttest.Rig) uint64 {
	r.Helper()
	id, _, err := r.Other().Put("theirs", make([]byte, 1000))
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// settle answers a leg: the answer, then what ends with it, in one piece.
func settle(r *objecttest.Rig, set *object.Set) {
	r.Link.Settle(set, set.Release)
	r.Conn.Flush()
}

// What came with a leg is lent until its call ends, whoever keeps it then.
func TestLoansEndWithTheirCall(t *testing.T) {
	r := objecttest.New(t)
	id := theirs(r)
	set := r.Leg(lent(id), lent(id))
	kept := set.Share()
	settle(r, set)
	r.Hears("lent 1 1")
	kept.Release()
	r.Hears("release 1 1")
	settle(r, r.Leg(lent(id))) // nobody keeps it
	r.Hears("lent 1 1", "release 1 1")
	settle(r, r.Leg(ref(id))) // it is told where it lies by nobody
	r.Hears("release 1 1")
	settle(r, r.Leg()) // nothing comes, nothing is said
	r.Arrive(lent(id)).Release()
	r.Hears("release 1 1") // only legs lend
	r.Empty()
}

// What this process made comes back with a leg: the loan ends, its own right stays.
func TestLoansOfWhatIsMadeHere(t *testing.T) {
	r := objecttest.New(t)
	made := put(r, 'a', 1000)
	own := object.NewSet(made)
	made.Release()
	r.Send(own, ref(made.ID))
	r.Hears("call 1 new true")
	settle(r, r.Leg(lent(made.ID)))
	r.Hears("lent 1 1", "release 1 1")
	own.Release()
	r.Hears("release 1 1")
	r.Empty()
}

// Two calls at once: what one gives back goes with the other's answer, at most.
func TestLoansOfCallsAtOnce(t *testing.T) {
	r := objecttest.New(t)
	id := theirs(r)
	one, two := r.Leg(lent(id)), r.Leg(lent(id))
	r.Link.Settle(one, func() {
		one.Release()
		settle(r, two)
		r.Hears("lent 1 2", "release 1 2")
	})
	r.Conn.Flush()
	r.Hears()
	r.Empty()
}

// A head that is told anew hears that nothing is lent, so nothing is said of it
// later.
func TestLoansEndWithTheirConnection(t *testing.T) {
	r := objecttest.New(t)
	id := theirs(r)
	set, other := r.Leg(lent(id)), r.Leg(lent(id))
	kept := set.Share()
	r.Link.Away()
	settle(r, set) // while there is nobody to tell
	r.Link.Back(r.Conn, r.Told)
	settle(r, other)
	r.Hears("release 1 1")
	settle(r, r.Leg(lent(id)))
	r.Hears("lent 1 1", "release 1 1")
	kept.Release()
	r.Hears("release 1 1")
	r.Empty()
}
