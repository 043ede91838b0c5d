package head_test

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// The agent ends a cluster's workers while there is no head, as the one before asked for,
// and forgets their exits: the next head still has to say that they are gone.
func TestStoresHearOfWorkersThatWereStoppedWithoutAHead(t *testing.T) {
	var once sync.Once
	gone := make(chan uint64, 64)
	var s *crashes
	s = newCrashes(t, "1x1", fake.Script{
		Stop: func(*fake.Worker) { once.Do(func() { s.crashNow() }) },
		Objects: func(_ int, o wire.Objects) {
			for _, g := range o.Gone {
				gone <- g
			}
		},
	})
	stopped := make(chan struct{}, 8)
	s.watch(func(epoch int, step string) {
		if epoch == 2 && step == "workers stopped" {
			stopped <- struct{}{}
		}
	})
	c := s.controller()
	info := c.create(1)
	must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
	within(t, stopped, "the second head's stop")
	must(t, c.ask("store", &wire.Empty{}, &wire.StoreReport{})) // behind it
	select {
	case g := <-gone:
		if g != uint64(info.Workers[0].Number) {
			t.Errorf("%d is gone", g)
		}
	default:
		t.Error("no store was told that the worker is gone")
	}
	must(t, s.end(c))
}

// While its agent is away, a worker names an object, and everybody lets go of it: the
// store was told neither to hold nor to drop it, and must hear that it can go.
func TestObjectsThatCameAndWentWhileTheirAgentWasAway(t *testing.T) {
	legs, drops := make(chan *fake.Leg, 8), make(chan uint64, 64)
	inside, goOn := make(chan struct{}, 8), make(chan struct{})
	s := newCrashes(t, "1x1", fake.Script{
		Answer: func(l *fake.Leg) { legs <- l },
		Stored: func(int) []wire.ObjectAt { // its agent is known to be away, and has not said yet what it has
			inside <- struct{}{}
			<-goOn
			return []wire.ObjectAt{{Object: 5, Segment: 5}} // made, and never held
		},
		Objects: func(_ int, o wire.Objects) {
			for _, d := range o.Drop {
				drops <- d
			}
			if o.All {
				drops <- 0
			}
		},
	})
	c := s.controller()
	info := c.create(1)
	to := callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}
	o := c.call(to, args("make"))
	leg := within(t, legs, "a leg")
	s.fake.Agent(0).Cut()
	within(t, inside, "the agent's way back")
	leg.ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, 5)}})
	_, err := c.wait(o)
	must(t, err)
	c.release(5)
	release(leg.Worker, 0, 5, 1)
	must(t, c.ask("service.list", &wire.Empty{}, &wire.Names{}))
	close(goOn)
	var told []uint64
	for {
		d := within(t, drops, "the agent to be told all")
		told = append(told, d)
		if d == 0 {
			break
		}
	}
	if len(told) != 2 {
		t.Errorf("5 is not dropped: %v", told)
	}
	must(t, s.end(c))
}

// A script that is not back in time, and may still come, keeps what it alone knows of.
// What nobody has goes when it is there, with what those made who are nobody any more
// and whose store was never told to hold it.
func TestWhatALateCallerHasIsKept(t *testing.T) {
	shelf, legs, gone := newShelf(), make(chan *fake.Leg, 8), make(chan uint64, 64)
	const nobody, itself = 77, math.MaxUint64 // the store is no process that ends
	s := newCrashes(t, "1x1", fake.Script{
		Answer: func(l *fake.Leg) { legs <- l },
		Stored: func(node int) []wire.ObjectAt {
			return append(shelf.stored(node), wire.ObjectAt{Object: 8, Segment: 8, Maker: nobody}, wire.ObjectAt{Object: 9, Maker: itself})
		},
		Objects: func(node int, o wire.Objects) {
			shelf.objects(node, o)
			for _, g := range o.Gone {
				gone <- g
			}
		},
	})
	settled := make(chan struct{}, 8)
	s.watch(func(epoch int, step string) {
		if epoch == 2 && step == "settled" {
			settled <- struct{}{}
		}
	})
	owner := s.controller()
	info := owner.create(1)
	c, hold := s.gated()
	for _, n := range []uint64{5, 6} {
		o := c.call(callee{cluster: info.Number, method: "plain", how: 2, ranks: []int{0}}, args("make"))
		within(t, legs, "a leg").ReturnValue(wire.Value{Raw: array, Bufs: []wire.Buf{object(0, n)}})
		_, err := c.wait(o)
		must(t, err)
		tells(t, shelf.told, fmt.Sprintf("hold %d", n))
	}
	must(t, c.ask("service.list", &wire.Empty{}, &wire.Names{})) // by which it has read them
	must(t, owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{}))
	within(t, gone, "the worker's end")
	c.mu.Lock()
	c.holds = []wire.Released{{Object: 5, Count: 1}}
	c.mu.Unlock()
	late := make(chan struct{})
	hold(late)
	s.crashNow()
	within(t, settled, "the others to go on")
	must(t, owner.ask("service.list", &wire.Empty{}, &wire.Names{}))
	select {
	case told := <-shelf.told:
		t.Errorf("before it was back, %s", told)
	case g := <-gone:
		t.Errorf("before it was back, %d is gone", g)
	default:
	}
	close(late)
	tells(t, shelf.told, "drop 6")
	for g := uint64(0); g != nobody; {
		if g = within(t, gone, "the end of the one that is nobody"); g == itself {
			t.Error("a store is told that it is gone itself")
		}
	}
	c.release(5)
	tells(t, shelf.told, "drop 5")
	must(t, c.leave())
	must(t, s.end(owner))
}

// A call that its caller sends again, and that is refused then, is all that names what it
// came with: that goes.
func TestWhatARefusedCallCameWithGoes(t *testing.T) {
	shelf := newShelf()
	s := newCrashes(t, "1x1", fake.Script{Stored: shelf.stored, Objects: shelf.objects})
	c, hold := s.gated()
	info := c.create(1)
	gate := make(chan struct{})
	hold(gate)
	s.crashNow()
	to := callee{cluster: info.Number, method: "no such", how: 2, ranks: []int{0}}
	o := c.post(wire.Frame{
		Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), args(raw(array))...), Bufs: []wire.Buf{object(0, 7)},
	}, 1)
	close(gate)
	_, err := c.wait(o)
	wantError(t, err, spec.CodeNotFound, "no such")
	tells(t, shelf.told, "hold 7", "drop 7")
	must(t, s.end(c))
}
