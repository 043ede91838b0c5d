package head

import (
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
)

// A process that was replaced may have run what its rank was sent, and cannot tell.
// While a head lives it knows that. The next one must not take such a call, which
// its caller sends again as it has not read the answer, for one that nobody has
// got: so it is written down.

// loseCallsLocked writes down which calls these workers have got of which the
// answers were not read. Idempotent ones may be run again.
func (h *Head) loseCallsLocked(cl *cluster, workers []*call.Worker) {
	known := h.table.Open()
	for _, c := range h.callers {
		for _, k := range c.answers.open() {
			if k.call != nil {
				known = append(known, k.call)
			}
		}
	}
	still := map[uint64]bool{}
	for _, c := range known {
		origin := c.Origin()
		still[origin] = true // also one that a head before this one had lost, and whose answer is not read yet
		if c.Cluster != &cl.Cluster || c.Idempotent {
			continue
		}
		for _, w := range workers {
			if leg := c.LegOf(w); leg >= 0 && c.Legs[leg].Out && !slices.Contains(cl.lost, origin) {
				cl.lost = append(cl.lost, origin)
			}
		}
	}
	cl.lost = slices.DeleteFunc(cl.lost, func(origin uint64) bool { return !still[origin] })
	h.noteClusterLocked(cl)
}

// lostCall says why a call that is sent again is not run, if so.
func (cl *cluster) lostCall(c *call.Request) *spec.Error {
	if !slices.Contains(cl.lost, c.Origin()) {
		return nil
	}
	e := spec.Errorf(spec.CodeWorkerDied, "%s.%s: a rank that it was sent to was restarted, and the head was before its answer was read: what came of it is not known, and it is not run again", cl.Name, c.Method)
	e.Cluster, e.Method = cl.Name, c.Method
	return e
}

// refuseAgainLocked answers a call that was sent again and does not go on, and
// tells it to those that name it: its caller may do so until it has read the answer.
func (c *caller) refuseAgainLocked(id uint64, err *spec.Error, b *batch) {
	put := c.h.table.PutAnswer(c.number, id, -1, call.Result{Err: err})
	if put != nil {
		put.Data = &pending{caller: c, put: true, unread: 1}
	}
	c.failLocked(put, id, err, b)
}
