package batch

import (
	"fmt"
	"sort"
)

// minRun is from how many rows on a run is a range of its own and not part of a
// list: a range takes at most 16 bytes and is read by one copy.
const minRun = 8

// runs makes pieces of runs of rows, in the one form that the package's comment
// describes.
type runs struct {
	pieces []Piece
	// The run that the next rows may still extend.
	buf      int
	from, to int
	// Short runs of the same buffer that came directly before it.
	list  []uint32 // shared by all lists; the current one begins at start
	start int
	short int // how many runs it has
}

// add puts rows from to (not included) to of a buffer behind what is there.
func (r *runs) add(buf, from, to int) {
	if from == to {
		return
	}
	if buf == r.buf && from == r.to && r.from < r.to {
		r.to = to
		return
	}
	r.endRun()
	if buf != r.buf {
		r.endList()
	}
	r.buf, r.from, r.to = buf, from, to
}

// addPiece puts rows lo to hi of a piece behind what is there, as of buffer buf.
func (r *runs) addPiece(p *Piece, buf, lo, hi int) {
	if p.Rows == nil {
		r.add(buf, p.From+lo, p.From+hi)
		return
	}
	for _, row := range p.Rows[lo:hi] {
		r.add(buf, int(row), int(row)+1)
	}
}

// endRun puts the current run where it belongs.
func (r *runs) endRun() {
	if r.to-r.from >= minRun {
		r.endList()
		r.pieces = append(r.pieces, Piece{Buf: r.buf, From: r.from, To: r.to})
	} else if r.from < r.to {
		for row := r.from; row < r.to; row++ {
			r.list = append(r.list, uint32(row))
		}
		r.short++
	}
	r.from, r.to = 0, 0
}

// endList makes a piece of the short runs.
func (r *runs) endList() {
	rows := r.list[r.start:len(r.list):len(r.list)]
	switch r.short {
	case 0:
		return
	case 1:
		first := int(rows[0])
		r.pieces = append(r.pieces, Piece{Buf: r.buf, From: first, To: first + len(rows)})
		r.list = r.list[:r.start]
	default:
		r.pieces = append(r.pieces, Piece{Buf: r.buf, Rows: rows})
	}
	r.start, r.short = len(r.list), 0
}

// done returns the pieces; where there are no rows, an empty one of a buffer
// that has the types.
func (r *runs) done(types int) []Piece {
	r.endRun()
	r.endList()
	if len(r.pieces) == 0 {
		return []Piece{{Buf: types}}
	}
	return r.pieces
}

// Slice is rows lo to (not included) hi. Rows that are not there are a mistake
// of the caller's and a panic, as of a Go slice; so they are of Take.
func (h *Handle) Slice(lo, hi int) Handle {
	if lo < 0 || hi < lo || hi > h.Rows {
		panic(fmt.Sprintf("batch: rows %d to %d of %d", lo, hi, h.Rows))
	}
	out := *h
	out.Rows = hi - lo
	out.Cut = h.Cut.slice(lo, hi)
	out.Parts = make([]Part, len(h.Parts))
	for i := range h.Parts {
		var r runs
		at := 0
		pieces := h.Parts[i].Pieces
		for j := range pieces {
			p := &pieces[j]
			n := p.Len()
			if from, to := max(lo-at, 0), min(hi-at, n); from < to {
				r.addPiece(p, p.Buf, from, to)
			}
			if at += n; at >= hi {
				break
			}
		}
		out.Parts[i] = Part{h.Parts[i].Columns, r.done(pieces[0].Buf)}
	}
	return out
}

// Empty is the handle without rows: columns, types and metas stay.
func (h *Handle) Empty() Handle { return h.Slice(0, 0) }

// Take is the named rows, in that order; rows may be named more than once.
func (h *Handle) Take(rows []uint32) Handle { return h.TakeBlocks(rows, 1) }

// TakeBlocks is the named blocks of size consecutive rows each, in that order:
// block b is rows b*size to (b+1)*size.
func (h *Handle) TakeBlocks(blocks []uint32, size int) Handle {
	out := *h
	out.Rows = len(blocks) * size
	out.Cut = h.Cut.take(blocks, size)
	out.Parts = make([]Part, len(h.Parts))
	var starts []int // of each piece of the part at hand, and where the last ends
	for i := range h.Parts {
		pieces := h.Parts[i].Pieces
		starts = append(starts[:0], 0)
		for j := range pieces {
			starts = append(starts, starts[j]+pieces[j].Len())
		}
		var r runs
		at := 0 // the piece that the last row lay in: the next one is often there
		for _, b := range blocks {
			lo, hi := int(b)*size, int(b)*size+size
			for lo < hi {
				if lo < starts[at] || lo >= starts[at+1] {
					if lo >= h.Rows {
						panic(fmt.Sprintf("batch: row %d of %d", lo, h.Rows))
					}
					at = sort.SearchInts(starts, lo+1) - 1
				}
				end := min(hi, starts[at+1])
				r.addPiece(&pieces[at], pieces[at].Buf, lo-starts[at], end-starts[at])
				lo = end
			}
		}
		out.Parts[i] = Part{h.Parts[i].Columns, r.done(pieces[0].Buf)}
	}
	return out
}

// Compact drops the objects in which no row of the handle lies, and numbers the
// others anew. It returns the number that each of its buffers, those of metas
// too, had before.
func (h *Handle) Compact() (Handle, []int) {
	now := make([]int, h.Objects) // the new number+1 of each object
	kept := make([]int, 0, h.Bufs())
	for i := range h.Parts {
		for j := range h.Parts[i].Pieces {
			if buf := h.Parts[i].Pieces[j].Buf; now[buf] == 0 {
				kept = append(kept, buf)
				now[buf] = len(kept)
			}
		}
	}
	out := *h
	out.Objects = len(kept)
	moved := false
	for i, buf := range kept {
		moved = moved || i != buf
	}
	if moved {
		out.Parts = make([]Part, len(h.Parts))
		for i := range h.Parts {
			pieces := make([]Piece, len(h.Parts[i].Pieces))
			for j, p := range h.Parts[i].Pieces {
				p.Buf = now[p.Buf] - 1
				pieces[j] = p
			}
			out.Parts[i] = Part{h.Parts[i].Columns, pieces}
		}
	}
	for buf := h.Objects; buf < h.Bufs(); buf++ {
		kept = append(kept, buf)
	}
	return out, kept
}
