package worker

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// How a head is looked for again.
const (
	dialFirst = 20 * time.Millisecond
	dialMost  = 200 * time.Millisecond
)

// errNoWay says that the head takes nobody back.
var errNoWay = errors.New("the head takes nobody back")

// back finds the head again after the connection old was cut, within the grace.
// What runs goes on meanwhile. Whoever comes second waits for the first.
func (h *host) back(old *wire.Conn) error {
	h.returning.Lock()
	defer h.returning.Unlock()
	h.mu.Lock()
	if h.conn != old || h.ctx.Err() != nil {
		h.mu.Unlock()
		return h.ctx.Err()
	}
	h.away = true
	h.link.Away()
	h.mu.Unlock()
	_ = old.Close()
	if h.dial == nil {
		return errNoWay
	}
	ctx, cancel := context.WithTimeout(h.ctx, session.HeadGrace())
	defer cancel()
	conn, err := h.dialAgain(ctx)
	if err != nil {
		return err
	}
	h.resume(conn)
	go h.watch(conn)
	return nil
}

// dialAgain dials until the head is there.
func (h *host) dialAgain(ctx context.Context) (*wire.Conn, error) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	var last error
	for pause := dialFirst; ; pause = min(2*pause, dialMost) {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("no head was there again within the grace of %v (MUSTER_HEAD_GRACE): %w", session.HeadGrace(), errors.Join(last, ctx.Err()))
		}
		conn, err := h.dial()
		var told *spec.Error
		switch {
		case err == nil:
			return conn, nil
		case errors.As(err, &told) && told.Code != spec.CodeLimit:
			return nil, err // it is there and will not have us
		}
		last = err
		wait.Reset(pause)
	}
}

// resume goes on over a new connection, on which the head has said welcome: it is
// told which legs are here, then their results.
func (h *host) resume(conn *wire.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn, h.away = conn, false
	h.link.Back(conn, func(objects []wire.Released) {
		h.noticeLocked("back", &wire.WorkerBack{Received: h.kept.received, Legs: h.kept.back(), Objects: objects, Lent: []wire.Released{}, Ready: h.ready})
	})
	for _, l := range h.kept.legs {
		if l.Done == 1 {
			conn.Queue(wire.Header{Kind: wire.KindResult, Flags: l.flags | wire.FlagAgain, ID: l.Call}, nil, l.result.Raw, l.result.Bufs)
		}
	}
	h.noticeLocked("resent", &wire.Empty{})
	conn.Flush()
}

func (h *host) noticeLocked(verb string, m interface {
	MarshalMsg([]byte) ([]byte, error)
},
) {
	body, err := wire.AppendVerb(nil, verb, m)
	if err != nil { // it was sent as the worker's first word already
		return
	}
	h.conn.Queue(wire.Header{Kind: wire.KindNotice}, nil, body, nil)
}

// watch finds the head again when the connection ends while nobody reads it,
// since a call runs. It sleeps in a system call of its own until then.
func (h *host) watch(conn *wire.Conn) {
	stream, ok := conn.NetConn().(syscall.Conn)
	if !ok {
		return
	}
	raw, err := stream.SyscallConn()
	if err != nil {
		return
	}
	fd := -1
	if err := raw.Control(func(open uintptr) { fd, err = unix.FcntlInt(open, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || fd < 0 {
		return // then the reader finds out
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor
		_, err := unix.Poll(ends, -1)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = h.back(conn) // the reader says why not
}

// hangUp closes the connection behind what was sent.
func (h *host) hangUp() error {
	h.mu.Lock()
	conn := h.conn
	h.mu.Unlock()
	return conn.CloseWhenFlushed()
}

// acked drops results that the head says are not needed any more.
func (h *host) acked(body []byte) {
	var acked wire.Acked
	if _, err := acked.UnmarshalMsg(body); err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept.through(acked.Through)
	h.kept.calls(acked.Calls)
}
