package head

import (
	"slices"
	"testing"

	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/wire"
)

// After a head was followed by another, only workers have loans: those of which
// they say so, and all where they have not said. What a script has can be spilled.
func TestScriptsAreLentNothing(t *testing.T) {
	told, silent, script := lease.Worker(1), lease.Worker(2), lease.Caller(3)
	has := []wire.Released{{Object: 7, Count: 1}, {Object: 8, Count: 1}}
	h := &Head{}
	h.countObjectsLocked(&resuming{
		stored:  map[lease.Object]uint32{7: 40, 8: 41},
		objects: map[lease.Holder][]wire.Released{told: has, silent: has, script: has},
		lent:    map[lease.Holder][]wire.Released{told: {{Object: 8, Count: 1}}},
	})
	lent := h.leases.Loans()
	slices.SortFunc(lent, func(a, b lease.Lent) int { return int(a.Holder)*10 + int(a.Object) - int(b.Holder)*10 - int(b.Object) })
	if want := []lease.Lent{{Object: 8, Holder: told}, {Object: 7, Holder: silent}, {Object: 8, Holder: silent}}; !slices.Equal(lent, want) {
		t.Errorf("lent: %+v, not %+v", lent, want)
	}
	_, ended, _ := h.leases.Changes()
	for _, o := range []lease.Object{7, 8} { // the head before may have told otherwise
		if !slices.Contains(ended, lease.Lent{Object: o, Holder: script, Ended: true}) {
			t.Errorf("the store is not told that the script is not lent %d: %+v", o, ended)
		}
	}
}
