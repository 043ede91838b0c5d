package head

import (
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// pairLocked finds out whether a call that waits for futures can take them part
// by part: every argument that would be cut is the future of a call that gives
// its rows in as many parts, in order. Then each part is what the same part of
// that call gave, and a rank begins when its own rows are there.
func (h *Head) pairLocked(p *pending, layout []spec.RankInfo) {
	if !p.pairs() {
		return
	}
	r := p.request(layout, nil)
	var deps []*call.Call
	for i := range p.args.Args {
		a := &p.args.Args[i]
		arg := dispatch.Arg{Name: a.Name(), Kind: dispatch.Kind(a.Kind), Len: a.Len}
		switch a.Kind {
		case wire.ArgPerRank, wire.ArgBroadcast:
		case wire.ArgFuture:
			id, rank := a.Future()
			dep := h.table.FindCaller(p.caller.number, id)
			if rank >= 0 || dep == nil {
				return
			}
			arg.Kind, arg.Len = dispatch.KindList, partsOf(dep)
			if arg.Len < 2 {
				return
			}
			deps = append(deps, dep)
		default:
			return
		}
		r.Args = append(r.Args, arg)
	}
	plan, err := r.Plan()
	if err != nil || plan.Cast {
		return // said when the futures are here
	}
	paired := make([][]int, len(deps))
	for leg := range plan.Len() {
		slices := plan.Slices(plan.Leg(leg).Part)
		next := 0
		for i := range p.args.Args {
			if p.args.Args[i].Kind != wire.ArgFuture {
				continue
			}
			dep, s := deps[next], slices[i]
			if s.Take != dispatch.TakeRows || s.To != s.From+1 {
				return // another number of parts
			}
			paired[next] = append(paired[next], dep.LegOfRank(rankOf(dep, s.From)))
			next++
		}
	}
	p.plan, p.paired = plan, paired
	p.parts = make([]wire.Value, plan.Parts)
}

// pairs says that the method is one that takes futures part by part.
func (p *pending) pairs() bool {
	return p.how == howMode && p.method.mode.Cut == dispatch.CutRows && !p.method.mode.Spec &&
		p.method.mode.Feed == dispatch.Everyone && p.method.Execute != dispatch.ExecuteRankZero
}

// partsOf is in how many parts, each from one leg, a call gives its rows; 0
// where it does not.
func partsOf(c *call.Call) int {
	p := c.Data.(*pending)
	if p.put && !c.Split {
		return len(c.Legs) // see PutParts
	}
	if c.Split || p.put || p.plan.Collect.Join != dispatch.JoinChain || (len(p.waits) > 0 && p.paired == nil) {
		return 0
	}
	if p.plan.Collect.Ranks == nil {
		return p.plan.Len()
	}
	return len(p.plan.Collect.Ranks)
}

// rankOf is the rank that gives a part.
func rankOf(c *call.Call, part int) int {
	p := c.Data.(*pending)
	if p.put {
		return part
	}
	if p.plan.Collect.Ranks == nil {
		return p.plan.Leg(part).Rank
	}
	return p.plan.Collect.Ranks[part]
}

// sendLegLocked sends one leg, of a paired call or of one that the others have got.
func (h *Head) sendLegLocked(c *call.Call, leg int, p *pending, b *batch) {
	if c.Legs[leg].Done || c.State == call.Answered {
		return // the call has failed since the order was given
	}
	var v *wire.Value
	var flags wire.Flags
	var err *spec.Error
	if c.Paired != nil {
		flags = muted(p.wanted(c), leg)
		v, err = p.pairedPart(c, leg)
	} else if err = p.completeLocked(c); err == nil {
		again, how := p.legAgain(c, leg)
		v, flags = &again, how
	}
	if err != nil {
		h.ordersLocked(h.table.Refuse(c, err), b)
		return
	}
	b.scratch = appendLegHead(b.scratch[:0], p.method.Name, p.parent, c.Origin())
	h.lentLocked(lease.Worker(c.Legs[leg].Worker.Number), v.Bufs)
	p.cluster.workers[c.Legs[leg].Worker.Rank].sendLocked(c, leg, wire.Header{Kind: wire.KindLeg, ID: uint64(c.ID), Flags: flags}, v, b)
	for i := range c.Legs {
		if !c.Legs[i].Out && !c.Legs[i].Done {
			return
		}
	}
	p.spent()
}

// completeLocked puts the arguments of a call together that were sent again.
func (p *pending) completeLocked(c *call.Call) *spec.Error {
	if len(c.Futures) == 0 || p.spliced || c.Paired != nil {
		return nil
	}
	if err := p.spliceLocked(c); err != nil {
		return err
	}
	p.spliced = true
	if !p.planned {
		return p.prepare(p.cluster.ranks, c.Ranks)
	}
	if err := p.cutParts(); err != nil {
		return spec.AsError(err)
	}
	return nil
}

// planAgainLocked finds out how the results of a call are joined whose legs another head
// has sent.
func (p *pending) planAgainLocked(c *call.Call) *spec.Error {
	if len(c.Futures) == 0 || !c.HasDeps() {
		return spec.Errorf(spec.CodeHeadLost, "%s: its legs have ended, but how their results are joined went with the head: make the call again", c.Title())
	}
	if err := p.spliceLocked(c); err != nil {
		return err
	}
	return p.prepare(p.cluster.ranks, c.Ranks)
}

// pairedPart is the payload of one leg; legs of one part share it.
func (p *pending) pairedPart(c *call.Call, leg int) (*wire.Value, *spec.Error) {
	at := p.plan.Leg(leg).Part
	v := &p.parts[at]
	if v.Raw != nil {
		return v, nil
	}
	err := p.buildPaired(c, leg, v)
	if err == nil {
		err = wire.CheckSize(wire.Size(nil, v.Raw, v.Bufs), len(v.Bufs))
	}
	if err != nil {
		e := *spec.AsError(err)
		e.Cluster, e.Method = p.cluster.Name, p.method.Name
		return nil, &e
	}
	if wire.HasRefs(v.Bufs) {
		c.Leased = true
		p.caller.h.arrivedLocked(0, lease.Call(uint64(c.ID)), v.Bufs)
	}
	return v, nil
}

func (p *pending) buildPaired(c *call.Call, leg int, v *wire.Value) error {
	slices := p.plan.Slices(p.plan.Leg(leg).Part)
	p.args.Open(v)
	next := 0
	for i := range p.args.Args {
		var err error
		switch {
		case p.args.Args[i].Kind == wire.ArgFuture:
			dep := c.Dep(next)
			r := &dep.Legs[c.Paired[next][leg]].Result
			next++
			if !wire.Cuttable(r.Body) {
				return spec.Errorf(spec.CodeType, "%s: an argument is the future of %s, which gave a %s: %s cuts lists, tuples and batches; get its value and pass Broadcast(x) to give every rank all of it",
					p.method.title, dep.Title(), wire.TypeName(r.Body), p.method.mode.Name)
			}
			err = p.args.Instead(v, i, r.Body, bufsOf(r))
		case slices[i].Take == dispatch.TakeElement:
			err = p.args.Element(v, i, slices[i].From)
		default:
			err = p.args.Whole(v, i)
		}
		if err != nil {
			return err
		}
	}
	p.args.Close(v)
	return nil
}
