package batch

import (
	"cmp"
	"math"
	"slices"
)

// balance puts weights into n shards that weigh the same, and returns the shard of
// each. Differencing is best and takes longest, so of very many weights it gets only
// the heaviest, 40 for each shard at least. All others go onto the lightest shard
// each: the next 1,000 for each shard, heaviest first, then the rest as they come, a
// 2,000th of a shard's part in what is left at a time, so that neighbours stay
// together. Of the rest none weighs much more than a 1,000th of a shard. A shard that
// has one of them is therefore hardly heavier than any other: see TestRestIsEven.
func balance(weights []float64, n int) []int32 {
	least := max(4096, 40*n)
	if len(weights) <= least {
		return difference(weights, n)
	}
	some := heaviest(weights, min(max(4096, 1024*n), len(weights)))
	order := heaviestFirst(pickWeights(weights, some))
	for i, at := range order {
		order[i] = some[at]
	}
	loads := make([]load, n)
	for i := range loads {
		loads[i].shard = int32(i)
	}
	shardOf := make([]int32, len(weights))
	for i := range shardOf {
		shardOf[i] = -1
	}
	for i, shard := range difference(pickWeights(weights, order[:least]), n) {
		shardOf[order[i]] = shard
		loads[shard].sum += weights[order[i]]
		loads[shard].rows++
	}
	slices.SortFunc(loads, lightest)
	for _, at := range order[least:] {
		shardOf[at] = put(loads, weights[at], 1)
	}
	rest(weights, shardOf, loads)
	return shardOf
}

// rest puts the weights that have no shard yet, which is -1 in shardOf, onto the
// lightest one each, some neighbours at a time. How many these are goes by what is
// left alone: beside one huge weight, all others together may be less than a 2,000th
// of a shard. They are bounded by weight and by number, as a few weights may be most of
// what is left, too. Weights that are next to nothing even together are dealt by number
// at last, as one shard would get them all.
func rest(weights []float64, shardOf []int32, loads []load) {
	const shift = 52 // by exponent
	var classes [1 << (63 - shift)]load
	left, rows := 0.0, 0
	for at, shard := range shardOf {
		if shard < 0 {
			class := &classes[math.Float64bits(weights[at])>>shift]
			class.sum += weights[at]
			class.rows++
			left += weights[at]
			rows++
		}
	}
	parts := 2000 * len(loads)
	portion := left / float64(parts)
	least, nothing, few := 0, 0.0, 0 // the first class that is something; what is below it
	for ; least < len(classes)-1 && nothing+classes[least].sum <= portion; least++ {
		nothing += classes[least].sum
		few += int(classes[least].rows)
	}
	left, rows = left-nothing, rows-few
	given, count, largest := 0.0, 0, 0.0
	for at, shard := range shardOf {
		if shard >= 0 || int(math.Float64bits(weights[at])>>shift) < least {
			continue
		}
		shardOf[at] = loads[0].shard
		given += weights[at]
		count++
		largest = max(largest, weights[at])
		if given >= left/float64(parts) || count >= rows/parts {
			put(loads, given, int32(count))
			left, rows = left-given, rows-count
			given, count = 0, 0
		}
	}
	put(loads, given, int32(count))
	if few > 0 {
		spread(shardOf, loads, loads[0].sum+portion+largest, few)
	}
}

// spread deals the weights that have no shard yet, count of them, by number to the
// shards that weigh no more than most.
func spread(shardOf []int32, loads []load, most float64, count int) {
	var to []int32
	for _, l := range loads {
		if l.sum <= most {
			to = append(to, l.shard)
		}
	}
	i, given := 0, 0
	for at, shard := range shardOf {
		if shard >= 0 {
			continue
		}
		if _, end := Even(count, len(to), i); given == end {
			i++
		}
		shardOf[at] = to[i]
		given++
	}
}

// heaviest is the numbers of n weights, rising: none that is left out weighs more than
// 17/16 of one of them.
func heaviest(weights []float64, n int) []int32 {
	const shift = 52 - 4 // the exponent and 4 bits are enough
	counts := make([]int32, 1<<(63-shift))
	for _, w := range weights {
		counts[math.Float64bits(w)>>shift]++
	}
	class, above := len(counts)-1, 0 // the class that is not taken whole, and how many are above it
	for ; class > 0 && above+int(counts[class]) <= n; class-- {
		above += int(counts[class])
	}
	out := make([]int32, 0, n)
	left := n - above
	for at, w := range weights {
		switch its := int(math.Float64bits(w) >> shift); {
		case its > class:
			out = append(out, int32(at))
		case its == class && left > 0:
			out = append(out, int32(at))
			left--
		}
	}
	return out
}

// difference puts weights into n shards by the largest differencing method of
// Karmarkar and Karp: of the partial cuts that differ most within themselves, two
// are laid over each other, the heavy shards of one on the light ones of the
// other, until one is left. It returns the shard of each weight.
func difference(weights []float64, n int) []int32 {
	shardOf := make([]int32, len(weights))
	if n == 1 || len(weights) == 0 {
		return shardOf
	}
	next := make([]int32, len(weights)) // the weight that follows another in its stack, or -1
	for i := range next {
		next[i] = -1
	}
	// Cuts of one weight are in order from the start, so only those of several
	// need a heap.
	stacks := make([]stack, len(weights))
	for i, at := range heaviestFirst(weights) {
		stacks[i] = stack{weights[at], at, at}
	}
	var several []partial
	widest := func() partial {
		if len(stacks) > 0 && (len(several) == 0 || stacks[0].sum >= several[0].spread) {
			one := partial{stacks: stacks[:1:1], spread: stacks[0].sum}
			stacks = stacks[1:]
			return one
		}
		return pop(&several, wider)
	}
	a := widest()
	for turn := int32(0); len(several)+len(stacks) > 0; turn++ {
		a = lay(a, widest(), n, next)
		a.turn = turn
		// Most often it takes one weight after another and stays the widest.
		if len(several) > 0 && a.spread < several[0].spread || len(stacks) > 0 && a.spread < stacks[0].sum {
			push(&several, a, wider)
			a = widest()
		}
	}
	for shard, s := range a.stacks {
		for at := s.first; at >= 0; at = next[at] {
			shardOf[at] = int32(shard)
		}
	}
	return shardOf
}

// stack is one shard of a partial cut: a chain of weights.
type stack struct {
	sum         float64
	first, last int32
}

// partial is a cut of some of the weights. Its stacks are heaviest first; those
// that it lacks are empty.
type partial struct {
	stacks []stack
	spread float64 // between the heaviest and the lightest
	turn   int32   // when it was made, which breaks ties
}

func wider(a, b *partial) bool {
	return a.spread > b.spread || a.spread == b.spread && a.turn < b.turn
}

// lay puts the heavy stacks of one cut on the light ones of the other.
func lay(a, b partial, n int, next []int32) partial {
	if len(b.stacks) > len(a.stacks) {
		a.stacks, b.stacks = b.stacks, a.stacks
	}
	// Stack i of b comes to lie at n-1-i; below it is nothing, or a's last ones.
	for i, s := range b.stacks {
		if below := n - 1 - i; below < len(a.stacks) {
			on := &a.stacks[below]
			next[on.last] = s.first
			on.sum, on.last = on.sum+s.sum, s.last
		} else {
			a.stacks = append(a.stacks, s)
		}
	}
	if len(b.stacks) == 1 {
		// Only the last stack is new or has grown, which is by far the most usual.
		s, at := a.stacks[len(a.stacks)-1], len(a.stacks)-1
		for ; at > 0 && heavier(s, a.stacks[at-1]) < 0; at-- {
			a.stacks[at] = a.stacks[at-1]
		}
		a.stacks[at] = s
	} else {
		slices.SortFunc(a.stacks, heavier)
	}
	a.spread = a.stacks[0].sum
	if len(a.stacks) == n {
		a.spread -= a.stacks[n-1].sum
	}
	return a
}

func heavier(a, b stack) int {
	switch {
	case a.sum > b.sum:
		return -1
	case a.sum < b.sum:
		return 1
	}
	return int(a.first - b.first)
}

// heaviestFirst is the numbers of weights in falling order of weight, of equal
// ones in rising order. It is a radix sort: weights are never negative, so their
// bits are ordered as they are.
func heaviestFirst(weights []float64) []int32 {
	type keyed struct {
		key uint64
		at  int32
	}
	const digit = 11
	keys, other := make([]keyed, len(weights)), make([]keyed, len(weights))
	for i, w := range weights {
		keys[i] = keyed{^math.Float64bits(w), int32(i)}
	}
	for shift := 0; shift < 64; shift += digit {
		var starts [1 << digit]int32
		for i := range keys {
			starts[keys[i].key>>shift%(1<<digit)]++
		}
		if len(keys) > 0 && int(starts[keys[0].key>>shift%(1<<digit)]) == len(keys) {
			continue // this digit tells none apart
		}
		sum := int32(0)
		for i, n := range starts {
			starts[i], sum = sum, sum+n
		}
		for _, k := range keys {
			at := &starts[k.key>>shift%(1<<digit)]
			other[*at] = k
			*at++
		}
		keys, other = other, keys
	}
	order := make([]int32, len(keys))
	for i := range keys {
		order[i] = keys[i].at
	}
	return order
}

// largestFirst puts each weight onto the shard that is lightest so far, the
// largest weight first. It returns the shard of each.
func largestFirst(weights []float64, n int) []int32 {
	loads := make([]load, n) // equal sums in order of numbers: a heap
	for i := range loads {
		loads[i].shard = int32(i)
	}
	shardOf := make([]int32, len(weights))
	for _, at := range heaviestFirst(weights) {
		shardOf[at] = put(loads, weights[at], 0) // ties by number of shard alone
	}
	return shardOf
}

// load is what a shard weighs so far, and how many weights that are where these break
// ties: what is too little to change a sum is dealt by number.
type load struct {
	sum   float64
	rows  int32
	shard int32
}

// put puts a weight, or some, onto the lightest shard, and says which that is. loads is
// a heap, lightest first.
func put(loads []load, weight float64, rows int32) int32 {
	shard := loads[0].shard
	loads[0].sum += weight
	loads[0].rows += rows
	sink(loads, 0, lighter)
	return shard
}

func lighter(a, b *load) bool {
	return a.sum < b.sum || a.sum == b.sum && (a.rows < b.rows || a.rows == b.rows && a.shard < b.shard)
}

func lightest(a, b load) int {
	return cmp.Or(cmp.Compare(a.sum, b.sum), cmp.Compare(a.rows, b.rows), cmp.Compare(a.shard, b.shard))
}

// exchange makes shards more even that are not: the heaviest gives a weight to
// another or changes one for a lighter one of it, for as long as that helps.
// shardOf is changed.
func exchange(weights []float64, shardOf []int32, n int) {
	const enough = 1e-3 // relative to the mean: more even than this nobody needs
	if n == 1 || len(weights) == 0 {
		return
	}
	sums := make([]float64, n)
	total := 0.0
	for i, w := range weights {
		sums[shardOf[i]] += w
		total += w
	}
	mean := total / float64(n)
	if slices.Max(sums) <= mean*(1+enough) {
		return
	}
	has := make([][]int32, n) // the weights of each shard, heaviest first
	for _, at := range heaviestFirst(weights) {
		has[shardOf[at]] = append(has[shardOf[at]], at)
	}
	order := make([]int32, n) // shards, lightest first
	for i := range order {
		order[i] = int32(i)
	}
	for range 4*n + 64 {
		slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(sums[a], sums[b]), cmp.Compare(a, b)) })
		top := order[n-1]
		if sums[top] <= mean*(1+enough) || len(has[top]) == 1 {
			return
		}
		found := false
		for _, other := range order[:n-1] {
			gap := sums[top] - sums[other]
			give, take := bestExchange(weights, has[top], has[other], gap)
			if give < 0 {
				continue
			}
			found = true
			moved := move(weights, &has[top], &has[other], give)
			shardOf[give] = other
			if take >= 0 {
				moved -= move(weights, &has[other], &has[top], take)
				shardOf[take] = top
			}
			sums[top] -= moved
			sums[other] += moved
			break
		}
		if !found {
			return
		}
	}
}

// bestExchange finds the weight to give and the one to take for it (-1: none)
// that bring two shards, which are gap apart, nearest to each other. Where none
// brings them nearer, give is -1.
func bestExchange(weights []float64, from, to []int32, gap float64) (give, take int32) {
	give, take = -1, -1
	best := gap * (1 - 1e-9) // what is left of the gap
	consider := func(g, t int32, moved float64) {
		left := gap - 2*moved
		if left < 0 {
			left = -left
		}
		if moved > 0 && left < best {
			best, give, take = left, g, t
		}
	}
	// Both are heaviest first: the lighter what is given, the further along lies
	// what to take for it.
	j := 0
	for _, g := range from {
		consider(g, -1, weights[g])
		for j < len(to) && weights[g]-weights[to[j]] < gap/2 {
			j++
		}
		for _, k := range [2]int{j - 1, j} {
			if k >= 0 && k < len(to) {
				consider(g, to[k], weights[g]-weights[to[k]])
			}
		}
	}
	return give, take
}

// move takes a weight out of one list and puts it into another, both heaviest
// first. It returns the weight.
func move(weights []float64, from, to *[]int32, at int32) float64 {
	before := func(a, b int32) int { return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b)) }
	i, _ := slices.BinarySearchFunc(*from, at, before)
	*from = slices.Delete(*from, i, i+1)
	i, _ = slices.BinarySearchFunc(*to, at, before)
	*to = slices.Insert(*to, i, at)
	return weights[at]
}

// push and pop keep a heap; before says which of two comes out first.
func push[T any](h *[]T, x T, before func(a, b *T) bool) {
	*h = append(*h, x)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !before(&s[i], &s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func pop[T any](h *[]T, before func(a, b *T) bool) T {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	*h = s[:last]
	sink(*h, 0, before)
	return top
}

// sink puts element i, which may have to come out later than it did, in its
// place.
func sink[T any](s []T, i int, before func(a, b *T) bool) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(s) && before(&s[child], &s[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}
