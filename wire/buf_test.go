package wire

import (
	"encoding/binary"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	ref := Ref{Object: 7<<48 | 5, Offset: 64, Length: 1 << 40, New: true}
	bufs := append(Bytes([]byte("in the frame")), ref.Buf())
	frame := AppendFrame(nil, Header{Kind: KindCall, ID: 3}, []byte{0xc0}, bufs)
	f, err := ParseFrame(frame)
	if err != nil || len(f.Bufs) != 2 || string(f.Bufs[0].Data) != "in the frame" {
		t.Fatalf("%+v, %v", f, err)
	}
	if _, is := f.Bufs[0].Ref(); is || !HasRefs(f.Bufs) || HasRefs(f.Bufs[:1]) {
		t.Error("bytes and references are mixed up")
	}
	if got, is := f.Bufs[1].Ref(); !is || got != ref {
		t.Errorf("got %+v, want %+v", got, ref)
	}
	if f.Bufs[0].TakeNew() || !f.Bufs[1].TakeNew() || f.Bufs[1].TakeNew() {
		t.Error("a reference is new once")
	}
	ref.New = false
	if got, _ := f.Bufs[1].Ref(); got != ref {
		t.Errorf("got %+v, want %+v", got, ref)
	}
	// Moved into another frame it is still one.
	var v Value
	if err := v.Append(buffered(1, 1, ""), f.Bufs); err != nil || len(v.Bufs) != 1 || v.Bufs[0].Object != ref.Object {
		t.Errorf("%+v, %v", v, err)
	}
	f, err = ParseFrame(AppendFrame(nil, Header{Kind: KindLeg}, v.Raw, v.Bufs))
	if got, is := f.Bufs[0].Ref(); err != nil || !is || got != ref {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMalformedReferences(t *testing.T) {
	whole := func(data []byte) []byte {
		frame := AppendFrame(nil, Header{Kind: KindCall}, []byte{0xc0}, Bytes(data))
		binary.LittleEndian.PutUint64(frame[headerSize:], refBit|uint64(len(data)))
		return frame
	}
	far := Ref{Object: 1, Offset: 1 << 63, Length: 1 << 63}.Buf()
	for what, frame := range map[string][]byte{
		"31 bytes":        whole(make([]byte, 31)),
		"names no object": whole(make([]byte, 32)),
		"no object has":   whole(far.Data),
	} {
		if _, err := ParseFrame(frame); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
