package batch

import (
	"cmp"
	"slices"

	"github.com/muster-rl/muster/spec"
)

// Range is rows From to (not included) To.
type Range struct{ From, To int }

// Shards is how rows are cut into shards: one of the two is set.
type Shards struct {
	Ranges []Range    // shards that follow each other, in the caller's order
	Lists  [][]uint32 // or the rows of each, ascending
}

// Even is part i of rows that are cut into parts of equal size but for one row,
// larger first. With fewer rows than parts the last ones are empty.
func Even(rows, parts, i int) (from, to int) {
	size, larger := rows/parts, rows%parts
	from = i*size + min(i, larger)
	to = from + size
	if i < larger {
		to++
	}
	return from, to
}

// Shards cuts rows into n shards; a nil cut, evenly. With fewer rows, blocks or
// groups than shards, the last shards are empty. The same rows and cut always
// give the same shards. Memory is bounded by the weights and groups there are,
// whatever the number of rows.
func (c *Cut) Shards(rows, n int) (Shards, error) {
	if n < 1 {
		return Shards{}, spec.Errorf(spec.CodeInternal, "%d rows were to be cut into %d shards", rows, n)
	}
	if c == nil {
		c = &Cut{}
	}
	if c.Weights != nil && len(c.Weights) != rows || c.Groups != nil && len(c.Groups) != rows {
		return Shards{}, spec.Errorf(spec.CodeInternal, "a batch of %d rows has %d weights and %d groups", rows, len(c.Weights), len(c.Groups))
	}
	if err := c.check(); err != nil {
		return Shards{}, err
	}
	size := max(c.Multiple, 1)
	if n == 1 || c.Weights == nil && c.Groups == nil {
		return blocks(rows, size, n), nil
	}
	a := atoms{size: size}
	if c.Groups != nil {
		if err := a.group(c.Groups, c.Multiple); err != nil {
			return Shards{}, err
		}
	}
	a.weigh(rows, c.Weights)
	if a.consecutive && (a.equal() || len(a.weights) <= n) {
		return a.ranges(rows, n), nil
	}
	heavy, light := a.split()
	weights := a.weights
	if len(light) > 0 {
		weights = pickWeights(a.weights, heavy)
	}
	var shardOf []int32
	if c.Weights != nil {
		shardOf = balance(weights, n)
	} else {
		shardOf = largestFirst(weights, n)
	}
	exchange(weights, shardOf, n)
	if len(light) > 0 {
		shardOf = a.deal(shardOf, heavy, light, n)
	}
	return a.shards(rows, n, shardOf), nil
}

// blocks cuts evenly into blocks of size rows.
func blocks(rows, size, n int) Shards {
	count := rows / size
	if rows%size > 0 {
		count++
	}
	out := make([]Range, n)
	for i := range out {
		from, to := Even(count, n, i)
		out[i] = Range{min(from*size, rows), min(to*size, rows)}
	}
	return Shards{Ranges: out}
}

// atoms are rows that stay together: groups, blocks of size rows, or each alone.
type atoms struct {
	size    int     // of blocks
	of      []int32 // the atom of each row; nil: blocks
	sizes   []int   // how many rows each group has
	weights []float64
	// consecutive: the rows of each atom follow each other, and so do the atoms.
	consecutive bool
}

// group makes an atom of each group, in the order of their first rows.
func (a *atoms) group(groups []uint32, multiple int) error {
	a.of = make([]int32, len(groups))
	a.consecutive = true
	number := make(map[uint32]int32)
	for row, g := range groups {
		at, known := number[g]
		if !known {
			at = int32(len(a.sizes))
			number[g] = at
			a.sizes = append(a.sizes, 0)
		} else if a.of[row-1] != at {
			a.consecutive = false
		}
		a.sizes[at]++
		a.of[row] = at
	}
	if multiple > 1 {
		for row, g := range groups {
			if n := a.sizes[a.of[row]]; n%multiple != 0 {
				return spec.Errorf(spec.CodeInvalid, "group %d, first seen in row %d, has %d rows: a batch that is kept together by groups is cut in multiples of %d only if every group is a multiple of that", g, row, n, multiple)
			}
		}
	}
	return nil
}

// weigh adds up the weights of each atom: without weights, its rows.
func (a *atoms) weigh(rows int, weights []float64) {
	total := 0.0
	for _, w := range weights {
		total += w
	}
	if total == 0 {
		weights = nil // all weigh nothing: as good as all the same
	}
	if a.of == nil {
		a.consecutive = true
		a.weights = make([]float64, (rows+a.size-1)/a.size)
	} else {
		a.weights = make([]float64, len(a.sizes))
	}
	for row := range rows {
		w := 1.0
		if weights != nil {
			w = weights[row]
		}
		a.weights[a.at(row)] += w
	}
}

// split tells the atoms that weigh something from those that weigh nothing. Where
// there are none of these, both are nil.
func (a *atoms) split() (heavy, light []int32) {
	for at, w := range a.weights {
		if w == 0 {
			light = append(light, int32(at))
		}
	}
	if len(light) == 0 {
		return nil, nil
	}
	heavy = make([]int32, 0, len(a.weights)-len(light))
	for at, w := range a.weights {
		if w != 0 {
			heavy = append(heavy, int32(at))
		}
	}
	return heavy, light
}

func pickWeights(weights []float64, some []int32) []float64 {
	out := make([]float64, len(some))
	for i, at := range some {
		out[i] = weights[at]
	}
	return out
}

// deal gives the atoms that weigh nothing to shards, as many rows to each: what
// weighs nothing may still take time. Those that get more than others are the ones
// with the fewest rows of weight, so that none stays empty as long as there are atoms.
// shardOf is the shards of the heavy ones.
func (a *atoms) deal(shardOf, heavy, light []int32, n int) []int32 {
	out := make([]int32, len(a.weights))
	rows := make([]int, n) // or blocks
	for i, at := range heavy {
		out[at] = shardOf[i]
		if a.of == nil {
			rows[shardOf[i]]++
		} else {
			rows[shardOf[i]] += a.sizes[at]
		}
	}
	order := make([]int32, n) // shards, fewest rows first
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(rows[a], rows[b]) })
	if a.of == nil { // of one size: neighbours stay together
		for i, shard := range order {
			from, to := Even(len(light), n, i)
			for _, at := range light[from:to] {
				out[at] = shard
			}
		}
		return out
	}
	sizes := make([]float64, len(light))
	for i, at := range light {
		sizes[i] = float64(a.sizes[at])
	}
	for i, shard := range largestFirst(sizes, n) {
		out[light[i]] = order[shard]
	}
	return out
}

// at is the atom of a row.
func (a *atoms) at(row int) int {
	switch {
	case a.of != nil:
		return int(a.of[row])
	case a.size == 1:
		return row
	}
	return row / a.size
}

// equal says that all atoms weigh the same.
func (a *atoms) equal() bool {
	for _, w := range a.weights {
		if w != a.weights[0] {
			return false
		}
	}
	return true
}

// ranges cuts consecutive atoms into shards of as many of them.
func (a *atoms) ranges(rows, n int) Shards {
	if a.of == nil {
		return blocks(rows, a.size, n)
	}
	out := make([]Range, n)
	row := 0
	for i := range out {
		from, to := Even(len(a.sizes), n, i)
		out[i].From = row
		for _, size := range a.sizes[from:to] {
			row += size
		}
		out[i].To = row
	}
	return Shards{Ranges: out}
}

// shards gives each shard its rows. Shards are numbered by their first rows, so
// that row 0 is in shard 0 and the empty ones are last.
func (a *atoms) shards(rows, n int, shardOf []int32) Shards {
	number := make([]int, n) // the number+1 of a shard
	sizes := make([]int, n)
	next, last, ordered := 0, 0, true
	for row := range rows {
		shard := shardOf[a.at(row)]
		if number[shard] == 0 {
			next++
			number[shard] = next
		}
		ordered = ordered && number[shard] >= last
		last = number[shard]
		sizes[last-1]++
	}
	if ordered {
		out := make([]Range, n)
		at := 0
		for i, size := range sizes {
			out[i] = Range{at, at + size}
			at += size
		}
		return Shards{Ranges: out}
	}
	all := make([]uint32, rows)
	out := make([][]uint32, n)
	for i, size := range sizes {
		out[i], all = all[:0:size], all[size:]
	}
	for row := range rows {
		at := number[shardOf[a.at(row)]] - 1
		out[at] = append(out[at], uint32(row))
	}
	return Shards{Lists: out}
}

// Restore finds the way back from shards to the caller's order. Of lists, that
// shards were made of by Cut.Shards, results came back, in order, that have lens
// rows. Where each has m rows for each of its shard's, with one m for all, row r
// of the caller became rows perm[r]*m to (perm[r]+1)*m of the results joined:
// Handle.TakeBlocks(perm, m). Otherwise, or where they are in order as they are,
// perm is nil.
func Restore(lists [][]uint32, lens []int) (perm []uint32, m int) {
	rows, results := 0, 0
	for i, list := range lists {
		rows += len(list)
		results += lens[i]
	}
	if rows == 0 || results%rows != 0 || results == 0 {
		return nil, 0
	}
	m = results / rows
	for i, list := range lists {
		if lens[i] != m*len(list) {
			return nil, 0
		}
	}
	perm = make([]uint32, rows)
	at, moved := uint32(0), false
	for _, list := range lists {
		for _, row := range list {
			perm[row] = at
			moved = moved || row != at
			at++
		}
	}
	if !moved {
		return nil, m
	}
	return perm, m
}
