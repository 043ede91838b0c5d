package dispatch

import "github.com/muster-rl/muster/spec"

// Mode is how the arguments of a call go out and its results come back.
type Mode struct {
	Name string

	Cut  Cut  // what becomes of an argument
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
	CutRows                // consecutive rows a part, as even as can be
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
	Inputs       // the first rank of each dp rank: tp, cp and pp rank 0
	Outputs      // where the model's output is: tp and cp rank 0, last pp stage
)

func (w Who) has(r *spec.RankInfo) bool {
	switch w {
	case RankZero:
		return r.Rank == 0
	case Inputs:
		return r.TPRank == 0 && r.CPRank == 0 && r.PPRank == 0
	case Outputs:
		return r.TPRank == 0 && r.CPRank == 0 && r.PPRank == r.PPSize-1
	}
	return true
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
	// The SDK has run the user's dispatch function, whose lists have an element
	// for each rank, and will run the collect function on the list that it gets.
	{Name: "CUSTOM", Cut: CutElements, Over: Ranks},
}

// Lookup finds a mode by name.
func Lookup(name string) (Mode, bool) {
	for _, m := range modes {
		if m.Name == name {
			return m, true
		}
	}
	return Mode{}, false
}

// Names are the names of all modes.
func Names() []string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = m.Name
	}
	return names
}
