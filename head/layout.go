package head

import (
	"maps"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// adoptLocked takes the places that ranks reported, all of one call at once: a
// layout that is half reported is never in force. An impossible one is refused
// and changes nothing; it is remembered, as ranks tell only what changed, and a
// rank that was right will not tell again when the others have come round.
func (cl *cluster) adoptLocked(reports map[int]spec.RankInfo) *spec.Error {
	if cl.reports == nil {
		cl.reports = map[int]spec.RankInfo{}
	}
	maps.Copy(cl.reports, reports)
	ranks := slices.Clone(cl.ranks)
	for rank, info := range cl.reports {
		ranks[rank] = info
	}
	if err := spec.CheckLayout(ranks); err != nil {
		e := *spec.AsError(err)
		e.Code, e.Cluster = spec.CodeLayout, cl.Name
		e.Message = cl.title() + ": " + e.Message
		return &e
	}
	cl.ranks, cl.reports = ranks, nil
	return nil
}
