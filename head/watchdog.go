package head

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// watchdog says when a call of a collective method looks as if it hangs: ranks
// need each other there, so one that is far behind holds up all. It is pure: what
// it is told decides.
type watchdog struct {
	after time.Duration // never earlier than this
}

const (
	// watchTimes is how many times longer than the others, or than usual, is far
	// behind.
	watchTimes = 5
	// watchFirst is how many times the least time passes before a call is looked at
	// of which it is not known how long it takes.
	watchFirst = 30
)

// course is a collective call as the watchdog sees it.
type course struct {
	legs, done int
	since      time.Duration // since its ranks were free to begin it
	half       time.Duration // until half of them had answered; 0: they have not
	usual      time.Duration // how long such calls take; 0: there was none yet
}

// suspicion is what the watchdog thinks of a call.
type suspicion uint8

const (
	fine   suspicion = iota
	behind           // most have answered, and the rest takes far longer
	slow             // most have not, for far longer than usual
	mute             // most have not, and it is not known what is usual
)

func (w watchdog) suspect(c course) suspicion {
	switch {
	case w.after <= 0 || c.done == c.legs:
		return fine
	case c.half > 0:
		if c.since >= max(c.half+w.after, watchTimes*c.half) {
			return behind
		}
	case c.usual > 0:
		if c.since >= max(w.after, watchTimes*c.usual) {
			return slow
		}
	case c.since >= watchFirst*w.after:
		return mute
	}
	return fine
}

// tick is how often the watchdog looks.
func (w watchdog) tick() time.Duration {
	return min(max(w.after/10, 5*time.Millisecond), time.Second)
}

// durations is how long the last calls of a method took.
type durations struct {
	last [9]time.Duration
	n    int
}

func (d *durations) add(t time.Duration) {
	d.last[d.n%len(d.last)] = t
	d.n++
}

// usual is their median; 0: there was no call yet.
func (d *durations) usual() time.Duration {
	known := min(d.n, len(d.last))
	if known == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d.last[:known]))
	return sorted[known/2]
}

// watched is what the head keeps of a collective call for the watchdog.
type watched struct {
	front  time.Time     // it was seen to be the oldest call of all its ranks that are out
	half   time.Duration // see course
	warned bool
	text   string
}

// since is how long the ranks of a call were free to begin it. Where the watchdog
// did not see it at the front, it was there for less than a tick.
func (p *pending) since(now time.Time, tick time.Duration) time.Duration {
	if !p.watch.front.IsZero() {
		return now.Sub(p.watch.front)
	}
	return min(now.Sub(p.begun), tick)
}

// progressedLocked takes note of a leg's result.
func (h *Head) progressedLocked(c *call.Call) {
	p := c.Data.(*pending)
	if p.watch.half == 0 && 2*c.Done() >= len(c.Legs) {
		p.watch.half = max(p.since(time.Now(), h.watchdog.tick()), 1)
	}
}

// finishedLocked takes note of how long a collective call took.
func (h *Head) finishedLocked(p *pending) {
	p.method.took.add(max(p.since(time.Now(), h.watchdog.tick()), 1))
}

// watchCalls looks at calls until the head ends.
func (h *Head) watchCalls() {
	if h.watchdog.after <= 0 {
		return
	}
	ticker := time.NewTicker(h.watchdog.tick())
	defer ticker.Stop()
	for {
		select {
		case <-h.over:
			return
		case now := <-ticker.C:
			h.lookAtCalls(now)
		}
	}
}

// lookAtCalls has those looked at closely that the watchdog suspects, once each.
func (h *Head) lookAtCalls(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.table.Collectives() {
		p := c.Data.(*pending)
		if p.watch.warned || !atFront(c) {
			continue
		}
		if p.watch.front.IsZero() {
			p.watch.front = now
		}
		seen := course{
			legs: len(c.Legs), done: c.Done(), half: p.watch.half,
			since: p.since(now, h.watchdog.tick()), usual: p.method.took.usual(),
		}
		if why := h.watchdog.suspect(seen); why != fine {
			p.watch.warned = true
			go h.warn(c, why, seen)
		}
	}
}

// atFront says that the ranks that are out have nothing older to do.
func atFront(c *call.Call) bool {
	for i := range c.Legs {
		if l := &c.Legs[i]; !l.Done && l.Worker.Oldest() != c {
			return false
		}
	}
	return true
}

// warn tells of a call that looks as if it hangs, with where its ranks are.
func (h *Head) warn(c *call.Call, why suspicion, seen course) {
	stacks := h.stacksOfCall(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.State != call.Running && c.State != call.Sending {
		return // it went on meanwhile
	}
	groups := spec.GroupStacks(stacks, func(rank int) bool {
		leg := c.LegOfRank(rank)
		return leg < 0 || c.Legs[leg].Done
	})
	text := warning(c, why, seen, groups)
	if text == "" {
		return
	}
	c.Data.(*pending).watch.text = text
	h.warningLocked(text)
}

// warningLocked tells whoever runs the script something.
func (h *Head) warningLocked(text string) {
	h.opts.Log.Info("warning", "text", text)
	if body, err := wire.AppendVerb(nil, "warning", &wire.Warning{Text: text}); err == nil {
		h.events.noticeLocked(body)
	}
}

// Warn tells whoever runs the script something that the head was told from
// outside.
func (h *Head) Warn(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.warningLocked(text)
}

// mostPlaces is how many places a warning names: it is one line.
const mostPlaces = 4

// warning words a suspicion; "" if the stacks clear it up.
func warning(c *call.Call, why suspicion, seen course, groups []spec.StackGroup) string {
	groups = slices.DeleteFunc(groups, func(g spec.StackGroup) bool { return g.Answered })
	places := make([]string, 0, mostPlaces)
	for i, g := range groups {
		if i == mostPlaces {
			places = append(places, fmt.Sprintf("others at %d more places", len(groups)-i))
			break
		}
		places = append(places, g.String())
	}
	at := strings.Join(places, "; ")
	took := roundly(seen.since)
	tell := ". muster stacks " + c.Cluster.Name + " tells more"
	switch {
	case why == behind:
		return fmt.Sprintf("%s: no answer from %s after %s, where half of the ranks took %s: %s%s", c.Title(), c.Missing(), took, roundly(seen.half), at, tell)
	case why == slow:
		return fmt.Sprintf("%s: no answer from %s after %s, where such calls took %s: %s%s", c.Title(), c.Missing(), took, roundly(seen.usual), at, tell)
	case len(groups) > 1:
		return fmt.Sprintf("%s: no answer from %s after %s, and they are not at one place: %s%s", c.Title(), c.Missing(), took, at, tell)
	}
	return "" // all wait for the same: a long first call
}

// roundly is a duration as people say it.
func roundly(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "less than 1ms"
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(max(d/100, time.Millisecond)).String()
}
