package dispatch

import (
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Mode is how the arguments of a call go out and its results come back.
type Mode struct {
	Name string

	Cut  Cut  // what becomes of an argument
	Spec bool // the first positional argument goes whole: it says what to do with the rest
	Over Axes // whose coordinate tells which part a rank gets
	Feed Who  // who gets the rows of a batch; the others get it empty

	Keep  Who   // whose results come back
	Order Order // in which order
	Join  Join  // as what
}

// Cut is what becomes of an argument.
type Cut uint8

// The ways to cut. PerRank and Broadcast marks go before them.
const (
	CutNothing  Cut = iota // it goes whole
	CutElements            // one element a part: its length is the number of parts
	CutRows                // consecutive rows a part, as even as can be, or as a batch says
)

// Axes is a set of axes of the layout. Ranks with the same coordinates on them
// get the same part.
type Axes uint8

// The axes, fastest first, as ranks are numbered by default.
const (
	TP Axes = 1 << iota
	CP
	DP
	PP

	// Ranks is all of them: every rank is a part of its own, by its number.
	Ranks = TP | CP | DP | PP
)

// Who picks ranks by their place in the layout.
type Who uint8

// The picks.
const (
	Everyone Who = iota
	RankZero     // rank 0
	Inputs       // the first rank of each part: 0 on every axis that is not cut over
	Outputs      // where a part's output is: 0 on those axes, but the last pp stage
)

// has says whether a rank is picked in a mode that cuts over these axes.
func (w Who) has(r *spec.RankInfo, over Axes) bool {
	if w == Everyone {
		return true
	}
	if w == RankZero {
		return r.Rank == 0
	}
	stage := 0
	if w == Outputs {
		stage = r.PPSize - 1
	}
	return (over&TP != 0 || r.TPRank == 0) && (over&CP != 0 || r.CPRank == 0) &&
		(over&DP != 0 || r.DPRank == 0) && (over&PP != 0 || r.PPRank == stage)
}

// Order is the order of collected results.
type Order uint8

// The orders. They are the same in the default layout; in a reported one, parts
// keep the order of the caller's rows.
const (
	ByRank Order = iota
	ByPart
)

// Join is what collected results are made into.
type Join uint8

// The joins.
const (
	JoinList  Join = iota // a list, one result an element
	JoinOne               // the one result, alone
	JoinChain             // one list of their elements where all are lists, else as JoinList
)

// modes are in the order in which they are told to people.
var modes = [...]Mode{
	{Name: "ONE_TO_ALL"},
	{Name: "ONE_TO_ALL_ONE", Keep: RankZero, Join: JoinOne},
	{Name: "ALL_TO_ALL", Cut: CutElements, Over: Ranks},
	{Name: "DP_MP_COMPUTE", Cut: CutRows, Over: DP, Keep: Outputs, Order: ByPart, Join: JoinChain},
	{Name: "DP_MP_COMPUTE_COLLECT_ALL", Cut: CutRows, Over: DP},
	{Name: "DP_MP_DISPATCH_FIRST", Cut: CutRows, Over: DP, Feed: Inputs, Keep: Outputs, Order: ByPart, Join: JoinChain},
	{Name: "DP_MP_DISPATCH_FIRST_COLLECT_ALL", Cut: CutRows, Over: DP, Feed: Inputs},
	// verl's: there every rank is a dp rank of its own.
	{Name: "DP_COMPUTE", Cut: CutElements, Over: Ranks},
	{Name: "DP_COMPUTE_PROTO", Cut: CutRows, Over: Ranks, Join: JoinChain},
	{Name: "DP_COMPUTE_PROTO_WITH_FUNC", Cut: CutRows, Spec: true, Over: Ranks, Join: JoinChain},
	{Name: "DP_COMPUTE_METRIC", Cut: CutRows, Over: Ranks},
	// The SDK has run the user's dispatch function, whose lists have an element
	// for each rank, and will run the collect function on the list that it gets.
	{Name: "CUSTOM", Cut: CutElements, Over: Ranks},
}

// Lookup finds a mode by name. "OVER(dp,cp)" is the n-D form: rows are cut over
// the named axes together, ranks that differ only on the others get the same,
// and one result of each part comes back, in the order of the rows.
func Lookup(name string) (Mode, bool) {
	if inner, ok := strings.CutPrefix(name, "OVER("); ok {
		return lookupOver(name, strings.TrimSuffix(inner, ")"))
	}
	for _, m := range modes {
		if m.Name == name {
			return m, true
		}
	}
	return Mode{}, false
}

func lookupOver(name, list string) (Mode, bool) {
	m := Mode{Name: name, Cut: CutRows, Keep: Outputs, Order: ByPart, Join: JoinChain}
	for text := range strings.SplitSeq(list, ",") {
		one := axisNamed(strings.TrimSpace(text))
		if one == 0 || m.Over&one != 0 {
			return Mode{}, false
		}
		m.Over |= one
	}
	return m, true
}

// Names are the names of all modes.
func Names() []string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = m.Name
	}
	return names
}
