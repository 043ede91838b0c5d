package wire

import (
	"encoding/binary"

	"github.com/muster-rl/muster/spec"
)

// Buf is a buffer of a frame: bytes that travel in it, or a reference to bytes
// that stay where they are, in a node's store.
type Buf struct {
	Data   []byte // of a reference: its encoding
	Object uint64 // of a reference: the object that it names; else 0
}

// Bytes makes buffers that travel in the frame.
func Bytes(data ...[]byte) []Buf {
	bufs := make([]Buf, len(data))
	for i, b := range data {
		bufs[i].Data = b
	}
	return bufs
}

// Ref is a stretch of an object's bytes.
type Ref struct {
	Object uint64
	Offset uint64
	Length uint64
	// Segment is where the object lies, for whom it was lent to; 0: not told.
	Segment uint32
	// New: its maker names the object for the first time, and holds it until it
	// says that it does not any more.
	New bool
}

const (
	refSize = 32
	refBit  = 1 << 63 // in the table of buffers
	refNew  = 1       // flag of a reference
)

// Buf is the reference as a frame carries it.
func (r Ref) Buf() Buf {
	b := make([]byte, 0, refSize)
	b = binary.LittleEndian.AppendUint64(b, r.Object)
	b = binary.LittleEndian.AppendUint64(b, r.Offset)
	b = binary.LittleEndian.AppendUint64(b, r.Length)
	flags := uint32(0)
	if r.New {
		flags = refNew
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	return Buf{Data: binary.LittleEndian.AppendUint32(b, r.Segment), Object: r.Object}
}

// Ref reads a reference; false for bytes.
func (b *Buf) Ref() (Ref, bool) {
	if b.Object == 0 {
		return Ref{}, false
	}
	return Ref{
		Object:  b.Object,
		Offset:  binary.LittleEndian.Uint64(b.Data[8:]),
		Length:  binary.LittleEndian.Uint64(b.Data[16:]),
		Segment: binary.LittleEndian.Uint32(b.Data[28:]),
		New:     b.Data[24]&refNew != 0,
	}, true
}

// TakeNew says whether a reference is New, and makes it one that is not. The
// buffer must be its frame's own.
func (b *Buf) TakeNew() bool {
	if b.Object == 0 || b.Data[24]&refNew == 0 {
		return false
	}
	b.Data[24] &^= refNew
	return true
}

// SetSegment says in a reference where its object lies. The buffer must be its
// frame's own.
func (b *Buf) SetSegment(segment uint32) {
	if b.Object != 0 {
		binary.LittleEndian.PutUint32(b.Data[28:], segment)
	}
}

// HasRefs says whether any of bufs is a reference.
func HasRefs(bufs []Buf) bool {
	for i := range bufs {
		if bufs[i].Object != 0 {
			return true
		}
	}
	return false
}

// entry is the buffer's place in a frame's table.
func (b *Buf) entry() uint64 {
	if b.Object != 0 {
		return refBit | refSize
	}
	return uint64(len(b.Data))
}

// check reads what a reference names.
func (b *Buf) check() error {
	if len(b.Data) != refSize {
		return spec.Errorf(spec.CodeProtocol, "a reference of %d bytes instead of %d", len(b.Data), refSize)
	}
	if b.Object = binary.LittleEndian.Uint64(b.Data); b.Object == 0 {
		return spec.Errorf(spec.CodeProtocol, "a reference that names no object")
	}
	offset, length := binary.LittleEndian.Uint64(b.Data[8:]), binary.LittleEndian.Uint64(b.Data[16:])
	if offset+length < offset {
		return spec.Errorf(spec.CodeProtocol, "a reference to %d bytes from %d on, which no object has", length, offset)
	}
	return nil
}
