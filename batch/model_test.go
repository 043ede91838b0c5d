package batch

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// cell is a row of an object, wherever the object is listed.
type cell struct {
	object string
	row    int
}

// model is a batch written out: what a handle and its buffers stand for.
type model struct {
	columns []string
	rows    [][]cell // by column
	weights []float64
	groups  []uint32
	metas   []string
}

// expand writes a handle out. bufs names what lies in its buffers.
func expand(t testing.TB, h *Handle, bufs []string) model {
	t.Helper()
	if h.Bufs() != len(bufs) {
		t.Fatalf("a handle of %d buffers with %d", h.Bufs(), len(bufs))
	}
	var m model
	for _, p := range h.Parts {
		var cells []cell
		for _, piece := range p.Pieces {
			if piece.Rows == nil {
				for row := piece.From; row < piece.To; row++ {
					cells = append(cells, cell{bufs[piece.Buf], row})
				}
			}
			for _, row := range piece.Rows {
				cells = append(cells, cell{bufs[piece.Buf], int(row)})
			}
		}
		if len(cells) != h.Rows {
			t.Fatalf("part %v has %d rows of %d", p.Columns, len(cells), h.Rows)
		}
		for _, c := range p.Columns {
			m.columns = append(m.columns, c)
			m.rows = append(m.rows, cells)
		}
	}
	if h.Cut != nil {
		m.weights, m.groups = h.Cut.Weights, h.Cut.Groups
	}
	first := h.Objects
	for _, meta := range h.Metas {
		m.metas = append(m.metas, fmt.Sprint(string(meta.Value), bufs[first:first+meta.Bufs], meta.Origin))
		first += meta.Bufs
	}
	return m
}

// take is the rows of the model, one by one.
func (m *model) take(rows []int) model {
	out := model{columns: m.columns, metas: m.metas}
	for _, cells := range m.rows {
		var got []cell
		for _, row := range rows {
			got = append(got, cells[row])
		}
		out.rows = append(out.rows, got)
	}
	for _, row := range rows {
		if m.weights != nil {
			out.weights = append(out.weights, m.weights[row])
		}
		if m.groups != nil {
			out.groups = append(out.groups, m.groups[row])
		}
	}
	return out
}

func same(t testing.TB, what string, got, want model) {
	t.Helper()
	for _, m := range []*model{&got, &want} { // no rows are no rows
		if len(m.weights) == 0 {
			m.weights = nil
		}
		if len(m.groups) == 0 {
			m.groups = nil
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// anyHandle is a handle of random pieces, and what its buffers are: some of
// them shared with other handles, some by themselves.
func anyHandle(rng *rand.Rand, columns []string, rows int) (Handle, []string) {
	h := Handle{Rows: rows, Objects: 1 + rng.IntN(5)}
	bufs := make([]string, h.Objects)
	for i := range bufs {
		if bufs[i] = fmt.Sprintf("shared%d", rng.IntN(8)); rng.IntN(3) == 0 {
			bufs[i] = fmt.Sprintf("own%d", rng.Uint32())
		}
	}
	for rest := columns; len(rest) > 0; {
		n := 1 + rng.IntN(len(rest))
		h.Parts = append(h.Parts, Part{Columns: rest[:n:n], Pieces: anyPieces(rng, h.Objects, rows)})
		rest = rest[n:]
	}
	if rng.IntN(2) == 0 {
		h.Cut = anyCut(rng, rows)
	}
	for range rng.IntN(3) {
		meta := Meta{Value: []byte(fmt.Sprintf("meta%d", rng.IntN(3))), Bufs: rng.IntN(3)}
		for range meta.Bufs {
			bufs = append(bufs, fmt.Sprintf("shared%d", rng.IntN(3)))
		}
		if rng.IntN(2) == 0 { // what differs never has the same
			of := fnv.New64()
			fmt.Fprint(of, string(meta.Value), bufs[len(bufs)-meta.Bufs:], rng.IntN(2))
			meta.Origin = of.Sum64()
		}
		h.Metas = append(h.Metas, meta)
	}
	return h, bufs
}

func anyPieces(rng *rand.Rand, objects, rows int) []Piece {
	var pieces []Piece
	for left := rows; left > 0; {
		n := 1 + rng.IntN(left)
		p := Piece{Buf: rng.IntN(objects)}
		if rng.IntN(2) == 0 {
			p.From = rng.IntN(20)
			p.To = p.From + n
		} else {
			p.Rows = make([]uint32, n)
			at := rng.IntN(30)
			for i := range p.Rows {
				p.Rows[i] = uint32(at)
				if at++; rng.IntN(4) == 0 {
					at = rng.IntN(30)
				}
			}
		}
		pieces = append(pieces, p)
		left -= n
	}
	if len(pieces) == 0 || rng.IntN(8) == 0 {
		pieces = append(pieces, Piece{Buf: rng.IntN(objects)})
	}
	return pieces
}

func anyCut(rng *rand.Rand, rows int) *Cut {
	c := &Cut{Multiple: rng.IntN(4)}
	if c.Multiple == 1 {
		c.Multiple = 0
	}
	if rng.IntN(2) == 0 {
		c.Weights = make([]float64, rows)
		for i := range c.Weights {
			c.Weights[i] = float64(rng.IntN(100))
		}
	}
	if rng.IntN(2) == 0 || c.Weights == nil && c.Multiple == 0 {
		c.Groups = make([]uint32, rows)
		for i := range c.Groups {
			c.Groups[i] = rng.Uint32N(5)
		}
	}
	return c
}

var letters = []string{"a", "b", "c", "d", "e"}

// pick gives the buffers of what Compact left.
func pick(bufs []string, kept []int) []string {
	out := make([]string, len(kept))
	for i, k := range kept {
		out[i] = bufs[k]
	}
	return out
}

func upTo(lo, hi int) []int {
	out := []int{}
	for i := lo; i < hi; i++ {
		out = append(out, i)
	}
	return out
}

// listed says that a piece may be part of a list.
func listed(p Piece) bool { return p.Rows != nil || p.Len() < minRun }

// checkForm holds pieces against the form that the package promises.
func checkForm(t testing.TB, h *Handle) {
	t.Helper()
	for _, part := range h.Parts {
		for i, p := range part.Pieces {
			if p.Len() == 0 && (len(part.Pieces) > 1 || p.From != 0 || p.Rows != nil) {
				t.Fatalf("an empty piece among %v", part.Pieces)
			}
			if p.Rows != nil {
				run, breaks := 1, 0
				for k := 1; k < len(p.Rows); k++ {
					if p.Rows[k] == p.Rows[k-1]+1 {
						run++
					} else {
						run = 1
						breaks++
					}
					if run >= minRun {
						t.Fatalf("a run of %d rows in list %v", run, p.Rows)
					}
				}
				if breaks == 0 {
					t.Fatalf("list %v is a range", p.Rows)
				}
			}
			if i == 0 || part.Pieces[i-1].Buf != p.Buf {
				continue
			}
			before := part.Pieces[i-1]
			if before.Rows == nil && p.Rows == nil && before.To == p.From || listed(before) && listed(p) {
				t.Fatalf("%v and %v are one", before, p)
			}
		}
	}
}

// TestOperations holds every operation against the same one on rows written out.
func TestOperations(t *testing.T) {
	for seed := range uint64(4000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rows := rng.IntN(60)
		if rng.IntN(10) == 0 {
			rows = 0
		}
		h, bufs := anyHandle(rng, letters[:1+rng.IntN(4)], rows)
		want := expand(t, &h, bufs)

		lo := rng.IntN(rows + 1)
		hi := lo + rng.IntN(rows-lo+1)
		slice := h.Slice(lo, hi)
		checkForm(t, &slice)
		same(t, "Slice", expand(t, &slice, bufs), want.take(upTo(lo, hi)))

		empty := h.Empty()
		same(t, "Empty", expand(t, &empty, bufs), want.take(nil))

		if rows > 0 {
			list, ints := anyRows(rng, rows, rng.IntN(40))
			took := h.Take(list)
			checkForm(t, &took)
			same(t, "Take", expand(t, &took, bufs), want.take(ints))
			if len(list) > 0 {
				again, ints2 := anyRows(rng, len(list), rng.IntN(40))
				twice := took.Take(again)
				composed := make([]uint32, len(again))
				for i, k := range ints2 {
					composed[i] = list[k]
				}
				if once := h.Take(composed); len(again) > 0 && !reflect.DeepEqual(once, twice) {
					t.Fatalf("Take twice is %v, at once %v", twice, once)
				}
			}
			m := 1 + rng.IntN(3)
			blocks, ints := anyRows(rng, rows, rng.IntN(10))
			for i := range blocks {
				blocks[i] /= uint32(m)
				if (int(blocks[i])+1)*m > rows {
					blocks[i] = 0
				}
			}
			if m <= rows {
				ints = ints[:0]
				for _, b := range blocks {
					ints = append(ints, upTo(int(b)*m, int(b)*m+m)...)
				}
				took = h.TakeBlocks(blocks, m)
				checkForm(t, &took)
				same(t, "TakeBlocks", expand(t, &took, bufs), want.take(ints))
			}
		}

		compact, kept := slice.Compact()
		same(t, "Compact", expand(t, &compact, pick(bufs, kept)), expand(t, &slice, bufs))
		if used := usedObjects(&slice); compact.Objects != len(used) {
			t.Fatalf("Compact keeps %d objects, %d are used", compact.Objects, len(used))
		}

		names := slices.Clone(want.columns)
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:rng.IntN(len(names)+1)]
		selected, err := h.Select(names...)
		if err != nil {
			t.Fatal(err)
		}
		wanted := model{metas: want.metas, weights: want.weights, groups: want.groups}
		for _, name := range names {
			wanted.columns = append(wanted.columns, name)
			wanted.rows = append(wanted.rows, want.rows[slices.Index(want.columns, name)])
		}
		same(t, "Select", expand(t, &selected, bufs), wanted)
		same(t, "the handle afterwards", expand(t, &h, bufs), want)
	}
}

func anyRows(rng *rand.Rand, rows, n int) ([]uint32, []int) {
	list, ints := make([]uint32, n), make([]int, n)
	at := 0
	for i := range list {
		if at++; at >= rows || rng.IntN(5) == 0 {
			at = rng.IntN(rows)
		}
		list[i], ints[i] = uint32(at), at
	}
	return list, ints
}

func usedObjects(h *Handle) map[int]bool {
	used := map[int]bool{}
	for _, part := range h.Parts {
		for _, p := range part.Pieces {
			used[p.Buf] = true
		}
	}
	return used
}
