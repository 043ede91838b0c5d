package fake

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Leg is a worker's part in a call. It is answered once, from anywhere, by one
// of Return, Report and Raise; further answers are ignored.
type Leg struct {
	Worker  *Worker
	Call    uint64
	Method  string
	Parent  uint64
	Origin  uint64 // the call as its caller names it
	Payload []byte // [[arg, …], {name: arg, …}]; shared by the legs of a cast
	Bufs    []wire.Buf
	Cast    bool // came with the same bytes for every rank

	ack  uint32 // results of legs up to there may be dropped
	seq  uint32 // how many legs its worker has got with it
	done bool
	head wire.Header // its result
	body []byte
	bufs []wire.Buf
}

// readLeg takes a Leg frame apart. What it returns is its own.
func readLeg(f *wire.Frame) (Leg, error) {
	leg := Leg{Call: f.ID, Cast: f.Flags&wire.FlagCast != 0, ack: f.Ack}
	n, b, err := msgp.ReadArrayHeaderBytes(f.Body)
	if err == nil && n != 4 {
		err = fmt.Errorf("%d parts instead of 4", n)
	}
	if err == nil {
		leg.Method, b, err = msgp.ReadStringBytes(b)
	}
	if err == nil {
		leg.Parent, b, err = msgp.ReadUint64Bytes(b)
	}
	if err == nil {
		leg.Origin, b, err = msgp.ReadUint64Bytes(b)
	}
	if err != nil {
		return leg, fmt.Errorf("a leg that cannot be read: %w", err)
	}
	leg.Payload = bytes.Clone(b)
	for _, buf := range f.Bufs {
		leg.Bufs = append(leg.Bufs, wire.Buf{Data: bytes.Clone(buf.Data), Object: buf.Object})
	}
	return leg, nil
}

// Return answers with a value, which must not change any more.
func (l *Leg) Return(value []byte, bufs ...[]byte) {
	l.answer(wire.Header{Kind: wire.KindResult, ID: l.Call}, value, wire.Bytes(bufs...))
}

// ReturnValue answers with a value whose buffers may be references.
func (l *Leg) ReturnValue(v wire.Value) {
	l.answer(wire.Header{Kind: wire.KindResult, ID: l.Call}, v.Raw, v.Bufs)
}

// Report answers with a value and tells the worker's place, which changed.
func (l *Leg) Report(info spec.RankInfo, value []byte, bufs ...[]byte) {
	body, err := info.MarshalMsg([]byte{0x92})
	if err != nil { // no field of it can fail to encode
		panic(err)
	}
	l.answer(wire.Header{Kind: wire.KindResult, Flags: wire.FlagInfo, ID: l.Call}, append(body, value...), wire.Bytes(bufs...))
}

// Raise answers with an error.
func (l *Leg) Raise(e *spec.Error) {
	l.answer(wire.Header{Kind: wire.KindResult, Flags: wire.FlagError, ID: l.Call}, wire.AppendError(nil, e), nil)
}

// answer keeps the result until the head says that it need not be, and sends it,
// if there is a head.
func (l *Leg) answer(h wire.Header, body []byte, bufs []wire.Buf) {
	w := l.Worker
	w.mu.Lock()
	at := slices.Index(w.legs, l)
	if at >= 0 {
		w.legs = slices.Delete(w.legs, at, at+1)
		l.done, l.head, l.body, l.bufs = true, h, body, bufs
	}
	w.mu.Unlock()
	if at >= 0 {
		w.Send(h, body, bufs...)
	}
}
