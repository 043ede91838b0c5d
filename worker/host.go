package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster"
	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

// host runs the calls of one worker. The head sends them in the order of their
// numbers.
type host struct {
	class *Class
	info  *Info
	link  *object.Link
	limit int
	ready wire.Ready                 // as the head was told it
	dial  func() (*wire.Conn, error) // joins the head once more; nil: it takes nobody back

	ctx    context.Context // of every call; ends with the worker
	cancel context.CancelFunc

	returning sync.Mutex // held by whoever looks for the head

	mu      sync.Mutex
	conn    *wire.Conn // the last one
	away    bool       // it was cut
	kept    kept
	running map[uint64]context.CancelFunc
	doomed  map[uint64]bool // cancelled before they began
	last    uint64          // the highest call begun
	queued  []leg           // taken from the connection, not begun
	workers int             // goroutines that run calls
	leaving chan struct{}   // set when the worker ends; closed when no call runs
}

// leg is a call as it came.
type leg struct {
	id      uint64
	origin  uint64 // the call as its caller names it
	kept    *keptLeg
	mute    bool
	method  string
	payload wire.Payload
	held    *object.Set
	in      *value.Incoming
	broken  error
}

func newHost(class *Class, info *Info, link *object.Link, conn *wire.Conn, limit int) *host {
	h := &host{class: class, info: info, link: link, conn: conn, limit: limit, running: map[uint64]context.CancelFunc{}, doomed: map[uint64]bool{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// serve reads calls until the connection has ended and there is no other. One at
// a time run right here, so that between a call and its answer there is no other
// goroutine.
func (h *host) serve() error {
	go h.watch(h.conn)
	for {
		h.mu.Lock()
		conn := h.conn
		h.mu.Unlock()
		cut := h.read(conn)
		if err := h.back(conn); err != nil {
			return h.alone(cut, err)
		}
	}
}

// alone says what of it is wrong that there is no head any more: nothing where
// that is how workers end.
func (h *host) alone(cut, err error) error {
	switch {
	case h.ctx.Err() != nil: // it ends anyway
	case !errors.Is(err, errNoWay):
		fmt.Fprintf(os.Stderr, "%s ends: the head is gone, and %v\n", h.info.Worker, err)
	case !errors.Is(cut, io.EOF) && !errors.Is(cut, net.ErrClosed) && !errors.Is(cut, syscall.ECONNRESET):
		return cut
	}
	return nil //nolint:nilerr // without a head a worker ends, in order
}

// read reads a connection until it ends, or another has taken its place.
func (h *host) read(conn *wire.Conn) error {
	for {
		f, err := conn.Read()
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindLeg:
		case wire.KindNotice:
			if verb, body, err := wire.ReadVerb(f.Body); err == nil && verb == "acked" {
				h.acked(body)
			}
			continue
		default:
			continue
		}
		l, mine := h.readLeg(conn, f)
		switch {
		case !mine:
			continue
		case h.limit == 1:
			h.one(l)
			continue
		}
		h.mu.Lock()
		h.queued = append(h.queued, l)
		if h.workers < h.limit {
			h.workers++
			go h.work()
		}
		h.mu.Unlock()
	}
}

// work runs queued calls until there is none.
func (h *host) work() {
	for {
		h.mu.Lock()
		if len(h.queued) == 0 {
			h.workers--
			h.mu.Unlock()
			return
		}
		l := h.queued[0]
		h.queued = h.queued[1:]
		h.mu.Unlock()
		h.one(l)
	}
}

// readLeg takes [method, parent, origin, payload] apart; what it returns is its
// own. It is not ours where the head was told already that it did not come, or it
// is here.
func (h *host) readLeg(conn *wire.Conn, f wire.Frame) (l leg, mine bool) {
	f.Keep()
	l = leg{id: f.ID, mute: f.Flags&wire.FlagMute != 0}
	n, b, err := msgp.ReadArrayHeaderBytes(f.Body)
	if err == nil && n != 4 {
		err = fmt.Errorf("%d parts instead of 4", n)
	}
	if err == nil {
		l.method, b, err = msgp.ReadStringBytes(b)
	}
	if err == nil {
		_, b, err = msgp.ReadUint64Bytes(b)
	}
	if err == nil {
		l.origin, b, err = msgp.ReadUint64Bytes(b)
	}
	if err != nil {
		l.broken = spec.Errorf(spec.CodeProtocol, "a call that cannot be read: %v", err)
	} else {
		l.payload, l.broken = wire.ParsePayload(b, f.Bufs)
	}
	h.mu.Lock()
	if h.conn == conn {
		l.kept = h.kept.take(l.id, l.origin)
	}
	if l.kept == nil {
		h.mu.Unlock()
		return l, false
	}
	l.held = h.link.Lent(f.Bufs)
	l.in = value.NewIncoming(l.held)
	l.kept.released = h.dial == nil
	h.kept.through(f.Ack)
	h.mu.Unlock()
	return l, true
}

// one runs a call, unless it was cancelled, and answers it.
func (h *host) one(l leg) {
	ctx, cancel := context.WithCancel(muster.InCall(h.ctx, l.id))
	defer cancel()
	h.mu.Lock()
	if h.leaving != nil {
		h.mu.Unlock()
		return
	}
	h.last = max(h.last, l.id)
	cancelled := h.doomed[l.id]
	delete(h.doomed, l.id)
	h.running[l.id] = cancel
	h.mu.Unlock()
	if cancelled {
		l.broken = spec.Errorf(spec.CodeCancelled, "the call was cancelled before %s began it", h.info.Worker)
	}
	out := value.NewMessage(h.link)
	flags := wire.FlagError
	if l.broken != nil {
		out.Raw = wire.AppendError(nil, spec.AsError(l.broken))
	} else {
		flags = h.run(ctx, &l, out)
	}
	h.mu.Lock()
	out.Send(func() {
		if !h.away {
			h.conn.Queue(wire.Header{Kind: wire.KindResult, Flags: flags, ID: l.id}, nil, out.Raw, out.Bufs)
		}
	})
	h.kept.done(l.kept, flags, out.Value)
	h.mu.Unlock()
	h.link.Settle(l.held, func() {
		l.in.Release()
		out.ReleaseBatches()
		out.Release()
	})
	h.mu.Lock()
	delete(h.running, l.id)
	if h.leaving != nil && len(h.running) == 0 {
		close(h.leaving)
	}
	conn := h.conn // the answer's, or a later one that was told of it
	h.mu.Unlock()
	conn.Flush()
}

// giveUp cancels a call and says what became of it, in the words of the wire.
func (h *host) giveUp(call uint64) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cancel := h.running[call]; cancel != nil {
		cancel()
		return "loop" // its context has ended; it leaves by itself
	}
	waiting := call > h.last
	for i := range h.queued {
		waiting = waiting || h.queued[i].id == call
	}
	if waiting {
		h.doomed[call] = true
		return "queued"
	}
	return "done"
}

// leave ends the contexts of calls and begins no other; what it returns is
// closed once none runs.
func (h *host) leave() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaving = make(chan struct{})
	if len(h.running) == 0 {
		close(h.leaving)
	}
	h.cancel()
	return h.leaving
}

// control answers the agent until the connection ends, which means that the
// agent is gone; end is called when the worker is to end.
func control(conn *wire.Conn, h func() *host, end func()) {
	for {
		f, err := conn.Read()
		if err != nil {
			os.Exit(1)
		}
		verb, body, err := wire.ReadVerb(f.Body)
		switch {
		case err != nil:
			wire.Respond(conn, f.ID, nil, err)
		case f.Kind == wire.KindNotice && verb == "shutdown":
			end()
		case f.Kind != wire.KindRequest:
		case verb == "ping", verb == "clear": // Go code is never left at an unknown point
			wire.Respond(conn, f.ID, &wire.Empty{}, nil)
		case verb == "cancel":
			call, err := readCancel(body)
			state := "done"
			if host := h(); host != nil && err == nil {
				state = host.giveUp(call)
			}
			wire.Respond(conn, f.ID, &wire.Cancelled{State: state}, err)
		case verb == "env":
			env, err := changeEnvironment(body)
			wire.Respond(conn, f.ID, env, err)
		default:
			wire.Respond(conn, f.ID, nil, spec.Errorf(spec.CodeProtocol, "a worker does not know the request %q", verb))
		}
	}
}

func changeEnvironment(body []byte) (*wire.Environment, error) {
	var req wire.WorkerEnv
	if _, err := req.UnmarshalMsg(body); err != nil {
		return nil, spec.Errorf(spec.CodeProtocol, "the request env cannot be read: %v", err)
	}
	for name, value := range req.Set {
		if err := os.Setenv(name, value); err != nil {
			return nil, spec.Errorf(spec.CodeInvalid, "%q cannot be set: %v", name, err)
		}
	}
	for _, name := range req.Unset {
		_ = os.Unsetenv(name)
	}
	env := &wire.Environment{Env: map[string]string{}}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env.Env[name] = value
	}
	return env, nil
}

func readCancel(body []byte) (call uint64, err error) {
	n, b, err := msgp.ReadMapHeaderBytes(body)
	for ; err == nil && n > 0; n-- {
		var key []byte
		if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
			break
		}
		if string(key) == "call" {
			call, b, err = msgp.ReadUint64Bytes(b)
		} else {
			b, err = msgp.Skip(b)
		}
	}
	if err != nil {
		return 0, spec.Errorf(spec.CodeProtocol, "the request cancel cannot be read: %v", err)
	}
	return call, nil
}
