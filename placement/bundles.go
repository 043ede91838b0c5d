package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// ReserveBundles picks devices that no held pool has for bundles that may differ, all
// of them or none: bundle i is node i of the pool. PACK takes as few nodes as can be and
// SPREAD as many, as far as a bounded search finds them; of those that are alike the
// tightest. The caller numbers the pool. Errors are those of Reserve.
func ReserveBundles(nodes []spec.Node, held []Held, bundles []spec.Bundle, strategy string) (spec.Pool, error) {
	strategy = cmp.Or(strategy, StrictSpread)
	if err := CheckBundles(bundles, strategy); err != nil {
		return spec.Pool{}, err
	}
	free, there, could := make([][]spec.Device, len(nodes)), make([]int, len(nodes)), make([]int, len(nodes))
	taken := takenDevices(held)
	for i, node := range nodes {
		free[i] = freeDevices(node, taken)
		there[i], could[i] = len(free[i]), len(node.Devices)
	}
	at := seat(there, bundles, strategy)
	if at == nil {
		return spec.Pool{}, lackingBundles(nodes, held, free, bundles, strategy, seat(could, bundles, strategy) != nil)
	}
	pool := spec.Pool{PerNode: PerNode(bundles), Nodes: make([]spec.Node, len(bundles))}
	for i, b := range bundles {
		node, rest := nodes[at[i]], free[at[i]]
		node.Devices, free[at[i]] = rest[:b.GPUs:b.GPUs], rest[b.GPUs:]
		pool.Nodes[i] = node
	}
	return pool, nil
}

// PerNode is how many devices each bundle has; 0 where they differ.
func PerNode(bundles []spec.Bundle) int {
	for _, b := range bundles {
		if b.GPUs != bundles[0].GPUs {
			return 0
		}
	}
	return bundles[0].GPUs
}

// CheckBundles refuses what no pool could be.
func CheckBundles(bundles []spec.Bundle, strategy string) error {
	if len(bundles) == 0 {
		return spec.Errorf(spec.CodeInvalid, "a pool has one bundle at least")
	}
	for i, b := range bundles {
		if b.GPUs < 0 || !(b.CPUs >= 0) || math.IsInf(b.CPUs, 1) { // which refuses NaN, too
			return spec.Errorf(spec.CodeInvalid, "bundle %d has %d GPUs and %v CPUs; each is 0 or more", i, b.GPUs, b.CPUs)
		}
	}
	if !slices.Contains(Strategies(), strategy) {
		return spec.Errorf(spec.CodeInvalid, "strategy is %q; there are %s", strategy, strings.Join(Strategies(), ", "))
	}
	return nil
}

// seat says which node each bundle gets, where nodes have so many devices left; nil
// if there is not room for all.
func seat(left []int, bundles []spec.Bundle, strategy string) []int {
	s := seating{spread: strategy == Spread || strategy == StrictSpread, left: slices.Clone(left), there: make([]int, len(left)), at: make([]int, len(bundles))}
	for i := range bundles {
		s.order = append(s.order, i)
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(bundles[b].GPUs, bundles[a].GPUs) })
	for _, i := range s.order {
		s.sizes = append(s.sizes, bundles[i].GPUs)
	}
	fewest := s.fewest()
	if fewest == 0 {
		return nil
	}
	count, most := len(bundles), min(len(bundles), len(left))
	found := false
	switch strategy {
	case StrictSpread:
		found = s.try(count, count)
	case StrictPack:
		found = fewest == 1 && s.try(1, 1)
	case Pack:
		for k := fewest; k <= most && !found; k++ {
			found = s.try(1, k)
		}
	default:
		for k := most; k > 0 && !found; k-- {
			found = s.try(k, most)
		}
	}
	if !found {
		return nil
	}
	return s.at
}

// seating is bundles on their way to nodes, the largest first.
type seating struct {
	spread      bool
	order       []int // the bundles, by size
	sizes, rest []int // by order; of one, and of it and all after it
	left, there []int // by node: devices left, and bundles that it has
	used        int   // nodes that have any
	least, most int   // how many nodes shall have some
	tries       int
	at          []int // by bundle: its node
}

// effort bounds how many nodes are looked at for a pool: some 10 ms.
const effort = 2_000_000

// fewest is how many nodes it takes at least, going by sums alone; 0 where there is
// not so much. It knows what is still to come for each.
func (s *seating) fewest() int {
	largest := slices.Sorted(slices.Values(s.left))
	slices.Reverse(largest)
	if len(largest) == 0 || s.sizes[0] > largest[0] {
		return 0 // so that sums stay small
	}
	s.rest = make([]int, len(s.sizes)+1)
	for i := len(s.sizes) - 1; i >= 0; i-- {
		s.rest[i] = s.rest[i+1] + s.sizes[i]
	}
	room := 0
	for k, n := range largest {
		if room += n; room >= s.rest[0] {
			return k + 1
		}
	}
	return 0
}

// try looks for places on no fewer nodes than least and no more than most.
func (s *seating) try(least, most int) bool {
	ways := len(s.sizes) * len(s.left)
	s.least, s.most, s.tries = least, most, max(2*len(s.sizes), effort/ways)
	return s.from(0)
}

// from places the i-th bundle and all after it, or leaves everything as it was.
func (s *seating) from(i int) bool {
	if i == len(s.sizes) {
		return true
	}
	apart := s.used+len(s.sizes)-i <= s.least // each that is left needs a node of its own
	for _, n := range s.candidates(i, apart) {
		if s.tries--; s.tries < 0 {
			return false
		}
		s.put(i, n)
		if s.from(i + 1) {
			return true
		}
		s.take(i, n)
		if apart { // what fits here fits there, and the tightest is the best to give away
			return false
		}
	}
	return false
}

func (s *seating) put(i, n int) {
	s.at[s.order[i]] = n
	s.left[n] -= s.sizes[i]
	if s.there[n]++; s.there[n] == 1 {
		s.used++
	}
}

func (s *seating) take(i, n int) {
	s.left[n] += s.sizes[i]
	if s.there[n]--; s.there[n] == 0 {
		s.used--
	}
}

// candidates are the nodes that the i-th bundle may go to, the best first; of those
// that are alike, one.
func (s *seating) candidates(i int, apart bool) []int {
	var found []int
	for n, left := range s.left {
		fresh := s.there[n] == 0
		if left < s.sizes[i] || apart && !fresh || fresh && s.used == s.most {
			continue
		}
		alike := func(m int) bool { return s.left[m] == left && s.there[m] == s.there[n] }
		if !slices.ContainsFunc(found, alike) {
			found = append(found, n)
		}
	}
	slices.SortStableFunc(found, func(a, b int) int {
		switch {
		case s.spread: // where fewest are
			return cmp.Or(cmp.Compare(s.there[a], s.there[b]), cmp.Compare(s.left[a], s.left[b]))
		case s.there[a] == 0 && s.there[b] == 0: // the tightest that takes the rest, else the largest
			return cmp.Or(cmp.Compare(s.over(i, a), s.over(i, b)), cmp.Compare(s.left[b], s.left[a]))
		}
		return cmp.Or(cmp.Compare(min(s.there[b], 1), min(s.there[a], 1)), cmp.Compare(s.left[a], s.left[b]))
	})
	return found
}

// over is what a node has left beyond all that is still to come; a lot where that does
// not fit there.
func (s *seating) over(i, n int) int {
	if s.left[n] < s.rest[i] {
		return math.MaxInt
	}
	return s.left[n] - s.rest[i]
}

func lackingBundles(nodes []spec.Node, held []Held, free [][]spec.Device, bundles []spec.Bundle, strategy string, could bool) error {
	sizes, largest, sum := make([]int, len(bundles)), 0, 0
	for i, b := range bundles {
		sizes[i] = b.GPUs
		largest = max(largest, b.GPUs)
		sum = min(sum+min(b.GPUs, spec.MaxVirtualDevices), spec.MaxVirtualDevices+1)
	}
	where := map[string]string{StrictSpread: ", each on a node of its own", StrictPack: ", all on one node"}[strategy]
	hint := virtualHint(len(bundles), largest)
	if strategy == StrictPack {
		hint = virtualHint(1, sum)
	}
	var b strings.Builder
	const most = 16
	each := " of " + listed(sizes, most) + " GPUs"
	if largest == 0 {
		each = ""
	}
	fmt.Fprintf(&b, "not enough for ResourceManager.for_bundles(…, strategy=%q): wanted %s%s%s", strategy, plural(len(bundles), "bundle"), each, where)
	thereIs(&b, nodes, held, free, could, hint)
	return spec.Errorf(spec.CodeResources, "%s", &b)
}
