package head_test

import (
	"sync/atomic"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/wire"
)

// A new process whose connection is cut while its rank is restarted is told to
// initialize once, whenever that was, and is called after that.
func TestACutWhileARankIsRestarted(t *testing.T) {
	for _, when := range []string{"before it is told", "before it has heard", "while it initializes"} {
		both(t, func(t *testing.T, relay string) {
			legs, begun, script := lifeOf()
			var again, initialized atomic.Bool // as of the second processes
			ready, lost := make(chan *fake.Worker, 4), make(chan *fake.Leg, 4)
			held := make(chan *fake.Leg, 4)
			var dropped, kept atomic.Bool
			back := make(chan struct{}, 16)
			script.Begin = func(w *fake.Worker) {
				if again.Load() && when == "before it is told" {
					ready <- w
					return
				}
				w.Ready(nil)
			}
			script.Lost = func(l *fake.Leg) bool {
				if again.Load() && when == "before it has heard" && l.Worker.Rank == 1 && !dropped.Swap(true) {
					lost <- l
					return true
				}
				return false
			}
			script.Holds = func(*fake.Worker) []wire.Released {
				back <- struct{}{}
				return []wire.Released{}
			}
			answer := script.Answer
			script.Answer = func(l *fake.Leg) {
				if !again.Load() || l.Worker.Rank != 1 {
					answer(l)
					return
				}
				switch {
				case l.Method == "initialize" && when == "while it initializes" && !kept.Swap(true):
					held <- l
					return
				case l.Method == "initialize" && initialized.Swap(true):
					t.Error("it initializes twice")
				case l.Method != "initialize" && !initialized.Load():
					t.Error("it is called before it is initialized")
				}
				answer(l)
			}
			r := newRig(t, setup{virtual: "1x0" + relay, script: script})
			info, err := r.create(r.owner, r.pool(0, 1), "a", 2, restarting("restart_cluster", 3))
			must(t, err)
			r.owner.value(r.owner.send(callee{cluster: info.Number, method: "initialize"}, args([]any{1, 2})))
			take(t, begun, 2)
			id := r.owner.send(callee{cluster: info.Number, method: "again"}, args())
			out := take(t, legs, 2)
			again.Store(true)
			out[1].Worker.Die(wire.Exited{Signal: "SIGKILL"})
			switch when {
			case "before it is told":
				var other *fake.Worker
				for range 2 {
					if w := within(t, ready, "new process"); w.Rank == 1 {
						w.Ready(nil)
						w.Cut()
					} else {
						other = w
					}
				}
				other.Ready(nil)
			case "before it has heard":
				within(t, lost, "the leg that is lost").Worker.Cut()
			default:
				l := within(t, held, "the leg that is held")
				l.Worker.Cut()
				within(t, back, "the process that was cut off")
				initialized.Store(true)
				begun <- l
				l.Return([]byte{0xc0})
			}
			take(t, begun, 2)
			for range 2 {
				within(t, legs, "leg").Return([]byte{1})
			}
			same(t, r.owner.value(id), "[1 1]")
		})
	}
}
