package head

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/wire"
)

// keptAnswer is an Answer that its caller has not acknowledged: should its
// connection be cut, it is sent again.
type keptAnswer struct {
	call *call.Call // nil: it never came to be
	head wire.Header
	body []byte
	bufs []wire.Buf
}

// keeping is the Answers of one caller that it has not acknowledged. Mostly there
// is one, so what small ones are copied to is used again and again.
type keeping struct {
	sent  uint32       // Answers so far, ever
	kept  []keptAnswer // those from past on, oldest first
	past  int
	store []byte
}

// storeSize is what a store has room for; a full one is left to those that lie in it.
const storeSize = 16 << 10

// open are the Answers that are not acknowledged.
func (k *keeping) open() []keptAnswer { return k.kept[k.past:] }

// add keeps an Answer. Parts of 16 KiB and more are its own already.
func (k *keeping) add(c *call.Call, hd wire.Header, body []byte, bufs []wire.Buf) {
	k.sent++
	if len(body) < sharedFrom {
		body = k.copy(body)
	}
	if wire.HasRefs(bufs) { // where they lie is told to each that is sent them
		bufs = slices.Clone(bufs)
		for i := range bufs {
			if bufs[i].Object != 0 {
				bufs[i].Data = slices.Clone(bufs[i].Data)
			}
		}
	}
	if k.past > 0 && len(k.kept) == cap(k.kept) { // use the room in front before growing
		n := copy(k.kept, k.kept[k.past:])
		clear(k.kept[n:])
		k.kept, k.past = k.kept[:n], 0
	}
	k.kept = append(k.kept, keptAnswer{call: c, head: hd, body: body, bufs: bufs})
}

func (k *keeping) copy(b []byte) []byte {
	if len(b) > cap(k.store)-len(k.store) {
		k.store = make([]byte, 0, max(len(b), storeSize))
	}
	start := len(k.store)
	k.store = append(k.store, b...)
	return k.store[start:len(k.store):len(k.store)]
}

// take gives the oldest Answer if ack says that it was read.
func (k *keeping) take(ack uint32) (*call.Call, bool) {
	left := len(k.kept) - k.past
	if left == 0 || int32(ack-(k.sent-uint32(left)+1)) < 0 { //nolint:gosec // sequence arithmetic
		return nil, false
	}
	c := k.kept[k.past].call
	k.kept[k.past] = keptAnswer{}
	if k.past++; k.past == len(k.kept) {
		k.kept, k.past, k.store = k.kept[:0], 0, k.store[:0]
	}
	return c, true
}

// ackLocked lets go of what the caller has read.
func (c *caller) ackLocked(ack uint32, b *batch) {
	for {
		done, ok := c.answers.take(ack)
		if !ok {
			return
		}
		if done == nil {
			continue
		}
		p := done.Data.(*pending)
		if p.unread--; p.unread == 0 && done.State == call.Answered {
			c.h.ordersLocked(c.h.table.Acked(done), b)
		}
	}
}

// releaseLocked tells a worker which results it may drop.
func (w *worker) releaseLocked(b *batch) {
	through, calls := w.TakeAcks()
	if w.port == nil {
		return
	}
	a := wire.Acked{Through: through, Calls: make([]uint64, len(calls))}
	for i, id := range calls {
		a.Calls[i] = uint64(id)
	}
	body, err := wire.AppendVerb(b.body[:0], "acked", &a)
	if err != nil { // numbers can be encoded
		return
	}
	b.body = body
	b.queue(w.port, wire.Header{Kind: wire.KindNotice}, nil, body, nil)
}
