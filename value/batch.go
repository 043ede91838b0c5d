package value

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Batch is rows of named columns, and a dict beside them. It stands for rows
// that lie elsewhere, in shared memory as a rule: Slice, Take, Select, Union and
// Concat touch none of them, and as an argument or result only the handle
// travels. Methods with a mode that cuts rows get their share of them.
//
// A Batch never changes, and may be used concurrently. Release gives its rows
// back; a batch that is forgotten is given back by the collector, later. Others
// made from it, and records, have rights of their own.
type Batch struct {
	handle batch.Handle
	in     *holding
}

// holding is what a batch holds, apart from it so that it can outlive it.
type holding struct {
	mu       sync.Mutex
	blocks   []*block // one for each buffer of the handle
	released bool
}

func (h *holding) release() {
	h.mu.Lock()
	blocks := h.blocks
	h.blocks, h.released = nil, true
	h.mu.Unlock()
	releaseBlocks(blocks)
}

// newBatch makes a batch of a handle and of what its buffers stand for, the uses
// of which it takes over.
func newBatch(h batch.Handle, blocks []*block) *Batch {
	compact, kept := h.Compact()
	used := make([]*block, len(kept))
	for i, k := range kept {
		used[i] = blocks[k]
		used[i].retain()
	}
	releaseBlocks(blocks)
	b := &Batch{compact, &holding{blocks: used}}
	runtime.AddCleanup(b, (*holding).release, b.in)
	return b
}

// NewBatch makes a batch of a record, each of whose columns is one of the batch;
// package column has what they can be. meta becomes a dict that goes along, and
// may be nil. The batch has references of its own to the record, until it is
// first sent: then its rows are copied to shared memory.
func NewBatch(record arrow.RecordBatch, meta map[string]any) (*Batch, error) {
	columns, err := column.Of(record)
	if err != nil {
		return nil, err
	}
	rows := int(record.NumRows())
	if rows > batch.MaxRows {
		column.Release(columns)
		return nil, spec.Errorf(spec.CodeTooLarge, "a record of %d rows, and a batch has at most %d", rows, batch.MaxRows)
	}
	var blocks []*block
	h := batch.Handle{Rows: rows}
	if len(columns) > 0 {
		part := batch.Part{Pieces: []batch.Piece{{To: rows}}}
		for i := range columns {
			part.Columns = append(part.Columns, columns[i].Name)
		}
		h.Objects, h.Parts = 1, []batch.Part{part}
		blocks = append(blocks, &block{uses: 1, given: &given{rows, columns}})
	}
	if len(meta) > 0 {
		m := NewMessage(nil)
		defer m.Release()
		if err := m.Append(meta); err != nil {
			releaseBlocks(blocks)
			return nil, about(err, "the meta of a batch")
		}
		h.Metas = []batch.Meta{{Value: m.Raw, Bufs: len(m.Bufs)}}
		if _, has := meta[merged]; has {
			h.Metas[0].Origin = rand.Uint64()>>(64-layerBits) | 1
		}
		for _, buf := range m.Bufs {
			b, err := blockOf(buf, m.named)
			if err != nil {
				releaseBlocks(blocks)
				return nil, err
			}
			blocks = append(blocks, b)
		}
	}
	return newBatch(h, blocks), nil
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return b.handle.Rows }

// Columns are the names of the columns, in order.
func (b *Batch) Columns() []string { return b.handle.Columns() }

// String tells people what the batch is.
func (b *Batch) String() string {
	return fmt.Sprintf("batch of %d rows: %s", b.Rows(), strings.Join(b.Columns(), ", "))
}

// Release gives the rows back. It may be called again; what else is done with
// the batch after that is an error, told where there is a result to tell it in.
func (b *Batch) Release() {
	b.in.release()
	runtime.KeepAlive(b)
}

// take is what the batch holds, with uses for the caller.
func (b *Batch) take() ([]*block, error) {
	defer runtime.KeepAlive(b) // or the collector might release what is just taken
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	if b.in.released {
		return nil, spec.Errorf(spec.CodeInvalid, "a %s that was released: a method's arguments are when it returns, and its result when it is sent; Clone what is to stay", b)
	}
	for _, block := range b.in.blocks {
		block.retain()
	}
	return append([]*block(nil), b.in.blocks...), nil
}

// remade is another handle of the same buffers; of a released batch, one that is
// released too.
func (b *Batch) remade(h batch.Handle) *Batch {
	blocks, err := b.take()
	if err != nil {
		return &Batch{h, &holding{released: true}}
	}
	return newBatch(h, blocks)
}

// Clone is the same batch with a right of its own to the rows.
func (b *Batch) Clone() *Batch { return b.remade(b.handle) }

// Slice is rows from to (not included) to. Rows that are not there are a panic,
// as of a Go slice; so they are of Take.
func (b *Batch) Slice(from, to int) *Batch { return b.remade(b.handle.Slice(from, to)) }

// Take is the named rows, in that order; rows may be named more than once.
func (b *Batch) Take(rows ...int) *Batch {
	numbers := make([]uint32, len(rows))
	for i, row := range rows {
		if row < 0 || row >= b.Rows() {
			panic(fmt.Sprintf("value: row %d of %d", row, b.Rows()))
		}
		numbers[i] = uint32(row)
	}
	return b.remade(b.handle.Take(numbers))
}

// Select is the named columns, in that order.
func (b *Batch) Select(names ...string) (*Batch, error) {
	h, err := b.handle.Select(names...)
	if err != nil {
		return nil, err
	}
	return b.remade(h), nil
}

// Concat puts the rows of batches of the same columns one after another. Of
// metas the first's keys win; dicts under "metrics" are merged, those of one batch
// that was cut once.
func Concat(batches ...*Batch) (*Batch, error) {
	handles := make([]batch.Handle, len(batches))
	all := make([][]*block, len(batches))
	defer func() {
		for _, blocks := range all {
			releaseBlocks(blocks)
		}
	}()
	for i, b := range batches {
		blocks, err := b.take()
		if err != nil {
			return nil, err
		}
		handles[i], all[i] = b.handle, blocks
	}
	h, sources, err := batch.Concat(handles, func(handle, buf int) same { return all[handle][buf].same() })
	if err != nil {
		return nil, err
	}
	used := make([]*block, len(sources))
	for i, s := range sources {
		used[i] = all[s.Handle][s.Buf]
		used[i].retain()
	}
	return newBatch(h, used), nil
}

// Union is a batch with the columns of both, which have as many rows. Its meta is
// as Concat's.
func (b *Batch) Union(other *Batch) (*Batch, error) {
	if b.Rows() != other.Rows() {
		return nil, spec.Errorf(spec.CodeInvalid, "batches of %d and of %d rows cannot lie side by side", b.Rows(), other.Rows())
	}
	has := map[string]bool{}
	for _, name := range b.Columns() {
		has[name] = true
	}
	for _, name := range other.Columns() {
		if has[name] {
			return nil, spec.Errorf(spec.CodeInvalid, "both batches have a column '%s': select others of one of them", name)
		}
	}
	mine, err := b.take()
	if err != nil {
		return nil, err
	}
	theirs, err := other.take()
	if err != nil {
		releaseBlocks(mine)
		return nil, err
	}
	// Objects of both come before the buffers of the metas of both.
	h, o := b.handle, other.handle
	blocks := append([]*block(nil), mine[:h.Objects]...)
	blocks = append(blocks, theirs[:o.Objects]...)
	blocks = append(blocks, mine[h.Objects:]...)
	out := h
	out.Objects = h.Objects + o.Objects
	out.Parts = append([]batch.Part(nil), h.Parts...)
	for _, part := range o.Parts {
		moved := batch.Part{Columns: part.Columns}
		for _, p := range part.Pieces {
			p.Buf += h.Objects
			moved.Pieces = append(moved.Pieces, p)
		}
		out.Parts = append(out.Parts, moved)
	}
	out.Metas = append([]batch.Meta(nil), h.Metas...)
	at := o.Objects
	for _, m := range o.Metas {
		its := theirs[at : at+m.Bufs]
		if at += m.Bufs; b.hasMeta(m, its, mine) {
			releaseBlocks(its)
			continue
		}
		out.Metas, blocks = append(out.Metas, m), append(blocks, its...)
	}
	return newBatch(out, blocks), nil
}

// hasMeta says that one of the batch's metas is the same; blocks are what its own
// buffers stand for, its are those of the other.
func (b *Batch) hasMeta(m batch.Meta, its, blocks []*block) bool {
	at := b.handle.Objects
	for _, own := range b.handle.Metas {
		mine := blocks[at : at+own.Bufs]
		at += own.Bufs
		if own.Origin != m.Origin || string(own.Value) != string(m.Value) {
			continue
		}
		if m.Origin != 0 || slices.EqualFunc(mine, its, func(a, b *block) bool { return a.same() == b.same() }) {
			return true
		}
	}
	return false
}

// Record is the rows as Arrow has them, in this process's memory: mapped where
// they lie in one piece, else copied once. Release it when it is no longer
// needed; without that the collector ends the lease once it finds that nothing
// holds the record or its arrays. The numbers below, such as Int64Values(), do
// not hold them.
func (b *Batch) Record() (arrow.RecordBatch, error) {
	blocks, err := b.take()
	if err != nil {
		return nil, err
	}
	defer releaseBlocks(blocks)
	contents, err := read(blocks[:b.handle.Objects])
	if err != nil {
		return nil, err
	}
	defer releaseGiven(contents)
	var columns []column.Column
	defer func() { column.Release(columns) }()
	for i := range b.handle.Parts {
		part := &b.handle.Parts[i]
		for _, its := range part.Columns {
			c, err := gather(its, part.Pieces, contents)
			if err != nil {
				return nil, err
			}
			c.Name, _ = batch.Split(its)
			columns = append(columns, c)
		}
	}
	return column.Record(b.Rows(), columns), nil
}

// Column is one column alone, as Record has it. Release it when it is no longer
// needed.
func (b *Batch) Column(name string) (arrow.Array, error) {
	one, err := b.Select(name)
	if err != nil {
		return nil, err
	}
	defer one.Release()
	record, err := one.Record()
	if err != nil {
		return nil, err
	}
	defer record.Release()
	a := record.Column(0)
	a.Retain()
	return a, nil
}

// gather is a column of rows of several blocks, called as it is there.
func gather(its string, pieces []batch.Piece, contents []given) (column.Column, error) {
	var some []column.Piece
	_, stored := batch.Split(its)
	for i, p := range pieces {
		if p.Len() == 0 && (len(some) > 0 || i < len(pieces)-1) {
			continue // its type matters only where there are no rows at all
		}
		c := contents[p.Buf].column(stored)
		if c == nil {
			return column.Column{}, spec.Errorf(spec.CodeProtocol, "a batch names the column '%s' of an object that has none of that name", stored)
		}
		some = append(some, column.Piece{Column: c, From: p.From, To: p.To, Rows: p.Rows})
	}
	return column.Join(some)
}

func (g *given) column(name string) *column.Column {
	for i := range g.columns {
		if g.columns[i].Name == name {
			return &g.columns[i]
		}
	}
	return nil
}

// batch encodes a batch: its handle, and its buffers, each named or put along.
func (e *encoder) batch(b *Batch) error {
	h, blocks, err := b.thrifty()
	if err != nil {
		return err
	}
	defer releaseBlocks(blocks)
	bufs := make([]wire.Buf, len(blocks))
	for i, block := range blocks {
		if bufs[i], err = block.name(e.message); err != nil {
			return err
		}
	}
	e.extension(extBatch, h.Append(appendBuffers(nil, len(e.out.Bufs), len(bufs))))
	e.out.Bufs = append(e.out.Bufs, bufs...)
	e.message.batches = append(e.message.batches, b)
	return nil
}

// batch reads a batch. Its rows stay where they are.
func (d *decoder) batch(it item) (*Batch, error) {
	if it.kind != isExt || it.code != extBatch {
		return nil, misfitf("a %s where a Batch was expected", it.name)
	}
	bufs, payload, err := d.buffers(it)
	if err != nil {
		return nil, err
	}
	h, err := batch.Parse(payload, len(bufs))
	if err != nil {
		return nil, err
	}
	blocks := make([]*block, 0, len(bufs))
	for _, buf := range bufs {
		b, err := blockOf(buf, d.held)
		if err != nil {
			releaseBlocks(blocks)
			return nil, err
		}
		blocks = append(blocks, b)
	}
	b := newBatch(h, blocks)
	d.batches = append(d.batches, b)
	return b, nil
}
