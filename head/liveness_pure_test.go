package head

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/wire"
)

func TestSilence(t *testing.T) {
	const bound = 3 * time.Second
	var s silence
	for _, step := range []struct {
		data, ack      time.Duration
		deaf           bool
		became, healed bool
		words          string
	}{
		{data: time.Second, ack: time.Second},
		{data: 2999 * time.Millisecond, ack: 0},
		{data: bound, ack: bound, became: true, words: "nothing has come from n for 3.0 s: its machine is down, or the network between is cut"},
		{data: 4 * time.Second, ack: 100 * time.Millisecond, words: "the agent of n has not answered for 4.0 s, though its machine does"},
		{data: 5 * time.Second, ack: 100 * time.Millisecond, deaf: true, words: "the agent of n has not answered for 5.0 s: its machine is heard, and does not hear this one: the network between loses one direction"},
		{data: 12 * time.Second, ack: 11 * time.Second, deaf: true, words: "nothing has come from n for 12 s"},
		{data: 0, ack: 0, healed: true},
		{data: time.Minute, ack: 0, became: true, words: "the agent of n has not answered for 60 s"},
	} {
		became, healed := s.look(wire.Quiet{Data: step.data, Ack: step.ack, Deaf: step.deaf}, time.Now(), bound)
		if became != step.became || healed != step.healed || s.suspect != (step.data >= bound) {
			t.Errorf("%v without data, %v without a word: became %v, healed %v, is %v", step.data, step.ack, became, healed, s.suspect)
		}
		if text := s.text("n"); step.words != "" && !strings.Contains(text, step.words) {
			t.Errorf("it says %s", text)
		}
	}
}

// A node that answers late is told as that, and is no suspect.
func TestSlowNodes(t *testing.T) {
	n := &node{name: "n", far: true}
	if n.slowLocked() != "" {
		t.Error("slow from the start")
	}
	n.silence.trip = 1200 * time.Millisecond
	if got := n.slowLocked(); got != "slow: its machine takes 1.2 s to acknowledge" {
		t.Errorf("got %q", got)
	}
	n.silence.trip = time.Millisecond
	n.silence.asked = time.Now().Add(-2 * time.Second)
	n.answeredLocked()
	if got := n.slowLocked(); got != "slow: its agent took 2.0 s to answer" || !n.silence.asked.IsZero() {
		t.Errorf("got %q", got)
	}
	n.answeredLocked() // one that was not asked for
	if n.troubleLocked() != "" {
		t.Error("it is no trouble")
	}
}
