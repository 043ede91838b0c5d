package head

import (
	"errors"
	"net"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// line is the connection of a process that may be cut, and be followed by another.
// Nothing is queued while there is none: what was not taken is told when its other
// end is back, and only what is missing is sent.
type line struct {
	port port       // nil while it is away, or has not said yet what it has
	conn *wire.Conn // nil for a relayed one
	gen  uint32     // how many connections there have been
	away *time.Timer
}

// lineEnd is one connection of a line.
type lineEnd struct {
	port port
	conn *wire.Conn
	gen  uint32
	back bool // it has yet to say what it has
}

// errReplaced ends a connection that another has taken the place of.
var errReplaced = errors.Join(net.ErrClosed)

// beginLocked makes a connection the one that counts. One that was there before is
// ended: whatever is still read from it is dropped.
func (l *line) beginLocked(p port, conn *wire.Conn, back bool) lineEnd {
	if old := l.port; old != nil {
		go func() { _ = old.Close() }()
	}
	l.gen++
	l.port, l.conn = nil, nil
	end := lineEnd{port: p, conn: conn, gen: l.gen, back: back}
	if !back {
		l.port, l.conn = p, conn
		l.hereLocked()
	}
	return end
}

// backLocked: the other end has said what it has, and can be sent to.
func (l *line) backLocked(end *lineEnd) {
	end.back = false
	l.port, l.conn = end.port, end.conn
	l.hereLocked()
}

func (l *line) hereLocked() {
	if l.away != nil {
		l.away.Stop()
		l.away = nil
	}
}

// endedLocked takes note of a connection's end and says whether it was the one
// that counts.
func (l *line) endedLocked(end *lineEnd) bool {
	if end.gen != l.gen {
		return false
	}
	l.port, l.conn = nil, nil
	return true
}

// awayLocked waits for the other end to come back, for so long; then late is called,
// without the lock.
func (l *line) awayLocked(h *Head, grace time.Duration, late func()) {
	l.hereLocked()
	gen := l.gen
	var timer *time.Timer
	timer = time.AfterFunc(grace, func() {
		h.mu.Lock()
		over := l.away == timer && l.gen == gen && l.port == nil && !h.crashed.Load()
		h.mu.Unlock()
		if over {
			late()
		}
	})
	l.away = timer
}

// hungUp says that a connection ended because of what came over it.
func hungUp(err error) bool {
	var told *spec.Error
	return errors.As(err, &told)
}
