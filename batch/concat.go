package batch

import (
	"slices"

	"github.com/muster-rl/muster/spec"
)

// Source is a buffer of one of the handles that were joined.
type Source struct {
	Handle int // its place in the list
	Buf    int // the buffer's number in it
}

// Concat puts the rows of handles one after another. All have the same columns, in
// any order and grouped into parts in any way; of those with neither columns nor rows
// only the metas count. It returns the buffers of the handle that it makes. key tells which buffers are the same: those with equal
// keys, of one handle or of several, become one; the zero key is equal to none.
//
// What all cuts say stays: weights, groups (those of the same number are one
// group), an equal multiple. Metas that are equal stay once, in order; those of
// different origin never are.
func Concat[K comparable](handles []Handle, key func(handle, buf int) K) (Handle, []Source, error) {
	if len(handles) == 0 {
		return Handle{}, nil, spec.Errorf(spec.CodeInvalid, "no batches to put together: pass one at least")
	}
	with := columned(handles)
	at, err := align(handles, with)
	if err != nil {
		return Handle{}, nil, err
	}
	n := numbering[K]{key: key, now: make([][]int, len(handles)), same: map[K]int{}}
	var out Handle
	for i := range handles {
		if out.Rows += handles[i].Rows; out.Rows > MaxRows {
			return Handle{}, nil, spec.Errorf(spec.CodeTooLarge, "%d batches have more than %d rows together", len(handles), uint64(MaxRows))
		}
		n.now[i] = make([]int, handles[i].Objects)
	}
	out.Parts = make([]Part, len(at))
	for i, a := range at {
		var r runs
		types := -1
		for j, h := range with {
			pieces := handles[h].Parts[a.parts[j]].Pieces
			for k := range pieces {
				if p := &pieces[k]; p.Len() > 0 {
					r.addPiece(p, n.number(h, p.Buf), 0, p.Len())
				}
			}
		}
		if out.Rows == 0 {
			types = n.number(with[0], handles[with[0]].Parts[a.parts[0]].Pieces[0].Buf)
		}
		out.Parts[i] = Part{a.columns, r.done(types)}
	}
	out.Objects = len(n.sources)
	out.Cut = joinCuts(handles, with)
	out.Metas = n.metas(handles)
	return out, n.sources, nil
}

// columned numbers the handles that have columns or rows; where none has, the first.
func columned(handles []Handle) []int {
	with := make([]int, 0, len(handles))
	for i := range handles {
		if len(handles[i].Parts) > 0 || handles[i].Rows > 0 {
			with = append(with, i)
		}
	}
	if len(with) == 0 {
		with = append(with, 0)
	}
	return with
}

// aligned is columns that lie together in every one of the handles.
type aligned struct {
	columns []string
	parts   []int // the part that has them, of each handle
}

// align finds the fewest parts that suit every handle of those in with, and keep the
// first's order of columns.
func align(handles []Handle, with []int) ([]aligned, error) {
	names := handles[with[0]].Columns()
	where := make([][]place, len(with)) // where each column is, by handle
	for i := range with {
		h := &handles[with[i]]
		if i > 0 && sameParts(h, &handles[with[i-1]]) {
			where[i] = where[i-1]
			continue
		}
		if where[i] = h.places(names); where[i] == nil {
			return nil, differ(names, h.Columns(), with[i])
		}
	}
	columns, err := stored(handles, with, where)
	if err != nil {
		return nil, err
	}
	var out []aligned
	for c := range names {
		begins := c == 0
		for i := 0; i < len(where) && !begins; i++ {
			begins = where[i][c].part != where[i][c-1].part
		}
		if begins {
			a := aligned{parts: make([]int, len(with))}
			for i := range where {
				a.parts[i] = where[i][c].part
			}
			out = append(out, a)
		}
		last := &out[len(out)-1]
		last.columns = append(last.columns, columns[c])
	}
	return out, nil
}

// place is where a column of a handle is: in which part, and as what.
type place struct {
	part   int
	column string
}

// places are those of the named columns; nil where the handle has others.
func (h *Handle) places(names []string) []place {
	byName := make(map[string]place, len(names))
	for part := range h.Parts {
		for _, column := range h.Parts[part].Columns {
			name, _ := Split(column)
			byName[name] = place{part, column}
		}
	}
	out := make([]place, len(names))
	for c, name := range names {
		at, ok := byName[name]
		if !ok {
			return nil
		}
		out[c] = at
	}
	if len(byName) != len(names) {
		return nil
	}
	return out
}

// stored is the columns of handles that are joined, with what they are called in
// the objects, which is the same in all that have rows. Where none has, those of the
// first count, as it gives the types.
func stored(handles []Handle, with []int, where [][]place) ([]string, error) {
	first := slices.IndexFunc(with, func(h int) bool { return handles[h].Rows > 0 })
	if first < 0 {
		first = 0
	}
	columns := make([]string, len(where[first]))
	for c := range columns {
		columns[c] = where[first][c].column
	}
	for i := first + 1; i < len(with); i++ {
		if handles[with[i]].Rows == 0 {
			continue
		}
		for c, column := range columns {
			name, a := Split(column)
			if _, b := Split(where[i][c].column); a != b {
				return nil, spec.Errorf(spec.CodeInvalid, "batches whose rows lie under different names cannot be put together: column '%s' was '%s' in batch %d and is '%s' in batch %d: rename it in all or in none", name, a, with[first], b, with[i])
			}
		}
	}
	return columns, nil
}

// sameParts says that two handles have the same columns grouped the same way.
func sameParts(a, b *Handle) bool {
	return slices.EqualFunc(a.Parts, b.Parts, func(p, q Part) bool { return slices.Equal(p.Columns, q.Columns) })
}

// differ says what batch i lacks of the first's columns, or has beside them.
func differ(first, its []string, i int) error {
	lacks, extra := without(first, its), without(its, first)
	what := ""
	if len(lacks) > 0 {
		what = " lacks " + quoted(lacks)
	}
	if len(extra) > 0 {
		if what != "" {
			what += " and"
		}
		what += " has " + quoted(extra)
		if len(lacks) == 0 {
			what += ", which the first lacks"
		}
	}
	return spec.Errorf(spec.CodeInvalid, "batches with different columns cannot be put together: the first has %s; batch %d%s: select the same columns of each", has(first), i, what)
}

func has(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return quoted(names)
}

func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}

// numbering gives the buffers of several handles one row of numbers.
type numbering[K comparable] struct {
	key     func(handle, buf int) K
	now     [][]int   // by handle and buffer: the new number+1
	same    map[K]int // the new number of a key
	sources []Source
}

func (n *numbering[K]) number(handle, buf int) int {
	if got := n.now[handle][buf]; got > 0 {
		return got - 1
	}
	var none K
	k := n.key(handle, buf)
	if got, ok := n.same[k]; ok && k != none {
		n.now[handle][buf] = got + 1
		return got
	}
	got := len(n.sources)
	n.sources = append(n.sources, Source{handle, buf})
	n.now[handle][buf] = got + 1
	if k != none {
		n.same[k] = got
	}
	return got
}

// metas lists those that differ, and the buffers of each.
func (n *numbering[K]) metas(handles []Handle) []Meta {
	type told struct {
		handle, first, bufs int
		origin              uint64
	}
	seen := map[string][]told{} // by value, of which there are several only if buffers differ
	var out []Meta
	for i := range handles {
		first := handles[i].Objects
		for _, m := range handles[i].Metas {
			known := slices.ContainsFunc(seen[string(m.Value)], func(p told) bool {
				return p.bufs == m.Bufs && p.origin == m.Origin &&
					(m.Origin != 0 || n.equal(p.handle, p.first, i, first, m.Bufs))
			})
			if !known {
				out = append(out, m)
				for buf := range m.Bufs {
					n.sources = append(n.sources, Source{i, first + buf})
				}
				seen[string(m.Value)] = append(seen[string(m.Value)], told{i, first, m.Bufs, m.Origin})
			}
			first += m.Bufs
		}
	}
	return out
}

// equal says that two metas of the same value have the same buffers. Those of one
// origin need not be asked: what has changed has another.
func (n *numbering[K]) equal(h1, first1, h2, first2, bufs int) bool {
	var none K
	for buf := range bufs {
		if k := n.key(h1, first1+buf); k == none || k != n.key(h2, first2+buf) {
			return false
		}
	}
	return true
}
