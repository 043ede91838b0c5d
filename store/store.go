package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// spillPatience is how long room may take to come by itself before something
	// is spilled for it: the word that an object is not needed any more goes
	// through the head, and the next one may be asked for before it is here.
	spillPatience = 20 * time.Millisecond
	// fullPatience is the same before the store calls itself full.
	fullPatience = time.Second
	// reuseFrom is from how many bytes on who made an object of that size before is
	// given its memory, if that comes back soon: a process says what it does not
	// need to the head, and asks the store for room itself, so that one may
	// overtake the other. Without, one more segment was there for good.
	reuseFrom = 8 << 20
	// reuseRate is for how many bytes that is waited a nanosecond, and reuseMost how
	// long at most: to touch new memory takes longer.
	reuseRate = 32
	reuseMost = 50 * time.Millisecond
)

// Options say what a store is and may have.
type Options struct {
	Node   int    // index, in the high bits of every object's id
	Name   string // of the node, for people
	Token  string // what clients show
	Budget uint64 // bytes of memory at most
	// Segments is how many there may be at most: each has a descriptor. 0: many.
	Segments int
	// SpillDir is where objects go that memory has no room for, SpillLimit how
	// many bytes of them. "": nowhere, and SpillOff says why.
	SpillDir   string
	SpillLimit uint64
	SpillOff   string
	// Free says how much memory can be taken without harm; nil: enough, which
	// is for tests: the kernel does not refuse, it kills.
	Free func() uint64
	// Low is how much of that must be left, or memory that nothing lies in any more is
	// not kept for later objects; 0: it always is. Sharing is how many stores look at
	// the same memory, and give back each its part.
	Low     uint64
	Sharing int
	// Moving tells the head that an object is about to be spilled, which it
	// answers by Objects.Moved; nil: nobody is ever told where objects lie.
	Moving func(object uint64)
	// Process names a process for people; nil: by its id.
	Process func(pid int) string
	// Holders says who has handles of objects, as far as the head answers soon; nil:
	// that is not to be had. It is asked when the store is full.
	Holders func(ctx context.Context, objects []uint64) []wire.Held
}

// Store holds the objects of one node. Its methods may be called concurrently.
type Store struct {
	opts   Options
	at     place
	ctx    context.Context
	cancel context.CancelFunc

	spillPatience, fullPatience, farPatience time.Duration
	reusePatience                            func(size uint64) time.Duration
	// watch waits for a process to end; tests put their own here.
	watch func(ctx context.Context, pid int) bool

	mu      sync.Mutex
	ledger  *ledger
	sealing map[uint64]chan struct{} // who waits for an object to be sealed
	moved   map[uint64]chan struct{} // who waits for the head to know that one moves
	roomy   chan struct{}            // who waits for room; nil: nobody
	conns   map[*wire.Conn]bool
	closed  bool
	easing  bool // somebody looks whether memory is short
	serving sync.WaitGroup

	self      *peer                // who has the views of the store itself
	beginning map[uint64]*gathered // copies that have no room yet
	peering   *peering             // nil: objects of other nodes are not to be had here
}

// New makes an empty store. The caller must Close it.
func New(opts Options) *Store {
	if opts.Process == nil {
		opts.Process = func(pid int) string { return "process " + strconv.Itoa(pid) }
	}
	if opts.Free == nil {
		opts.Free = func() uint64 { return never }
	}
	if opts.Segments <= 0 {
		opts.Segments = math.MaxInt
	}
	if opts.SpillDir == "" {
		opts.SpillLimit = 0
	}
	var epoch [2]byte
	_, _ = rand.Read(epoch[:]) // never fails
	ids := uint64(opts.Node)<<48 | uint64(binary.LittleEndian.Uint16(epoch[:]))<<32
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{
		opts: opts, ctx: ctx, cancel: cancel,
		at:            place{node: opts.Name, spillDir: opts.SpillDir, spillOff: opts.SpillOff, name: opts.Process},
		spillPatience: spillPatience, fullPatience: fullPatience, farPatience: farPatience, reusePatience: reusePatience, watch: waitForEnd,
		ledger:  newLedger(ids, opts.Budget, opts.SpillLimit, opts.Segments),
		sealing: map[uint64]chan struct{}{}, moved: map[uint64]chan struct{}{}, conns: map[*wire.Conn]bool{},
		self:      &peer{holder: never, knows: map[uint64]bool{}, views: map[uint64]*view{}, makes: map[*object]bool{}},
		beginning: map[uint64]*gathered{},
	}
}

// waitForEnd waits until a process has ended. It is false where that could not
// be told, or ctx ended first.
func waitForEnd(ctx context.Context, pid int) bool {
	w, err := process.NewWatch(pid)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer w.Close()
	select {
	case <-w.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// Objects takes the head's word on who needs what.
func (s *Store) Objects(m *wire.Objects) {
	s.mu.Lock()
	defer s.unlock()
	for _, id := range m.Hold {
		s.ledger.hold(id)
	}
	if m.All {
		s.ledger.unlendAll()
	}
	for _, l := range m.Lent {
		s.ledger.lend(l.Object, l.Holder, l.Count, now())
	}
	for _, id := range m.Moved {
		if moved := s.moved[id]; moved != nil {
			delete(s.moved, id)
			close(moved)
		}
	}
	for _, id := range m.Drop {
		s.ledger.drop(id)
	}
	for _, holder := range m.Gone {
		s.ledger.gone(holder)
	}
}

// Status tells all that the store has.
func (s *Store) Status() *wire.StoreStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.ledger.status()
	status.SpillDir = s.opts.SpillDir
	return status
}

// Close ends every connection and gives everything back. What a process still
// reads stays good for as long as it has it mapped.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.cancel()
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	inUse := map[*segment]bool{}
	for _, o := range s.ledger.objects {
		inUse[o.segment] = o.inUse() || o.state == writing || o.state == broken
	}
	for id, seg := range s.ledger.segments {
		delete(s.ledger.segments, id)
		if inUse[seg] && seg.fd >= 0 {
			unix.Close(seg.fd)
			seg.fd = -1
		}
		discard(seg)
	}
	s.peering.close()
}

// unlock carries out what the ledger asked for while the lock was held.
func (s *Store) unlock() {
	t := s.ledger.takeTodo()
	for _, id := range t.wake {
		if ready := s.sealing[id]; ready != nil {
			close(ready)
			delete(s.sealing, id)
		}
	}
	if t.room {
		s.easeLocked()
		if s.roomy != nil {
			close(s.roomy)
			s.roomy = nil
		}
	}
	s.mu.Unlock()
	for _, seg := range t.discard {
		discard(seg)
	}
	for _, id := range t.gone {
		s.peering.tell(&wire.Copied{Object: id, Runs: []wire.Run{}, Gone: true})
	}
}

// now is the time as status tells it.
func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// take finds a segment for an object in the pool.
func (s *Store) take(p *peer, size uint64) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > s.opts.Budget || s.closed {
		return nil
	}
	return s.ledger.take(p, size, now())
}

// mostTries bounds how often room that was found is lost to others.
const mostTries = 100

// allocate finds or makes room for an object, and says whether its pages are
// fresh. It may take long.
func (s *Store) allocate(ctx context.Context, p *peer, size uint64) (*object, bool, error) {
	if size > s.opts.Budget {
		return nil, false, s.full(size, never, nil)
	}
	var reuseAt, spillAt, fullAt <-chan time.Time
	maySpill, isFull := false, false
	reuse := s.reusePatience(size)
	tries := 0
	for ctx.Err() == nil { // else nobody is there any more who could use it
		free := s.opts.Free()
		var next plan
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, false, errClosed(s.opts.Name)
		}
		next.object = s.ledger.take(p, size, now())
		soon := next.object == nil && reuse > 0 && s.ledger.comesBack(p, size)
		if next.object == nil && !soon {
			next = s.ledger.room(p, size, free, maySpill, now())
		}
		if next.full && isFull {
			s.mu.Unlock()
			return nil, false, s.full(size, free, nil)
		}
		var roomy <-chan struct{}
		if soon || next.wait || next.full {
			if s.roomy == nil {
				s.roomy = make(chan struct{})
			}
			roomy = s.roomy
		}
		s.unlock()
		switch {
		case next.fresh:
			err := s.makeMemory(next.object)
			if errors.Is(err, errMeanwhile) && tries < mostTries {
				tries++
				continue // the plan was made for more than is left
			}
			if err != nil {
				err = s.full(size, never, fmt.Errorf("the kernel gave no memory: %w", err))
			}
			return next.object, true, err
		case next.object != nil:
			return next.object, false, nil
		case next.spill != nil:
			if err := s.spill(next.spill); err != nil {
				return nil, false, s.full(size, free, err)
			}
			continue
		case soon:
			if reuseAt == nil {
				reuseAt = time.After(reuse)
			}
		case next.full && fullAt == nil:
			fullAt = time.After(s.fullPatience)
		case next.wait && spillAt == nil && !maySpill:
			spillAt = time.After(s.spillPatience)
		}
		select {
		case <-roomy:
		case <-reuseAt:
			reuse = 0
			s.mu.Lock()
			s.ledger.cameNot(p)
			s.mu.Unlock()
		case <-spillAt:
			maySpill, spillAt = true, nil
		case <-fullAt:
			maySpill, isFull = true, true
		case <-ctx.Done():
		}
	}
	return nil, false, ctx.Err()
}

// reusePatience is how long an object waits for the memory of one before it.
func reusePatience(size uint64) time.Duration {
	if size < reuseFrom {
		return 0
	}
	return min(time.Duration(size/reuseRate), reuseMost)
}

func errClosed(node string) error {
	return spec.Errorf(spec.CodeNodeLost, "the store of %s is closing", node)
}

// full is the error of a store that has no room. Who has handles is asked for now,
// and not before.
func (s *Store) full(size, free uint64, cause error) error {
	var held []wire.Held
	if s.opts.Holders != nil {
		s.mu.Lock()
		objects := s.ledger.inMemory()
		s.mu.Unlock()
		ids := make([]uint64, 0, min(len(objects), mostAsked))
		for _, o := range objects[:cap(ids)] {
			ids = append(ids, o.id)
		}
		held = s.opts.Holders(s.ctx, ids)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.fullError(s.at, size, free, cause, held, now())
}

func (s *Store) makeMemory(o *object) error {
	fd, err := newMemory(o.segment.capacity, s.opts.Free)
	s.mu.Lock()
	defer s.unlock()
	if err != nil {
		s.ledger.unmade(o)
		return err
	}
	s.ledger.made(o, fd)
	return nil
}

// spill copies an object to disk, unless it is wanted or gone meanwhile.
func (s *Store) spill(o *object) error {
	unneeded := false
	fd, err := spillTo(s.opts.SpillDir, o.segment.fd, o.size, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		unneeded = o.removed || o.inUse()
		return unneeded || s.closed
	})
	if err == nil {
		s.moving(o.id) // whoever was lent it meanwhile is known after this
	}
	s.mu.Lock()
	defer s.unlock()
	if err != nil {
		s.ledger.notCopied(o)
		if unneeded {
			return nil
		}
		return fmt.Errorf("nothing more can be spilled: %w", err)
	}
	s.ledger.copied(o, fd)
	return nil
}

// moving waits until the head tells nobody any more where an object lies.
func (s *Store) moving(id uint64) {
	if s.opts.Moving == nil {
		return
	}
	s.mu.Lock()
	moved := s.moved[id]
	if moved == nil {
		moved = make(chan struct{})
		s.moved[id] = moved
	}
	s.mu.Unlock()
	s.opts.Moving(id)
	select {
	case <-moved:
	case <-s.ctx.Done():
	}
}

// allocated is the answer that gives a peer its new object.
func (s *Store) allocated(p *peer, o *object, fresh bool) (answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.removed || o.state != writing {
		return answer{}, spec.Errorf(spec.CodeWorkerDied, "the head says that the process that asked for an object is gone")
	}
	a := answer{object: o.id, segment: o.segment.id, capacity: o.segment.capacity, fresh: fresh}
	s.addressLocked(&a, p, o.segment)
	a.stale, p.stale = p.stale, nil
	return a, nil
}

// addressLocked sends a segment's descriptor along where the peer has not got it.
func (s *Store) addressLocked(a *answer, p *peer, seg *segment) {
	if !p.knows[seg.id] {
		p.knows[seg.id] = true
		a.sent = append(a.sent, seg.id)
		a.fds = append(a.fds, seg.fd)
	}
}

// open leases objects, all or none. What it has to wait for first is returned.
func (s *Store) open(p *peer, ids []uint64) (a answer, wait <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.unlock()
	pending, err := s.ledger.pending(ids, s.at.name)
	if err != nil {
		return a, nil, err
	}
	if pending != 0 {
		ready := s.sealing[pending]
		if ready == nil {
			ready = make(chan struct{})
			s.sealing[pending] = ready
		}
		return a, ready, nil
	}
	at := now()
	a.opened = make([]opened, len(ids))
	for i, id := range ids {
		o := s.ledger.view(p, id, at)
		a.opened[i] = opened{o.segment.id, o.size}
		if o.copy != nil && o.copy.left > 0 {
			a.partial = append(a.partial, id)
		}
		s.addressLocked(&a, p, o.segment)
	}
	a.stale, p.stale = p.stale, nil
	return a, nil, nil
}

func (s *Store) join(holder uint64, pid int) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.join(holder, pid)
}

// leave ends a connection's part, and its process's once that has ended too.
func (s *Store) leave(p *peer) {
	s.mu.Lock()
	s.ledger.leave(p)
	if p.idleLeft() {
		s.ledger.ended(p)
		s.unlock()
		return
	}
	closed := s.closed
	if !closed {
		s.serving.Add(1)
	}
	s.unlock()
	if closed {
		return
	}
	go func() {
		defer s.serving.Done()
		if p.pid != 0 && !s.watch(s.ctx, p.pid) {
			return
		}
		s.mu.Lock()
		s.ledger.ended(p)
		s.unlock()
	}()
}
