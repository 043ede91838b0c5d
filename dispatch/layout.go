package dispatch

import "github.com/muster-rl/muster/spec"

// Check refuses an impossible layout by the name of what is wrong with it: one
// that no dp x tp x pp x cp grid has, or that leaves a place empty and another
// taken twice.
func Check(layout []spec.RankInfo) error {
	if len(layout) == 0 {
		return spec.Errorf(spec.CodeLayout, "a layout of no ranks")
	}
	first, world := &layout[0], len(layout)
	for rank := range layout {
		r := &layout[rank]
		if r.Rank != rank || r.WorldSize != world {
			return atRank(rank, "rank %d reports itself as rank %d of %d; it is rank %d of %d", rank, r.Rank, r.WorldSize, rank, world)
		}
		if err := agree(r, first, Ranks); err != nil {
			return err
		}
	}
	if places(first, Ranks, world) != world {
		return spec.Errorf(spec.CodeLayout, "dp %d x tp %d x pp %d x cp %d does not make the world size %d: the sizes must multiply to it",
			first.DPSize, first.TPSize, first.PPSize, first.CPSize, world)
	}
	holder := make([]int, world)
	for rank := range layout {
		at := coordinate(&layout[rank], Ranks)
		if other := holder[at]; other > 0 {
			r := &layout[rank]
			return atRank(rank, "ranks %d and %d both report dp_rank %d, tp_rank %d, pp_rank %d, cp_rank %d: each place is one rank's",
				other-1, rank, r.DPRank, r.TPRank, r.PPRank, r.CPRank)
		}
		holder[at] = rank + 1
	}
	return nil
}

// axes are in the order of the bits of Axes.
var axes = [...]struct {
	name string
	bit  Axes
}{{"tp", TP}, {"cp", CP}, {"dp", DP}, {"pp", PP}}

// on is a rank's place on one axis, and the axis's size.
func (a Axes) on(r *spec.RankInfo) (at, size int) {
	switch a {
	case TP:
		return r.TPRank, r.TPSize
	case CP:
		return r.CPRank, r.CPSize
	case DP:
		return r.DPRank, r.DPSize
	}
	return r.PPRank, r.PPSize
}

// agree refuses a rank that on these axes has other sizes than rank 0, or lies
// outside of them.
func agree(r, first *spec.RankInfo, over Axes) error {
	for _, axis := range axes {
		if over&axis.bit == 0 {
			continue
		}
		at, size := axis.bit.on(r)
		if _, want := axis.bit.on(first); size != want {
			return atRank(r.Rank, "rank %d reports %s_size %d, rank 0 reports %d: all ranks of a cluster have one shape", r.Rank, axis.name, size, want)
		}
		if at < 0 || at >= size {
			return atRank(r.Rank, "rank %d reports %s_rank %d of %s_size %d: it must be at least 0 and below the size", r.Rank, axis.name, at, axis.name, size)
		}
	}
	return nil
}

// coordinate numbers a rank's place on the axes, the fastest axis first. On all
// of them it is the rank's number in the default layout.
func coordinate(r *spec.RankInfo, over Axes) int {
	at, stride := 0, 1
	for _, axis := range axes {
		if over&axis.bit != 0 {
			n, size := axis.bit.on(r)
			at += stride * n
			stride *= size
		}
	}
	return at
}

// places is how many places the axes have, or limit+1 where that is more than
// limit: the sizes are a worker's word, and may be anything.
func places(r *spec.RankInfo, over Axes, limit int) int {
	n := 1
	for _, axis := range axes {
		if over&axis.bit == 0 {
			continue
		}
		_, size := axis.bit.on(r)
		if size < 1 {
			return 0
		}
		if size > limit/n {
			return limit + 1
		}
		n *= size
	}
	return n
}

func atRank(rank int, format string, args ...any) error {
	e := spec.Errorf(spec.CodeLayout, format, args...)
	e.Rank = rank
	return e
}
