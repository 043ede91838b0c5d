package wire

import (
	"encoding/binary"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

// readBatch reads the handle inside extension 36, and which buffers of its
// frame are its own.
func readBatch(inside []byte) (h batch.Handle, first, n int, err error) {
	if len(inside) < 8 {
		return h, 0, 0, spec.Errorf(spec.CodeProtocol, "a malformed value: a batch of %d bytes", len(inside))
	}
	first, n = int(binary.LittleEndian.Uint32(inside)), int(binary.LittleEndian.Uint32(inside[4:]))
	h, err = batch.Parse(inside[8:], n)
	return h, first, n, err
}

// isBatch says that a value is a batch.
func isBatch(raw []byte) bool {
	h, err := readHead(raw, 0)
	return err == nil && h.then == extension && h.code == extBatch
}

// parseBatch makes a the batch inside its extension.
func (a *Arg) parseBatch(inside []byte) error {
	h, first, n, err := readBatch(inside)
	if err != nil {
		return err
	}
	if a.Bufs != nil && first+n > len(a.Bufs) {
		return outsideFrame(first, n, len(a.Bufs))
	}
	a.Kind, a.Len, a.Batch = ArgBatch, h.Rows, &h
	if a.Bufs != nil {
		a.batchBufs = a.Bufs[first : first+n]
	}
	return nil
}

// appendBatch appends a batch. bufs are those that the handle numbers; the ones
// that it does not use any more are left out.
func (v *Value) appendBatch(h *batch.Handle, bufs []Buf) error {
	compact, kept := h.Compact()
	if err := CheckSize(0, len(v.Bufs)+len(kept)); err != nil {
		return err
	}
	body := make([]byte, 8, 256)
	binary.LittleEndian.PutUint32(body, uint32(len(v.Bufs)))
	binary.LittleEndian.PutUint32(body[4:], uint32(len(kept)))
	body = compact.Append(body)
	v.Raw = append(appendExtHead(v.Raw, extBatch, len(body)), body...)
	for _, k := range kept {
		v.Bufs = append(v.Bufs, bufs[k])
	}
	return nil
}

// Take appends the named rows of argument i, in that order, as a value like the
// argument itself.
func (p *Payload) Take(v *Value, i int, rows []uint32) error {
	a := &p.Args[i]
	if a.Kind == ArgBatch {
		h := a.Batch.Take(rows)
		h.Cut = nil // it is cut
		p.lead(v, i)
		return v.appendBatch(&h, a.batchBufs)
	}
	var body []byte
	for _, row := range rows {
		one, err := a.cut(int(row), int(row)+1)
		if err != nil {
			return err
		}
		body = append(body, one...)
	}
	p.lead(v, i)
	return v.elements(a, body, len(rows))
}

// Empty appends argument i, a batch, without its rows.
func (p *Payload) Empty(v *Value, i int) error {
	a := &p.Args[i]
	if a.Kind != ArgBatch {
		return p.Whole(v, i)
	}
	h := a.Batch.Empty()
	h.Cut = nil
	p.lead(v, i)
	return v.appendBatch(&h, a.batchBufs)
}

// chainBatches appends the rows of all parts, batches, as one. Of shards, where
// not nil, each part is what became of one: the order of their rows is restored
// where that can be.
func (v *Value) chainBatches(parts []Value, shards [][]uint32) error {
	handles := make([]batch.Handle, len(parts))
	bufs := make([][]Buf, len(parts))
	for i := range parts {
		h, err := readHead(parts[i].Raw, 0)
		if err != nil {
			return err
		}
		handle, first, n, err := readBatch(parts[i].Raw[h.start:h.end])
		if err != nil {
			return err
		}
		if first+n > len(parts[i].Bufs) {
			return outsideFrame(first, n, len(parts[i].Bufs))
		}
		handles[i], bufs[i] = handle, parts[i].Bufs[first:first+n]
	}
	joined, sources, err := batch.Concat(handles, func(handle, buf int) Ref {
		ref, _ := bufs[handle][buf].Ref()
		return ref
	})
	if err != nil {
		return err
	}
	all := make([]Buf, len(sources))
	for i, s := range sources {
		all[i] = bufs[s.Handle][s.Buf]
	}
	if shards != nil {
		lens := make([]int, len(handles))
		for i := range handles {
			lens[i] = handles[i].Rows
		}
		if order, size := batch.Restore(shards, lens); order != nil {
			joined = joined.TakeBlocks(order, size)
		}
	}
	return v.appendBatch(&joined, all)
}

// chainRestored is Chain for lists whose elements go back to where their rows
// came from. It says whether they could.
func (v *Value) chainRestored(parts []Value, shards [][]uint32) (bool, error) {
	lens := make([]int, len(parts))
	for i := range parts {
		h, err := readHead(parts[i].Raw, 0)
		if err != nil {
			return false, err
		}
		lens[i] = h.count
	}
	order, size := batch.Restore(shards, lens)
	if order == nil {
		return false, nil
	}
	type element struct {
		raw  []byte
		bufs []Buf
	}
	all := make([]element, 0, len(order)*size)
	for i := range parts {
		h, err := readHead(parts[i].Raw, 0)
		if err != nil {
			return false, err
		}
		at := h.end
		for range h.count {
			end, err := skipValues(parts[i].Raw, at, 1, MaxDepth)
			if err != nil {
				return false, err
			}
			all = append(all, element{parts[i].Raw[at:end], parts[i].Bufs})
			at = end
		}
	}
	v.Array(len(all))
	for _, block := range order {
		for _, e := range all[int(block)*size : (int(block)+1)*size] {
			if err := v.Append(e.raw, e.bufs); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func outsideFrame(first, n, bufs int) error {
	return spec.Errorf(spec.CodeProtocol, "a malformed value: it names buffers %d to %d of a frame that has %d", first, first+n, bufs)
}
