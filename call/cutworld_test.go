package call

import "slices"

// What the head, the workers and the callers of a cutWorld must never see: each part
// looks for itself.

func (w *cutWorld) send(c *Call, i int) {
	if !w.bytes[c] {
		w.fatalf("a leg of call %d without its arguments", c.CallerID)
	}
	if w.settling {
		w.fatalf("a leg of call %d goes out before all is known", c.CallerID)
	}
	if origin, used := w.numbers[c.ID]; used && origin != c.Origin() {
		w.fatalf("call %x has the number %x of call %x", c.Origin(), c.ID, origin)
	}
	w.numbers[c.ID] = c.Origin()
	c.Sent(i)
	rk := w.rankOf(c.Legs[i].Worker)
	if rk.up {
		rk.in = append(rk.in, toRank{id: c.ID, origin: c.Origin(), ack: rk.w.Mark()})
	}
}

// unread says that a caller has not read the answer of a call of its own.
func (w *cutWorld) unread(origin uint64) bool {
	return slices.ContainsFunc(w.caller(uint32(origin>>32)).open, func(inv *invocation) bool {
		return inv.r.Origin() == origin
	})
}

// read is the worker's part for what the head sent.
func (w *cutWorld) read(rk *rank) {
	m := rk.in[0]
	rk.in = rk.in[1:]
	rk.got = slices.DeleteFunc(rk.got, func(l *leg) bool {
		drop := int32(l.seq-m.ack) <= 0 || slices.Contains(m.release, l.id)
		if drop && !l.done {
			w.fatalf("a leg of %d was released before it was done", l.origin)
		}
		if drop && w.unread(l.origin) {
			w.fatalf("a leg of %x was released before its caller had read the answer", l.origin)
		}
		return drop
	})
	if m.id == 0 {
		return
	}
	if m.id <= rk.last {
		w.fatalf("a leg of call %x came after one of call %x", m.id, rk.last)
	}
	rk.last = m.id
	rk.received++
	rk.got = append(rk.got, &leg{seq: rk.received, id: m.id, origin: m.origin})
	if slices.Contains(rk.ran, m.origin) {
		w.fatalf("a leg of %x ran twice", m.origin)
	}
	rk.ran = append(rk.ran, m.origin)
}

func (w *cutWorld) backRank(rk *rank) {
	rk.up = true
	ops := slices.Clone(w.table.Returned(rk.w, rk.received))
	for _, l := range rk.got {
		rk.w.Remind(l.seq, l.id)
	}
	w.orders(ops)
	through, calls := rk.w.TakeAcks()
	rk.in = append(rk.in, toRank{ack: through, release: calls})
	for _, l := range rk.got {
		if l.done {
			rk.out = append(rk.out, l)
		}
	}
}

// kill ends the head; the next one settles.
func (w *cutWorld) kill() {
	w.newHead()
	back := w.table.Comeback()
	for _, ranks := range w.ranks {
		for _, rk := range ranks {
			rk.up, rk.in, rk.out = true, nil, nil
			back.Received(rk.w, rk.received)
			for _, l := range rk.got {
				back.Got(rk.w, l.seq, l.id, l.origin)
			}
		}
	}
	var puts []*Call
	for _, who := range w.callers {
		who.up, who.in, who.out, who.kept, who.puts, who.answers = true, nil, nil, nil, nil, who.read
		for _, inv := range who.open {
			for _, f := range who.answered(inv) {
				puts = append(puts, w.table.PutAnswer(who.number, f, -1, who.value(f)))
			}
			w.bytes[back.Call(inv.request(w))] = true
		}
	}
	w.settling = true
	w.orders(back.Prepare(func(uint32) bool { return true }, func(*Call) {}))
	for _, ranks := range w.ranks {
		for _, rk := range ranks {
			for _, l := range rk.got {
				if l.done {
					_, ops := w.table.Result(rk.w, l.id, l.result())
					w.orders(ops)
				}
			}
		}
	}
	w.settling = false
	w.orders(back.Go())
	for _, put := range puts {
		w.orders(w.table.Acked(put))
	}
}
