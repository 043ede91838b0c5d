package call

import (
	"slices"
	"testing"

	"github.com/muster-rl/muster/spec"
)

func fullCluster(ranks int) *Cluster {
	cl := &Cluster{Number: 1, Name: "c"}
	for r := range ranks {
		cl.Workers = append(cl.Workers, &Worker{Number: uint32(r + 2), Rank: r, Name: "c", Cluster: cl})
	}
	return cl
}

// sent lists the caller's ids of the calls that ops send.
func sent(ops []Op) []uint64 {
	var ids []uint64
	for _, op := range ops {
		if op.Do == Send {
			ids = append(ids, op.Call.CallerID)
		}
	}
	return ids
}

// A worker gets MaxOut legs; what comes then waits, in order, and so does what
// is for other ranks alone: the order is one for all.
func TestFullWorkerHoldsItsCluster(t *testing.T) {
	table, cl := NewTable(1), fullCluster(3)
	submit := func(id uint64, ranks ...int) (*Call, []Op) {
		return table.Submit(Request{Caller: 1, CallerID: id, Cluster: cl, Ranks: ranks})
	}
	var calls []*Call
	for i := range uint64(MaxOut) {
		c, ops := submit(i, 0)
		if len(sent(ops)) != 1 {
			t.Fatalf("call %d was not sent", i)
		}
		calls = append(calls, c)
	}
	all, ops := submit(5000)
	if all.State != Held || len(ops) != 0 {
		t.Fatalf("a call beyond the limit: %v", ops)
	}
	other, _ := submit(5001, 1)
	gone, _ := submit(5002, 2)
	if other.State != Held || gone.State != Held {
		t.Fatal("a call went past one that waits")
	}
	if ops := table.Cancel(gone, false); len(ops) != 1 || ops[0].Err.Code != spec.CodeCancelled {
		t.Fatalf("cancelled: %v", ops)
	}
	// One leg ends: the call of all ranks fills rank 0 again and the other waits on.
	_, ops = table.Result(cl.Workers[0], calls[0].ID, Result{})
	if got := sent(ops); !slices.Equal(got, []uint64{5000}) {
		t.Fatalf("sent %v", got)
	}
	if ops := table.Expire(other); len(ops) != 1 || ops[0].Err.Code != spec.CodeTimeout {
		t.Fatalf("expired: %v", ops)
	}
	last, _ := submit(5003, 2)
	_, ops = table.Result(cl.Workers[0], calls[1].ID, Result{})
	if got := sent(ops); !slices.Equal(got, []uint64{5003}) {
		t.Fatalf("sent %v", got)
	}
	// The worker dies: nothing is held up any more.
	submit(5006, 0)
	held, _ := submit(5004, 0)
	more, _ := submit(5005, 1)
	if held.State != Held || more.State != Held {
		t.Fatal("rank 0 should be full again")
	}
	ops = table.WorkerLost(cl.Workers[0], spec.Errorf(spec.CodeWorkerDied, "died"))
	if got := sent(ops); !slices.Equal(got, []uint64{5005}) || held.State != Answered {
		t.Fatalf("sent %v, the call of the dead rank is in state %d", got, held.State)
	}
	for _, c := range []*Call{last, more} {
		table.Result(c.Legs[0].Worker, c.ID, Result{})
	}
	for _, rank := range []int{1, 2} {
		table.Result(cl.Workers[rank], all.ID, Result{})
	}
	if table.Len() != 0 || cl.full != 0 {
		t.Fatalf("%d calls are left, %d workers count as full", table.Len(), cl.full)
	}
}

// A node that goes with many ranks has the others cancelled once, not once a rank.
func TestLegsAreCancelledOnce(t *testing.T) {
	table, cl := NewTable(1), fullCluster(100)
	table.Submit(Request{Caller: 1, CallerID: 1, Cluster: cl})
	cancels := 0
	for rank := range 50 {
		for _, op := range table.WorkerLost(cl.Workers[rank], spec.Errorf(spec.CodeNodeLost, "gone")) {
			if op.Do == CancelLeg {
				cancels++
			}
		}
	}
	if cancels != 99 {
		t.Errorf("%d cancels of 99 other legs", cancels)
	}
}

// A worker that runs more calls at once gets as many.
func TestWorkerThatRunsMoreGetsMore(t *testing.T) {
	table, cl := NewTable(1), fullCluster(1)
	cl.Most = MaxOut + 1
	var first *Call
	for i := range uint64(cl.Most) {
		c, ops := table.Submit(Request{Caller: 1, CallerID: i, Cluster: cl})
		if len(sent(ops)) != 1 {
			t.Fatalf("call %d was not sent", i)
		}
		if i == 0 {
			first = c
		}
	}
	if c, _ := table.Submit(Request{Caller: 1, CallerID: 5000, Cluster: cl}); c.State != Held {
		t.Fatal("a call beyond the limit was sent")
	}
	_, ops := table.Result(cl.Workers[0], first.ID, Result{})
	if got := sent(ops); !slices.Equal(got, []uint64{5000}) {
		t.Fatalf("sent %v", got)
	}
}
