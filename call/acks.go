package call

// acks says which results a worker may drop: those of calls whose callers have
// read the answers. Legs to a worker are counted, and results are mostly
// acknowledged in the order of their legs, so one number tells nearly all.
type acks struct {
	sent  uint32   // legs, ever
	mark  uint32   // the results of legs up to here are acknowledged
	told  uint32   // and the worker was told so up to here
	due   bool     // it is to be told by itself
	early []uint64 // bits, by leg, of those after mark that are acknowledged too; a ring
	ahead int      // how many those are
	named []ID     // the calls of those that it was not told of
}

// tellEvery is how many results a worker keeps in vain before it is told by
// itself; else it is told with its next leg.
const tellEvery = 64

// ack takes note of one leg and says whether the worker is to be told.
func (a *acks) ack(seq uint32, id ID) bool {
	if int32(seq-a.mark) <= 0 || int32(seq-a.sent) > 0 { //nolint:gosec // sequence arithmetic
		return false // of a process that was here before
	}
	if seq == a.mark+1 {
		a.mark++
		for a.ahead > 0 && a.take(a.mark+1) {
			a.mark++
		}
	} else if a.set(seq) {
		a.named = append(a.named, id)
	}
	if a.due || (a.mark-a.told < tellEvery && len(a.named) < tellEvery) {
		return false
	}
	a.due = true
	return true
}

// set notes a leg that is not the next and says whether that is new.
func (a *acks) set(seq uint32) bool {
	if need := int(a.sent-a.mark)/64 + 2; need > len(a.early) {
		size := max(4, len(a.early))
		for size < need {
			size *= 2
		}
		grown := make([]uint64, size)
		for s := a.mark + 1; a.ahead > 0 && s != a.sent+1; s++ {
			if w, bit := a.bit(s); *w&bit != 0 {
				grown[s/64%uint32(size)] |= bit //nolint:gosec // at most 2^26
			}
		}
		a.early = grown
	}
	w, bit := a.bit(seq)
	if *w&bit != 0 {
		return false
	}
	*w |= bit
	a.ahead++
	return true
}

// take says whether a leg was noted, and forgets it.
func (a *acks) take(seq uint32) bool {
	w, bit := a.bit(seq)
	if *w&bit == 0 {
		return false
	}
	*w &^= bit
	a.ahead--
	return true
}

func (a *acks) bit(seq uint32) (word *uint64, bit uint64) {
	return &a.early[seq/64%uint32(len(a.early))], 1 << (seq % 64) //nolint:gosec // at most 2^26
}

// has says that a leg is acknowledged.
func (a *acks) has(seq uint32) bool {
	if int32(seq-a.mark) <= 0 { //nolint:gosec // sequence arithmetic
		return true
	}
	if a.ahead == 0 || int32(seq-a.sent) > 0 { //nolint:gosec // as above
		return false
	}
	w, bit := a.bit(seq)
	return *w&bit != 0
}

// returned sets the counts to what a worker says it has got: how many legs, and
// which of those it was not released of, in order.
func (a *acks) returned(received uint32, kept []uint32) {
	*a = acks{sent: received, mark: received, told: received}
	if len(kept) == 0 {
		return
	}
	a.mark = kept[0] - 1
	a.told = a.mark
	for s := kept[0]; s != received+1; s++ {
		if len(kept) > 0 && kept[0] == s {
			kept = kept[1:]
		} else {
			a.set(s)
		}
	}
}

// Sent says that the head has queued a leg.
func (c *Call) Sent(leg int) {
	l := &c.Legs[leg]
	a := &l.Worker.acks
	a.sent++
	l.Out, l.seq = true, a.sent
}

// Mark is for a frame to w: it may drop the results of legs up to there.
func (w *Worker) Mark() uint32 {
	w.acks.told = w.acks.mark
	return w.acks.mark
}

// TakeAcks is what to tell w by itself: results up to a leg, and those of calls.
func (w *Worker) TakeAcks() (through uint32, calls []ID) {
	a := &w.acks
	through, calls = a.mark, a.named
	a.told, a.named, a.due = a.mark, nil, false
	return through, calls
}

// Acked says that c's caller has read the answer: nothing need be kept for it.
func (t *Table) Acked(c *Call) []Op {
	t.ops = t.ops[:0]
	t.ackLegs(c)
	c.Keep = false
	t.forget(c)
	return t.ops
}

// ackLegs lets the workers of c drop their results, now or when they are there.
func (t *Table) ackLegs(c *Call) {
	c.acked = true
	for i := range c.Legs {
		if l := &c.Legs[i]; l.Done && l.Out {
			t.ackLeg(c, i)
		}
	}
}

func (t *Table) ackLeg(c *Call, leg int) {
	if l := &c.Legs[leg]; l.Worker.acks.ack(l.seq, c.ID) && l.Worker.Dead == nil {
		t.op(Release, c, leg, nil)
	}
}

// Remind has w told once more of a result that it may drop: it keeps it still.
func (w *Worker) Remind(seq uint32, id ID) {
	if a := &w.acks; int32(seq-a.mark) > 0 && a.has(seq) { //nolint:gosec // sequence arithmetic
		a.named = append(a.named, id)
	}
}
