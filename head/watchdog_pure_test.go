package head

import (
	"testing"
	"time"
)

// The clock is what the watchdog is told: no test of it waits.
func TestWatchdogSuspects(t *testing.T) {
	const s = time.Second
	dog := watchdog{after: 10 * s}
	for name, c := range map[string]struct {
		seen course
		from time.Duration // suspected from this moment on, not before
		want suspicion
	}{
		"most answered at once":             {course{legs: 8, done: 7, half: 1}, 10*s + 1, behind},
		"most answered after a second":      {course{legs: 8, done: 7, half: s}, 11 * s, behind},
		"most answered after a minute":      {course{legs: 8, done: 4, half: 60 * s}, 300 * s, behind},
		"what is usual does not matter now": {course{legs: 8, done: 4, half: s, usual: 100 * s}, 11 * s, behind},
		"none has, it takes no time":        {course{legs: 8, usual: 1}, 10 * s, slow},
		"none has, it takes a minute":       {course{legs: 8, usual: 60 * s}, 300 * s, slow},
		"few have":                          {course{legs: 8, done: 3, usual: 60 * s}, 300 * s, slow},
		"the first of its kind":             {course{legs: 8}, 300 * s, mute},
	} {
		t.Run(name, func(t *testing.T) {
			c.seen.since = c.from - 1
			if got := dog.suspect(c.seen); got != fine {
				t.Errorf("a moment before: %v", got)
			}
			c.seen.since = c.from
			if got := dog.suspect(c.seen); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if got := (watchdog{after: -1}).suspect(c.seen); got != fine {
				t.Errorf("turned off it says %v", got)
			}
			c.seen.done = c.seen.legs
			if got := dog.suspect(c.seen); got != fine {
				t.Errorf("all have answered, and it says %v", got)
			}
		})
	}
}

func TestUsualDuration(t *testing.T) {
	var d durations
	if d.usual() != 0 {
		t.Error("without a call nothing is usual")
	}
	for i, want := range []time.Duration{5, 5, 5, 5, 5} { // one long first call is not usual
		d.add(map[bool]time.Duration{true: 1000, false: 5}[i == 1])
		if got := d.usual(); i != 1 && got != want {
			t.Errorf("after %d: %v", i+1, got)
		}
	}
	for range len(d.last) {
		d.add(70)
	}
	if got := d.usual(); got != 70 {
		t.Errorf("what is long ago does not count: %v", got)
	}
}

func TestSinceItsRanksWereFree(t *testing.T) {
	now := time.Now()
	p := &pending{begun: now.Add(-time.Minute)}
	if got := p.since(now, time.Second); got != time.Second {
		t.Errorf("it waited for others before: %v", got)
	}
	p.watch.front = now.Add(-5 * time.Second)
	if got := p.since(now, time.Second); got != 5*time.Second {
		t.Errorf("got %v", got)
	}
}
