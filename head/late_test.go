package head_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// keepBack is call for one that its connection loses: it goes out when the caller
// comes back.
func (c *returning) keepBack(to callee, payload []byte) *outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	f := wire.Frame{Header: wire.Header{Kind: wire.KindCall, ID: c.next}, Body: append(to.route(), payload...)}
	o := &outgoing{Frame: f, ranks: 1, had: map[uint32]bool{}, answer: make(chan wire.Frame, 64)}
	c.open = append(c.open, o)
	return o
}

// A call that is sent again when nothing is left of its time is answered, and does
// not begin: neither under the head of before nor under the next. Those that have
// time go on, to their deadlines.
func TestCallsWhoseTimeIsOver(t *testing.T) {
	for name, restart := range map[string]bool{"cut off": false, "a new head": true} {
		t.Run(name, func(t *testing.T) {
			var ran legRuns
			began := make(chan *fake.Leg, 8)
			s := newCrashes(t, "2x1", fake.Script{Answer: func(leg *fake.Leg) {
				ran.note(leg)
				began <- leg
			}})
			c := s.controller()
			info := c.create(2)
			to := func(rank int, timeout time.Duration) callee {
				return callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{rank}, timeout: timeout}
			}
			runs := c.call(to(0, time.Hour), args("runs"))
			held := within(t, began, "a leg")
			hangs := c.call(to(0, time.Second), args("hangs"))
			stuck := within(t, began, "another leg")
			late := c.keepBack(to(1, time.Millisecond), args("late"))
			soon := c.keepBack(to(1, time.Hour), args("soon"))
			if restart {
				s.crash()
			}
			c.cut()
			_, err := c.wait(late)
			wantError(t, err, spec.CodeTimeout, "c.plain", "deadline passed")
			within(t, began, "the leg that has time").Return([]byte{2})
			_, err = c.wait(soon)
			must(t, err)
			_, err = c.wait(hangs)
			wantError(t, err, spec.CodeTimeout, "c.plain", "no answer within 1s")
			stuck.Return([]byte{3})
			held.Return([]byte{1})
			_, err = c.wait(runs)
			must(t, err)
			ran.mu.Lock()
			origin := uint64(c.number)<<32 | late.ID
			for worker, origins := range ran.ran {
				if slices.Contains(origins, origin) {
					t.Errorf("it ran on %s: %x", worker, origins)
				}
			}
			ran.mu.Unlock()
			must(t, ran.check())
			must(t, s.end(c))
			if want := map[bool]int{false: 1, true: 2}[restart]; s.epochs != want {
				t.Errorf("%d heads instead of %d", s.epochs, want)
			}
		})
	}
}

// A caller that others went on without is not let in any more: what it would send
// again may have run.
func TestCallersThatComeTooLate(t *testing.T) {
	var ran legRuns
	began := make(chan *fake.Leg, 8)
	s := newCrashes(t, "2x1", fake.Script{Answer: func(leg *fake.Leg) {
		ran.note(leg)
		began <- leg
	}})
	s.options.Grace = 2 * time.Second // of the next head, which all but one come back to
	owner := s.controller()
	info := owner.create(2)
	to := callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}

	gate := make(chan struct{})
	slow, hold := s.gated()
	held := slow.call(to, args("held"))
	leg := within(t, began, "a leg")
	hold(gate)
	s.crash()
	owner.cut()
	after := owner.call(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{1}}, args("after"))
	within(t, began, "a leg under the next head").Return([]byte{1})
	_, err := owner.wait(after)
	must(t, err)
	close(gate)
	_, err = slow.wait(held)
	if err == nil || !strings.Contains(err.Error(), "away for too long") {
		t.Errorf("it was let in: %v", err)
	}
	leg.Return([]byte{2})
	must(t, ran.check())
	must(t, s.end(owner))
}
