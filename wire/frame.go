package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/muster-rl/muster/spec"
)

// Version of the protocol; both ends must have the same.
const Version = 1

// Limits of a frame, header not counted.
const (
	MaxFrame   = 1 << 30
	HelloLimit = 1 << 20 // before the hello is accepted; a controller's environment travels in it
	headerSize = 24
)

// Kind says what a frame is; docs/wire.md has the table.
type Kind uint8

// The kinds of frames.
const (
	KindHello    Kind = 1
	KindWelcome  Kind = 2
	KindRequest  Kind = 3
	KindResponse Kind = 4
	KindNotice   Kind = 5
	KindCall     Kind = 8
	KindAnswer   Kind = 9
	KindLeg      Kind = 10
	KindResult   Kind = 11
	KindCancel   Kind = 12
	KindWait     Kind = 13
	KindExpire   Kind = 14
	KindOpen     Kind = 16
	KindClose    Kind = 17
	KindFanout   Kind = 18
)

// Flags of a frame.
type Flags uint8

// The flags; which kind has which is in docs/wire.md.
const (
	FlagError Flags = 1
	FlagRank  Flags = 2
	FlagCast  Flags = 4
	FlagInfo  Flags = 8
	FlagMute  Flags = 16
	FlagAgain Flags = 32
	FlagParts Flags = 64
	FlagWhole Flags = 1 // of a Wait
)

// Header is the fixed part of a frame, but for its sizes.
type Header struct {
	Kind  Kind
	Flags Flags
	ID    uint64
	Peer  uint32 // up to MaxPeer
	Ack   uint32
}

// Frame is one message. Body and Bufs may point into the connection's read
// buffer, which the next Read overwrites: Keep makes them the frame's own.
type Frame struct {
	Header
	Body []byte
	Bufs []Buf

	borrowed bool
}

// Owned says that nothing of the frame is borrowed.
func (f *Frame) Owned() bool { return !f.borrowed }

// Keep copies what the frame only borrowed.
func (f *Frame) Keep() {
	if !f.borrowed {
		return
	}
	f.borrowed = false
	f.Body = bytes.Clone(f.Body)
	if len(f.Bufs) > 0 {
		own := make([]Buf, len(f.Bufs))
		for i, b := range f.Bufs {
			own[i] = Buf{bytes.Clone(b.Data), b.Object}
		}
		f.Bufs = own
	}
}

// Size is the number of bytes that the frame takes after its header.
func Size(prefix, body []byte, bufs []Buf) int {
	n := len(prefix) + len(body) + 8*len(bufs)
	for i := range bufs {
		n += len(bufs[i].Data)
	}
	return n
}

// CheckSize refuses what no reader would take, naming size and limit.
func CheckSize(n, nbuf int) error {
	if n > MaxFrame {
		return spec.Errorf(spec.CodeTooLarge,
			"a message of %d bytes is over the limit of %d (1 GiB): send it in parts, or pass a path or a reference instead", n, MaxFrame)
	}
	if nbuf > 0xffff {
		return spec.Errorf(spec.CodeTooLarge, "a message with %d buffers is over the limit of 65535: put small arrays together first", nbuf)
	}
	return nil
}

// AppendHeader appends the header and the buffer table of a frame.
func AppendHeader(dst []byte, h Header, size int, bufs []Buf) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size)) //nolint:gosec // checked against MaxFrame
	dst = append(dst, byte(h.Kind), byte(h.Flags))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(bufs))) //nolint:gosec // checked by CheckSize
	dst = binary.LittleEndian.AppendUint64(dst, h.ID)
	dst = binary.LittleEndian.AppendUint32(dst, h.Peer)
	dst = binary.LittleEndian.AppendUint32(dst, h.Ack)
	for i := range bufs {
		dst = binary.LittleEndian.AppendUint64(dst, bufs[i].entry())
	}
	return dst
}

// AppendFrame appends a whole frame.
func AppendFrame(dst []byte, h Header, body []byte, bufs []Buf) []byte {
	dst = AppendHeader(dst, h, Size(nil, body, bufs), bufs)
	dst = append(dst, body...)
	for i := range bufs {
		dst = append(dst, bufs[i].Data...)
	}
	return dst
}

// rawHeader is a header as it lies in the stream, checked.
type rawHeader struct {
	Header
	length int
	nbuf   int
}

func parseHeader(b []byte, limit int) (rawHeader, error) {
	h := rawHeader{
		Header: Header{
			Kind:  Kind(b[4]),
			Flags: Flags(b[5]),
			ID:    binary.LittleEndian.Uint64(b[8:]),
			Peer:  binary.LittleEndian.Uint32(b[16:]),
			Ack:   binary.LittleEndian.Uint32(b[20:]),
		},
		length: int(binary.LittleEndian.Uint32(b)),
		nbuf:   int(binary.LittleEndian.Uint16(b[6:])),
	}
	if h.length > limit {
		return h, spec.Errorf(spec.CodeProtocol, "a frame claims %d bytes, the limit here is %d: is the other end Muster?", h.length, limit)
	}
	if !h.Kind.known() {
		return h, spec.Errorf(spec.CodeProtocol, "a frame of unknown kind %d", h.Kind)
	}
	if 8*h.nbuf > h.length {
		return h, spec.Errorf(spec.CodeProtocol, "a frame of %d bytes cannot hold a table of %d buffers", h.length, h.nbuf)
	}
	return h, nil
}

func (k Kind) known() bool {
	switch {
	case k >= KindHello && k <= KindNotice, k >= KindCall && k <= KindExpire, k >= KindOpen && k <= KindFanout:
		return true
	}
	return false
}

// split cuts the bytes after a header into body and buffers.
func (h rawHeader) split(rest []byte) (Frame, error) {
	f := Frame{Header: h.Header}
	if h.nbuf == 0 {
		f.Body = rest
		return f, nil
	}
	table, rest := rest[:8*h.nbuf], rest[8*h.nbuf:]
	total := uint64(0)
	for i := range h.nbuf {
		n := binary.LittleEndian.Uint64(table[8*i:]) &^ refBit
		if n > uint64(len(rest)) || total+n > uint64(len(rest)) {
			return f, spec.Errorf(spec.CodeProtocol, "the buffers of a frame are longer than the frame (%d bytes)", h.length)
		}
		total += n
	}
	f.Body, rest = rest[:uint64(len(rest))-total], rest[uint64(len(rest))-total:]
	f.Bufs = make([]Buf, h.nbuf)
	for i := range h.nbuf {
		entry := binary.LittleEndian.Uint64(table[8*i:])
		n := entry &^ refBit
		b := &f.Bufs[i]
		b.Data, rest = rest[:n:n], rest[n:]
		if entry&refBit != 0 {
			if err := b.check(); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// ParseFrame parses one whole frame from the start of b, as Fanout carries it.
func ParseFrame(b []byte) (Frame, error) {
	if len(b) < headerSize {
		return Frame{}, spec.Errorf(spec.CodeProtocol, "a frame of %d bytes is shorter than a header (%d)", len(b), headerSize)
	}
	h, err := parseHeader(b, MaxFrame)
	if err != nil {
		return Frame{}, err
	}
	if len(b) < headerSize+h.length {
		return Frame{}, spec.Errorf(spec.CodeProtocol, "a frame of %d bytes ends %d bytes early", h.length, headerSize+h.length-len(b))
	}
	return h.split(b[headerSize : headerSize+h.length])
}
