package dispatch

import "github.com/muster-rl/muster/spec"

// next splits the fastest axis off the rest of the set.
func (a Axes) next() (axis, rest Axes) { return a & -a, a & (a - 1) }

// axisNamed is one axis by its name, or none.
func axisNamed(name string) Axes {
	for axis, rest := Ranks.next(); axis != 0; axis, rest = rest.next() {
		if axis.name() == name {
			return axis
		}
	}
	return 0
}

func (a Axes) name() string {
	return map[Axes]string{TP: "tp", CP: "cp", DP: "dp", PP: "pp"}[a]
}

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
	for axis, rest := over.next(); axis != 0; axis, rest = rest.next() {
		at, size := axis.on(r)
		if _, want := axis.on(first); size != want {
			return atRank(r.Rank, "rank %d reports %s_size %d, rank 0 reports %d: all ranks of a cluster have one shape", r.Rank, axis.name(), size, want)
		}
		if at < 0 || at >= size {
			return atRank(r.Rank, "rank %d reports %s_rank %d of %s_size %d: it must be at least 0 and below the size", r.Rank, axis.name(), at, axis.name(), size)
		}
	}
	return nil
}

// coordinate numbers a rank's place on the axes, the fastest axis first. On all
// of them it is the rank's number in the default layout.
func coordinate(r *spec.RankInfo, over Axes) int {
	at, stride := 0, 1
	for axis, rest := over.next(); axis != 0; axis, rest = rest.next() {
		n, size := axis.on(r)
		at += stride * n
		stride *= size
	}
	return at
}

// places is how many places the axes have, or limit+1 where that is more than
// limit: the sizes are a worker's word, and may be anything.
func places(r *spec.RankInfo, over Axes, limit int) int {
	n := 1
	for axis, rest := over.next(); axis != 0; axis, rest = rest.next() {
		_, size := axis.on(r)
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
