package head_test

import (
	"strings"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/wire"
)

// notice waits for the next notice of a verb.
func notice[T any, P interface {
	*T
	UnmarshalMsg([]byte) ([]byte, error)
}](t *testing.T, c *controller, verb string) T {
	t.Helper()
	for {
		f := within(t, c.notices, "notice "+verb)
		got, rest, err := wire.ReadVerb(f.Body)
		must(t, err)
		if got != verb {
			continue
		}
		var m T
		_, err = P(&m).UnmarshalMsg(rest)
		must(t, err)
		return m
	}
}

func TestLogLinesProgressAndMarks(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		r := newRig(t, setup{virtual: "1x0" + relay, script: fake.Script{Stop: func(w *fake.Worker) { w.Print("bye from " + w.Name) }}})
		events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
		// Its welcome may come before it is on the list: wait for a first word.
		eventually(t, "a listener", func() bool {
			var m wire.Mark
			must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "none"}, &m))
			select {
			case f := <-events.notices:
				verb, _, err := wire.ReadVerb(f.Body)
				return err == nil && verb == "mark"
			default:
				return false
			}
		})
		info := r.cluster("a", 32)
		var last wire.Progress
		for done := -1; !last.Final; {
			if last = notice[wire.Progress](t, events, "progress"); last.Subject == "pool" {
				last.Final = false
				continue
			}
			if last.Subject != "cluster a" || last.Total != 32 || last.Done < done {
				t.Fatalf("after %d: %+v", done, last)
			}
			if !last.Final && !strings.HasPrefix(last.Waiting, "a-") {
				t.Fatalf("waits for %q", last.Waiting)
			}
			done = last.Done
		}
		if last.Doing != "ready" || last.Done != 32 {
			t.Fatalf("at the end: %+v", last)
		}
		r.worker("a-3").Print("hello", "world")
		log := notice[wire.Log](t, events, "log")
		if len(log.Lines) != 2 || log.Lines[1].Text != "world" || log.Lines[1].Worker != "a-3" || log.Lines[1].Number != info.Workers[3].Number {
			t.Fatalf("lines: %+v", log.Lines)
		}
		var mark wire.Mark
		must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &mark))
		for range 32 { // all that was said before the stop was over
			if line := notice[wire.Log](t, events, "log").Lines[0]; !strings.HasPrefix(line.Text, "bye from a-") {
				t.Fatalf("line: %+v", line)
			}
		}
		if got := notice[wire.Mark](t, events, "mark"); got.Mark != mark.Mark {
			t.Fatalf("mark %d instead of %d", got.Mark, mark.Mark)
		}
	})
}

// The last lines reach a listener before the head is gone.
func TestLastLinesBeforeTheEnd(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0", script: fake.Script{Stop: func(w *fake.Worker) { w.Print("bye") }}})
	events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	r.cluster("a", 1)
	eventually(t, "a listener", func() bool { r.worker("a-0").Print("hi"); return len(events.notices) > 0 })
	must(t, r.owner.ask("shutdown", &wire.Empty{}, &wire.Mark{}))
	within(t, events.gone, "end of the events")
	seen := false
	for len(events.notices) > 0 {
		f := <-events.notices
		seen = seen || strings.Contains(string(f.Body), "bye")
	}
	if !seen {
		t.Error("the last line was lost")
	}
}

func TestListenerDoesNotSpeak(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0"})
	events := r.dial(wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()})
	events.conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0xc0}, nil)
	within(t, events.gone, "end of its connection")
}
