package call

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// world plays a cluster whose ranks die and come back: it runs what it is sent, in
// order, and notes what came of each call.
type world struct {
	t       *testing.T
	table   *Table
	cl      *Cluster
	rand    *rand.Rand
	number  uint32
	next    uint64
	queues  map[*Worker][]*Call // sent to a process and not answered yet
	last    map[*Worker]ID      // the youngest call that a process was sent
	runs    map[*Call][]int     // how often each leg was sent
	answers map[*Call]int
	calls   []*Call
}

func (w *world) worker(rank int) *Worker {
	w.number++
	return &Worker{Number: w.number, Rank: rank, Name: "c", Cluster: w.cl, Serial: true}
}

func (w *world) carryOut(ops []Op) {
	for _, op := range slices.Clone(ops) {
		c := op.Call
		switch op.Do {
		case Send:
			for i := range c.Legs {
				w.send(c, i)
			}
		case SendLeg, SendAgain:
			w.send(c, op.Leg)
		case Answer, Fail:
			w.answers[c]++
		case CancelLeg: // as a worker does: at once, or when it comes to it
			worker := c.Legs[op.Leg].Worker
			if i := slices.Index(w.queues[worker], c); i >= 0 && w.rand.IntN(2) == 0 {
				w.queues[worker] = slices.Delete(w.queues[worker], i, i+1)
				_, more := w.table.Result(worker, c.ID, Result{Err: spec.Errorf(spec.CodeCancelled, "cancelled")})
				w.carryOut(more)
			}
		case AnswerLeg, FailLeg, KillLeg, Stacks, Forget:
		}
	}
}

func (w *world) send(c *Call, leg int) {
	to := c.Legs[leg].Worker
	if w.cl.Workers[to.Rank] != to || to.Down != nil || to.Dead != nil {
		w.t.Fatalf("call %d was sent to a process that is gone", c.ID)
	}
	if c.ID <= w.last[to] {
		w.t.Fatalf("call %d was sent after call %d", c.ID, w.last[to])
	}
	w.last[to] = c.ID
	if w.runs[c] == nil {
		w.runs[c] = make([]int, len(c.Legs))
	}
	w.runs[c][leg]++
	if w.runs[c][leg] > 1 && !c.Idempotent {
		w.t.Fatalf("call %d was run twice on rank %d", c.ID, to.Rank)
	}
	w.queues[to] = append(w.queues[to], c)
}

func (w *world) submit() {
	w.next++
	r := Request{Caller: 1, CallerID: w.next, Cluster: w.cl, Method: "m", Idempotent: w.rand.IntN(2) == 0, Collective: w.rand.IntN(4) == 0}
	if w.rand.IntN(3) == 0 {
		r.Ranks = w.rand.Perm(len(w.cl.Workers))[:1+w.rand.IntN(len(w.cl.Workers))]
	}
	if w.rand.IntN(4) == 0 && len(w.calls) > 0 {
		if dep := w.calls[len(w.calls)-1]; dep.State != Answered {
			r.Futures = []Future{{CallerID: dep.CallerID, Rank: -1}}
		}
	}
	c, ops := w.table.Submit(r)
	w.calls = append(w.calls, c)
	w.carryOut(ops)
}

// answerOne has a process that has something to do answer it.
func (w *world) answerOne(fail bool) bool {
	for _, rank := range w.rand.Perm(len(w.cl.Workers)) {
		worker := w.cl.Workers[rank]
		queue := w.queues[worker]
		if len(queue) == 0 || worker.Down != nil || worker.Dead != nil {
			continue
		}
		w.queues[worker] = queue[1:]
		var r Result
		if fail {
			r.Err = spec.Errorf(spec.CodeUser, "raised")
		}
		_, ops := w.table.Result(worker, queue[0].ID, r)
		if queue[0].Value == nil {
			queue[0].Value = &Result{} // as the head keeps it, for those that need it
		}
		w.carryOut(ops)
		return true
	}
	return false
}

func (w *world) down() (ranks []*Worker) {
	for _, worker := range w.cl.Workers {
		if worker.Down != nil {
			ranks = append(ranks, worker)
		}
	}
	return ranks
}

func (w *world) comeBack() {
	var fresh []*Worker
	for _, old := range w.down() {
		fresh = append(fresh, w.worker(old.Rank))
	}
	if len(fresh) > 0 {
		w.carryOut(w.table.Replace(fresh))
	}
}

// Whatever dies and comes back, every call is answered once, what is not idempotent
// runs once at most, and each process sees the one order.
func TestRestartsKeepOrderAndRunOnce(t *testing.T) {
	for seed := range uint64(2000) {
		w := &world{
			t: t, table: NewTable(1), cl: &Cluster{Number: 1, Name: "c"}, rand: rand.New(rand.NewPCG(seed, 0)),
			queues: map[*Worker][]*Call{}, last: map[*Worker]ID{}, runs: map[*Call][]int{}, answers: map[*Call]int{},
		}
		for rank := range 1 + int(seed%4) {
			w.cl.Workers = append(w.cl.Workers, w.worker(rank))
		}
		died := spec.Errorf(spec.CodeWorkerDied, "died")
		for range 60 {
			switch w.rand.IntN(12) {
			case 0:
				if worker := w.cl.Workers[w.rand.IntN(len(w.cl.Workers))]; worker.Dead == nil && worker.Down == nil {
					w.carryOut(w.table.WorkersDown([]*Worker{worker}, died))
				}
			case 1:
				if len(w.down()) == 0 && w.rand.IntN(2) == 0 {
					w.carryOut(w.table.WorkersDown(slices.Clone(w.cl.Workers), died))
				}
			case 2:
				w.comeBack()
			case 3:
				if ranks := w.down(); len(ranks) > 0 && w.rand.IntN(8) == 0 {
					w.carryOut(w.table.WorkerLost(ranks[0], died))
				}
			case 4:
				w.carryOut(w.table.Cancel(w.anyCall(), false))
			case 5, 6, 7:
				w.answerOne(w.rand.IntN(6) == 0)
			default:
				w.submit()
			}
		}
		w.comeBack()
		for w.answerOne(false) {
		}
		for _, c := range w.calls {
			if w.answers[c] != 1 {
				t.Fatalf("seed %d: call %d has %d answers, in state %v", seed, c.ID, w.answers[c], c.State)
			}
		}
		if w.table.Len() != 0 || w.cl.full != 0 || w.cl.down != 0 || len(w.cl.held) != 0 {
			t.Fatalf("seed %d: %d calls are left, %d ranks count as down, %d calls are held", seed, w.table.Len(), w.cl.down, len(w.cl.held))
		}
	}
}

func (w *world) anyCall() *Call {
	if len(w.calls) == 0 {
		return &Call{State: Answered}
	}
	return w.calls[w.rand.IntN(len(w.calls))]
}
