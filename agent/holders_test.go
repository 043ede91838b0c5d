package agent

import (
	"context"
	"net"
	"testing"

	"github.com/muster-rl/muster/wire"
)

// A full store does not wait for a head that is not there, and an answer that
// nobody waits for is dropped.
func TestHoldersWithoutAHead(t *testing.T) {
	var h holders
	head := newUplink()
	for _, objects := range [][]uint64{nil, {1, 2}} {
		if held := h.ask(t.Context(), head, objects); held != nil {
			t.Errorf("%+v", held)
		}
	}
	h.answered(&wire.Holders{ID: 1, Held: []wire.Held{{Object: 1}}})
	if len(h.answer) != 0 {
		t.Errorf("%d are waited for", len(h.answer))
	}
}

// The head's answer goes to who asked, and who gives up leaves nothing behind.
func TestHoldersAreAnswered(t *testing.T) {
	var h holders
	one, other := net.Pipe()
	near, far := wire.NewConn(one), wire.NewConn(other)
	defer near.Close()
	defer far.Close()
	head := newUplink()
	head.set(near)
	go func() {
		f, err := far.Read()
		if err != nil {
			return
		}
		_, body, _ := wire.ReadVerb(f.Body)
		var m wire.HoldersAsk
		_, _ = m.UnmarshalMsg(body)
		h.answered(&wire.Holders{ID: m.ID + 1})
		h.answered(&wire.Holders{ID: m.ID, Held: []wire.Held{{Object: m.Objects[0], Holder: "keeper-0"}}})
	}()
	held := h.ask(t.Context(), head, []uint64{7})
	if len(held) != 1 || held[0] != (wire.Held{Object: 7, Holder: "keeper-0"}) {
		t.Errorf("%+v", held)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if held := h.ask(over, head, []uint64{7}); held != nil || len(h.answer) != 0 {
		t.Errorf("%+v, %d are waited for", held, len(h.answer))
	}
}
