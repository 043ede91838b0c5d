package muster

import (
	"maps"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/wire"
)

// wanted is the result of a call that unanswered calls name as an argument: a
// head that comes after this one may have to be told it.
type wanted struct {
	users  int
	frames []wire.Frame  // its Answers, as they came
	held   []*object.Set // what they name
}

// want has the answers to come of a call kept until unwant; false: its answer is
// here already.
func (c *conn) want(r *reply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ended() {
		return false
	}
	w := c.wanted[r.id]
	if w == nil {
		w = &wanted{}
		c.wanted[r.id] = w
	}
	w.users++
	return true
}

func (c *conn) unwant(names []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwantLocked(names)
}

func (c *conn) unwantLocked(names []uint64) {
	for _, id := range names {
		w := c.wanted[id]
		if w.users--; w.users > 0 {
			continue
		}
		delete(c.wanted, id)
		for _, set := range w.held {
			set.Release()
		}
	}
}

// keepLocked keeps an Answer that is its own and that is wanted.
func (c *conn) keepLocked(f wire.Frame, arrived *object.Set) {
	if w := c.wanted[f.ID]; w != nil {
		w.frames = append(w.frames, f)
		if arrived != nil {
			w.held = append(w.held, arrived.Share())
		}
	}
}

// cut takes note that the connection has ended.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.wire.Close()
	c.away = true
	c.link.Away()
}

// resume goes on over a new connection, on which the head has said welcome: it
// is told what was read and what this process knows of, then everything that is
// not answered, as it was sent. False where no other is wanted any more: who hangs
// up says so, then closes the connection that there is.
func (c *conn) resume(w *wire.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving.Err() != nil {
		return false
	}
	c.wire = w
	c.link.Back(w, func(objects []wire.Released) {
		c.noticeLocked("back", &wire.CallerBack{Answers: c.answers, Objects: objects})
	})
	c.told = c.acked.Load()
	put := map[uint64]bool{}
	for _, id := range slices.Sorted(maps.Keys(c.unansweredLocked())) {
		if asked := c.requests[id]; asked != nil {
			w.Queue(wire.Header{Kind: wire.KindRequest, Flags: wire.FlagAgain, ID: id}, nil, asked.body, asked.sent.Bufs)
			continue
		}
		c.putLocked(c.calls[id].names, put)
		c.againLocked(id)
		if made := c.calls[id]; made.cancelled {
			c.cancelLocked(id, made.killed)
		}
	}
	c.noticeLocked("resent", &wire.Empty{})
	for id, made := range c.calls {
		if made.parent != 0 {
			c.waitLocked(made.parent, id)
		}
	}
	c.away, c.unsent = false, 0
	close(c.returned)
	c.returned = make(chan struct{})
	w.Flush()
	return true
}

// unansweredLocked are the numbers of calls and requests, which come from one
// counter: by number they are in the order of sending.
func (c *conn) unansweredLocked() map[uint64]struct{} {
	all := make(map[uint64]struct{}, len(c.calls)+len(c.requests))
	for id := range c.calls {
		all[id] = struct{}{}
	}
	for id := range c.requests {
		all[id] = struct{}{}
	}
	return all
}

// putLocked sends the answers that a call needs as arguments, once: of calls that
// are answered here, so that they are not sent again themselves.
func (c *conn) putLocked(names []uint64, put map[uint64]bool) {
	for _, id := range names {
		if put[id] || c.calls[id] != nil {
			continue
		}
		put[id] = true
		for _, f := range c.wanted[id].frames {
			c.wire.Queue(f.Header, nil, f.Body, f.Bufs)
		}
	}
}

// againLocked sends a call once more.
func (c *conn) againLocked(id uint64) {
	made := c.calls[id]
	c.wire.Queue(wire.Header{Kind: wire.KindCall, Flags: wire.FlagAgain, ID: id, Ack: c.told}, made.route.bytes(), made.sent.Raw, made.sent.Bufs)
}

func (c *conn) noticeLocked(verb string, m msgp.Marshaler) {
	body, err := wire.AppendVerb(nil, verb, m)
	if err != nil { // numbers can be encoded
		return
	}
	c.wire.Queue(wire.Header{Kind: wire.KindNotice, Ack: c.acked.Load()}, nil, body, nil)
}

// notice takes what the head says unasked: which calls it needs once more, since
// a worker came back without them.
func (c *conn) notice(f wire.Frame) {
	verb, body, err := wire.ReadVerb(f.Body)
	if err != nil || verb != "again" {
		return
	}
	var again wire.Again
	if _, err := again.UnmarshalMsg(body); err != nil {
		return
	}
	slices.Sort(again.Calls)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range again.Calls { // what they name it has kept itself
		if c.calls[id] != nil {
			c.againLocked(id)
		}
	}
	c.wire.Flush()
}
