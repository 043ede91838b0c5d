package dispatch

import (
	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

// Plan is who gets what of one call, and what comes back. Plans are values:
// nothing in one changes after Request.Plan made it.
type Plan struct {
	// Cast: every rank that runs gets every argument whole. There is one part,
	// and its slices are nil.
	Cast bool
	// Parts is the number of different payloads.
	Parts   int
	Collect Collect

	legs   int
	ranks  []int   // that run; nil: the first legs ones
	parts  []int32 // of each leg; nil: see own
	own    bool    // without parts: leg i gets part i, else part 0
	slices []Slice // Parts x args
	args   int
	shards batch.Shards // of a batch that says how it is cut; else empty
}

// Leg is one rank's share of the call.
type Leg struct {
	Rank int
	Part int // legs of one part get the same payload
}

// Take is what a part has of an argument.
type Take uint8

// The takes.
const (
	TakeWhole   Take = iota // all of it; of a Broadcast, what it holds
	TakeElement             // element From
	TakeRows                // rows From to (not included) To, as a value of the same type
	TakeEmpty               // of a batch: no rows, but columns and meta
	TakeIndices             // Rows, in that order, as a value of the same type
)

// Slice is what a part has of one argument.
type Slice struct {
	Take     Take
	From, To int
	Rows     []uint32 // shared by all arguments of a part
}

// Collect is what comes back.
type Collect struct {
	Join  Join
	Rank  int   // of JoinOne: whose result
	Ranks []int // of the others: whose results, in order; nil: every leg's
}

// Len is the number of legs.
func (p *Plan) Len() int { return p.legs }

// Leg returns leg i. Legs are in rank order, or in that of Request.Ranks.
func (p *Plan) Leg(i int) Leg {
	leg := Leg{Rank: i}
	if p.ranks != nil {
		leg.Rank = p.ranks[i]
	}
	switch {
	case p.parts != nil:
		leg.Part = int(p.parts[i])
	case p.own:
		leg.Part = i
	}
	return leg
}

// Slices returns what a part has of each argument; nil of a Cast: all of all.
func (p *Plan) Slices(part int) []Slice {
	if p.Cast {
		return nil
	}
	return p.slices[part*p.args : (part+1)*p.args : (part+1)*p.args]
}

// Partition is the rows that each part of the mode's has where a batch said how
// it wants to be cut, and that takes more than consecutive rows; else nil. The
// results of a JoinChain come back in the order of these parts: batch.Restore
// finds the way back to the caller's order.
func (p *Plan) Partition() [][]uint32 { return p.shards.Lists }

// Plan decides the call, or says what is wrong with it.
func (r *Request) Plan() (Plan, error) {
	world := len(r.Layout)
	if world == 0 {
		return Plan{}, r.errorf(spec.CodeInternal, "a call to a cluster without ranks")
	}
	if err := r.checkRanks(); err != nil {
		return Plan{}, err
	}
	total := world
	if r.Mode.Over != Ranks {
		if total = places(&r.Layout[0], r.Mode.Over, world); total < 1 || total > world {
			return Plan{}, r.errorf(spec.CodeLayout, "the layout that rank 0 reports has no parts for %s: dp %d, tp %d, pp %d, cp %d of world size %d",
				r.Mode.Name, r.Layout[0].DPSize, r.Layout[0].TPSize, r.Layout[0].PPSize, r.Layout[0].CPSize, world)
		}
	}
	c, err := r.check(total)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{legs: world, ranks: r.Ranks, args: len(r.Args)}
	switch {
	case r.Execute == ExecuteRankZero:
		p.legs = 1
	case r.Ranks != nil:
		p.legs = len(r.Ranks)
	}
	if err := r.share(&p, c, total); err != nil {
		return Plan{}, err
	}
	p.Collect, err = r.collect(&p, total)
	return p, err
}

// checkRanks refuses an unknown execute mode and ranks that are not there.
func (r *Request) checkRanks() error {
	if r.Execute != "" && r.Execute != ExecuteAll && r.Execute != ExecuteRankZero {
		return r.errorf(spec.CodeInvalid, "there is no execute mode %q: it is %s or %s", r.Execute, ExecuteAll, ExecuteRankZero)
	}
	if r.Ranks == nil {
		return nil
	}
	if r.Execute == ExecuteRankZero || r.Mode.Cut != CutNothing {
		return r.errorf(spec.CodeInternal, "ranks were chosen for %s, which chooses by itself", r.Mode.Name)
	}
	if len(r.Ranks) == 0 {
		return r.errorf(spec.CodeInvalid, "no rank was chosen: the cluster has ranks 0 to %d", len(r.Layout)-1)
	}
	seen := make([]bool, len(r.Layout))
	for _, rank := range r.Ranks {
		if rank < 0 || rank >= len(r.Layout) {
			return r.errorf(spec.CodeInvalid, "there is no rank %d: the cluster has ranks 0 to %d", rank, len(r.Layout)-1)
		}
		if seen[rank] {
			return r.errorf(spec.CodeInvalid, "rank %d was chosen twice: a call runs once on a rank", rank)
		}
		seen[rank] = true
	}
	return nil
}

// share gives each leg its part and each part its slices. total is the number
// of parts that the mode cuts into.
func (r *Request) share(p *Plan, c cutting, total int) error {
	p.Parts = 1
	withhold := c.batch && r.Mode.Feed != Everyone
	switch {
	case !c.cut && !c.perRank, r.Mode.Cut == CutRows && total == 1 && !c.perRank && !withhold:
		p.Cast = true
		return nil
	}
	if err := r.partition(p, c, total); err != nil {
		return err
	}
	switch {
	case c.perRank || p.legs == 1 || c.cut && r.Mode.Over == Ranks:
		p.own, p.Parts = true, p.legs
		p.slices = make([]Slice, 0, p.legs*p.args)
		for i := range p.legs {
			rank := p.Leg(i).Rank
			at, err := r.partOf(rank)
			if err != nil {
				return err
			}
			p.slices = r.slice(p, at, total, rank, !withhold || r.Mode.Feed.has(&r.Layout[rank], r.Mode.Over))
		}
		return nil
	}
	p.parts, p.Parts = make([]int32, p.legs), total
	for rank := range p.legs {
		at, err := r.partOf(rank)
		if err != nil {
			return err
		}
		if withhold && !r.Mode.Feed.has(&r.Layout[rank], r.Mode.Over) {
			at += total // parts without rows follow those with
			p.Parts = 2 * total
		}
		p.parts[rank] = int32(at)
	}
	p.slices = make([]Slice, 0, p.Parts*p.args)
	for part := range p.Parts {
		p.slices = r.slice(p, part%total, total, 0, part < total)
	}
	return nil
}

// partition cuts rows as the batch wants that says how, if one does.
func (r *Request) partition(p *Plan, c cutting, total int) error {
	if c.by < 0 {
		return nil
	}
	a := &r.Args[c.by]
	shards, err := a.Cut.Shards(a.Len, total)
	if err != nil {
		e := spec.AsError(err)
		return r.errorf(e.Code, "%s: %s", r.called(c.by), e.Message)
	}
	p.shards = shards
	return nil
}

// partOf is the part that the mode gives a rank.
func (r *Request) partOf(rank int) (int, error) {
	if r.Mode.Over == Ranks {
		return rank, nil
	}
	info := &r.Layout[rank]
	if err := agree(info, &r.Layout[0], r.Mode.Over); err != nil {
		return 0, err
	}
	return coordinate(info, r.Mode.Over), nil
}

// slice appends what one part has of each argument: part at of total, for rank
// where it is for one alone, with the rows of batches where it is fed.
func (r *Request) slice(p *Plan, at, total, rank int, fed bool) []Slice {
	dst := p.slices
	for i := range r.Args {
		s := Slice{Take: TakeWhole}
		switch a := &r.Args[i]; {
		case a.Kind == KindPerRank:
			s = Slice{Take: TakeElement, From: rank, To: rank + 1}
		case r.goesWhole(i):
		case r.Mode.Cut == CutElements:
			s = Slice{Take: TakeElement, From: at, To: at + 1}
		case a.Kind == KindBatch && !fed:
			s.Take = TakeEmpty
		case p.shards.Lists != nil:
			s = Slice{Take: TakeIndices, Rows: p.shards.Lists[at]}
		case p.shards.Ranges != nil:
			s = Slice{Take: TakeRows, From: p.shards.Ranges[at].From, To: p.shards.Ranges[at].To}
		default:
			s.Take = TakeRows
			s.From, s.To = batch.Even(a.Len, total, at)
		}
		dst = append(dst, s)
	}
	return dst
}

// collect picks whose results come back.
func (r *Request) collect(p *Plan, total int) (Collect, error) {
	c := Collect{Join: r.Mode.Join}
	if r.Execute == ExecuteRankZero {
		return Collect{Join: JoinOne}, nil
	}
	switch {
	case c.Join == JoinOne:
		c.Rank = p.Leg(0).Rank
		return c, nil
	case r.Mode.Keep == Everyone && r.Mode.Order == ByRank:
		return c, nil
	}
	// Slots hold rank+1, so that an empty one shows.
	slots := make([]int, 0, total)
	if r.Mode.Order == ByPart {
		slots = slots[:total]
	}
	for rank := range r.Layout {
		if !r.Mode.Keep.has(&r.Layout[rank], r.Mode.Over) {
			continue
		}
		if r.Mode.Order == ByRank {
			slots = append(slots, rank+1)
			continue
		}
		at, err := r.partOf(rank)
		if err != nil {
			return c, err
		}
		if slots[at] != 0 {
			return c, atRank(rank, "ranks %d and %d both report to give the result of part %d: each part has one", slots[at]-1, rank, at)
		}
		slots[at] = rank + 1
	}
	for part, rank := range slots {
		if rank == 0 {
			return c, r.errorf(spec.CodeLayout, "in the layout that the ranks report, none gives the result of part %d of %d: one with tp_rank 0, cp_rank 0 and the last pp_rank must", part, total)
		}
		slots[part]--
	}
	c.Ranks = slots
	return c, nil
}
