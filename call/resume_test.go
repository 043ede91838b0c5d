package call

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// cutWorld is a head, its workers and its callers, with what is on its way between
// them, that any connection's cut or the head's end loses. Nothing in it dies, so
// every call must be answered once and every leg must run once.
type cutWorld struct {
	t        *testing.T
	seed     uint64
	r        *rand.Rand
	epoch    uint32
	table    *Table
	clusters []*Cluster
	ranks    [][]*rank // by cluster
	callers  []*client
	bytes    map[*Call]bool // whose arguments the head has
	numbers  map[ID]uint64  // origins of all calls that were ever sent
	settling bool           // a new head does not know all yet
}

// rank is a worker's process.
type rank struct {
	w        *Worker // as the head of now knows it
	up       bool
	in       []toRank
	received uint32
	last     ID // that it has got
	got      []*leg
	ran      []uint64 // origins, in order
	out      []*leg   // results on their way
}

type toRank struct {
	id      ID
	origin  uint64
	ack     uint32
	release []ID
}

type leg struct {
	seq    uint32
	id     ID
	origin uint64
	done   bool
	raised bool
}

func (l *leg) result() Result {
	if l.raised {
		return Result{Err: spec.Errorf(spec.CodeUser, "raised")}
	}
	return Result{}
}

// client is a caller's process, and what the head keeps for it.
type client struct {
	number  uint32
	up      bool
	next    uint64
	open    []*invocation // not answered, in order
	all     []*invocation
	out     []toHead
	in      []toClient
	read    uint32
	answers uint32     // by the head
	kept    []toClient // by the head
	puts    []*Call    // by the head
}

type invocation struct {
	r       Request
	cluster int
	ranks   map[int]bool // answered so far
	told    int
	failed  bool
}

type toHead struct {
	call *invocation
	put  uint64
	ack  uint32
	end  bool // of what is sent again
}

type toClient struct {
	id     uint64
	rank   int
	last   bool
	failed bool
	call   *Call
	seq    uint32
	again  uint64
}

func newCutWorld(t *testing.T, seed uint64) *cutWorld {
	w := &cutWorld{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 6)), callers: []*client{{number: 1, up: true}, {number: 2, up: true}}, numbers: map[ID]uint64{}}
	for n := range 2 {
		w.ranks = append(w.ranks, nil)
		for range 1 + w.r.IntN(3) {
			w.ranks[n] = append(w.ranks[n], &rank{up: true})
		}
	}
	w.newHead()
	return w
}

// newHead makes a head that knows who there is, and no call.
func (w *cutWorld) newHead() {
	w.epoch++
	w.table, w.clusters, w.bytes = NewTable(w.epoch), nil, map[*Call]bool{}
	number := uint32(0)
	for n, ranks := range w.ranks {
		cl := &Cluster{Number: uint32(n), Name: fmt.Sprint("c", n)}
		for r, rk := range ranks {
			number++
			rk.w = &Worker{Number: number, Rank: r, Name: fmt.Sprintf("c%d-%d", n, r), Cluster: cl}
			cl.Workers = append(cl.Workers, rk.w)
		}
		w.clusters = append(w.clusters, cl)
	}
}

func (w *cutWorld) rankOf(x *Worker) *rank { return w.ranks[x.Cluster.Number][x.Rank] }

// orders is the head's part.
func (w *cutWorld) orders(ops []Op) {
	ops = slices.Clone(ops)
	for _, op := range ops {
		c := op.Call
		switch op.Do {
		case Send:
			for i := range c.Legs {
				w.send(c, i)
			}
		case SendLeg:
			w.send(c, op.Leg)
		case Answer, Fail:
			if op.Err != nil && op.Err.Code != spec.CodeUser {
				w.fatalf("%s %d failed: %v", c.Title(), c.CallerID, op.Err)
			}
			w.answer(c, -1, op.Err)
		case AnswerLeg, FailLeg:
			w.answer(c, c.Legs[op.Leg].Worker.Rank, op.Err)
		case Again:
			if who := w.caller(c.Caller); who.up {
				who.in = append(who.in, toClient{again: c.CallerID})
			}
		case Release:
			rk := w.rankOf(c.Legs[op.Leg].Worker)
			through, calls := rk.w.TakeAcks()
			if rk.up {
				rk.in = append(rk.in, toRank{ack: through, release: calls})
			}
		default:
			w.fatalf("an order %d of call %d", op.Do, c.CallerID)
		}
	}
	for _, op := range ops {
		if (op.Do == Send || op.Do == SendLeg) && op.Call.State != Sending {
			delete(w.bytes, op.Call) // not kept once all is out
		}
	}
}

func (w *cutWorld) caller(number uint32) *client { return w.callers[number-1] }

func (w *cutWorld) answer(c *Call, rank int, err *spec.Error) {
	who := w.caller(c.Caller)
	who.answers++
	last := c.State == Answered
	m := toClient{id: c.CallerID, rank: rank, last: last, failed: err != nil, call: c, seq: who.answers}
	if last {
		c.Value = &Result{Err: err}
	}
	who.kept = append(who.kept, m)
	if who.up {
		who.in = append(who.in, m)
	}
}

func (w *cutWorld) acked(who *client, ack uint32) {
	for len(who.kept) > 0 && int32(ack-who.kept[0].seq) >= 0 {
		m := who.kept[0]
		who.kept = who.kept[1:]
		if m.last {
			w.orders(w.table.Acked(m.call))
		}
	}
}

// invoke makes a call on its way.
func (w *cutWorld) invoke(who *client) {
	who.next++
	n := w.r.IntN(len(w.clusters))
	inv := &invocation{cluster: n, ranks: map[int]bool{}, r: Request{Caller: who.number, CallerID: who.next, Keep: true, Split: w.r.IntN(4) == 0}}
	if w.r.IntN(2) == 0 {
		inv.r.Ranks = []int{w.r.IntN(len(w.ranks[n]))}
	}
	if len(who.open) > 0 && w.r.IntN(4) == 0 {
		if dep := who.open[w.r.IntN(len(who.open))]; !dep.r.Split {
			inv.r.Futures = []Future{{CallerID: dep.r.CallerID, Rank: -1}}
		}
	}
	who.open, who.all = append(who.open, inv), append(who.all, inv)
	if who.up {
		who.out = append(who.out, toHead{call: inv, ack: who.read})
	}
}

func (inv *invocation) request(w *cutWorld) Request {
	r := inv.r
	r.Cluster = w.clusters[inv.cluster]
	return r
}

// take is the head's part for what a caller sent.
func (w *cutWorld) take(who *client) {
	m := who.out[0]
	who.out = who.out[1:]
	w.acked(who, m.ack)
	if m.put != 0 {
		if put := w.table.PutAnswer(who.number, m.put, -1, who.value(m.put)); put != nil {
			who.puts = append(who.puts, put)
		}
		return
	}
	if m.end {
		for _, put := range who.puts {
			w.orders(w.table.Acked(put))
		}
		who.puts = nil
		return
	}
	if c := w.table.FindCaller(who.number, m.call.r.CallerID); c != nil {
		if c.Bare() {
			w.bytes[c] = true
		}
		w.orders(w.table.Resent(c))
		return
	}
	for _, k := range who.kept {
		if k.id == m.call.r.CallerID {
			return
		}
	}
	c, ops := w.table.Submit(m.call.request(w))
	w.bytes[c] = true
	w.orders(ops)
}

// hear is the caller's part for what the head sent.
func (w *cutWorld) hear(who *client) {
	m := who.in[0]
	who.in = who.in[1:]
	if m.again != 0 {
		for _, inv := range who.open {
			if inv.r.CallerID == m.again && who.up {
				who.out = append(who.out, toHead{call: inv, ack: who.read})
			}
		}
		return
	}
	who.read++
	at := slices.IndexFunc(who.open, func(inv *invocation) bool { return inv.r.CallerID == m.id })
	if at < 0 && m.rank >= 0 && w.epoch > 1 {
		return // a new head tells each rank's again
	}
	if at < 0 {
		w.fatalf("caller %d: call %d was answered twice", who.number, m.id)
	}
	inv := who.open[at]
	if m.rank >= 0 && inv.ranks[m.rank] {
		if w.epoch == 1 {
			w.fatalf("caller %d: call %d was answered twice by rank %d", who.number, m.id, m.rank)
		}
		return
	}
	inv.ranks[m.rank] = true
	inv.failed = inv.failed || m.failed
	need := 1
	if inv.r.Split && inv.r.Ranks == nil {
		need = len(w.ranks[inv.cluster])
	}
	if inv.told++; inv.told == need {
		who.open = slices.Delete(who.open, at, at+1)
	}
}

// finish ends one of the legs that run.
func (w *cutWorld) finish(rk *rank) bool {
	for _, i := range w.r.Perm(len(rk.got)) {
		if l := rk.got[i]; !l.done {
			l.done, l.raised = true, w.r.IntN(10) == 0
			if rk.up {
				rk.out = append(rk.out, l)
			}
			return true
		}
	}
	return false
}

func (w *cutWorld) result(rk *rank) {
	l := rk.out[0]
	rk.out = rk.out[1:]
	_, ops := w.table.Result(rk.w, l.id, l.result())
	w.orders(ops)
}

func (w *cutWorld) cutRank(rk *rank) {
	rk.up, rk.in, rk.out = false, nil, nil
	w.table.WorkerDying(rk.w)
}

func (w *cutWorld) backCaller(who *client) {
	who.up = true
	w.acked(who, who.read)
	who.in = append(who.in, who.kept...)
	for _, inv := range who.open {
		for _, f := range who.answered(inv) {
			who.out = append(who.out, toHead{put: f, ack: who.read})
		}
		who.out = append(who.out, toHead{call: inv, ack: who.read})
	}
	who.out = append(who.out, toHead{end: true, ack: who.read})
}

// value is the answer that a caller has read.
func (who *client) value(id uint64) Result { return (&leg{raised: who.all[id-1].failed}).result() }

// answered are the calls that inv names as Futures and that its caller has read.
func (who *client) answered(inv *invocation) []uint64 {
	var ids []uint64
	for _, f := range inv.r.Futures {
		if !slices.ContainsFunc(who.open, func(o *invocation) bool { return o.r.CallerID == f.CallerID }) {
			ids = append(ids, f.CallerID)
		}
	}
	return ids
}

// step lets one thing happen; false: there is nothing left to happen.
func (w *cutWorld) step() bool {
	var can []func()
	for _, who := range w.callers {
		if len(who.out) > 0 {
			can = append(can, func() { w.take(who) })
		}
		if len(who.in) > 0 {
			can = append(can, func() { w.hear(who) })
		}
	}
	for _, ranks := range w.ranks {
		for _, rk := range ranks {
			if len(rk.in) > 0 {
				can = append(can, func() { w.read(rk) })
			}
			if len(rk.out) > 0 {
				can = append(can, func() { w.result(rk) })
			}
			if slices.ContainsFunc(rk.got, func(l *leg) bool { return !l.done }) {
				can = append(can, func() { w.finish(rk) })
			}
		}
	}
	if len(can) == 0 {
		return false
	}
	can[w.r.IntN(len(can))]()
	return true
}

// fault cuts a connection, mends one, or ends the head.
func (w *cutWorld) fault() {
	switch k := w.r.IntN(12); {
	case k == 0:
		w.kill()
	case k < 6:
		ranks := w.ranks[w.r.IntN(len(w.ranks))]
		if rk := ranks[w.r.IntN(len(ranks))]; rk.up {
			w.cutRank(rk)
		} else {
			w.backRank(rk)
		}
	default:
		if who := w.callers[w.r.IntN(len(w.callers))]; who.up {
			who.up, who.in, who.out = false, nil, nil // puts go with the next end
		} else {
			w.backCaller(who)
		}
	}
}

// mend brings everyone back.
func (w *cutWorld) mend() {
	for _, ranks := range w.ranks {
		for _, rk := range ranks {
			if !rk.up {
				w.backRank(rk)
			}
		}
	}
	for _, who := range w.callers {
		if !who.up {
			w.backCaller(who)
		}
	}
}

// check: everything is answered and was run, in one order.
func (w *cutWorld) check() {
	for _, who := range w.callers {
		for _, inv := range who.open {
			c := w.table.FindCaller(who.number, inv.r.CallerID)
			w.fatalf("caller %d: call %d is not answered: %+v", who.number, inv.r.CallerID, c)
		}
		for _, inv := range who.all {
			for r, rk := range w.ranks[inv.cluster] {
				meant := inv.r.Ranks == nil || inv.r.Ranks[0] == r
				ran := slices.Contains(rk.ran, inv.r.Origin())
				if ran && !meant || !ran && meant && !inv.failed {
					w.fatalf("caller %d: call %d: rank %d ran it: %v", who.number, inv.r.CallerID, r, ran)
				}
			}
		}
	}
	for _, ranks := range w.ranks {
		for _, rk := range ranks {
			for a := range ranks {
				w.sameOrder(rk.ran, ranks[a].ran)
			}
			for _, who := range w.callers {
				last := uint64(0)
				for _, origin := range rk.ran {
					if uint32(origin>>32) == who.number {
						if origin < last {
							w.fatalf("caller %d: %d ran before %d, which it made first", who.number, last, origin)
						}
						last = origin
					}
				}
			}
		}
	}
}

func (w *cutWorld) sameOrder(a, b []uint64) {
	at := 0
	for _, origin := range a {
		if i := slices.Index(b, origin); i >= 0 {
			if i < at {
				w.fatalf("two ranks saw %x in different orders:\n%x\n%x", origin, a, b)
			}
			at = i
		}
	}
}

// Whatever is cut, and whenever the head ends: each leg runs once, each call is
// answered once, and the order holds.
func TestNothingIsLostOrRunTwice(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		w := newCutWorld(t, seed)
		for range 150 {
			switch k := w.r.IntN(20); {
			case k == 0:
				w.fault()
			case k < 4:
				w.invoke(w.callers[w.r.IntN(len(w.callers))])
			default:
				w.step()
			}
		}
		for range 3 { // what is mended may lead to more
			w.mend()
			for w.step() {
			}
		}
		w.check()
		if w.table.Len() > 0 { // until they are acknowledged
			for _, who := range w.callers {
				w.acked(who, who.read)
			}
		}
		if w.table.Len() > 0 {
			t.Fatalf("seed %d: %d calls are left", seed, w.table.Len())
		}
		for _, ranks := range w.ranks {
			for _, rk := range ranks {
				rk.in = append(rk.in, toRank{ack: rk.w.Mark()})
				w.read(rk)
				if len(rk.got) > 0 {
					t.Fatalf("seed %d: a rank keeps %d results for nobody", seed, len(rk.got))
				}
			}
		}
	}
}

func (w *cutWorld) fatalf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d: "+format, append([]any{w.seed}, args...)...)
}
