package worker

import (
	"slices"

	"github.com/muster-rl/muster/wire"
)

// kept is which legs a worker has got and was not released of, and the results
// of those that are done: what a head that comes back has to know. It is used
// under the host's lock.
type kept struct {
	received uint32     // legs, ever
	mark     uint32     // results of legs up to it are not needed any more
	legs     []*keptLeg // in the order of coming
}

// keptLeg is one of them.
type keptLeg struct {
	wire.LegBack
	flags    wire.Flags
	result   wire.Value // once it is done
	released bool       // nobody needs its result, when it comes
}

// take counts a leg; nil for one that is here already.
func (k *kept) take(call, origin uint64) *keptLeg {
	if k.find(call) >= 0 {
		return nil
	}
	k.received++
	l := &keptLeg{LegBack: wire.LegBack{Seq: k.received, Call: call, Origin: origin}}
	k.legs = append(k.legs, l)
	return l
}

func (k *kept) find(call uint64) int {
	for i := len(k.legs) - 1; i >= 0; i-- { // what is looked for came lately
		if k.legs[i].Call == call {
			return i
		}
	}
	return -1
}

// done keeps the result of a leg, where that is needed: a copy, as methods may go
// on using what they returned. The objects that it names need not be kept: stores
// do that until a head has asked everybody.
func (k *kept) done(l *keptLeg, flags wire.Flags, result wire.Value) {
	if l.released {
		k.legs = slices.DeleteFunc(k.legs, func(other *keptLeg) bool { return other == l })
		return
	}
	l.Done, l.flags, l.result = 1, flags, wire.Value{Raw: result.Raw, Bufs: slices.Clone(result.Bufs)}
	for i := range l.result.Bufs {
		b := &l.result.Bufs[i]
		b.Data = slices.Clone(b.Data)
	}
}

// through releases legs up to a number, which may come late, or be 0.
func (k *kept) through(seq uint32) {
	if int32(seq-k.mark) <= 0 { //nolint:gosec // sequence arithmetic
		return
	}
	k.mark = seq
	k.release(func(l *keptLeg) bool { return int32(seq-l.Seq) >= 0 }) //nolint:gosec // sequence arithmetic
}

// calls releases the legs of calls.
func (k *kept) calls(calls []uint64) {
	k.release(func(l *keptLeg) bool { return slices.Contains(calls, l.Call) })
}

func (k *kept) release(which func(*keptLeg) bool) {
	k.legs = slices.DeleteFunc(k.legs, func(l *keptLeg) bool {
		if !which(l) {
			return false
		}
		if l.Done == 0 {
			l.released = true // it still runs, and the head is to know that
			return false
		}
		return true
	})
}

// back is what a head is told when the worker comes back.
func (k *kept) back() []wire.LegBack {
	legs := make([]wire.LegBack, len(k.legs))
	for i, l := range k.legs {
		legs[i] = l.LegBack
	}
	return legs
}
