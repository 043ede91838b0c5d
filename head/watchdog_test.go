package head_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/wire"
)

// warnings hears what a head warns of.
func warnings(t *testing.T, r *rig) <-chan string {
	t.Helper()
	conn, err := wire.Dial(r.head.Address())
	must(t, err)
	_, err = wire.Join(conn, wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	must(t, err)
	heard := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := conn.Read()
			if err != nil {
				return
			}
			if verb, body, err := wire.ReadVerb(f.Body); err == nil && verb == "warning" {
				var w wire.Warning
				if _, err := w.UnmarshalMsg(body); err == nil {
					heard <- w.Text
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return heard
}

func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in: %s", part, text)
		}
	}
}

func TestWatchdogWarnsOnce(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		legs, script := held()
		script.Stack = func(w *fake.Worker) string {
			if w.Rank == 1 {
				return "in the data loader"
			}
			return "in a collective"
		}
		r := newRig(t, setup{virtual: "1x0" + relay, script: script, options: head.Options{WatchAfter: 500 * time.Millisecond}})
		heard := warnings(t, r)
		info := r.cluster("a", 4)
		together := callee{cluster: info.Number, method: "together"}

		// Most have answered, one has not.
		id := r.owner.send(together, args())
		out := take(t, legs, 4)
		for _, rank := range []int{0, 2, 3} {
			out[rank].Return([]byte{1})
		}
		says(t, within(t, heard, "warning"), "a.together", "no answer from 1 of 4 ranks (a-1 on node-0)", "half of the ranks took", "rank 1 in the data loader", "muster stacks a")
		var s wire.Status
		must(t, r.owner.ask("status", &wire.StatusRequest{}, &s))
		if len(s.Calls) != 1 || !strings.Contains(s.Calls[0].Warning, "data loader") {
			t.Errorf("status tells %+v", s.Calls)
		}
		out[1].Return([]byte{1})
		same(t, r.owner.value(id), "[1 1 1 1]")

		// Nobody has answered, for far longer than such calls take. Behind it waits
		// another, and a method that is not collective may take as long as it likes.
		for range 3 {
			id = r.owner.send(together, args())
			for _, l := range take(t, legs, 4) {
				l.Return([]byte{1})
			}
			same(t, r.owner.value(id), "[1 1 1 1]")
		}
		id = r.owner.send(together, args())
		behind := r.owner.send(together, args())
		alone := r.owner.send(callee{cluster: info.Number, method: "all"}, args())
		var all []*fake.Leg
		for range 12 {
			all = append(all, within(t, legs, "leg"))
		}
		says(t, within(t, heard, "warning"), "no answer from 4 of 4 ranks", "where such calls took", "ranks 0,2-3 in a collective; rank 1 in the data loader")
		for _, l := range all {
			l.Return([]byte{1})
		}
		for _, id := range []uint64{id, behind, alone} {
			same(t, r.owner.value(id), "[1 1 1 1]")
		}
		select {
		case text := <-heard:
			t.Errorf("it warns again: %s", text)
		default:
		}
	})
}

func TestWatchdogTurnedOff(t *testing.T) {
	legs, script := held()
	r := newRig(t, setup{virtual: "1x0", script: script, options: head.Options{WatchAfter: -1}})
	info := r.cluster("a", 2)
	id := r.owner.send(callee{cluster: info.Number, method: "together"}, args())
	for _, l := range take(t, legs, 2) {
		l.Return([]byte{1})
	}
	same(t, r.owner.value(id), "[1 1]")
}
