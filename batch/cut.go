package batch

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Cut is how a batch wants to be cut for ranks.
type Cut struct {
	Weights  []float64 // of each row: shards weigh the same; nil: all rows the same
	Groups   []uint32  // of each row: rows of equal number stay together; nil: each alone
	Multiple int       // over 1: blocks of so many rows stay together
}

// Equal says that two cuts are the same.
func (c *Cut) Equal(d *Cut) bool {
	if c == d || c == nil || d == nil {
		return c == d
	}
	return c.Multiple == d.Multiple &&
		(c.Weights == nil) == (d.Weights == nil) && slices.Equal(c.Weights, d.Weights) &&
		(c.Groups == nil) == (d.Groups == nil) && slices.Equal(c.Groups, d.Groups)
}

// String says for people what the cut is like.
func (c *Cut) String() string {
	var words []string
	if c != nil {
		if c.Weights != nil {
			words = append(words, "balanced by weights")
		}
		if c.Groups != nil {
			words = append(words, "kept together by groups")
		}
		if c.Multiple > 1 {
			words = append(words, "in multiples of "+strconv.Itoa(c.Multiple))
		}
	}
	if len(words) == 0 {
		return "cut evenly"
	}
	return strings.Join(words, ", ")
}

// check refuses weights that cannot be balanced.
func (c *Cut) check() error {
	if c == nil {
		return nil
	}
	sum := 0.0
	for row, w := range c.Weights {
		if !(w >= 0) || math.IsInf(w, 1) {
			return spec.Errorf(spec.CodeInvalid, "row %d weighs %v: a batch is balanced by numbers from 0 on", row, w)
		}
		sum += w
	}
	if math.IsInf(sum, 1) {
		return spec.Errorf(spec.CodeInvalid, "the rows of a batch weigh too much together: divide the column that balances it")
	}
	return nil
}

func (c *Cut) slice(lo, hi int) *Cut {
	if c == nil {
		return nil
	}
	out := *c
	if c.Weights != nil {
		out.Weights = c.Weights[lo:hi:hi]
	}
	if c.Groups != nil {
		out.Groups = c.Groups[lo:hi:hi]
	}
	return &out
}

func (c *Cut) take(blocks []uint32, size int) *Cut {
	if c == nil {
		return nil
	}
	return &Cut{Weights: gather(c.Weights, blocks, size), Groups: gather(c.Groups, blocks, size), Multiple: c.Multiple}
}

func gather[T any](from []T, blocks []uint32, size int) []T {
	if from == nil {
		return nil
	}
	out := make([]T, 0, len(blocks)*size)
	for _, b := range blocks {
		out = append(out, from[int(b)*size:int(b)*size+size]...)
	}
	return out
}

// joinCuts is the cut of handles that are put together: what all of them say.
func joinCuts(handles []Handle, with []int) *Cut {
	var out Cut
	for i := range with {
		c := handles[with[i]].Cut
		switch {
		case c == nil:
			return nil
		case i == 0:
			out = Cut{slices.Clip(c.Weights), slices.Clip(c.Groups), c.Multiple}
			continue
		case out.Multiple != c.Multiple:
			out.Multiple = 0
		}
		out.Weights, out.Groups = joinBoth(out.Weights, c.Weights), joinBoth(out.Groups, c.Groups)
	}
	if out.Weights == nil && out.Groups == nil && out.Multiple == 0 {
		return nil
	}
	return &out
}

func joinBoth[T any](a, b []T) []T {
	if a == nil || b == nil {
		return nil
	}
	return append(a, b...)
}
