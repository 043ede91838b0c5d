package head

import (
	"errors"
	"runtime"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// maxBurst bounds how many frames are handled before what they led to is
	// flushed, so that one busy caller does not hold up the first of its own calls.
	maxBurst = 64
	// laneFull is how many connections a lane has before the next one is filled:
	// as long as they are few, a call's frames stay in one thread.
	laneFull = 64
	// procsPerLane is how many of the head's processors there are for a lane.
	procsPerLane = 4
)

// lane is a loop that hands frames to peers in place, those of many connections.
// Nothing in it may wait: who has to, leaves it.
type lane struct {
	loop *wire.Loop
	b    batch // of what is handled at the moment, as f
	f    wire.Frame
}

// openLanes starts the lanes. Without any, every connection has a goroutine.
func (h *Head) openLanes() {
	for range max(1, runtime.GOMAXPROCS(0)/procsPerLane) {
		loop, err := wire.NewLoop(h.alone)
		if err != nil {
			h.opts.Log.Warn("connections are read one by one", "err", err)
			return
		}
		h.lanes = append(h.lanes, &lane{loop: loop, b: batch{lane: loop}})
	}
}

// alone says that one caller and one worker, at most, are at it: what they are
// sent and answer comes soon, and there is a core left to wait for it; and whether
// that is a worker, which may have been woken on this core.
func (h *Head) alone() (looks, shares bool) {
	if runtime.NumCPU() < 2 || !h.mu.TryLock() {
		return false, false
	}
	defer h.mu.Unlock()
	return h.table.Alone(), h.table.Len() > 0
}

func (h *Head) closeLanes() {
	for _, l := range h.lanes {
		l.loop.Close()
	}
}

// laneFor is the lane for one more connection; nil without any.
func (h *Head) laneFor() *lane {
	var best *lane
	for _, l := range h.lanes {
		if l.loop.Len() < laneFull {
			return l
		}
		if best == nil || l.loop.Len() < best.loop.Len() {
			best = l
		}
	}
	return best
}

// reader hands a connection's frames to its peer: in the connection's lane, and
// what would take that too long in a goroutine of its own.
type reader struct {
	h    *Head
	c    *wire.Conn
	p    peer
	lane *lane
}

// attend moves the connection into its lane and says whether it is there; it is
// no longer the caller's then.
func (r *reader) attend() bool {
	return r.lane != nil && r.c.Attend(r.lane.loop, r.readable)
}

// readable handles what has come. Called in the lane.
func (r *reader) readable() {
	b, f := &r.lane.b, &r.lane.f
	err := r.c.Fetch()
	for err == nil && b.held == nil && r.c.Buffered() && !r.c.Large() {
		err = r.next(f, b)
	}
	b.unlock(r.h)
	b.flush()
	r.h.fault("flushed")
	held, slow := b.held, b.slow
	b.held, b.slow = nil, nil
	switch {
	case err != nil:
		r.c.Leave()
		go r.end(err)
	case held != nil:
		r.c.Leave()
		go func() {
			held.wait(slow)
			if r.c.Buffered() || !r.attend() {
				r.run()
			}
		}()
	case r.c.Buffered():
		r.c.Leave()
		go r.run()
	}
}

// run handles what takes longer, then gives the connection back to its lane.
func (r *reader) run() {
	var b batch
	var f wire.Frame // one for all: handlers take its address
	for {
		err := r.next(&f, &b)
		if err != nil || !r.c.Buffered() {
			b.unlock(r.h)
			b.flush()
		}
		if err != nil {
			r.end(err)
			return
		}
		if !r.c.Buffered() && r.attend() {
			return
		}
	}
}

// next handles one frame. What that leads to is flushed where there was much.
func (r *reader) next(f *wire.Frame, b *batch) error {
	var err error
	*f, err = r.c.Read()
	if f.Kind != wire.KindResult {
		b.unlock(r.h)
	}
	if err == nil {
		settle(f)
		err = r.p.handle(f, b)
	}
	if b.frames++; b.frames >= maxBurst {
		b.unlock(r.h)
		b.flush()
	}
	return err
}

// end: the connection is over.
func (r *reader) end(err error) {
	var told *spec.Error
	if errors.As(err, &told) { // what was wrong with what it sent
		r.c.Send(wire.Header{Kind: wire.KindClose}, wire.AppendError(nil, told), nil)
	}
	r.p.gone(err)
	r.h.done(r.c)
}
