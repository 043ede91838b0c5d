package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// streams is how many chunks of one gathering travel at a time.
	streams = 4
	// begun is how many objects of one request are begun at a time.
	begun = 8
	// wrongTries is how often chunks may come as they are not, with no good one
	// between.
	wrongTries = 4
	// farPatience is how long nothing at all may come from nodes that the head
	// says are there.
	farPatience = 60 * time.Second
	// Between two tries, when nothing came.
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// gathered is some chunks on their way, or a copy that is about to get room.
type gathered struct {
	done chan struct{} // of a copy
	err  error         // why they come no more; the store's lock guards it
}

// far says that an object is of another node, and can be had from there.
func (s *Store) far(id uint64) bool {
	return s.peering != nil && id>>48 != s.ledger.ids>>48
}

// copies has objects of other nodes here: all that lies on other nodes of ids, or,
// where only some bytes will be needed, a beginning of it. The views that it
// returns are to be ended by unhold, whatever the error.
func (s *Store) copies(ctx context.Context, ids []uint64, some bool) ([]*object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var all []*object
	var first error
	var wg sync.WaitGroup
	slots := make(chan struct{}, begun)
	for _, id := range ids {
		if !s.far(id) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			o, err := s.copyOf(ctx, id)
			if err == nil {
				runs := []wire.Run{{To: chunksOf(o.size)}}
				if some {
					runs[0].To = 1
				}
				err = s.ensure(ctx, o, runs)
			}
			mu.Lock()
			defer mu.Unlock()
			if o != nil {
				all = append(all, o)
			}
			if err != nil && first == nil {
				first = err
				cancel()
			}
		})
	}
	wg.Wait()
	return all, first
}

// unhold ends views of the store itself.
func (s *Store) unhold(all []*object) {
	s.mu.Lock()
	defer s.unlock()
	for _, o := range all {
		s.unholdLocked(o)
	}
}

func (s *Store) holdLocked(o *object) {
	s.ledger.view(s.self, o.id, now())
	if o.copy != nil {
		o.copy.own++
	}
}

func (s *Store) unholdLocked(o *object) {
	if o.copy != nil {
		o.copy.own--
	}
	s.ledger.unview(s.self, o.id, 1)
}

// copyOf is what stands here for an object of another node, with a view of the
// store itself. It is made if need be: by one for all who ask meanwhile.
func (s *Store) copyOf(ctx context.Context, id uint64) (*object, error) {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errClosed(s.opts.Name)
		}
		if o := s.ledger.objects[id]; o != nil {
			s.holdLocked(o)
			s.mu.Unlock()
			return o, nil
		}
		g := s.beginning[id]
		if g == nil {
			g = &gathered{done: make(chan struct{})}
			s.beginning[id] = g
			s.serving.Add(1)
			go s.begin(id, g)
		}
		s.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if g.err != nil {
			return nil, g.err
		}
	}
}

// begin makes a copy: the first chunk brings the size.
func (s *Store) begin(id uint64, g *gathered) {
	defer s.serving.Done()
	o, err := s.first(id, g)
	s.mu.Lock()
	delete(s.beginning, id)
	g.err = err
	close(g.done)
	if o != nil {
		s.unholdLocked(o)
	}
	s.unlock()
	if o == nil {
		s.peering.tell(&wire.Copied{Object: id, Runs: []wire.Run{}, Gone: true})
	}
}

// first gets the first chunk of an object, and room for all of it. What it
// returns has a view of the store itself.
func (s *Store) first(id uint64, g *gathered) (o *object, err error) {
	run := []wire.Run{{To: 1}}
	t := trouble{s: s, object: id}
	defer func() {
		if err != nil && o != nil {
			s.mu.Lock()
			g.err = err
			delete(o.copy.coming, 0)
			o.copy.wake()
			o.released = true // nobody knows of it
			s.unholdLocked(o)
			s.unlock()
			o = nil
		}
	}()
	for {
		sources, err := s.peering.ask(s.ctx, id, run, t.avoid())
		if err != nil {
			return o, t.explain(err)
		}
		for _, from := range sources {
			r, err := s.peering.get(s.ctx, from, id, 0)
			if err != nil {
				t.failed(from, err)
				continue
			}
			if o == nil {
				if o, err = s.makeCopy(id, g, r); err != nil {
					r.close()
					return nil, err
				}
			}
			if err = s.receive(o, 0, r); err != nil {
				t.failed(from, err)
				continue
			}
			s.peering.tell(&wire.Copied{Object: id, Runs: run})
			return o, nil
		}
		if err := t.wait(s.ctx); err != nil {
			return o, err
		}
	}
}

// makeCopy finds room for an object of another node.
func (s *Store) makeCopy(id uint64, g *gathered, r *reply) (*object, error) {
	o, _, err := s.allocate(s.ctx, s.self, r.size)
	if err != nil {
		e := *spec.AsError(err)
		e.Message = fmt.Sprintf("object %x of node %d cannot be had on %s: %s", id, id>>48, s.opts.Name, e.Message)
		return nil, &e
	}
	s.mu.Lock()
	defer s.unlock()
	s.ledger.adopt(o, id, r.what)
	o.copy.coming[0] = g
	s.holdLocked(o)
	return o, nil
}

// need has some bytes of an object here that a peer has a view of.
func (s *Store) need(ctx context.Context, p *peer, id uint64, spans []span) error {
	s.mu.Lock()
	o := s.ledger.objects[id]
	if o == nil || p.views[id] == nil {
		s.mu.Unlock()
		return spec.Errorf(spec.CodeInvalid, "bytes of object %x are needed, and it was not opened", id)
	}
	if o.copy == nil {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return s.ensure(ctx, o, runsOf(spans, o.size))
}

// ensure has chunks of a copy here. Somebody has a view of it meanwhile.
func (s *Store) ensure(ctx context.Context, o *object, runs []wire.Run) error {
	var by *gathered
	for {
		s.mu.Lock()
		if by != nil && by.err != nil {
			s.mu.Unlock()
			return by.err
		}
		if lacks := o.copy.lacks(runs); len(lacks) > 0 {
			if s.closed {
				s.mu.Unlock()
				return errClosed(s.opts.Name)
			}
			s.gatherLocked(o, lacks)
		}
		var here bool
		here, by = o.copy.awaited(runs)
		changed := o.copy.changed
		s.mu.Unlock()
		if here {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// gatherLocked begins to get chunks that are neither here nor coming.
func (s *Store) gatherLocked(o *object, runs []wire.Run) {
	g := &gathered{}
	for _, r := range runs {
		for chunk := r.From; chunk < r.To; chunk++ {
			o.copy.coming[chunk] = g
		}
	}
	s.holdLocked(o)
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		err := s.gather(o, runs)
		s.mu.Lock()
		defer s.unlock()
		g.err = err
		for chunk, by := range o.copy.coming {
			if by == g {
				delete(o.copy.coming, chunk)
			}
		}
		o.copy.wake()
		s.unholdLocked(o)
	}()
}

// gather gets chunks from whoever the head says has them, until all are here.
func (s *Store) gather(o *object, runs []wire.Run) error {
	t := trouble{s: s, object: o.id}
	for {
		s.mu.Lock()
		left := o.copy.some(runs, func(chunk uint32) bool { return !o.copy.here[chunk] })
		unneeded := o.released && o.views == o.copy.own
		s.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		if unneeded {
			return spec.Errorf(spec.CodeNotFound, "object %x is not needed any more: everything that named it was released", o.id)
		}
		sources, err := s.peering.ask(s.ctx, o.id, left, t.avoid())
		if err != nil {
			return t.explain(err)
		}
		got := s.round(o, sources, &t)
		if len(got) > 0 {
			s.peering.tell(&wire.Copied{Object: o.id, Runs: got})
			t.calm()
		}
		if err := t.wait(s.ctx); err != nil {
			return err
		}
	}
}

// round gets chunks over several streams, and returns those that have arrived.
// A source that fails is not asked again in the same round.
func (s *Store) round(o *object, sources []wire.Source, t *trouble) []wire.Run {
	var mu sync.Mutex
	at, next := 0, uint32(0)
	bad := map[int]bool{}
	var got []wire.Run
	task := func() (from wire.Source, chunk uint32, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		for ; at < len(sources); at++ {
			from = sources[at]
			next = max(next, from.From)
			if next < from.To && !bad[from.Node] && s.ctx.Err() == nil {
				next++
				return from, next - 1, true
			}
			next = 0
		}
		return from, 0, false
	}
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			for {
				from, chunk, ok := task()
				if !ok {
					return
				}
				r, err := s.peering.get(s.ctx, from, o.id, chunk)
				if err == nil {
					err = s.receive(o, chunk, r)
				}
				mu.Lock()
				if err == nil {
					got = append(got, wire.Run{From: chunk, To: chunk + 1})
				} else {
					bad[from.Node] = true
					t.failed(from, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return join(got)
}

// receive reads a chunk into its place.
func (s *Store) receive(o *object, chunk uint32, r *reply) error {
	defer r.close()
	if r.size != o.size {
		return wrongError{fmt.Errorf("it has %d bytes there and had %d before", r.size, o.size)}
	}
	s.mu.Lock()
	mem, err := mapped(o.segment)
	first := err == nil && o.segment.firstUse(chunk)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	at := bytesOf(chunk, o.size)
	target := mem[at.from:at.to]
	if first {
		touch(target, true)
	}
	sum, err := r.read(target)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.sums == nil {
		o.sums = map[uint32]uint32{}
	}
	o.sums[chunk] = sum
	o.copy.arrived(chunk)
	return nil
}

// trouble is what went wrong on the way of an object's chunks since one arrived.
type trouble struct {
	s      *Store
	object uint64
	nodes  []int
	last   error
	wrong  int
	since  time.Time
	pause  time.Duration
}

func (t *trouble) avoid() []int { return t.nodes }

// failed takes note that a node did not give what the head said it has.
func (t *trouble) failed(from wire.Source, err error) {
	if t.since.IsZero() {
		t.since = time.Now()
	}
	if !slices.Contains(t.nodes, from.Node) {
		t.nodes = append(t.nodes, from.Node)
	}
	t.last = fmt.Errorf("%s (at %s): %w", from.Name, from.Address, err)
	if isWrong(err) {
		t.wrong++
	}
}

// calm forgets what went wrong: something has arrived since.
func (t *trouble) calm() { t.wrong, t.since, t.pause = 0, time.Time{}, 0 }

// wait waits before the next try, or says why there is none.
func (t *trouble) wait(ctx context.Context) error {
	if t.last == nil || t.since.IsZero() {
		return ctx.Err()
	}
	if t.wrong >= wrongTries || time.Since(t.since) > t.s.farPatience {
		return t.explain(nil)
	}
	t.pause = min(lastPause, max(firstPause, 2*t.pause))
	timer := time.NewTimer(t.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errClosed(t.s.opts.Name)
	}
}

// explain words the end of all tries. cause is what the head said.
func (t *trouble) explain(cause error) error {
	code, why := spec.CodeNodeLost, t.last
	switch {
	case t.s.ctx.Err() != nil:
		return errClosed(t.s.opts.Name)
	case cause != nil && t.last != nil:
		code, why = spec.AsError(cause).Code, fmt.Errorf("%w; before that, %v", cause, t.last) //nolint:errorlint // the head's word is the cause
	case cause != nil:
		code, why = spec.AsError(cause).Code, cause
	case t.wrong >= wrongTries:
		code = spec.CodeProtocol
	}
	e := spec.Errorf(code, "object %x of node %d cannot be had on %s: %v", t.object, t.object>>48, t.s.opts.Name, why)
	e.Node = t.s.opts.Name
	return e
}
