package head_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// sharing is a rig of three nodes whose stores say what a test has them say.
type sharing struct {
	*rig
	told    chan string // what stores are told of objects
	sources chan string // whom they are sent to
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	_, script := held()
	s := &sharing{sources: make(chan string, 64)}
	script.Sources = func(node int, m wire.Sources) {
		if len(m.Error) > 0 {
			s.sources <- fmt.Sprintf("%d: %v", node, wire.ReadError(m.Error))
			return
		}
		text := fmt.Sprintf("%d:", node)
		for _, from := range m.Sources {
			text += fmt.Sprintf(" %d-%d of %s at %s", from.From, from.To, from.Name, from.Address)
		}
		s.sources <- text
	}
	s.rig, s.told = stored(t, "3x0", script)
	s.pool(0, 3)
	return s
}

// say sends a notice of a node's agent.
func (s *sharing) say(node int, verb string, m interface {
	MarshalMsg([]byte) ([]byte, error)
},
) {
	s.t.Helper()
	body, err := m.MarshalMsg(nil)
	must(s.t, err)
	whole, err := wire.AppendVerb(nil, verb, raws(body))
	must(s.t, err)
	s.fake.Agent(node).Send(wire.Header{Kind: wire.KindNotice}, whole)
}

// raws is a body that is encoded already.
type raws []byte

func (r raws) MarshalMsg(b []byte) ([]byte, error) { return append(b, r...), nil }

func (s *sharing) fetch(node int, object uint64, from, to uint32, avoid ...int) {
	s.t.Helper()
	s.say(node, "fetch", &wire.Fetch{ID: 1, Object: object, Runs: []wire.Run{{From: from, To: to}}, Avoid: append([]int{}, avoid...)})
}

func (s *sharing) copied(node int, object uint64, from, to uint32) {
	s.t.Helper()
	s.say(node, "copied", &wire.Copied{Object: object, Runs: []wire.Run{{From: from, To: to}}})
}

func (s *sharing) sent(want string) {
	s.t.Helper()
	if got := within(s.t, s.sources, "sources"); !strings.Contains(got, want) {
		s.t.Fatalf("got %q, want %q", got, want)
	}
}

func TestCopiesGoWithTheOriginal(t *testing.T) {
	s := newSharing(t)
	c := s.owner
	c.fails(c.sendBufs(callee{cluster: 99, method: "one"}, args(raw(array)), object(0, 1)), spec.CodeNotFound)
	tells(t, s.told, "0 hold 1")
	// Its node has not said yet where its store listens: that is waited for.
	s.say(1, "serving", &wire.Serving{Address: "10.0.0.1:81"})
	s.fetch(1, 1, 0, 3)
	s.say(0, "serving", &wire.Serving{Address: ":80"})
	s.sent("1: 0-3 of node-0 at 127.0.0.1:80")
	s.fetch(2, 7, 0, 1)
	s.sent("2: object 7 is not known any more")
	s.copied(1, 1, 0, 3)
	s.fetch(1, 8, 0, 1) // whose answer comes when that was heard
	s.sent("1: object 8 is not known any more")
	s.fetch(2, 1, 0, 5)
	s.sent("2: 0-3 of node-1 at 10.0.0.1:81 3-5 of node-0 at 127.0.0.1:80")
	s.fetch(2, 1, 0, 3, 1)
	s.sent("2: 0-3 of node-0")
	// What a store says of an object that nobody knows of any more.
	s.copied(2, 9, 0, 1)
	tells(t, s.told, "2 drop 9")
	c.release(0, 1, 1)
	tells(t, s.told, "0 drop 1", "1 drop 1", "2 drop 1")
	s.fetch(1, 1, 0, 1)
	s.sent("1: object 1 is not known any more")
}

func TestCopiesOutliveTheNode(t *testing.T) {
	s := newSharing(t)
	c := s.owner
	c.fails(c.sendBufs(callee{cluster: 99, method: "one"}, args(raw(array)), object(1, 1)), spec.CodeNotFound)
	tells(t, s.told, "1 hold 1")
	const id = 1<<48 | 1
	s.say(0, "serving", &wire.Serving{Address: "10.0.0.0:80"})
	s.copied(0, id, 0, 3)
	s.fetch(0, 8, 0, 1)
	s.sent("0: object 8 is not known any more")
	s.fetch(2, id, 0, 4) // which waits for the node, and is lost with it
	s.fake.Agent(1).Kill()
	s.sent("2: rows that were made on node-1 are lost with it")
	s.fetch(2, id, 0, 3)
	s.sent("2: 0-3 of node-0 at 10.0.0.0:80")
	s.say(2, "copied", &wire.Copied{Object: id, Runs: []wire.Run{}, Gone: true})
	c.release(1, 1, 1)
	tells(t, s.told, "0 drop 1")
}
