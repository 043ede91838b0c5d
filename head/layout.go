package head

import (
	"slices"

	"github.com/muster-rl/muster/spec"
)

// adoptLocked takes the places that ranks reported, all of one call at once: a
// layout that is half reported is never in force. An impossible one is refused
// and changes nothing.
func (cl *cluster) adoptLocked(reports map[int]spec.RankInfo) *spec.Error {
	ranks := slices.Clone(cl.ranks)
	for rank, info := range reports {
		ranks[rank] = info
	}
	if err := spec.CheckLayout(ranks); err != nil {
		e := *spec.AsError(err)
		e.Code, e.Cluster = spec.CodeLayout, cl.Name
		e.Message = "cluster " + cl.Name + ": " + e.Message
		return &e
	}
	cl.ranks = ranks
	return nil
}
