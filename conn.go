package muster

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

const (
	// maxUnsent is how many bytes may wait to be written before a call waits too.
	maxUnsent = 64 << 20
	// maxUnread is how many answers are read before the head is told so, where no
	// call tells it anyway: it and workers keep them until then.
	maxUnread = 64
)

// conn is the connection to the head: one goroutine reads it, any may send. When
// it is cut another takes its place (comeback.go); what is sent meanwhile is kept
// until then, like everything that is not answered.
type conn struct {
	link *object.Link  // set with the head's welcome
	over chan struct{} // closed when the reader has ended and all was failed

	leaving context.Context // ends when no other connection is wanted
	leave   context.CancelFunc

	mu       sync.Mutex
	wire     *wire.Conn // the last one, which may be cut
	away     bool       // it is cut
	returned chan struct{}
	unsent   int // bytes of calls made while away
	calls    map[uint64]*call
	requests map[uint64]*request
	wanted   map[uint64]*wanted
	next     uint64
	answers  uint32 // Answer frames read so far, on all connections
	told     uint32 // as many the head knows to be read
	frozen   int    // sends under way that name futures
	err      error

	acked atomic.Uint32 // what is acknowledged: answers, or as many as at frozen's first
}

// hangUp ends the connection for good, and says so.
func (c *conn) hangUp() {
	c.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.away && c.err == nil {
		c.noticeLocked("leave", &wire.Empty{})
	}
	_ = c.wire.CloseWhenFlushed()
}

func (c *conn) isAway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away
}

// call is what is kept of an unanswered call: one reply, or one per rank.
type call struct {
	replies   []*reply
	left      int
	route     route
	sent      *value.Message // which keeps the objects of the arguments
	names     []uint64       // the calls whose results are among its arguments
	cancelled bool
	killed    bool   // with the cancel
	parent    uint64 // the call that was last said to wait for it
}

// request is an unanswered one.
type request struct {
	body   []byte
	sent   *value.Message // what goes with it as buffers, and is kept until it is answered
	answer chan response
}

type response struct {
	body []byte
	err  error
}

// reply is one answer to come.
type reply struct {
	conn *conn
	id   uint64
	rank int // -1: the answer to the whole call
	done chan struct{}
	stop func() bool // forgets the context; nil where there is none

	raw Raw // after done
	err error
}

func newConn(w *wire.Conn) *conn {
	c := &conn{
		wire: w, over: make(chan struct{}), returned: make(chan struct{}),
		calls: map[uint64]*call{}, requests: map[uint64]*request{}, wanted: map[uint64]*wanted{},
	}
	c.leaving, c.leave = context.WithCancel(context.Background())
	return c
}

// read hands out answers until the connection has ended for good. back is asked
// for another one when it is cut, and says why there is none.
func (c *conn) read(back func(error) *spec.Error) {
	defer close(c.over)
	for {
		err := c.readAll()
		c.cut()
		if why := back(err); why != nil {
			c.fail(why)
			return
		}
	}
}

// readAll reads until the connection ends.
func (c *conn) readAll() error {
	for {
		f, err := c.wire.Read() // only this goroutine sets it
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindAnswer:
			c.answer(f)
		case wire.KindResponse:
			c.respond(f)
		case wire.KindNotice:
			c.notice(f)
		}
	}
}

func (c *conn) answer(f wire.Frame) {
	f.Keep()
	var raw Raw
	var err error
	arrived := c.link.Arrived(f.Bufs)
	if f.Flags&wire.FlagError != 0 {
		err = failed(wire.ReadError(f.Body))
	} else {
		raw = value.RawOf(f.Body, f.Bufs, arrived)
	}
	c.mu.Lock()
	if c.answers++; c.frozen == 0 {
		c.acked.Store(c.answers)
	}
	if c.acked.Load()-c.told >= maxUnread {
		c.acknowledgeLocked()
	}
	var ended []*reply
	made := c.calls[f.ID]
	if made != nil {
		c.keepLocked(f, arrived)
		for _, r := range made.replies {
			// Without flag Rank it is the answer for every rank that has none yet.
			if !r.ended() && (r.rank < 0 || f.Flags&wire.FlagRank == 0 || r.rank == int(f.Ack)) {
				r.raw, r.err = raw, err
				close(r.done)
				ended = append(ended, r)
			}
		}
	}
	over := made != nil && made.left == len(ended)
	if over {
		delete(c.calls, f.ID)
		c.unwantLocked(made.names)
	}
	if made != nil {
		made.left -= len(ended)
	}
	c.mu.Unlock()
	if len(ended) == 0 {
		arrived.Release() // nobody waits for it, or it is here already
	}
	for _, r := range ended {
		if r.stop != nil {
			r.stop()
		}
	}
	if over {
		// Not before: the objects may have come by another connection of ours, on
		// which they would be given back before the head has read the call.
		made.sent.Release()
	}
}

// respond takes the answer to a request.
func (c *conn) respond(f wire.Frame) {
	c.mu.Lock()
	asked := c.requests[f.ID]
	delete(c.requests, f.ID)
	c.mu.Unlock()
	switch {
	case asked == nil: // nobody waits any more
	case f.Flags&wire.FlagError != 0:
		asked.answer <- response{err: wire.ReadError(f.Body)}
	default:
		f.Keep()
		asked.answer <- response{body: f.Body}
	}
}

// ended is for whoever holds conn.mu.
func (r *reply) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// fail ends everything that waits, and everything to come, with err.
func (c *conn) fail(err *spec.Error) {
	c.mu.Lock()
	_ = c.wire.Close()
	c.err = failed(err)
	c.leave()
	var ended []*reply
	calls, requests := c.calls, c.requests
	c.calls, c.requests = map[uint64]*call{}, map[uint64]*request{}
	for _, made := range calls {
		c.unwantLocked(made.names)
		for _, r := range made.replies {
			if !r.ended() {
				r.err = c.err
				close(r.done)
				ended = append(ended, r)
			}
		}
	}
	if c.away {
		close(c.returned)
		c.away = false
	}
	c.mu.Unlock()
	for _, asked := range requests {
		asked.answer <- response{err: err}
	}
	for _, made := range calls {
		made.sent.Release()
	}
	for _, r := range ended {
		if r.stop != nil {
			r.stop()
		}
	}
}

// freeze keeps results that the head holds for us from being acknowledged until
// release: those that a call being written names as its arguments.
func (c *conn) freeze() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.frozen--; c.frozen == 0 {
			c.acked.Store(c.answers)
		}
	}
}

// acknowledgeLocked tells the head what was read when nothing else does.
func (c *conn) acknowledgeLocked() {
	body, err := wire.AppendVerb(nil, "release", &wire.Releases{Objects: []wire.Released{}})
	if err != nil || c.away {
		return
	}
	c.told = c.acked.Load()
	c.wire.Send(wire.Header{Kind: wire.KindNotice, Ack: c.told}, body, nil)
}

// send sends a call, whose body is [route, payload] and whose answers are replies
// to the given ranks; {-1}: one to the whole call. The replies' contexts are
// watched from then on, and the payload is released with the last reply. names
// are the futures among the arguments, which the connection wants.
func (c *conn) send(ctx context.Context, route route, payload *value.Message, names []uint64, ranks []int) ([]*reply, error) {
	made := &call{left: len(ranks), route: route, sent: payload, names: names}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		c.unwantLocked(names)
		payload.Release()
		return nil, c.err
	}
	c.next++
	id := c.next
	for _, rank := range ranks {
		made.replies = append(made.replies, &reply{conn: c, id: id, rank: rank, done: make(chan struct{})})
	}
	c.calls[id] = made
	c.told = c.acked.Load()
	// Under the lock, so that acknowledgements reach the head in order.
	payload.Send(func() {
		if c.away {
			c.unsent += wire.Size(nil, payload.Raw, payload.Bufs)
			return
		}
		c.wire.Queue(wire.Header{Kind: wire.KindCall, ID: id, Ack: c.told}, route.bytes(), payload.Raw, payload.Bufs)
	})
	if ctx.Done() != nil {
		made.replies[0].stop = context.AfterFunc(ctx, func() {
			// At a deadline the head answers by itself, with stacks.
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				c.cancel(id, false)
			}
		})
	}
	w, back := c.wire, c.tooMuchLocked()
	c.mu.Unlock()
	w.Flush()
	if back != nil {
		select {
		case <-back:
		case <-ctx.Done():
		}
		return made.replies, nil
	}
	holdBack(ctx, w)
	return made.replies, nil
}

// tooMuchLocked is what a call waits for while there is no connection and many
// bytes were kept for it already; nil: nothing.
func (c *conn) tooMuchLocked() <-chan struct{} {
	if c.away && c.unsent > maxUnsent {
		return c.returned
	}
	return nil
}

// holdBack waits while too much is unsent, as long as ctx lets it.
func holdBack(ctx context.Context, w *wire.Conn) {
	if w.Pending() <= maxUnsent {
		return
	}
	below := make(chan struct{})
	go func() {
		w.WaitBelow(maxUnsent)
		close(below)
	}()
	select {
	case <-below:
	case <-ctx.Done():
	}
}

// cancel asks for the end of a call that is not answered yet.
func (c *conn) cancel(id uint64, kill bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.calls[id]
	if made == nil {
		return
	}
	made.cancelled, made.killed = true, made.killed || kill
	if !c.away {
		c.cancelLocked(id, kill)
		c.wire.Flush()
	}
}

func (c *conn) cancelLocked(id uint64, kill bool) {
	c.wire.Queue(wire.Header{Kind: wire.KindCancel, ID: id, Ack: c.acked.Load()}, nil, msgp.AppendBool(nil, kill), nil)
}

// waits tells the head that the call parent now waits for id, so that it sees
// cycles.
func (c *conn) waits(parent, id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.calls[id]
	if made == nil {
		return
	}
	made.parent = parent
	if !c.away {
		c.waitLocked(parent, id)
		c.wire.Flush()
	}
}

func (c *conn) waitLocked(parent, id uint64) {
	body := msgp.AppendUint64(msgp.AppendArrayHeader(nil, 1), id)
	c.wire.Queue(wire.Header{Kind: wire.KindWait, ID: parent, Ack: c.acked.Load()}, nil, body, nil)
}

// ask makes a request other than a call. When ctx ends first, its answer is
// dropped.
func (c *conn) ask(ctx context.Context, verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	return c.askWith(ctx, verb, req, value.NewMessage(c.link), resp)
}

// askWith is ask with the buffers of a message, which its caller releases.
func (c *conn) askWith(ctx context.Context, verb string, req msgp.Marshaler, with *value.Message, resp msgp.Unmarshaler) error {
	body, err := wire.AppendVerb(nil, verb, req)
	if err != nil {
		return err
	}
	asked := &request{body: body, sent: with, answer: make(chan response, 1)}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.next++
	id := c.next
	c.requests[id] = asked
	with.Send(func() {
		if !c.away {
			c.wire.Send(wire.Header{Kind: wire.KindRequest, ID: id, Ack: c.acked.Load()}, body, with.Bufs)
		}
	})
	c.mu.Unlock()
	select {
	case got := <-asked.answer:
		if got.err != nil {
			return failed(got.err)
		}
		if _, err := resp.UnmarshalMsg(got.body); err != nil {
			return spec.Errorf(spec.CodeProtocol, "the answer to %s cannot be read: %v", verb, err)
		}
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.requests, id)
		if !c.away { // nothing is to come of it that nobody would have
			c.cancelLocked(id, false)
			c.wire.Flush()
		}
		c.mu.Unlock()
		return context.Cause(ctx)
	}
}

// route is what comes before the payload in the body of a Call, but for the time
// that is left.
type route struct {
	before, after []byte
	deadline      time.Time // zero: none
}

// bytes is the route as it is now.
func (r route) bytes() []byte {
	b := append(make([]byte, 0, len(r.before)+len(r.after)+9), r.before...)
	b = msgp.AppendUint64(b, milliseconds(r.deadline))
	return append(b, r.after...)
}

// milliseconds is a deadline as the wire has it, where 0 means none.
func milliseconds(deadline time.Time) uint64 {
	if deadline.IsZero() {
		return 0
	}
	left := (time.Until(deadline) + time.Millisecond - 1) / time.Millisecond
	return uint64(max(left, 1)) //nolint:gosec // at least 1
}
