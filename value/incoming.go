package value

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"runtime"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Incoming is a frame whose values are read one after another.
type Incoming struct {
	held    *object.Set
	batches []*Batch
}

// NewIncoming is of a frame whose objects are in held.
func NewIncoming(held *object.Set) *Incoming { return &Incoming{held: held} }

// Release gives back all that the frame names, and releases the batches that
// were read from it.
func (in *Incoming) Release() {
	for _, b := range in.batches {
		b.Release()
	}
	in.held.Release()
}

// DecodeInto is Decode for a settable reflect.Value. Bytes that lie in a store
// are copied from there; the rows of batches stay.
func (in *Incoming) DecodeInto(raw []byte, bufs []wire.Buf, target reflect.Value) error {
	d := decoder{bufs: bufs, held: in.held}
	defer d.close()
	rest, err := d.value(raw, target)
	if err == nil && len(rest) > 0 {
		err = spec.Errorf(spec.CodeProtocol, "a malformed value: %d bytes follow its end", len(rest))
	}
	in.batches = append(in.batches, d.batches...)
	return explain(err, "cannot be read into "+target.Type().String())
}

// close ends the leases of what was copied from.
func (d *decoder) close() {
	for _, m := range d.mapped {
		m.Close()
	}
	runtime.KeepAlive(d.held)
}

// buffers are those that an extension names, and the rest of its inside.
func (d *decoder) buffers(it item) (bufs []wire.Buf, rest []byte, err error) {
	if len(it.data) < 8 {
		return nil, nil, short()
	}
	first, n := uint64(binary.LittleEndian.Uint32(it.data)), uint64(binary.LittleEndian.Uint32(it.data[4:]))
	if first+n > uint64(len(d.bufs)) {
		return nil, nil, spec.Errorf(spec.CodeProtocol, "a malformed value: it names buffers %d to %d of a frame that has %d", first, first+n, len(d.bufs))
	}
	return d.bufs[first : first+n], it.data[8:], nil
}

// buffer is the bytes of the one buffer that an extension names.
func (d *decoder) buffer(it item) (buf, rest []byte, err error) {
	bufs, rest, err := d.buffers(it)
	if err == nil && len(bufs) != 1 {
		err = short()
	}
	if err != nil {
		return nil, nil, err
	}
	ref, ok := bufs[0].Ref()
	if !ok {
		return bufs[0].Data, rest, nil
	}
	m := d.mapped[ref.Object]
	if m == nil {
		o := d.held.Find(ref.Object)
		if o == nil {
			return nil, nil, spec.Errorf(spec.CodeInternal, "a value whose bytes are in a store that cannot be reached from here")
		}
		defer o.Release()
		all, err := object.Open(o)
		if err != nil {
			return nil, nil, err
		}
		if d.mapped == nil {
			d.mapped = map[uint64]*object.Mapped{}
		}
		m = all[0]
		d.mapped[ref.Object] = m
	}
	// Slices do not hold a lease, so what they are of has to be the caller's own.
	data, err := m.Cut(ref.Offset, ref.Length)
	return bytes.Clone(data), rest, err
}

// raw keeps a value as it is, with a right of its own to what it names.
func (d *decoder) raw(value []byte) (Raw, error) {
	var own Raw
	err := own.value.Append(value, d.bufs)
	if err != nil || !wire.HasRefs(own.value.Bufs) {
		return own, err
	}
	own.held = object.NewSet()
	for i := range own.value.Bufs {
		if ref, ok := own.value.Bufs[i].Ref(); ok {
			if o := d.held.Find(ref.Object); o != nil {
				own.held.Add(o)
				o.Release()
			}
		}
	}
	return own, nil
}
