package muster

import (
	"context"
	"errors"
	"sync"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

// maxUnsent is how many bytes may wait to be written before a call waits too.
const maxUnsent = 64 << 20

// conn is the connection to the head: one goroutine reads it, any may send.
type conn struct {
	wire  *wire.Conn
	asker *wire.Asker
	link  *object.Link  // set with the head's welcome
	over  chan struct{} // closed when the reader has ended and all was failed

	mu      sync.Mutex
	calls   map[uint64]*call
	next    uint64
	answers uint32 // Answer frames read so far
	frozen  int    // sends under way that name futures
	ackAt   uint32 // what is acknowledged while frozen
	err     error
}

// call is what is kept of an unanswered call: one reply, or one per rank.
type call struct {
	replies []*reply
	left    int
	sent    *value.Message // which keeps the objects of the arguments
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
	return &conn{wire: w, asker: wire.NewAsker(w), over: make(chan struct{}), calls: map[uint64]*call{}}
}

// read hands out answers until the connection ends; why words its end.
func (c *conn) read(why func(error) *spec.Error) {
	defer close(c.over)
	for {
		f, err := c.wire.Read()
		if err != nil {
			c.fail(why(err))
			return
		}
		if f.Kind == wire.KindAnswer {
			c.answer(f)
		} else {
			c.asker.Deliver(f)
		}
	}
}

func (c *conn) answer(f wire.Frame) {
	var raw Raw
	var err error
	if f.Flags&wire.FlagError != 0 {
		err = failed(wire.ReadError(f.Body))
	} else {
		f.Keep()
		raw = value.RawOf(f.Body, f.Bufs, c.link.Arrived(f.Bufs))
	}
	c.mu.Lock()
	c.answers++
	made := c.calls[f.ID]
	if made == nil {
		c.mu.Unlock()
		raw.Release()
		return
	}
	var ended []*reply
	for _, r := range made.replies {
		// Without flag Rank it is the answer for every rank that has none yet.
		if !r.ended() && (r.rank < 0 || f.Flags&wire.FlagRank == 0 || r.rank == int(f.Ack)) {
			r.raw, r.err = raw, err
			close(r.done)
			ended = append(ended, r)
		}
	}
	over := made.left == len(ended)
	if made.left -= len(ended); over {
		delete(c.calls, f.ID)
	}
	c.mu.Unlock()
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
	_ = c.wire.Close()
	c.mu.Lock()
	c.err = failed(err)
	var ended []*reply
	calls := c.calls
	c.calls = map[uint64]*call{}
	for _, made := range calls {
		for _, r := range made.replies {
			if !r.ended() {
				r.err = c.err
				close(r.done)
				ended = append(ended, r)
			}
		}
	}
	c.mu.Unlock()
	c.asker.Fail(err)
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
	if c.frozen == 0 {
		c.ackAt = c.answers
	}
	c.frozen++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.frozen--
	}
}

// send sends a call, whose body is [route, payload] and whose answers are replies
// to the given ranks; {-1}: one to the whole call. The replies' contexts are
// watched from then on, and the payload is released with the last reply.
func (c *conn) send(ctx context.Context, route []byte, payload *value.Message, ranks []int) ([]*reply, error) {
	made := &call{left: len(ranks), sent: payload}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		payload.Release()
		return nil, c.err
	}
	c.next++
	id := c.next
	for _, rank := range ranks {
		made.replies = append(made.replies, &reply{conn: c, id: id, rank: rank, done: make(chan struct{})})
	}
	c.calls[id] = made
	ack := c.answers
	if c.frozen > 0 {
		ack = c.ackAt
	}
	// Under the lock, so that acknowledgements reach the head in order.
	payload.Send(func() {
		c.wire.Queue(wire.Header{Kind: wire.KindCall, ID: id, Ack: ack}, route, payload.Raw, payload.Bufs)
	})
	if ctx.Done() != nil {
		made.replies[0].stop = context.AfterFunc(ctx, func() {
			// At a deadline the head answers by itself, with stacks.
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				c.cancel(id, false)
			}
		})
	}
	c.mu.Unlock()
	c.wire.Flush()
	c.holdBack(ctx)
	return made.replies, nil
}

// holdBack waits while too much is unsent, as long as ctx lets it.
func (c *conn) holdBack(ctx context.Context) {
	if c.wire.Pending() <= maxUnsent {
		return
	}
	below := make(chan struct{})
	go func() {
		c.wire.WaitBelow(maxUnsent)
		close(below)
	}()
	select {
	case <-below:
	case <-ctx.Done():
	}
}

func (c *conn) cancel(id uint64, kill bool) {
	c.wire.Send(wire.Header{Kind: wire.KindCancel, ID: id}, msgp.AppendBool(nil, kill), nil)
}

// waits tells the head that the call parent now waits for id, so that it sees
// cycles.
func (c *conn) waits(parent, id uint64) {
	body := msgp.AppendUint64(msgp.AppendArrayHeader(nil, 1), id)
	c.wire.Send(wire.Header{Kind: wire.KindWait, ID: parent}, body, nil)
}

// ask makes a request other than a call.
func (c *conn) ask(ctx context.Context, verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	return failed(c.asker.Ask(ctx, verb, req, resp))
}
