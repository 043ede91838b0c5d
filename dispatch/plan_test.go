package dispatch

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

func TestNames(t *testing.T) {
	for _, name := range Names() {
		if m, ok := Lookup(name); !ok || m.Name != name {
			t.Errorf("%s is not found by its name", name)
		}
	}
	if _, ok := Lookup("SOME_TO_SOME"); ok || len(Names()) != len(modes) {
		t.Errorf("%d modes: %v", len(Names()), Names())
	}
}

// anyLayout is a layout of a random shape, its ranks in any order.
func anyLayout(rng *rand.Rand) []spec.RankInfo {
	order := []byte(megatron)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	layout := grid(1+rng.IntN(5), 1+rng.IntN(3), 1+rng.IntN(3), 1+rng.IntN(3), string(order))
	if rng.IntN(2) == 0 {
		rng.Shuffle(len(layout), func(i, j int) { layout[i], layout[j] = layout[j], layout[i] })
		for rank := range layout {
			layout[rank].Rank = rank
		}
	}
	return layout
}

type place struct{ tp, pp, cp int }

// TestRows: in every mode that cuts rows and every layout, each row goes once to
// each place in the model; parts are even, larger first; what is collected of
// the rows is the caller's rows in the caller's order.
func TestRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		layout := anyLayout(rng)
		if err := spec.CheckLayout(layout); err != nil {
			t.Fatal(err)
		}
		mode := modes[rng.IntN(len(modes))]
		if mode.Cut != CutRows || mode.Over != DP {
			continue
		}
		n := rng.IntN(30)
		r := Request{Method: "f", Mode: mode, Layout: layout, Args: []Arg{{Kind: KindList, Len: n}, {Name: "k", Kind: KindTuple, Len: n}}}
		if rng.IntN(3) == 0 {
			r.Args = append(r.Args, Arg{Kind: KindPerRank, Len: len(layout)})
		}
		p, err := r.Plan()
		if err != nil {
			t.Fatal(err)
		}
		again, _ := r.Plan()
		if !reflect.DeepEqual(p, again) {
			t.Fatal("the same request gave two plans")
		}
		rows := map[place][]int{}
		byRank := map[int]Slice{}
		for i := range p.Len() {
			leg := p.Leg(i)
			s := Slice{Take: TakeRows, To: n}
			if !p.Cast {
				s = p.Slices(leg.Part)[0]
				if k := p.Slices(leg.Part)[1]; !reflect.DeepEqual(k, s) {
					t.Fatalf("two arguments are cut as %v and %v", s, k)
				}
			}
			if leg.Rank != i || leg.Part < 0 || leg.Part >= p.Parts || s.Take != TakeRows {
				t.Fatalf("leg %d is %+v with %+v of %d parts", i, leg, s, p.Parts)
			}
			info := layout[leg.Rank]
			at := place{info.TPRank, info.PPRank, info.CPRank}
			for row := s.From; row < s.To; row++ {
				rows[at] = append(rows[at], row)
			}
			if from, to := batch.Even(n, info.DPSize, info.DPRank); s.From != from || s.To != to {
				t.Fatalf("rank %d of dp_rank %d gets %v of %d rows", leg.Rank, info.DPRank, s, n)
			}
			byRank[leg.Rank] = s
		}
		for at, got := range rows {
			if slices.Sort(got); !slices.Equal(got, upTo(n)) {
				t.Fatalf("place %v gets rows %v of %d", at, got, n)
			}
		}
		if mode.Join != JoinChain {
			continue
		}
		var chained []int
		for _, rank := range p.Collect.Ranks {
			for row := byRank[rank].From; row < byRank[rank].To; row++ {
				chained = append(chained, row)
			}
		}
		if !slices.Equal(chained, upTo(n)) || len(p.Collect.Ranks) != layout[0].DPSize {
			t.Fatalf("%d rows come back as %v from ranks %v", n, chained, p.Collect.Ranks)
		}
	}
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestParts: legs share a part exactly where they get the same.
func TestParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		layout := anyLayout(rng)
		mode := modes[rng.IntN(len(modes))]
		n := 1 + rng.IntN(20)
		if mode.Cut == CutElements {
			n = len(layout)
		}
		r := Request{Mode: mode, Layout: layout, Args: []Arg{{Kind: KindBroadcast}}}
		kinds := []Kind{KindList, KindTuple}
		if mode.Cut == CutRows {
			kinds = append(kinds, KindBatch)
		}
		cut := &batch.Cut{Groups: make([]uint32, n), Weights: make([]float64, n)}
		for row := range n {
			cut.Groups[row], cut.Weights[row] = rng.Uint32N(6), rng.Float64()
		}
		for range rng.IntN(3) {
			a := Arg{Kind: kinds[rng.IntN(len(kinds))], Len: n}
			if a.Kind == KindBatch && rng.IntN(2) == 0 {
				a.Cut = cut
			}
			r.Args = append(r.Args, a)
		}
		p, err := r.Plan()
		if err != nil {
			t.Fatal(err)
		}
		used := make([]bool, p.Parts)
		for i := range p.Len() {
			used[p.Leg(i).Part] = true
		}
		if slices.Contains(used, false) {
			t.Fatalf("%s: of %d parts some go to nobody: %v", mode.Name, p.Parts, used)
		}
		if p.Cast != (p.Slices(0) == nil) || p.Cast && p.Parts != 1 {
			t.Fatalf("%s: cast %v with %d parts", mode.Name, p.Cast, p.Parts)
		}
		checkPartition(t, &r, &p, n)
	}
}

// checkPartition: the lists of a partition have every row once, and arguments
// whose rows are cut have nothing else.
func checkPartition(t *testing.T, r *Request, p *Plan, n int) {
	t.Helper()
	lists := p.Partition()
	if lists == nil {
		return
	}
	if all := slices.Sorted(slices.Values(slices.Concat(lists...))); len(all) != n || len(slices.Compact(all)) != n {
		t.Fatalf("%s: partition %v of %d rows", r.Mode.Name, lists, n)
	}
	for part := range p.Parts {
		for i, s := range p.Slices(part) {
			switch {
			case s.Take == TakeIndices && slices.Equal(s.Rows, lists[part%len(lists)]):
			case s.Take == TakeWhole && r.goesWhole(i), s.Take == TakeEmpty && part >= len(lists):
			case s.Take == TakeEmpty && r.Mode.Feed != Everyone && p.own:
			default:
				t.Fatalf("%s: argument %d of part %d is %v", r.Mode.Name, i, part, s)
			}
		}
	}
}

// TestAxes: the choices are free of each other; a mode by more axes than dp is
// only another row of them.
func TestAxes(t *testing.T) {
	layout := grid(2, 2, 1, 2, megatron)
	mode := Mode{Name: "DP_CP", Cut: CutRows, Over: DP | CP, Keep: Outputs, Join: JoinChain}
	r := Request{Mode: mode, Layout: layout, Args: []Arg{{Kind: KindList, Len: 8}}}
	p, err := r.Plan()
	if err != nil {
		t.Fatal(err)
	}
	var parts []int
	for i := range p.Len() {
		parts = append(parts, p.Leg(i).Part)
	}
	// tp is the fastest axis, so pairs of ranks share a part.
	if !slices.Equal(parts, []int{0, 0, 1, 1, 2, 2, 3, 3}) || !slices.Equal(p.Collect.Ranks, []int{0, 2, 4, 6}) {
		t.Fatalf("parts %v, collected from %v", parts, p.Collect.Ranks)
	}
	// Rows over every rank, everyone's chained: verl's DP_COMPUTE_PROTO.
	r.Mode = Mode{Name: "DP_COMPUTE_PROTO", Cut: CutRows, Over: Ranks, Order: ByPart, Join: JoinChain}
	if p, err = r.Plan(); err != nil {
		t.Fatal(err)
	}
	if p.Parts != 8 || !slices.Equal(p.Collect.Ranks, upTo(8)) || !reflect.DeepEqual(p.Slices(7)[0], Slice{Take: TakeRows, From: 7, To: 8}) {
		t.Fatalf("%d parts, collected from %v, the last has %v", p.Parts, p.Collect.Ranks, p.Slices(7))
	}
}

// TestDefaultLayout: what these tests call the default layout is spec's.
func TestDefaultLayout(t *testing.T) {
	want, err := spec.Layout(24, spec.Shape{TP: 2, PP: 2, CP: 3})
	if got := grid(2, 2, 2, 3, megatron); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v, want %v (%v)", got, want, err)
	}
}

func each(l []spec.RankInfo, do func(*spec.RankInfo)) {
	for i := range l {
		do(&l[i])
	}
}

// planAnything makes plans for a layout that was not checked: none may panic,
// whatever workers report.
func planAnything(layout []spec.RankInfo) {
	for _, mode := range modes {
		for _, execute := range []string{ExecuteAll, ExecuteRankZero} {
			for _, kind := range []Kind{KindWhole, KindList, KindBatch, KindPerRank, KindBroadcast} {
				arg := Arg{Kind: kind, Len: len(layout)}
				if kind == KindBatch {
					arg.Cut = &batch.Cut{Groups: make([]uint32, len(layout)), Multiple: 3}
				}
				r := Request{Mode: mode, Execute: execute, Layout: layout, Args: []Arg{arg}}
				if p, err := r.Plan(); err == nil {
					for i := range p.Len() {
						p.Slices(p.Leg(i).Part)
					}
				}
			}
		}
	}
}

func TestPlanOfBadLayouts(t *testing.T) {
	args := []Arg{{Kind: KindList, Len: 4}}
	mode, _ := Lookup("DP_MP_COMPUTE")
	for what, spoil := range map[string]func([]spec.RankInfo){
		"rank 2 reports dp_size 3":             func(l []spec.RankInfo) { l[2].DPSize = 3 },
		"rank 3 reports dp_rank 2":             func(l []spec.RankInfo) { l[3].DPRank = 2 },
		"has no parts for DP_MP_COMPUTE: dp 5": func(l []spec.RankInfo) { each(l, func(r *spec.RankInfo) { r.DPSize = 5 }) },
		"has no parts for DP_MP_COMPUTE: dp 0": func(l []spec.RankInfo) { each(l, func(r *spec.RankInfo) { r.DPSize = 0 }) },
		"none gives the result of part 0 of 2": func(l []spec.RankInfo) { each(l, func(r *spec.RankInfo) { r.PPSize = 2 }) },
		"ranks 0 and 1 both report to give":    func(l []spec.RankInfo) { l[1].TPRank = 0 },
	} {
		layout := grid(2, 2, 1, 1, megatron)
		spoil(layout)
		r := Request{Method: "f", Mode: mode, Layout: layout, Args: args}
		planAnything(layout)
		_, err := r.Plan()
		if !errors.Is(err, &spec.Error{Code: spec.CodeLayout}) || !strings.Contains(err.Error(), what) {
			t.Errorf("want %q, error is %v", what, err)
		}
	}
	r := Request{Method: "f", Mode: mode}
	if _, err := r.Plan(); !errors.Is(err, &spec.Error{Code: spec.CodeInternal}) {
		t.Errorf("a cluster without ranks: %v", err)
	}
}

// Each argument by its own rows, where that is asked for; never those of a batch that says how.
func TestOwnRows(t *testing.T) {
	mode, _ := Lookup("DP_MP_COMPUTE")
	args := []Arg{{Kind: KindBatch, Len: 6}, {Name: "k", Kind: KindList, Len: 4}, {Kind: KindPerRank, Len: 2}}
	r := Request{Method: "f", Mode: mode, Layout: grid(2, 1, 1, 1, megatron), Args: args}
	if _, err := r.Plan(); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) {
		t.Errorf("6 and 4 rows were cut together: %v", err)
	}
	r.OwnRows = true
	p, err := r.Plan()
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range [][3]Slice{
		{{Take: TakeRows, From: 0, To: 3}, {Take: TakeRows, From: 0, To: 2}, {Take: TakeElement, From: 0, To: 1}},
		{{Take: TakeRows, From: 3, To: 6}, {Take: TakeRows, From: 2, To: 4}, {Take: TakeElement, From: 1, To: 2}},
	} {
		for i, s := range p.Slices(part) {
			if s.Take != want[i].Take || s.From != want[i].From || s.To != want[i].To {
				t.Errorf("part %d has %+v of argument %d, not %+v", part, s, i, want[i])
			}
		}
	}
	args[0].Cut = &batch.Cut{}
	if _, err := r.Plan(); !errors.Is(err, &spec.Error{Code: spec.CodeInvalid}) || !strings.Contains(err.Error(), "has length 6 and argument 'k' has length 4") {
		t.Errorf("a batch that says how was cut beside one of another length: %v", err)
	}
}

// FuzzPlan: nothing that workers report or callers ask for makes a plan panic.
func FuzzPlan(f *testing.F) {
	f.Add(uint8(3), int64(2), int64(2), int64(1), int64(1), int64(7))
	f.Add(uint8(5), int64(math.MaxInt64), int64(2), int64(-1), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, world uint8, dp, tp, pp, cp, seed int64) {
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		layout := make([]spec.RankInfo, world)
		for rank := range layout {
			layout[rank] = spec.RankInfo{
				WorldSize: len(layout), Rank: rank, DPSize: int(dp), TPSize: int(tp), PPSize: int(pp), CPSize: int(cp),
				DPRank: rng.IntN(8) - 1, TPRank: rng.IntN(3), PPRank: rng.IntN(3), CPRank: rng.IntN(3),
			}
		}
		planAnything(layout)
	})
}

func TestBroadcastAllocatesNothing(t *testing.T) {
	layout := grid(1250, 8, 1, 1, megatron)
	mode, _ := Lookup("ONE_TO_ALL")
	args := []Arg{{Kind: KindList, Len: 3}, {Name: "k", Kind: KindWhole}}
	if n := testing.AllocsPerRun(10, func() {
		r := Request{Method: "f", Mode: mode, Layout: layout, Args: args}
		if p, err := r.Plan(); err != nil || !p.Cast || p.Len() != len(layout) {
			t.Fatal(p.Len(), err)
		}
	}); n > 0 {
		t.Fatalf("%.0f allocations", n)
	}
}

func BenchmarkPlan(b *testing.B) {
	small, large := grid(4, 2, 1, 1, megatron), grid(1250, 8, 1, 1, megatron)
	for _, c := range []struct {
		name, mode string
		layout     []spec.RankInfo
		arg        Arg
	}{
		{"broadcast-8", "ONE_TO_ALL", small, Arg{Kind: KindWhole}},
		{"broadcast-10000", "ONE_TO_ALL", large, Arg{Kind: KindWhole}},
		{"elements-8", "ALL_TO_ALL", small, Arg{Kind: KindList, Len: 8}},
		{"elements-10000", "ALL_TO_ALL", large, Arg{Kind: KindList, Len: 10000}},
		{"rows-8", "DP_MP_COMPUTE", small, Arg{Kind: KindList, Len: 64}},
		{"rows-10000", "DP_MP_COMPUTE", large, Arg{Kind: KindList, Len: 100000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			mode, _ := Lookup(c.mode)
			args := []Arg{c.arg}
			b.ReportAllocs()
			for b.Loop() {
				r := Request{Method: "f", Mode: mode, Layout: c.layout, Args: args}
				if _, err := r.Plan(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
