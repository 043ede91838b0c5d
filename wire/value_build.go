package wire

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/muster-rl/muster/spec"
)

// Value is an encoded value together with the buffers that it uses: the body
// and the buffers of a frame, come in or in the making. The zero Value is ready
// to be appended to. Bytes are copied in, buffers are shared.
type Value struct {
	Raw  []byte
	Bufs []Buf
}

// Reset empties v and keeps its memory.
func (v *Value) Reset() {
	clear(v.Bufs)
	v.Raw, v.Bufs = v.Raw[:0], v.Bufs[:0]
}

// Array appends the head of an array of n values.
func (v *Value) Array(n int) { v.Raw = appendArrayHead(v.Raw, n) }

// Append appends one value that came in a frame with these buffers. Those that
// it uses are appended to v's, and the value's copy is made to name them. From
// a frame without buffers it is one plain copy, unread.
func (v *Value) Append(raw []byte, bufs []Buf) error { return v.append(raw, 1, bufs) }

// append is Append for n values, one after another. After an error v is what
// it was.
func (v *Value) append(raw []byte, n int, bufs []Buf) error {
	start, had := len(v.Raw), len(v.Bufs)
	v.Raw = append(v.Raw, raw...)
	if len(bufs) == 0 {
		return nil
	}
	own := v.Raw[start:]
	err := buffersOf(own, n, func(pos int, first, n uint32) error {
		if uint64(first)+uint64(n) > uint64(len(bufs)) {
			return spec.Errorf(spec.CodeProtocol, "a malformed value: it names buffers %d to %d of a frame that has %d", first, uint64(first)+uint64(n), len(bufs))
		}
		if err := CheckSize(0, len(v.Bufs)+int(n)); err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(own[pos:], uint32(len(v.Bufs)))
		v.Bufs = append(v.Bufs, bufs[first:first+n]...)
		return nil
	})
	if err != nil {
		clear(v.Bufs[had:])
		v.Raw, v.Bufs = v.Raw[:start], v.Bufs[:had]
	}
	return err
}

// List appends a list of parts, each an element.
func (v *Value) List(parts []Value) error {
	start, had := len(v.Raw), len(v.Bufs)
	v.Array(len(parts))
	for i := range parts {
		if err := v.Append(parts[i].Raw, parts[i].Bufs); err != nil {
			v.Raw, v.Bufs = v.Raw[:start], v.Bufs[:had]
			return err
		}
	}
	return nil
}

// Chain appends one list of the elements of all parts, in order, or one batch of
// their rows. Where a part is neither, or they are not all alike, it appends
// nothing and returns false. Of shards, where not nil, each part is what became
// of one: the caller's order is restored where that can be.
func (v *Value) Chain(parts []Value, shards [][]uint32) (bool, error) {
	if len(parts) > 0 && isBatch(parts[0].Raw) {
		for i := range parts {
			if !isBatch(parts[i].Raw) {
				return false, nil
			}
		}
		return true, v.chainBatches(parts, shards)
	}
	total := 0
	for i := range parts {
		h, err := readHead(parts[i].Raw, 0)
		if err != nil {
			return false, err
		}
		if h.then != array {
			return false, nil
		}
		total += h.count
	}
	if total > math.MaxUint32 {
		return false, spec.Errorf(spec.CodeTooLarge, "a list of %d elements is over the limit of %d", total, uint32(math.MaxUint32))
	}
	start, had := len(v.Raw), len(v.Bufs)
	if shards != nil {
		done, err := v.chainRestored(parts, shards)
		if err != nil {
			v.Raw, v.Bufs = v.Raw[:start], v.Bufs[:had]
		}
		if done || err != nil {
			return done, err
		}
	}
	v.Array(total)
	for i := range parts {
		h, err := readHead(parts[i].Raw, 0)
		if err == nil {
			err = v.append(parts[i].Raw[h.end:], h.count, parts[i].Bufs)
		}
		if err != nil {
			v.Raw, v.Bufs = v.Raw[:start], v.Bufs[:had]
			return false, err
		}
	}
	return true, nil
}

// Open begins a payload of p's arguments in v. Each argument must follow, in
// order, by Whole, Element or Rows, and then Close.
func (p *Payload) Open(v *Value) {
	v.Raw = append(v.Raw, 0x92)
	v.Array(p.Positional)
}

// Close ends what Open began.
func (p *Payload) Close(v *Value) {
	if len(p.Args) == p.Positional {
		v.Raw = append(v.Raw, 0x80)
	}
}

// lead appends what comes before argument i.
func (p *Payload) lead(v *Value, i int) *Arg {
	if i == p.Positional {
		v.Raw = appendMapHead(v.Raw, len(p.Args)-p.Positional)
	}
	a := &p.Args[i]
	v.Raw = append(v.Raw, a.key...)
	return a
}

// Whole appends argument i as it is, without a Broadcast around it.
func (p *Payload) Whole(v *Value, i int) error {
	a := p.lead(v, i)
	if a.Kind == ArgBroadcast {
		return v.Append(a.body, a.Bufs)
	}
	return v.Append(a.Raw, a.Bufs)
}

// Instead appends another value, with the buffers of its own frame, in the place
// of argument i.
func (p *Payload) Instead(v *Value, i int, raw []byte, bufs []Buf) error {
	p.lead(v, i)
	return v.Append(raw, bufs)
}

// Element appends element k of argument i.
func (p *Payload) Element(v *Value, i, k int) error {
	body, err := p.Args[i].cut(k, k+1)
	if err != nil {
		return err
	}
	return v.Append(body, p.lead(v, i).Bufs)
}

// Rows appends elements from to (not included) to of argument i, as a list or
// tuple like the argument itself.
func (p *Payload) Rows(v *Value, i, from, to int) error {
	if a := &p.Args[i]; a.Kind == ArgBatch {
		if from < 0 || from > to || to > a.Len {
			return spec.Errorf(spec.CodeInternal, "rows %d to %d of a batch of %d were asked for", from, to, a.Len)
		}
		h := a.Batch.Slice(from, to)
		h.Cut = nil // it is cut
		p.lead(v, i)
		return v.appendBatch(&h, a.batchBufs)
	}
	body, err := p.Args[i].cut(from, to)
	if err != nil {
		return err
	}
	return v.elements(p.lead(v, i), body, to-from)
}

// elements appends n elements of a as a list or tuple like it.
func (v *Value) elements(a *Arg, body []byte, n int) error {
	if a.Kind == ArgTuple {
		v.Raw = appendExtHead(v.Raw, extTuple, arrayHeadSize(n)+len(body))
	}
	v.Array(n)
	return v.append(body, n, a.Bufs)
}

// cut returns the bytes of elements from to (not included) to.
func (a *Arg) cut(from, to int) ([]byte, error) {
	if from < 0 || from > to || to > a.Len || a.Kind == ArgWhole || a.Kind > ArgPerRank {
		return nil, spec.Errorf(spec.CodeInternal, "elements %d to %d of a %s of length %d were asked for", from, to, TypeName(a.Raw), a.Len)
	}
	start, err := a.at(from)
	if err != nil {
		return nil, err
	}
	end, err := a.at(to)
	if err != nil {
		return nil, err
	}
	return a.body[start:end], nil
}

func arrayHeadSize(n int) int {
	switch {
	case n < 16:
		return 1
	case n <= math.MaxUint16:
		return 3
	}
	return 5
}

// The heads below are written in their shortest form. A count or size is that
// of something that lies in memory as a frame's part, so it fits 32 bits.

func appendArrayHead(dst []byte, n int) []byte {
	switch arrayHeadSize(n) {
	case 1:
		return append(dst, 0x90|byte(n))
	case 3:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
}

func appendMapHead(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x80|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xde), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, 0xdf), uint32(n))
}

func appendExtHead(dst []byte, code int8, size int) []byte {
	switch {
	case size == 1, size == 2, size == 4, size == 8, size == 16:
		dst = append(dst, 0xd4+byte(bits.TrailingZeros(uint(size))))
	case size <= math.MaxUint8:
		dst = append(dst, 0xc7, byte(size))
	case size <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xc8), uint16(size))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xc9), uint32(size))
	}
	return append(dst, byte(code))
}
