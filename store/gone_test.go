package store

import "testing"

// A process that the head has given up, and that lives on for a while, makes an object
// and ends: nobody is left who would ever say that it can go.
func TestWhatIsMadeAfterTheHeadsWordIsNotKept(t *testing.T) {
	l := newLedger(1<<32, 1<<30, 0, 100)
	p := l.join(7, 100)
	l.gone(7) // the head: its rank is to be replaced
	o := l.room(p, 1000, never, false, 0).object
	l.made(o, -1)
	l.seal(p, o.id, 1000, "a result")
	l.leave(p)
	l.ended(p) // now it is really gone
	if len(l.objects) != 0 {
		t.Errorf("%d objects are kept: held %v, released %v", len(l.objects), o.held, o.released)
	}
}
