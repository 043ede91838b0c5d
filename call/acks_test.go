package call

import (
	"slices"
	"testing"
)

// A worker that comes back with results that were acknowledged out of order is told
// once more that they can go, and of those alone.
func TestRemind(t *testing.T) {
	w := Worker{acks: acks{sent: 5}}
	for _, seq := range []uint32{1, 3, 5} {
		w.acks.ack(seq, ID(10*seq))
	}
	w.TakeAcks() // which was lost on the way
	for seq := uint32(2); seq <= 5; seq++ {
		w.Remind(seq, ID(10*seq))
	}
	through, calls := w.TakeAcks()
	if through != 1 || !slices.Equal(calls, []ID{30, 50}) {
		t.Errorf("told up to %d, and %v", through, calls)
	}
}

// Numbers between two known ones keep their order, and are nobody else's.
func TestBetween(t *testing.T) {
	taken := map[ID]bool{}
	for id := ID(100); id < 110; id++ {
		taken[id] = id%2 == 0
	}
	run := []*Call{{}, {}, {}, {}, {}, {}, {}}
	left := between(100, 110, run, taken)
	used, last := map[ID]bool{}, ID(100)
	for _, c := range run[:len(run)-len(left)] {
		if c.ID <= last || c.ID >= 110 || c.ID%2 == 0 || used[c.ID] {
			t.Errorf("number %d after %d", c.ID, last)
		}
		used[c.ID], last = true, c.ID
	}
	if len(used) == 0 || len(left) == 0 || len(used)+len(left) != len(run) {
		t.Errorf("%d have numbers and %d do not", len(used), len(left))
	}
}

// A call that is put before a known one comes after all that its workers have ever
// got, also what they were released of and do not tell any more.
func TestPutBetweenComesAfterWhatWasReleased(t *testing.T) {
	cl := &Cluster{Number: 1, Name: "a"}
	for rank := range 2 {
		cl.Workers = append(cl.Workers, &Worker{Number: uint32(rank + 1), Rank: rank, Cluster: cl})
	}
	request := func(id uint64, rank int) Request {
		return Request{Caller: 1, CallerID: id, Cluster: cl, Ranks: []int{rank}}
	}
	released, known := ID(1)<<epochShift+5*idStep, ID(1)<<epochShift+6*idStep
	table := NewTable(2)
	back := table.Comeback()
	later := request(7, 0)
	back.Received(cl.Workers[0], 1)
	back.Got(cl.Workers[0], 1, known, later.Origin())
	back.Received(cl.Workers[1], 5)
	lost := back.Call(request(6, 1))
	back.Call(later)
	back.Prepare(func(uint32) bool { return true }, func(*Call) {})
	if lost.ID <= released || lost.ID >= known {
		t.Errorf("number %x, expected one between %x and %x", lost.ID, released, known)
	}
}

// What is acknowledged of legs that were never sent, by a process that was here
// before say, means nothing: it must not release what comes later under its number.
func TestAcksOfWhatWasNotSent(t *testing.T) {
	a := acks{sent: 3}
	for _, seq := range []uint32{4, 9, 200} {
		if a.ack(seq, ID(seq)) || a.has(seq) || a.mark != 0 || len(a.named) != 0 {
			t.Errorf("leg %d was taken: %+v", seq, a)
		}
	}
	for seq := uint32(1); seq <= 3; seq++ {
		a.ack(seq, ID(seq))
	}
	a.sent = 9
	if a.mark != 3 || a.has(4) || a.has(9) {
		t.Errorf("acknowledged up to %d: %+v", a.mark, a)
	}
	a.ack(2, 2) // once more
	if a.mark != 3 || a.ahead != 0 {
		t.Errorf("acknowledged up to %d after a repeat: %+v", a.mark, a)
	}
}
