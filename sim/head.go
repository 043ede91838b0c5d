package sim

import (
	"fmt"
	"slices"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
)

// head is one head of the session: the cores, and what it keeps of its peers.
type head struct {
	w        *world
	epoch    uint32
	dead     bool // killed
	table    *call.Table
	leases   lease.Table
	clusters []*call.Cluster
	workers  map[uint32]*worker
	callers  map[uint32]*client
	nodes    []*agentOf
	coming   *coming // while it is put together
	todo     []call.Op
	doing    bool
	log      []string
}

// worker is a process as a head knows it.
type worker struct {
	*call.Worker
	seat *seat
	proc *process
	link *link // nil: it is away
}

// client is a caller as a head knows it.
type client struct {
	caller  *caller
	link    *link
	answers uint32
	kept    []answer // not acknowledged, oldest first
	puts    []*call.Call
	late    []late // what it said after all was sent again, until all are back
	resent  bool
	gone    bool
	told    map[objectID]int // what it said that it knows of
}

// late is something that a caller said.
type late struct {
	ends uint64 // the call that it cancels
	do   func()
}

// answer is an Answer frame.
type answer struct {
	id    uint64
	rank  int
	value []int64
	err   *spec.Error
	seq   uint32
	call  *call.Call // of the last one

	objects []objectID
}

// agentOf is an agent as a head knows it.
type agentOf struct {
	node *node
	link *link
	box  []*errand // that it has not done yet
}

// errand is something that an agent is asked to do: again, when it is back.
type errand struct {
	do   func()
	done bool
}

// value is what a result gives, and where it lies.
type value struct {
	rows    []int64
	objects []objectID
}

func rowsOf(r *call.Result) []int64 {
	v, _ := r.Bufs.(value)
	return v.rows
}

func objectsOf(r *call.Result) []objectID {
	v, _ := r.Bufs.(value)
	return v.objects
}

// pending is what is kept of a call beside the table.
type pending struct {
	inv  *invocation
	have bool // its arguments are here
	keep bool // and stay
	plan dispatch.Plan
	pair bool
	data [][]int64 // the arguments, once they are known
}

// label names a call in what a head was told: those of workers are other numbers.
func (inv *invocation) label() uint64 {
	if inv.caller.proc != nil {
		return uint64(inv.caller.number)*1000 + inv.id
	}
	return inv.id
}

func (h *head) note(format string, args ...any) { h.log = append(h.log, fmt.Sprintf(format, args...)) }

// call takes a Call frame.
func (h *head) call(c *caller, inv *invocation, left int64, again bool, ack uint32) {
	who := h.callers[c.number]
	if who == nil || who.gone {
		return
	}
	if who.resent && h.coming != nil {
		who.late = append(who.late, late{do: func() { h.call(c, inv, left, again, ack) }})
		return
	}
	if h.coming != nil {
		h.coming.calls = append(h.coming.calls, comingCall{who: who, inv: inv, left: left})
		return
	}
	h.acked(c, ack)
	if again {
		if known := h.table.FindCaller(c.number, inv.id); known != nil {
			if known.Bare() {
				known.Data.(*pending).have = true
			}
			h.note("resent %d", inv.label())
			h.orders(h.table.Resent(known))
			return
		}
		if slices.ContainsFunc(who.kept, func(a answer) bool { return a.id == inv.id }) {
			return // its answer is on its way
		}
	}
	cl := h.clusters[inv.cluster.index]
	if inv.cluster.gone {
		h.answer(who, answer{id: inv.id, rank: -1, err: spec.Errorf(spec.CodeNotFound, "cluster %s is no more", cl.Name)})
		return
	}
	r, _ := h.request(inv)
	h.note("call %d %s", inv.label(), inv.words())
	made, ops := h.table.Submit(r)
	h.holdFor(made, inv.named)
	h.orders(ops)
	h.tellStores()
	h.deadline(made, left)
}

// words is a call in the words of call/testdata.
func (inv *invocation) words() string {
	in := *inv.in
	in.Number, in.By, in.Rows = 0, 0, 0
	text := fmt.Sprintf("%s.%s", in.To, in.Method)
	if inv.ranks != nil {
		text += " ranks=" + list(inv.ranks)
	}
	if in.Split {
		text += " split"
	}
	if in.Apart {
		text += " apart"
	}
	if in.Collective {
		text += " collective"
	}
	if in.Idempotent {
		text += " idempotent"
	}
	if in.OnTimeout != "" {
		text += " on_timeout=" + in.OnTimeout
	}
	for i, f := range inv.futures {
		text += map[bool]string{true: " needs=", false: ","}[i == 0] + fmt.Sprint(f.CallerID)
	}
	return text + " keep"
}

// request is a call as the table takes it.
func (h *head) request(inv *invocation) (call.Request, *pending) {
	in := inv.in
	cl := h.clusters[inv.cluster.index]
	p := &pending{inv: inv, have: true, keep: in.Idempotent && inv.cluster.in.OnFailure != ""}
	r := call.Request{
		Caller: inv.caller.number, CallerID: inv.id, Cluster: cl, Method: in.Method, Ranks: inv.ranks,
		Split: in.Split, Apart: in.Apart, Keep: true, Collective: in.Collective, Idempotent: in.Idempotent && inv.cluster.in.OnFailure != "", OnTimeout: in.OnTimeout,
		Parent: inv.parent, Futures: inv.futures, Data: p,
	}
	if inv.proc != nil {
		r.Waiting = true
		if w := h.workers[inv.proc.number]; w != nil {
			r.ParentWorker = w.Worker
		}
	}
	if len(inv.futures) == 0 {
		p.data = [][]int64{inv.rows}
		h.plan(p)
	} else if r.Paired = h.pair(p); r.Paired == nil {
		r.Prepares = true
		h.plan(p) // as far as it does not hang on the arguments: who gives the results
	}
	return r, p
}

// plan has dispatch decide who gets what.
func (h *head) plan(p *pending) {
	r := h.dispatched(p)
	for _, d := range p.data {
		r.Args = append(r.Args, dispatch.Arg{Kind: dispatch.KindList, Len: len(d)})
	}
	if p.data == nil {
		r.Args = []dispatch.Arg{{Kind: dispatch.KindList}}
	}
	plan, err := r.Plan()
	if err != nil {
		h.w.rules.brk("what is asked can be done", "call %d: %v", p.inv.id, err)
	}
	p.plan = plan
}

func (h *head) dispatched(p *pending) dispatch.Request {
	name := "ONE_TO_ALL"
	if p.inv.in.Method == "rows" {
		name = "DP_MP_COMPUTE"
	}
	mode, _ := dispatch.Lookup(name)
	return dispatch.Request{Method: p.inv.in.Method, Mode: mode, Ranks: p.inv.ranks, Layout: p.inv.cluster.layout}
}

// pair finds whether a call can take its rows part by part, as package head does.
func (h *head) pair(p *pending) [][]int {
	if p.inv.in.Method != "rows" || len(p.inv.futures) != 1 || len(p.inv.rows) > 0 {
		return nil
	}
	dep := h.table.FindCaller(p.inv.caller.number, p.inv.futures[0].CallerID)
	if dep == nil || dep.Data == nil || dep.Split {
		return nil
	}
	from := dep.Data.(*pending)
	if from.inv.in.Method != "rows" || (len(from.inv.futures) > 0 && !from.pair) {
		return nil
	}
	r := h.dispatched(p)
	r.Args = []dispatch.Arg{{Kind: dispatch.KindList, Len: len(from.plan.Collect.Ranks)}}
	plan, err := r.Plan()
	if err != nil || plan.Cast {
		return nil
	}
	var legs []int
	for leg := range plan.Len() {
		s := plan.Slices(plan.Leg(leg).Part)[0]
		if s.Take != dispatch.TakeRows || s.To != s.From+1 {
			return nil
		}
		legs = append(legs, dep.LegOfRank(from.plan.Collect.Ranks[s.From]))
	}
	p.plan, p.pair = plan, true
	return [][]int{legs}
}

// deadline expires a call in time.
func (h *head) deadline(c *call.Call, left int64) {
	if left == 0 || c.State == call.Answered {
		return
	}
	h.w.after(left, func() {
		if !h.dead && c.State != call.Answered {
			h.note("expire %d", c.CallerID)
			h.orders(h.table.Expire(c))
		}
	})
}

// acked drops what the caller has read.
func (h *head) acked(c *caller, ack uint32) {
	who := h.callers[c.number]
	if who == nil || h.coming != nil {
		return
	}
	for len(who.kept) > 0 && int32(ack-who.kept[0].seq) >= 0 {
		a := who.kept[0]
		who.kept = who.kept[1:]
		if a.call != nil {
			h.note("ack %d", a.id)
			h.orders(h.table.Acked(a.call))
		}
	}
	h.tellStores()
}

// cancel takes a Cancel frame.
func (h *head) cancel(c *caller, id uint64, kill bool) {
	who := h.callers[c.number]
	if who == nil || who.gone {
		return
	}
	if h.coming != nil {
		who.late = append(who.late, late{ends: id, do: func() { h.cancel(c, id, kill) }})
		return
	}
	made := h.table.FindCaller(c.number, id)
	if made == nil {
		return
	}
	h.note("cancel %d", id)
	h.orders(h.table.Cancel(made, kill))
	h.w.after(cancelGrace, func() {
		if !h.dead {
			h.note("overdue %d", id)
			h.orders(h.table.Overdue(made, nil))
		}
	})
}

// steer has a worker's agent end a leg.
func (h *head) steer(c *call.Call, leg int, kill bool) {
	w := h.workers[c.Legs[leg].Worker.Number]
	if w == nil {
		return
	}
	id, p := c.ID, w.proc
	h.agent(w.seat.node, func() {
		if !p.alive {
			return
		}
		if kill {
			p.die(true)
		} else {
			p.cancel(id)
		}
	})
}

// agent tells an agent something, again when it is back.
func (h *head) agent(n *node, do func()) {
	a := h.nodes[n.index]
	e := &errand{do: do}
	a.box = append(slices.DeleteFunc(a.box, func(e *errand) bool { return e.done }), e)
	a.ask(e)
}

func (a *agentOf) ask(e *errand) {
	if a.link != nil {
		a.link.send(toPeer, func() {
			if !e.done {
				e.done = true
				e.do()
			}
		})
	}
}

// result takes a Result frame.
func (h *head) result(p *process, g *leg, again bool) {
	w := h.workers[p.number]
	if h.coming != nil {
		h.coming.results = append(h.coming.results, func() { h.result(p, g, again) })
		return
	}
	if w == nil {
		return
	}
	r := call.Result{Bufs: value{g.value, g.made}, Err: g.err}
	if c := h.table.Find(g.id); c != nil && c.Unread() && c.LegOf(w.Worker) >= 0 {
		h.holdFor(c, g.made)
	}
	if !again && w.Dead == nil && w.Down == nil {
		h.sent(lease.Worker(p.number), g.made)
	}
	if g.err != nil {
		h.note("result %s/%d %d error=%s", w.Cluster.Name, w.Rank, g.inv.label(), g.err.Code)
	} else {
		h.note("result %s/%d %d", w.Cluster.Name, w.Rank, g.inv.label())
	}
	_, ops := h.table.Result(w.Worker, g.id, r)
	h.orders(ops)
	h.tellStores()
}
