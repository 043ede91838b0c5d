package head

import (
	"encoding/binary"

	"github.com/muster-rl/muster/wire"
)

// port is where frames for one worker, controller or listener go: a connection
// of its own, or a link through an agent.
type port interface {
	Queue(h wire.Header, prefix, body []byte, bufs []wire.Buf)
	Flush()
	Pending() int
	WaitBelow(n int)
	Close() error
}

// link is a connection that an agent relays.
type link struct {
	conn *wire.Conn // the agent's
	peer uint32
	node *node
}

func (l *link) Queue(h wire.Header, prefix, body []byte, bufs []wire.Buf) {
	h.Peer = l.peer
	l.conn.Queue(h, prefix, body, bufs)
}
func (l *link) Flush()          { l.conn.Flush() }
func (l *link) Pending() int    { return l.conn.Pending() }
func (l *link) WaitBelow(n int) { l.conn.WaitBelow(n) }

func (l *link) Close() error {
	l.conn.Send(wire.Header{Kind: wire.KindClose, Peer: l.peer}, []byte{0xc0}, nil)
	return nil
}

// sharedFrom is the size from which a connection refers to what is queued.
const sharedFrom = 16 << 10

// settle makes a frame its own where parts of it may be passed on by reference,
// or kept: what it borrowed is overwritten by the next frame.
func settle(f *wire.Frame) {
	if len(f.Body) >= sharedFrom || len(f.Bufs) > 0 {
		f.Keep()
	}
}

// batch collects the ports that frames were queued on, to flush each once.
type batch struct {
	ports  []port
	conns  []*wire.Conn // for flush
	frames int
	locked bool       // the head is, by this reader
	slow   port       // one that is far behind
	lane   *wire.Loop // which it is handled in: it must not wait
	held   *caller    // who has to, before its next call
	// scratch is for bodies that are built and copied at once.
	scratch []byte
	body    []byte // of requests, in the same way
}

func (b *batch) lock(h *Head) {
	if !b.locked {
		h.mu.Lock()
		b.locked = true
	}
}

func (b *batch) unlock(h *Head) {
	if b.locked {
		b.locked = false
		h.mu.Unlock()
	}
}

func (b *batch) queue(p port, h wire.Header, prefix, body []byte, bufs []wire.Buf) {
	p.Queue(h, prefix, body, bufs)
	b.touch(p)
	if p.Pending() > maxBacklog {
		b.slow = p
	}
}

func (b *batch) touch(p port) {
	if l, ok := p.(*link); ok {
		p = l.conn // that of all its node's links
	}
	if n := len(b.ports); n > 0 && b.ports[n-1] == p {
		return
	}
	b.ports = append(b.ports, p)
}

func (b *batch) flush() {
	for _, p := range b.ports {
		if c, ok := p.(*wire.Conn); ok {
			b.conns = append(b.conns, c)
		} else {
			p.Flush()
		}
	}
	b.lane.FlushAll(b.conns)
	clear(b.ports)
	clear(b.conns)
	b.ports, b.conns, b.frames = b.ports[:0], b.conns[:0], 0
}

// wholeFrame is a frame as it lies on the wire, for Fanout to carry.
func wholeFrame(h wire.Header, prefix, body []byte, bufs []wire.Buf) []byte {
	size := wire.Size(prefix, body, bufs)
	frame := make([]byte, 0, size+32)
	frame = wire.AppendHeader(frame, h, size, bufs)
	frame = append(append(frame, prefix...), body...)
	for i := range bufs {
		frame = append(frame, bufs[i].Data...)
	}
	return frame
}

// fan is the links of one agent that a cluster's workers have, encoded.
type fan struct {
	conn  *wire.Conn
	peers []byte
}

func appendPeers(dst []byte, peers []uint32) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(len(peers))) //nolint:gosec // one per worker
	for _, p := range peers {
		dst = binary.BigEndian.AppendUint32(append(dst, 0xce), p)
	}
	return dst
}
