package value

import (
	"slices"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/column"
)

// many is from how many blocks on those that ride in frames are put together
// before they are sent.
const many = 16

// thrifty is the batch as it is sent: its handle, and its blocks with uses for
// the caller. Where a batch has few of the rows or columns that were given
// together, only those are written, into a block of their own; a block that is
// used by more is written whole, once for all that is made from it.
func (b *Batch) thrifty() (h batch.Handle, blocks []*block, err error) {
	if blocks, err = b.take(); err != nil {
		return h, nil, err
	}
	defer func() {
		if err != nil {
			releaseBlocks(blocks)
		}
	}()
	apart := wasteful(&b.handle, blocks)
	if !slices.Contains(apart, true) {
		return b.handle, blocks, nil
	}
	contents, err := read(blocks[:b.handle.Objects])
	if err != nil {
		return h, blocks, err
	}
	defer releaseGiven(contents)
	// New blocks come behind the others; then metas move, and Compact drops what
	// is no longer used.
	h = b.handle
	h.Parts = slices.Clone(h.Parts)
	metas := blocks[h.Objects:]
	blocks = slices.Clone(blocks[:h.Objects])
	for i := range h.Parts {
		made, part, err := rewrite(h.Parts[i], apart, contents, len(blocks))
		if err != nil {
			releaseBlocks(metas)
			return h, blocks, err
		}
		if made != nil {
			blocks = append(blocks, made)
			h.Parts[i] = part
		}
	}
	h.Objects = len(blocks)
	blocks = append(blocks, metas...)
	compact, kept := h.Compact()
	used := make([]*block, len(kept))
	for i, k := range kept {
		used[i] = blocks[k]
		used[i].retain()
	}
	releaseBlocks(blocks)
	return compact, used, nil
}

// wasteful says of each block whether its rows are to be written anew.
func wasteful(h *batch.Handle, blocks []*block) []bool {
	apart := make([]bool, h.Objects)
	rows, columns := make([]int, h.Objects), make([]int, h.Objects)
	for i := range h.Parts {
		of := map[int]int{}
		for _, p := range h.Parts[i].Pieces {
			of[p.Buf] += p.Len()
		}
		for buf, n := range of {
			rows[buf] = max(rows[buf], n)
			columns[buf] += len(h.Parts[i].Columns)
		}
	}
	var riding []int
	for i, b := range blocks[:h.Objects] {
		b.mu.Lock()
		if b.object == nil {
			riding = append(riding, i)
		}
		if g := b.given; g != nil {
			apart[i] = 2*rows[i] < g.rows || columns[i] < len(g.columns)
		}
		b.mu.Unlock()
	}
	if len(riding) >= many {
		for _, i := range riding {
			apart[i] = true
		}
	}
	return apart
}

// rewrite puts those rows of a part that lie in blocks apart into one new block,
// each once, and returns it, and the part with that block as buffer number buf.
// Where there are none it returns nil.
func rewrite(part batch.Part, apart []bool, contents []given, buf int) (*block, batch.Part, error) {
	wanted := make([][]uint32, len(apart)) // not nil where a piece is of it, be it empty
	some := false
	for _, p := range part.Pieces {
		if apart[p.Buf] {
			some = true
			wanted[p.Buf] = append(append([]uint32{}, wanted[p.Buf]...), rowsOf(&p)...)
		}
	}
	if !some {
		return nil, part, nil
	}
	starts := make([]int, len(apart))
	var pieces []batch.Piece
	rows := 0
	for i := range wanted {
		if wanted[i] != nil {
			slices.Sort(wanted[i])
			wanted[i] = slices.Compact(wanted[i])
			starts[i] = rows
			rows += len(wanted[i])
			pieces = append(pieces, batch.Piece{Buf: i, Rows: wanted[i]})
		}
	}
	g := &given{rows: rows}
	for _, name := range part.Columns {
		c, err := gather(name, pieces, contents)
		if err != nil {
			column.Release(g.columns)
			return nil, part, err
		}
		g.columns = append(g.columns, c)
	}
	out := batch.Part{Columns: part.Columns}
	for _, p := range part.Pieces {
		if apart[p.Buf] {
			p = moved(&p, wanted[p.Buf], starts[p.Buf], buf)
		}
		out.Pieces = append(out.Pieces, p)
	}
	return &block{uses: 1, given: g}, out, nil
}

// rowsOf are the rows of a piece; never nil.
func rowsOf(p *batch.Piece) []uint32 {
	if p.Rows != nil {
		return p.Rows
	}
	rows := make([]uint32, p.Len())
	for i := range rows {
		rows[i] = uint32(p.From + i)
	}
	return rows
}

// moved is a piece whose rows lie in buffer buf now: those that are wanted, in
// order, from start on.
func moved(p *batch.Piece, wanted []uint32, start, buf int) batch.Piece {
	at := func(row uint32) int {
		i, _ := slices.BinarySearch(wanted, row)
		return start + i
	}
	if p.Rows == nil { // its rows are all wanted, so they follow each other still
		from := start
		if p.Len() > 0 {
			from = at(uint32(p.From))
		}
		return batch.Piece{Buf: buf, From: from, To: from + p.Len()}
	}
	rows := make([]uint32, len(p.Rows))
	for i, row := range p.Rows {
		rows[i] = uint32(at(row))
	}
	return batch.Piece{Buf: buf, Rows: rows}
}
