package head

import "time"

// Back-off between restarts: the first waits backoffFirst, each further one within
// the window twice as long, up to backoffMost.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
)

// budget says how often a cluster may restart what died: so many times within a
// window. It is told the time, and reads no clock.
type budget struct {
	most   int
	window time.Duration
	taken  []time.Time // within the window, oldest first
}

// noted is when restarts were taken, as a journal keeps it; note takes it back.
func (b *budget) noted() []float64 {
	seconds := make([]float64, len(b.taken))
	for i, at := range b.taken {
		seconds[i] = float64(at.UnixNano()) / float64(time.Second)
	}
	return seconds
}

func (b *budget) note(seconds []float64) {
	for _, s := range seconds {
		b.taken = append(b.taken, time.Unix(0, int64(s*float64(time.Second))))
	}
}

// take takes one restart: how many there are then within the window, and how long
// to wait before it; false: there is none left.
func (b *budget) take(now time.Time) (count int, wait time.Duration, ok bool) {
	for len(b.taken) > 0 && now.Sub(b.taken[0]) >= b.window {
		b.taken = b.taken[1:]
	}
	if len(b.taken) >= b.most {
		return len(b.taken), 0, false
	}
	wait = backoffMost
	if n := len(b.taken); n < 16 { // further doubling would only overflow
		wait = min(backoffFirst<<n, backoffMost)
	}
	b.taken = append(b.taken, now)
	return len(b.taken), wait, true
}
