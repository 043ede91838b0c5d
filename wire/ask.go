package wire

import (
	"context"
	"sync"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// Asker keeps the Requests of one connection until their Responses come. The
// connection's reader hands it frames by Deliver.
type Asker struct {
	conn *Conn
	mu   sync.Mutex
	next uint64
	open map[uint64]chan answer
	err  error
}

type answer struct {
	body []byte
	err  error
}

// NewAsker asks over c.
func NewAsker(c *Conn) *Asker { return &Asker{conn: c, open: map[uint64]chan answer{}} }

// Ask sends a Request and reads the Response into resp. It returns early when
// ctx ends; the Response is then dropped.
func (a *Asker) Ask(ctx context.Context, verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	body, err := AppendVerb(nil, verb, req)
	if err != nil {
		return err
	}
	ch := make(chan answer, 1)
	a.mu.Lock()
	if a.err != nil {
		a.mu.Unlock()
		return a.err
	}
	a.next++
	id := a.next
	a.open[id] = ch
	a.mu.Unlock()
	a.conn.Send(Header{Kind: KindRequest, ID: id}, body, nil)
	select {
	case got := <-ch:
		if got.err != nil {
			return got.err
		}
		if _, err := resp.UnmarshalMsg(got.body); err != nil {
			return spec.Errorf(spec.CodeProtocol, "the answer to %s cannot be read: %v", verb, err)
		}
		return nil
	case <-ctx.Done():
		a.mu.Lock()
		delete(a.open, id)
		a.mu.Unlock()
		return context.Cause(ctx)
	}
}

// Deliver takes a frame if it is a Response.
func (a *Asker) Deliver(f Frame) bool {
	if f.Kind != KindResponse {
		return false
	}
	a.mu.Lock()
	ch := a.open[f.ID]
	delete(a.open, f.ID)
	a.mu.Unlock()
	if ch == nil {
		return true // nobody waits any more
	}
	if f.Flags&FlagError != 0 {
		ch <- answer{err: ReadError(f.Body)}
		return true
	}
	f.Keep()
	ch <- answer{body: f.Body}
	return true
}

// Fail ends every open and later Ask with err: the connection is gone.
func (a *Asker) Fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = err
	for id, ch := range a.open {
		ch <- answer{err: err}
		delete(a.open, id)
	}
}

// Respond answers a Request: with m, or with err where that is not nil.
func Respond(c *Conn, id uint64, m msgp.Marshaler, err error) {
	var body []byte
	if err == nil {
		body, err = m.MarshalMsg(nil)
	}
	if err != nil {
		c.Send(Header{Kind: KindResponse, Flags: FlagError, ID: id}, AppendError(nil, spec.AsError(err)), nil)
		return
	}
	c.Send(Header{Kind: KindResponse, ID: id}, body, nil)
}
