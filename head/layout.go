package head

import (
	"slices"

	"github.com/muster-rl/muster/spec"
)

// reportLocked takes a rank's own word on its place. It counts at once: a layout
// that is half reported is only judged when the call that reports it ends.
func (cl *cluster) reportLocked(rank int, info spec.RankInfo) {
	ranks := slices.Clone(cl.ranks)
	ranks[rank] = info
	cl.ranks = ranks
}

// checkReport judges the layout in force.
func (cl *cluster) checkReport() *spec.Error {
	err := spec.CheckLayout(cl.ranks)
	if err == nil {
		return nil
	}
	e := *spec.AsError(err)
	e.Code, e.Cluster = spec.CodeLayout, cl.Name
	e.Message = "cluster " + cl.Name + ": " + e.Message
	return &e
}
