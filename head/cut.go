package head

import (
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Modes for what is not called by its registered one.
var (
	modeAll = dispatch.Mode{Name: "execute_all"}
	modeOne = dispatch.Mode{Name: "a call of one rank", Join: dispatch.JoinOne}
)

// request is the call as dispatch sees it.
func (p *pending) request(layout []spec.RankInfo, ranks []int) dispatch.Request {
	r := dispatch.Request{Method: p.method.title, Layout: layout}
	switch p.how {
	case howMode:
		r.Mode, r.Execute, r.OwnRows = p.method.mode, p.method.Execute, p.ownRows
	case howAll:
		r.Mode, r.Ranks = modeAll, ranks
	default:
		r.Mode, r.Ranks = modeOne, ranks
	}
	return r
}

// reads says that the head must look into the payload; else it only passes on.
func (p *pending) reads() bool {
	return p.marked || (p.how == howMode && p.method.mode.Cut != dispatch.CutNothing)
}

// prepare plans the call and cuts its arguments.
func (p *pending) prepare(layout []spec.RankInfo, ranks []int) *spec.Error {
	r := p.request(layout, ranks)
	if p.reads() {
		for i := range p.args.Args {
			a := &p.args.Args[i]
			arg := dispatch.Arg{Name: a.Name(), Kind: dispatch.Kind(a.Kind), Len: a.Len}
			switch a.Kind {
			case wire.ArgWhole:
				arg.TypeName = wire.TypeName(a.Raw)
			case wire.ArgBatch:
				arg.TypeName = "Batch"
				arg.Cut, arg.MetaOnly = a.Batch.Cut, a.Batch.MetaOnly()
			}
			r.Args = append(r.Args, arg)
		}
	}
	plan, err := r.Plan()
	if err == nil {
		p.plan, p.planned = plan, true
		if p.reads() && (!plan.Cast || p.marked) {
			err = p.cutParts()
		}
	}
	if err != nil {
		e := *spec.AsError(err)
		e.Cluster, e.Method = p.cluster.Name, p.method.Name
		return &e
	}
	return nil
}

// cutParts makes the payload of each part.
func (p *pending) cutParts() error {
	p.parts = make([]wire.Value, p.plan.Parts)
	for part := range p.parts {
		v := &p.parts[part]
		slices := p.plan.Slices(part)
		p.args.Open(v)
		for i := range p.args.Args {
			var s dispatch.Slice
			if slices != nil {
				s = slices[i]
			}
			var err error
			switch s.Take {
			case dispatch.TakeElement:
				err = p.args.Element(v, i, s.From)
			case dispatch.TakeRows:
				err = p.args.Rows(v, i, s.From, s.To)
			case dispatch.TakeIndices:
				err = p.args.Take(v, i, s.Rows)
			case dispatch.TakeEmpty:
				err = p.args.Empty(v, i)
			case dispatch.TakeWhole:
				err = p.args.Whole(v, i)
			}
			if err != nil {
				return err
			}
		}
		p.args.Close(v)
		if err := wire.CheckSize(wire.Size(nil, v.Raw, v.Bufs), len(v.Bufs)); err != nil {
			return err
		}
	}
	return nil
}

// futures are the arguments that other calls have yet to give.
func (p *pending) futures() []call.Future {
	var fs []call.Future
	for i := range p.args.Args {
		if a := &p.args.Args[i]; a.Kind == wire.ArgFuture {
			id, rank := a.Future()
			fs = append(fs, call.Future{CallerID: id, Rank: rank})
		}
	}
	return fs
}

// given is a result that takes the place of an argument.
type given struct {
	arg  int
	body []byte
	bufs []wire.Buf
}

// givenLocked finds the results that were waited for, and holds what they name.
func (p *pending) givenLocked(c *call.Call) ([]given, *spec.Error) {
	all := make([]given, 0, len(c.Futures))
	for i := range p.args.Args {
		a := &p.args.Args[i]
		if a.Kind != wire.ArgFuture {
			continue
		}
		_, rank := a.Future()
		dep := c.Dep(len(all))
		if dep.Value == nil && rank < 0 {
			return nil, spec.Errorf(spec.CodeInternal, "%s: the result it waited for is gone", c.Title())
		}
		from := dep.Value
		if rank >= 0 {
			from = &dep.Legs[dep.LegOfRank(rank)].Result
		}
		if from.Err != nil {
			return nil, from.Err
		}
		bufs := bufsOf(from)
		if wire.HasRefs(bufs) {
			c.Leased = true
			p.caller.h.arrivedLocked(0, lease.Call(uint64(c.ID)), bufs)
		}
		all = append(all, given{i, from.Body, bufs})
	}
	return all, nil
}

// splice puts results in their places.
func (p *pending) splice(all []given) *spec.Error {
	for _, g := range all {
		if err := p.args.Splice(g.arg, g.body, g.bufs); err != nil {
			return spec.AsError(err)
		}
	}
	return nil
}

// spliceLocked puts the results that were waited for in their places.
func (p *pending) spliceLocked(c *call.Call) *spec.Error {
	all, err := p.givenLocked(c)
	if err != nil {
		return err
	}
	return p.splice(all)
}
