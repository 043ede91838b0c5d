package value

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Message is values on their way out over a link: encoded, with the buffers that
// they use and a right to the objects that those name. It may be filled by one
// goroutine.
type Message struct {
	wire.Value
	link    *object.Link // nil: what it is for is not known yet
	named   *object.Set  // nil: nothing
	batches []*Batch     // that were appended
}

// NewMessage makes an empty one. Without a link nothing is put into a store.
func NewMessage(link *object.Link) *Message { return &Message{link: link} }

// hold has the message use an object.
func (m *Message) hold(o *object.Object) {
	if m.named == nil {
		m.named = object.NewSet()
	}
	m.named.Add(o)
}

func (m *Message) stores() *object.Stores {
	if m.link == nil {
		return nil
	}
	return m.link.Stores()
}

// Append appends a value. Large []byte and the Data of arrays are not copied:
// they must not change until they are sent, or Settle has returned. After an
// error the message is what it was.
func (m *Message) Append(v any) error {
	return m.appendWith(func(e *encoder) error { return e.any(v) })
}

func (m *Message) appendWith(encode func(*encoder) error) error {
	raw, bufs := len(m.Raw), len(m.Bufs)
	if err := encode(&encoder{out: &m.Value, message: m}); err != nil {
		clear(m.Bufs[bufs:])
		m.Raw, m.Bufs = m.Raw[:raw], m.Bufs[:bufs]
		return explain(err, "cannot be sent")
	}
	return nil
}

// AppendPayload appends the arguments of a call and says whether there are
// marks among them.
func (m *Message) AppendPayload(args []any, kwargs Kwargs) (marked bool, err error) {
	m.Array(2)
	m.Array(len(args))
	for i, arg := range args {
		is, err := m.appendArg(arg)
		if err != nil {
			return false, about(err, fmt.Sprintf("argument %d", i))
		}
		marked = marked || is
	}
	m.Raw = msgp.AppendMapHeader(m.Raw, uint32(len(kwargs))) //nolint:gosec // arguments
	for _, name := range slices.Sorted(maps.Keys(kwargs)) {
		m.Raw = msgp.AppendString(m.Raw, name)
		is, err := m.appendArg(kwargs[name])
		if err != nil {
			return false, about(err, fmt.Sprintf("argument %q", name))
		}
		marked = marked || is
	}
	return marked, nil
}

// Settle puts all large buffers into one object of the store, where there is
// one, and refuses what no frame can carry. what says for people what they are.
func (m *Message) Settle(what string) error {
	var large []int
	var parts [][]byte
	for i := range m.Bufs {
		if b := &m.Bufs[i]; b.Object == 0 && len(b.Data) >= outOfBand {
			large, parts = append(large, i), append(parts, b.Data)
		}
	}
	if stores := m.stores(); stores != nil && len(large) > 0 {
		o, offsets, err := stores.Put(what, parts...)
		if err != nil {
			return err
		}
		m.hold(o)
		o.Release()
		for k, i := range large {
			m.Bufs[i] = wire.Ref{Object: o.ID, Offset: offsets[k], Length: uint64(len(parts[k]))}.Buf()
		}
	}
	return wire.CheckSize(wire.Size(nil, m.Raw, m.Bufs), len(m.Bufs))
}

// Send has queue put the message on its link's connection.
func (m *Message) Send(queue func()) { m.link.Send(m.named, m.Bufs, queue) }

// Release gives the objects back that the message named.
func (m *Message) Release() { m.named.Release() }

// ReleaseBatches releases the batches that were appended to the message, which
// has its own right to what they name.
func (m *Message) ReleaseBatches() {
	for _, b := range m.batches {
		b.Release()
	}
	m.batches = nil
}

// ReleaseIn releases the batches in a value that is not sent after all.
func ReleaseIn(v any) {
	switch v := v.(type) {
	case *Batch:
		if v != nil {
			v.Release()
		}
	case []*Batch:
		for _, b := range v {
			ReleaseIn(b)
		}
	case []any:
		for _, one := range v {
			ReleaseIn(one)
		}
	case map[string]any:
		for _, one := range v {
			ReleaseIn(one)
		}
	}
}

// pass takes over a buffer that came with objects in held, as it is where the
// message goes to the same head, else its bytes.
func (m *Message) pass(b wire.Buf, held *object.Set) (wire.Buf, error) {
	ref, ok := b.Ref()
	if !ok {
		return b, nil
	}
	o := held.Find(ref.Object)
	if o == nil {
		return b, spec.Errorf(spec.CodeInternal, "a value whose bytes are in a store, and were not fetched")
	}
	defer o.Release()
	if m.link == nil || o.Stores().Same(m.stores()) {
		m.hold(o)
		return b, nil
	}
	data, err := fetch(o, ref)
	return wire.Buf{Data: data}, err
}

// fetch copies what a reference stands for.
func fetch(o *object.Object, ref wire.Ref) ([]byte, error) {
	mapped, err := object.Open(o)
	if err != nil {
		return nil, err
	}
	defer mapped[0].Close()
	data, err := mapped[0].Cut(ref.Offset, ref.Length)
	return slices.Clone(data), err
}
