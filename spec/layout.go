package spec

import "fmt"

// Layout places world ranks in Megatron's default order: tp runs fastest, then
// cp, dp and pp. Sizes of 0 mean 1; dp follows.
func Layout(world int, s Shape) ([]RankInfo, error) {
	if world < 1 || world > MaxMapping {
		return nil, Errorf(CodePlacement, "world_size %d is outside 1 to %d", world, MaxMapping)
	}
	if err := s.settle(world); err != nil {
		return nil, err
	}
	infos := make([]RankInfo, world)
	for r := range infos {
		infos[r] = RankInfo{
			WorldSize: world, TPSize: s.TP, DPSize: s.DP, PPSize: s.PP, CPSize: s.CP,
			Rank:   r,
			TPRank: r % s.TP,
			CPRank: r / s.TP % s.CP,
			DPRank: r / (s.TP * s.CP) % s.DP,
			PPRank: r / (s.TP * s.CP * s.DP),
		}
	}
	return infos, nil
}

// settle fills in the sizes left open and refuses those that world cannot have.
func (s *Shape) settle(world int) *Error {
	for _, size := range []struct {
		name string
		n    *int
	}{{"tp", &s.TP}, {"pp", &s.PP}, {"cp", &s.CP}, {"ep", &s.EP}, {"dp", &s.DP}} {
		if *size.n < 0 {
			return Errorf(CodePlacement, "%s=%d: a parallel size is 1 or more", size.name, *size.n)
		}
		if *size.n > world {
			return Errorf(CodePlacement, "%s=%d is larger than world_size %d", size.name, *size.n, world)
		}
		if *size.n == 0 && size.name != "dp" {
			*size.n = 1
		}
	}
	model := s.TP * s.PP * s.CP // at most 2^60
	if world%model != 0 {
		return Errorf(CodePlacement,
			"tp=%d x pp=%d x cp=%d = %d does not divide world_size %d; the rest would be dp", s.TP, s.PP, s.CP, model, world)
	}
	if dp := world / model; s.DP == 0 {
		s.DP = dp
	} else if s.DP != dp {
		return Errorf(CodePlacement,
			"dp=%d x tp=%d x pp=%d x cp=%d = %d, but world_size is %d; dp would be %d, and can be left out",
			s.DP, s.TP, s.PP, s.CP, s.DP*model, world, dp)
	}
	if stage := world / s.PP; stage%s.EP != 0 {
		return Errorf(CodePlacement, "ep=%d does not divide the %d ranks of a pipeline stage (world_size %d, pp=%d)",
			s.EP, stage, world, s.PP)
	}
	return nil
}

// CheckLayout checks a layout that workers reported, rank r's at index r: all
// must agree on the sizes, these must make up the world, and every place must
// be taken by exactly one rank. Its errors have CodeLayout and name the rank
// that is wrong where one can be told; where ranks disagree, the fewer are.
func CheckLayout(infos []RankInfo) error {
	if len(infos) == 0 {
		return nil
	}
	agreed := commonSizes(infos)
	for r, info := range infos {
		if got := sizesOf(info); got != agreed {
			return layoutError(r, "reports %v, while rank %d reports %v: all ranks of a cluster have the same sizes",
				got, firstWith(infos, agreed), agreed)
		}
		if info.Rank != r {
			return layoutError(r, "reports rank=%d, but is rank %d of its cluster", info.Rank, r)
		}
	}
	if agreed.world != len(infos) {
		return layoutError(0, "reports world_size=%d, but the cluster has %d workers", agreed.world, len(infos))
	}
	if err := agreed.check(); err != nil {
		return err
	}
	takenBy := make([]int, len(infos)) // rank + 1, by place
	for r, info := range infos {
		place := 0
		for _, c := range []struct {
			name    string
			at, out int
		}{
			{"pp", info.PPRank, agreed.pp}, {"dp", info.DPRank, agreed.dp},
			{"cp", info.CPRank, agreed.cp}, {"tp", info.TPRank, agreed.tp},
		} {
			if c.at < 0 || c.at >= c.out {
				return layoutError(r, "reports %s_rank=%d, outside 0 to %d (%s_size=%d)", c.name, c.at, c.out-1, c.name, c.out)
			}
			place = place*c.out + c.at
		}
		if other := takenBy[place]; other != 0 {
			return layoutError(r, "reports tp_rank=%d, cp_rank=%d, dp_rank=%d, pp_rank=%d, which rank %d reports too: every rank has a place of its own",
				info.TPRank, info.CPRank, info.DPRank, info.PPRank, other-1)
		}
		takenBy[place] = r + 1
	}
	return nil
}

type sizes struct{ world, tp, dp, pp, cp int }

func (s sizes) String() string {
	return fmt.Sprintf("world_size=%d, tp_size=%d, dp_size=%d, pp_size=%d, cp_size=%d", s.world, s.tp, s.dp, s.pp, s.cp)
}

// check compares the product with the world, without ever computing one that
// is beyond it.
func (s sizes) check() error {
	product := 1
	for _, n := range []int{s.tp, s.dp, s.pp, s.cp} {
		if n < 1 || n > s.world {
			return layoutError(0, "reports %v: each size is between 1 and world_size", s)
		}
		if product <= s.world {
			product *= n
		}
	}
	if product != s.world {
		return layoutError(0, "reports %v: the four sizes multiplied must make world_size", s)
	}
	return nil
}

func sizesOf(i RankInfo) sizes {
	return sizes{world: i.WorldSize, tp: i.TPSize, dp: i.DPSize, pp: i.PPSize, cp: i.CPSize}
}

// commonSizes is what most ranks report; of equally many, what the lowest does.
func commonSizes(infos []RankInfo) sizes {
	count := make(map[sizes]int, 1)
	for _, i := range infos {
		count[sizesOf(i)]++
	}
	best := sizesOf(infos[0])
	for _, i := range infos {
		if s := sizesOf(i); count[s] > count[best] {
			best = s
		}
	}
	return best
}

func firstWith(infos []RankInfo, s sizes) int {
	for r, i := range infos {
		if sizesOf(i) == s {
			return r
		}
	}
	return 0
}

func layoutError(rank int, format string, args ...any) error {
	e := Errorf(CodeLayout, "impossible layout: rank %d "+format, append([]any{rank}, args...)...)
	e.Rank = rank
	return e
}
