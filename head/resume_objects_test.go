package head_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// shelf is the store of node 0, which outlives heads.
type shelf struct {
	mu   sync.Mutex
	held map[uint64]bool
	told chan string
}

func newShelf() *shelf { return &shelf{held: map[uint64]bool{}, told: make(chan string, 1024)} }

func (s *shelf) objects(_ int, o wire.Objects) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range o.Hold {
		if !s.held[id] {
			s.told <- fmt.Sprintf("hold %d", id)
		}
		s.held[id] = true
	}
	for _, id := range o.Drop {
		if s.held[id] {
			s.told <- fmt.Sprintf("drop %d", id)
		}
		delete(s.held, id)
	}
}

func (s *shelf) stored(int) []wire.ObjectAt {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []wire.ObjectAt{{Object: 99, Segment: 3}} // whose maker has told nobody of it
	for id := range s.held {
		all = append(all, wire.ObjectAt{Object: id, Segment: uint32(id), Held: 1})
	}
	return all
}

// Objects live on under a new head, and over a cut, for as long as somebody says
// that it knows of them: a controller, a worker, a call. The rest is dropped.
func TestObjectsOutliveHeadsAndCuts(t *testing.T) {
	for name, crash := range map[string]bool{"a new head": true, "a cut": false} {
		t.Run(name, func(t *testing.T) {
			shelf := newShelf()
			legs := make(chan *fake.Leg, 8)
			var mu sync.Mutex
			knows := []wire.Released{}
			s := newCrashes(t, "1x1", fake.Script{
				Answer: func(l *fake.Leg) { legs <- l }, Objects: shelf.objects, Stored: shelf.stored,
				Holds: func(*fake.Worker) []wire.Released {
					mu.Lock()
					defer mu.Unlock()
					return knows
				},
			})
			c := s.controller()
			info := c.create(1)
			to := callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}
			call := func(n uint64) *outgoing {
				return c.post(wire.Frame{
					Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), args(raw(array))...), Bufs: []wire.Buf{object(0, n)},
				}, 1)
			}
			// 1: its maker knows of it; 2: the worker does; 3: nobody any more; 4: a
			// call that runs; 5: an answer that was not read.
			done := func(n uint64, result wire.Value) *fake.Leg {
				o := call(n)
				l := within(t, legs, "a leg")
				l.ReturnValue(result)
				_, err := c.wait(o)
				must(t, err)
				return l
			}
			none := wire.Value{Raw: []byte{0xc0}}
			for n := range uint64(3) {
				done(n+1, none)
				tells(t, shelf.told, fmt.Sprintf("hold %d", n+1))
			}
			running := call(4)
			leg := within(t, legs, "a leg")
			tells(t, shelf.told, "hold 4")
			mu.Lock()
			knows = []wire.Released{{Object: 2, Count: 1}}
			mu.Unlock()
			c.mu.Lock()
			c.holds = []wire.Released{{Object: 1, Count: 1}}
			c.mu.Unlock()
			if crash {
				s.crashNow()
			} else {
				s.fake.Worker("c-0").Cut()
				c.cut()
			}
			tells(t, shelf.told, "drop 3")
			leg.ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, 5)}})
			f, err := c.wait(running)
			must(t, err)
			if len(f.Bufs) != 1 || f.Bufs[0].Object != 5 {
				t.Errorf("%+v", f.Bufs)
			}
			tells(t, shelf.told, "hold 5", "drop 4")
			for _, n := range []uint64{1, 5} {
				c.release(n)
			}
			release(leg.Worker, 0, 2, 1)
			release(leg.Worker, 0, 5, 1)
			tells(t, shelf.told, "drop 1", "drop 2", "drop 5")
			must(t, errors.Join(s.end(c)))
		})
	}
}

// A worker that comes back without a word on its loans may read all that it has
// where it lies. One that was lent nothing says so.
func TestWorkersThatDoNotTellTheirLoans(t *testing.T) {
	for name, at := range map[string]struct {
		lent []wire.Released
		want string
	}{"says nothing": {nil, "1 1"}, "has none": {[]wire.Released{}, "1 -1"}, "has some": {[]wire.Released{{Object: 1, Count: 1}}, "1 1"}} {
		for how, crash := range map[string]bool{"a new head": true, "a cut": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				shelf, legs, lent := newShelf(), make(chan *fake.Leg, 8), make(chan string, 64)
				s := newCrashes(t, "1x1", fake.Script{
					Answer: func(l *fake.Leg) { legs <- l }, Stored: shelf.stored,
					Objects: func(node int, o wire.Objects) {
						shelf.objects(node, o)
						for _, l := range o.Lent {
							lent <- fmt.Sprintf("%d %d", l.Object, l.Count)
						}
					},
					Holds: func(*fake.Worker) []wire.Released { return []wire.Released{{Object: 1, Count: 1}} },
					Lent:  func(*fake.Worker) []wire.Released { return at.lent },
				})
				c := s.controller()
				info := c.create(1)
				to := callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}
				o := c.post(wire.Frame{
					Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), args(raw(array))...), Bufs: []wire.Buf{object(0, 1)},
				}, 1)
				within(t, legs, "a leg").ReturnValue(wire.Value{Raw: []byte{0xc0}})
				_, err := c.wait(o)
				must(t, err)
				tells(t, shelf.told, "hold 1")
				if crash {
					s.crashNow()
				} else {
					s.fake.Worker("c-0").Cut()
				}
				tells(t, lent, at.want)
				must(t, s.end(c))
			})
		}
	}
}

// What a script was answered stays its own where the ranks that made it are about to be
// replaced as the head ends: they come back to the next head, which does not wait for
// them, with results that nobody asks for, before the script is there to say that it
// has them.
func TestObjectsOfRanksThatWereBeingReplaced(t *testing.T) {
	shelf, legs, ended := newShelf(), make(chan *fake.Leg, 8), make(chan struct{})
	noted, agents, handled := make(chan struct{}, 64), make(chan struct{}), make(chan struct{})
	var first atomic.Uint32 // the number of rank 0's first process
	var s *crashes
	s = newCrashes(t, "2x1", fake.Script{
		Answer: func(l *fake.Leg) { legs <- l }, Stored: shelf.stored,
		Objects: func(node int, o wire.Objects) {
			if node == 0 {
				shelf.objects(node, o)
			}
		},
		Spared: func(w *fake.Worker) bool {
			if !first.CompareAndSwap(w.Number, 0) {
				return false
			}
			<-noted // that it is to be replaced
			s.crashNow()
			close(ended)
			return true
		},
		Holds: func(*fake.Worker) []wire.Released {
			<-agents // which are back before it
			return nil
		},
	})
	back, results, later := 0, 0, handled
	s.watch(func(epoch int, step string) {
		switch {
		case epoch == 1 && step == "noted":
			noted <- struct{}{}
		case epoch != 2:
		case step == "agent back":
			if back++; back == 2 {
				close(agents)
			}
		case step == "result":
			results++
		case step == "flushed" && results > 0 && handled != nil:
			close(handled)
			handled = nil
		}
	})
	c, hold := s.gated()
	info := c.create(2, restarting(spec.OnFailureCluster, 3))
	first.Store(info.Workers[0].Number)
	to := callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}
	o := c.call(to, args("make"))
	within(t, legs, "a leg").ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, 5)}})
	_, err := c.wait(o)
	must(t, err)
	tells(t, shelf.told, "hold 5")
	c.mu.Lock()
	c.holds = []wire.Released{{Object: 5, Count: 1}}
	c.mu.Unlock()
	hold(later)
	for len(noted) > 0 {
		<-noted
	}
	s.fake.Worker("c-1").Die(wire.Exited{Signal: "SIGKILL", Why: "killed by SIGKILL"})
	within(t, ended, "the head's end")
	c.post(wire.Frame{
		Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), args(raw(array))...), Bufs: []wire.Buf{object(0, 6)},
	}, 1)
	tells(t, shelf.told, "hold 6") // a drop of 5 would be told before
	c.release(5)
	tells(t, shelf.told, "drop 5", "drop 6") // which its rank does not live to read
	must(t, s.end(c))
}

func (c *returning) release(n uint64) {
	body, err := wire.AppendVerb(nil, "release", &wire.Releases{Objects: []wire.Released{{Object: n, Count: 1}}})
	must(c.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Send(wire.Header{Kind: wire.KindNotice, Ack: c.read}, body, nil)
}

// crashNow ends the head of now at once.
func (c *crashes) crashNow() {
	c.crash()
	c.mu.Lock()
	fault := c.fault
	c.mu.Unlock()
	fault("told to")
}
