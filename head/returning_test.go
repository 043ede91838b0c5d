package head_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// returning is a controller that keeps what is not answered, and comes back when it
// is cut off, as an SDK does.
type returning struct {
	t     testing.TB
	dial  func() (*wire.Conn, error)
	hello wire.Hello
	ended chan struct{}

	mu     sync.Mutex
	conn   *wire.Conn // nil while it is cut off
	number uint32
	next   uint64
	read   uint32
	holds  []wire.Released // what it says that it knows of
	open   []*outgoing     // in the order of sending
	said   map[uint64][]wire.Frame
	left   bool
	wrong  error
}

// outgoing is a Call or a Request that is not answered.
type outgoing struct {
	wire.Frame
	names  []uint64 // calls that it names as arguments
	ranks  int      // answers that are to come
	had    map[uint32]bool
	answer chan wire.Frame
}

func newReturning(t testing.TB, dial func() (*wire.Conn, error), hello wire.Hello) *returning {
	t.Helper()
	hello.Runtime = clusterSpec("", 1).Runtime
	c := &returning{t: t, dial: dial, hello: hello, ended: make(chan struct{}), said: map[uint64][]wire.Frame{}}
	must(t, c.join())
	go c.serve()
	return c
}

var errLeft = errors.New("it has left")

// join dials until a head takes it.
func (c *returning) join() error {
	for deadline := time.Now().Add(patience); ; {
		conn, err := c.dial()
		var w wire.Welcome
		if err == nil {
			c.hello.Back = c.number
			w, err = wire.Join(conn, c.hello)
			if err != nil {
				_ = conn.Close()
			}
		}
		var told *spec.Error
		if errors.As(err, &told) || (err != nil && time.Now().After(deadline)) {
			return err
		}
		c.mu.Lock()
		if c.left {
			c.mu.Unlock()
			if err == nil {
				_ = conn.Close()
			}
			return errLeft
		}
		if err == nil {
			if c.number != 0 {
				c.sendAll(conn)
			}
			c.conn, c.number = conn, w.Caller
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		time.Sleep(time.Millisecond) // a head tells nobody when it begins to listen
	}
}

// sendAll says what it has, and sends again what is not answered.
func (c *returning) sendAll(conn *wire.Conn) {
	notify := func(verb string, m msgp.Marshaler) {
		body, err := wire.AppendVerb(nil, verb, m)
		if err != nil {
			panic(err)
		}
		conn.Queue(wire.Header{Kind: wire.KindNotice}, nil, body, nil)
	}
	notify("back", &wire.CallerBack{Answers: c.read, Objects: append([]wire.Released{}, c.holds...)})
	for _, o := range c.open {
		for _, id := range o.names {
			if !slices.ContainsFunc(c.open, func(x *outgoing) bool { return x.ID == id }) {
				for _, f := range c.said[id] {
					conn.Queue(f.Header, nil, f.Body, f.Bufs)
				}
			}
		}
		c.again(conn, o)
	}
	notify("resent", &wire.Empty{})
	conn.Flush()
}

func (c *returning) again(conn *wire.Conn, o *outgoing) {
	hd := o.Header
	hd.Flags |= wire.FlagAgain
	hd.Ack = c.read
	conn.Queue(hd, nil, o.Body, o.Bufs)
}

func (c *returning) serve() {
	defer close(c.ended)
	for {
		c.mu.Lock()
		conn, left := c.conn, c.left
		c.mu.Unlock()
		if left {
			return
		}
		for {
			f, err := conn.Read()
			if err != nil {
				break
			}
			f.Keep()
			c.take(conn, f)
		}
		_ = conn.Close()
		c.mu.Lock()
		c.conn, left = nil, c.left
		c.mu.Unlock()
		if left {
			return
		}
		if err := c.join(); errors.Is(err, errLeft) {
			return
		} else if err != nil {
			c.fail(fmt.Errorf("it cannot come back: %w", err))
			return
		}
	}
}

func (c *returning) take(conn *wire.Conn, f wire.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Kind == wire.KindNotice {
		verb, rest, err := wire.ReadVerb(f.Body)
		var m wire.Again
		if err == nil && verb == "again" {
			_, err = m.UnmarshalMsg(rest)
		}
		if err != nil {
			c.failLocked(err)
		}
		for _, o := range c.open {
			if slices.Contains(m.Calls, o.ID) {
				c.again(conn, o)
			}
		}
		conn.Flush()
		return
	}
	at := slices.IndexFunc(c.open, func(o *outgoing) bool {
		return o.ID == f.ID && (o.Kind == wire.KindCall) == (f.Kind == wire.KindAnswer)
	})
	if f.Kind == wire.KindAnswer {
		c.read++
	}
	if at < 0 {
		if f.Kind == wire.KindAnswer && f.Flags&wire.FlagRank == 0 {
			c.failLocked(fmt.Errorf("call %d was answered twice", f.ID))
		}
		return
	}
	o := c.open[at]
	if f.Flags&wire.FlagRank != 0 && f.Kind == wire.KindAnswer {
		if o.had[f.Ack] {
			return // by a new head
		}
		o.had[f.Ack] = true
	}
	if f.Kind == wire.KindAnswer {
		c.said[f.ID] = append(c.said[f.ID], f)
	}
	if o.ranks--; o.ranks == 0 || f.Flags&(wire.FlagError|wire.FlagRank) == wire.FlagError {
		c.open = slices.Delete(c.open, at, at+1)
	}
	o.answer <- f
}

func (c *returning) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

func (c *returning) failLocked(err error) {
	if c.wrong == nil {
		c.wrong = err
	}
}

// post sends what is to be answered; nil: what it names is answered already, and
// would have to be passed as it is.
func (c *returning) post(f wire.Frame, ranks int, names ...uint64) *outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range names {
		if !slices.ContainsFunc(c.open, func(o *outgoing) bool { return o.ID == id }) {
			return nil
		}
	}
	c.next++
	f.ID, f.Ack = c.next, c.read
	o := &outgoing{Frame: f, names: names, ranks: ranks, had: map[uint32]bool{}, answer: make(chan wire.Frame, 64)}
	c.open = append(c.open, o)
	if c.conn != nil {
		c.conn.Send(o.Header, o.Body, o.Bufs)
	}
	return o
}

// unread has it forget that it has read the last answers, those of calls among them.
func (c *returning) unread(answers uint32, calls ...*outgoing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read -= answers
	for _, o := range calls {
		o.ranks++
		delete(c.said, o.ID)
		c.open = append(c.open, o)
	}
}

func (c *returning) call(to callee, payload []byte, names ...uint64) *outgoing {
	ranks := 1
	if to.flags&split != 0 {
		ranks = len(to.ranks)
	}
	return c.post(wire.Frame{Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), payload...)}, ranks, names...)
}

// create makes a cluster of so many ranks on as many nodes.
func (c *returning) create(ranks int, change ...func(*spec.Cluster)) *wire.ClusterInfo {
	c.t.Helper()
	var p spec.Pool
	must(c.t, c.ask("pool.create", &wire.PoolCreate{Nodes: ranks, Timeout: 10}, &p))
	of := clusterSpec("c", ranks)
	for _, f := range change {
		f(&of)
	}
	info := &wire.ClusterInfo{}
	must(c.t, c.ask("cluster.create", &wire.ClusterCreate{Pool: p.ID, Spec: of}, info))
	return info
}

func (c *returning) ask(verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	body, err := wire.AppendVerb(nil, verb, req)
	if err != nil {
		return err
	}
	f, err := c.wait(c.post(wire.Frame{Header: wire.Header{Kind: wire.KindRequest}, Body: body}, 1))
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	_, err = resp.UnmarshalMsg(f.Body)
	return err
}

// wait is for one answer.
func (c *returning) wait(o *outgoing) (wire.Frame, error) {
	select {
	case f := <-o.answer:
		if f.Flags&wire.FlagError != 0 {
			return f, wire.ReadError(f.Body)
		}
		return f, nil
	case <-c.ended:
		c.mu.Lock()
		defer c.mu.Unlock()
		return wire.Frame{}, fmt.Errorf("frame %d: it has ended: %w", o.ID, c.wrong)
	case <-time.After(patience):
		return wire.Frame{}, fmt.Errorf("frame %d of kind %d was not answered within %v", o.ID, o.Kind, patience)
	}
}

// leave ends it in order, and says what went wrong.
func (c *returning) leave() error {
	c.mu.Lock()
	c.left = true
	if c.conn != nil {
		_ = wire.Notify(c.conn, "leave", &wire.Empty{})
		_ = c.conn.CloseWhenFlushed()
	}
	c.mu.Unlock()
	<-c.ended
	return c.wrong
}
