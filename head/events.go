package head

import (
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// events holds who listens to log lines and progress.
type events struct {
	listeners []*listener
	mark      uint64
}

// listener is a connection with role events. It only ever hears.
type listener struct {
	h    *Head
	port port
	conn *wire.Conn // nil for a relayed one
}

// maxUnread is how much a listener may leave unread before lines are dropped
// for it; the log files have them all.
const maxUnread = 64 << 20

func (l *listener) start() {
	l.h.mu.Lock()
	l.h.events.listeners = append(l.h.events.listeners, l)
	l.h.mu.Unlock()
}

func (l *listener) handle(*wire.Frame, *batch) error {
	return spec.Errorf(spec.CodeProtocol, "a connection for events does not speak")
}

func (l *listener) gone(error) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	for i, o := range l.h.events.listeners {
		if o == l {
			l.h.events.listeners = append(l.h.events.listeners[:i], l.h.events.listeners[i+1:]...)
			return
		}
	}
}

// noticeLocked tells every listener; body is a whole Notice body.
func (e *events) noticeLocked(body []byte) {
	for _, l := range e.listeners {
		if l.port.Pending() > maxUnread {
			continue
		}
		l.port.Queue(wire.Header{Kind: wire.KindNotice}, nil, body, nil)
		l.port.Flush()
	}
}

// markLocked sends a mark after all lines so far and returns it: a caller that is
// told the mark can wait for it on its events connection.
func (e *events) markLocked() uint64 {
	e.mark++
	body, err := wire.AppendVerb(nil, "mark", &wire.Mark{Mark: e.mark})
	if err == nil {
		e.noticeLocked(body)
	}
	return e.mark
}

func (e *events) closeLocked() {
	for _, l := range e.listeners {
		if l.conn != nil {
			go func() { _ = l.conn.CloseWhenFlushed() }()
		} else {
			_ = l.port.Close()
		}
	}
}

// progressLocked tells how far something is.
func (h *Head) progressLocked(p wire.Progress) {
	body, err := wire.AppendVerb(nil, "progress", &p)
	if err == nil {
		h.events.noticeLocked(body)
	}
}
