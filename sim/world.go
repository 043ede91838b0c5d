package sim

import (
	"container/heap"
	"fmt"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Virtual times, in microseconds.
const (
	millisecond = int64(1000)
	second      = 1000 * millisecond

	cancelGrace = 5 * second
	headGrace   = 30 * second
	stacksTime  = 20 * millisecond // that stacks take to be collected
	cutTime     = 5 * millisecond  // that arguments take to be cut, of calls that have many
	hangs       = 60 * second
	lateMost    = 15 * second  // that heads take to tell of a deadline, with others after them
	patience    = 300 * second // after the last input everything has ended
)

// world is everything there is, at a time.
type world struct {
	script   *Script
	now      int64
	queue    events
	seq      uint64
	epoch    uint32
	head     *head // nil while there is none
	nodes    []*node
	clusters []*cluster
	callers  []*caller              // by number - 1
	workers  uint32                 // numbers given
	lost     map[uint64]*spec.Error // in the journal: calls that were lost with a process that was replaced
	objects  uint64                 // made so far
	inHand   map[objectID]int       // how often live workers know of one
	stored   map[objectID]bool      // what lies in stores; true: a head had it held
	rules    rules
	trace    *strings.Builder // what happens, where somebody wants to read it
}

// event is something that happens at a time.
type event struct {
	at  int64
	seq uint64
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return last
}

// after has something happen.
func (w *world) after(delay int64, do func()) { w.at(w.now+delay, do) }

func (w *world) at(at int64, do func()) {
	w.seq++
	heap.Push(&w.queue, event{max(at, w.now), w.seq, do})
}

// tell is for people who read how a script runs.
func (w *world) tell(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%9.3f ms  %s\n", float64(w.now)/float64(millisecond), fmt.Sprintf(format, args...))
	}
}

// luck is a number that depends on the seed and on what it is for, and on nothing
// that happened: leaving something out of a script changes nothing else.
func (w *world) luck(what ...uint64) uint64 {
	x := w.script.Seed
	for _, v := range what {
		x = mix(x ^ mix(v))
	}
	return x
}

// mix is splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// What luck is for.
const (
	luckLink uint64 = iota
	luckLeg
	luckNotice
	luckRelease
)

// link is one connection. Both ways keep their order; neither knows of the other,
// or of any other link.
type link struct {
	w     *world
	luck  uint64
	count uint64
	last  [2]int64
	cut   bool
	shut  bool // its peer has ended: what that had sent still comes
	// Who is told of its end: the peer and the head, each in its own time.
	peerGone, headGone func()
}

// The ways of a link.
const (
	toHead = iota
	toPeer
)

func (w *world) newLink(peer uint64) *link {
	w.seq++
	return &link{w: w, luck: w.luck(luckLink, peer)}
}

// delay is mostly short, now and then long.
func (l *link) delay() int64 {
	l.count++
	x := mix(l.luck + l.count)
	switch {
	case x%64 == 0:
		return int64(x>>8) % (50 * millisecond)
	case x%8 == 0:
		return int64(x>>8) % (2 * millisecond)
	}
	return 20 + int64(x>>8)%100
}

// send has do happen at the other end, unless the link is cut before.
func (l *link) send(way int, do func()) {
	if l.cut || l.shut {
		return
	}
	at := max(l.w.now+l.delay(), l.last[way])
	l.last[way] = at
	l.w.at(at, func() {
		if !l.cut && (!l.shut || way == toHead) {
			do()
		}
	})
}

// hangUp is the peer's own end: what it had sent comes first.
func (l *link) hangUp() {
	if l == nil || l.cut || l.shut {
		return
	}
	l.shut = true
	l.w.at(max(l.last[toHead], l.w.now+l.delay()), func() {
		if !l.cut {
			l.cut = true
			l.headGone()
		}
	})
}

// end cuts the link: what is on it is lost.
func (l *link) end() {
	if l == nil || l.cut {
		return
	}
	l.cut = true
	l.w.after(l.delay(), func() { l.peerGone() })
	l.w.after(l.delay(), func() { l.headGone() })
}

// run runs a script to its end and says which rule was broken; nil: none.
func run(s *Script, trace *strings.Builder) (broken *Broken) {
	w := &world{script: s, trace: trace, lost: map[uint64]*spec.Error{}, stored: map[objectID]bool{}, inHand: map[objectID]int{}}
	w.rules.w = w
	defer func() {
		if what := recover(); what != nil {
			b, ok := what.(*Broken)
			if !ok {
				if trace != nil {
					panic(what)
				}
				b = &Broken{Rule: "nothing panics", What: fmt.Sprint(what)}
			}
			if b.At = w.now; w.head != nil {
				b.Head = w.head.log
			}
			broken = b
		}
	}()
	w.build()
	w.newHead()
	end := int64(0)
	for i := range s.Inputs {
		in := &s.Inputs[i]
		w.at(in.At, func() { w.input(in) })
		end = max(end, in.At)
	}
	w.drain(end + patience)
	w.rules.answered()
	w.probe()
	w.drain(w.now + patience)
	w.rules.answered()
	w.leaveAll()
	w.drain(w.now + patience)
	w.rules.over()
	return nil
}

// drain lets happen what there is, until a time by which it must be over.
func (w *world) drain(limit int64) {
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		if w.now > limit {
			w.rules.brk("everything ends", "something still goes on %d s after the last input", patience/second)
		}
		e.do()
	}
}
