package store

import (
	"slices"

	"github.com/muster-rl/muster/wire"
)

// ChunkSize is what travels between nodes as one: an object is cut into chunks
// of so many bytes, the last of which may be shorter.
const ChunkSize = 4 << 20

// chunksOf is how many chunks an object has. One without bytes has one, too: it
// brings the size.
func chunksOf(size uint64) uint32 {
	return uint32(max(1, (size+ChunkSize-1)/ChunkSize)) //nolint:gosec // what a machine's memory holds
}

// span is bytes from to (not included) to.
type span struct{ from, to uint64 }

// runsOf is the chunks that some bytes of an object of that size lie in, each
// once and in order. Bytes beyond its end are left out.
func runsOf(spans []span, size uint64) []wire.Run {
	var runs []wire.Run
	for _, s := range spans {
		s.to = min(s.to, size)
		if s.from >= s.to {
			continue
		}
		runs = append(runs, wire.Run{From: uint32(s.from / ChunkSize), To: uint32((s.to + ChunkSize - 1) / ChunkSize)}) //nolint:gosec // see chunksOf
	}
	return join(runs)
}

// join puts runs in order and those together that touch.
func join(runs []wire.Run) []wire.Run {
	slices.SortFunc(runs, func(a, b wire.Run) int { return int(int64(a.From) - int64(b.From)) })
	joined := runs[:0]
	for _, r := range runs {
		if last := len(joined) - 1; last >= 0 && r.From <= joined[last].To {
			joined[last].To = max(joined[last].To, r.To)
		} else {
			joined = append(joined, r)
		}
	}
	return joined
}

// bytesOf is where a chunk lies in an object of that size.
func bytesOf(chunk uint32, size uint64) span {
	from := uint64(chunk) * ChunkSize
	return span{from, min(size, from+ChunkSize)}
}

// copied is what a store has of an object that lies on another node. The
// store's lock guards it.
type copied struct {
	here    []bool
	left    uint32               // chunks that are not here
	coming  map[uint32]*gathered // by whom, those that are on their way
	changed chan struct{}        // closed and renewed when a chunk is here, or comes no more
	own     int                  // views that the store itself has of it
}

func newCopied(size uint64) *copied {
	n := chunksOf(size)
	return &copied{here: make([]bool, n), left: n, coming: map[uint32]*gathered{}, changed: make(chan struct{})}
}

// arrived takes note that a chunk is here.
func (c *copied) arrived(chunk uint32) {
	if !c.here[chunk] {
		c.here[chunk] = true
		c.left--
	}
	delete(c.coming, chunk)
	c.wake()
}

// wake has all who wait look again.
func (c *copied) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// lacks is those of some chunks that are neither here nor coming.
func (c *copied) lacks(runs []wire.Run) []wire.Run {
	return c.some(runs, func(chunk uint32) bool { return !c.here[chunk] && c.coming[chunk] == nil })
}

// has is all chunks that are here.
func (c *copied) has() []wire.Run {
	return c.some([]wire.Run{{To: uint32(len(c.here))}}, func(chunk uint32) bool { return c.here[chunk] }) //nolint:gosec // see chunksOf
}

// bytes is how many bytes of an object of that size are here.
func (c *copied) bytes(size uint64) (n uint64) {
	for chunk, here := range c.here {
		if here {
			at := bytesOf(uint32(chunk), size) //nolint:gosec // see chunksOf
			n += at.to - at.from
		}
	}
	return n
}

func (c *copied) some(runs []wire.Run, which func(chunk uint32) bool) []wire.Run {
	var found []wire.Run
	for _, r := range runs {
		for chunk := r.From; chunk < r.To && chunk < uint32(len(c.here)); chunk++ { //nolint:gosec // see chunksOf
			if !which(chunk) {
				continue
			}
			if last := len(found) - 1; last >= 0 && found[last].To == chunk {
				found[last].To++
			} else {
				found = append(found, wire.Run{From: chunk, To: chunk + 1})
			}
		}
	}
	return found
}

// awaited is a chunk of some that is not here, and who is to bring it; nil: all
// are here, or nobody brings it.
func (c *copied) awaited(runs []wire.Run) (here bool, by *gathered) {
	for _, r := range runs {
		for chunk := r.From; chunk < r.To && chunk < uint32(len(c.here)); chunk++ { //nolint:gosec // see chunksOf
			if !c.here[chunk] {
				return false, c.coming[chunk]
			}
		}
	}
	return true, nil
}

// adopt makes the object that has just been given room a copy of another one.
func (l *ledger) adopt(o *object, id uint64, what string) {
	delete(l.objects, o.id)
	delete(o.maker.makes, o)
	o.id, o.what, o.state, o.held = id, what, sealed, true
	o.copy = newCopied(o.size)
	l.objects[id] = o
	l.rest(o)
}

// idleCopy is the copy that was unused for longest, nil for none: it can go, as
// it can be had again.
func (l *ledger) idleCopy() *object {
	for e := l.idle.Front(); e != nil; e = e.Next() {
		if o := e.Value.(*object); o.copy != nil {
			return o
		}
	}
	return nil
}
