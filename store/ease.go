package store

import "time"

// How often a store that keeps memory for later objects looks how much is left: as
// soon as others could have taken what is above the least, at so many bytes a second.
const (
	easeRate  = 4 << 30
	easeSoon  = 20 * time.Millisecond
	easeLater = time.Second
)

// easeLocked has somebody look, from now on until nothing is kept.
func (s *Store) easeLocked() {
	if s.easing || s.closed || s.opts.Low == 0 || s.ledger.pooled == 0 {
		return
	}
	s.easing = true
	s.serving.Add(1)
	go s.ease()
}

// ease gives memory back that nothing lies in when the machine, or the cgroup, is
// short of it: others that grow have no other way to ask, and the kernel kills them.
func (s *Store) ease() {
	defer s.serving.Done()
	timer := time.NewTimer(easeSoon)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.ctx.Done():
		}
		free := s.opts.Free()
		s.mu.Lock()
		sharing := uint64(max(1, s.opts.Sharing)) //nolint:gosec // a number of nodes
		s.ledger.ease((excess(s.opts.Low, free) + sharing - 1) / sharing)
		over := s.closed || s.ledger.pooled == 0
		if over {
			s.easing = false
		}
		s.unlock()
		if over {
			return
		}
		timer.Reset(easeWait(excess(free, s.opts.Low)))
	}
}

// easeWait is when to look again, with so much left above the least.
func easeWait(left uint64) time.Duration {
	seconds := float64(left) / easeRate
	return min(easeLater, max(easeSoon, time.Duration(seconds*float64(time.Second))))
}

// ease gives up what is kept for later objects, the longest unused first, until that
// is so many bytes.
func (l *ledger) ease(short uint64) {
	for gone := uint64(0); gone < short && l.pooled > 0; {
		gone += l.giveUpOldest()
	}
}
