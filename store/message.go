package store

import (
	"fmt"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// What a client and a store say to each other, docs/wire.md. Written by hand:
// counts are checked against the bytes that are there before anything is made.

// The verbs of a client.
const (
	verbAlloc = "alloc"
	verbOpen  = "open"
	verbSeal  = "seal"
	verbClose = "close"
	verbFree  = "free"
	verbNeed  = "need"
)

// maxWhat bounds what people are told of an object.
const maxWhat = 200

// leases are view leases of one object.
type leases struct {
	object uint64
	count  int
}

// message is the body of any of the verbs.
type message struct {
	object  uint64
	size    uint64
	what    string
	objects []uint64 // open
	some    bool     // open: not all bytes of other nodes' objects are needed
	closed  []leases // close
	spans   []span   // need
}

func (m *message) read(verb string, b []byte) error {
	*m = message{objects: m.objects[:0], closed: m.closed[:0], spans: m.spans[:0]}
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for ; err == nil && n > 0; n-- {
		var key []byte
		if key, b, err = msgp.ReadStringZC(b); err != nil {
			break
		}
		switch string(key) {
		case "object":
			m.object, b, err = msgp.ReadUint64Bytes(b)
		case "size":
			m.size, b, err = msgp.ReadUint64Bytes(b)
		case "what":
			var text []byte
			text, b, err = msgp.ReadStringZC(b)
			m.what = short(text)
		case "objects":
			if verb == verbClose {
				b, err = m.readClosed(b)
			} else {
				b, err = m.readObjects(b)
			}
		case "some":
			m.some, b, err = msgp.ReadBoolBytes(b)
		case "spans":
			b, err = m.readSpans(b)
		default:
			b, err = msgp.Skip(b)
		}
	}
	if err == nil && len(b) > 0 {
		err = fmt.Errorf("%d bytes too many", len(b))
	}
	if err != nil {
		return spec.Errorf(spec.CodeProtocol, "a request %s that cannot be read: %v", verb, err)
	}
	return nil
}

// count reads the head of an array whose elements have at least one byte each.
func count(b []byte) (int, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err == nil && uint64(n) > uint64(len(b)) {
		err = fmt.Errorf("an array claims %d elements in %d bytes", n, len(b))
	}
	return int(n), b, err
}

func (m *message) readObjects(b []byte) ([]byte, error) {
	n, b, err := count(b)
	for ; err == nil && n > 0; n-- {
		var id uint64
		id, b, err = msgp.ReadUint64Bytes(b)
		m.objects = append(m.objects, id)
	}
	return b, err
}

func (m *message) readSpans(b []byte) ([]byte, error) {
	n, b, err := count(b)
	for ; err == nil && n > 0; n-- {
		var parts int
		var s span
		if parts, b, err = count(b); err == nil && parts != 2 {
			err = fmt.Errorf("%d parts instead of where bytes begin and end", parts)
		}
		if err == nil {
			s.from, b, err = msgp.ReadUint64Bytes(b)
		}
		if err == nil {
			s.to, b, err = msgp.ReadUint64Bytes(b)
		}
		m.spans = append(m.spans, s)
	}
	return b, err
}

func (m *message) readClosed(b []byte) ([]byte, error) {
	n, b, err := count(b)
	for ; err == nil && n > 0; n-- {
		var parts int
		var c leases
		if parts, b, err = count(b); err == nil && parts != 2 {
			err = fmt.Errorf("%d parts instead of object and count", parts)
		}
		if err == nil {
			c.object, b, err = msgp.ReadUint64Bytes(b)
		}
		if err == nil {
			c.count, b, err = msgp.ReadIntBytes(b)
		}
		m.closed = append(m.closed, c)
	}
	return b, err
}

// short cuts a text for people, between characters.
func short(text []byte) string {
	if len(text) <= maxWhat {
		return string(text)
	}
	cut := maxWhat
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return string(text[:cut]) + "…"
}

// answer is what alloc and open are answered with.
type answer struct {
	object   uint64 // alloc
	segment  uint64
	capacity uint64
	fresh    bool
	opened   []opened // open
	partial  []uint64 // those of them of which not all is here
	sent     []uint64 // segments whose descriptors go along
	fds      []int
	stale    []uint64
}

// opened is where an object lies.
type opened struct{ segment, size uint64 }

func (a *answer) append(b []byte) []byte {
	if a.object != 0 {
		b = msgp.AppendMapHeader(b, 6)
		b = msgp.AppendString(b, "object")
		b = msgp.AppendUint64(b, a.object)
		b = msgp.AppendString(b, "segment")
		b = msgp.AppendUint64(b, a.segment)
		b = msgp.AppendString(b, "capacity")
		b = msgp.AppendUint64(b, a.capacity)
		b = msgp.AppendString(b, "fresh")
		b = msgp.AppendBool(b, a.fresh)
	} else {
		b = msgp.AppendMapHeader(b, 4)
		b = msgp.AppendString(b, "partial")
		b = appendIDs(b, a.partial)
		b = msgp.AppendString(b, "objects")
		b = msgp.AppendArrayHeader(b, uint32(len(a.opened))) //nolint:gosec // as many as one frame names
		for _, o := range a.opened {
			b = msgp.AppendArrayHeader(b, 2)
			b = msgp.AppendUint64(b, o.segment)
			b = msgp.AppendUint64(b, o.size)
		}
	}
	b = msgp.AppendString(b, "fds")
	b = appendIDs(b, a.sent)
	b = msgp.AppendString(b, "stale")
	return appendIDs(b, a.stale)
}

func appendIDs(b []byte, ids []uint64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(ids))) //nolint:gosec // as many as there are segments
	for _, id := range ids {
		b = msgp.AppendUint64(b, id)
	}
	return b
}

// read is append backwards, for the client.
func (a *answer) read(b []byte) error {
	*a = answer{}
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for ; err == nil && n > 0; n-- {
		var key []byte
		if key, b, err = msgp.ReadStringZC(b); err != nil {
			break
		}
		switch string(key) {
		case "object":
			a.object, b, err = msgp.ReadUint64Bytes(b)
		case "segment":
			a.segment, b, err = msgp.ReadUint64Bytes(b)
		case "capacity":
			a.capacity, b, err = msgp.ReadUint64Bytes(b)
		case "fresh":
			a.fresh, b, err = msgp.ReadBoolBytes(b)
		case "objects":
			b, err = a.readOpened(b)
		case "partial":
			a.partial, b, err = readIDs(b)
		case "fds":
			a.sent, b, err = readIDs(b)
		case "stale":
			a.stale, b, err = readIDs(b)
		default:
			b, err = msgp.Skip(b)
		}
	}
	if err != nil {
		return spec.Errorf(spec.CodeProtocol, "an answer of the store that cannot be read: %v", err)
	}
	return nil
}

func (a *answer) readOpened(b []byte) ([]byte, error) {
	n, b, err := count(b)
	for ; err == nil && n > 0; n-- {
		var parts int
		var o opened
		if parts, b, err = count(b); err == nil && parts != 2 {
			err = fmt.Errorf("%d parts instead of segment and size", parts)
		}
		if err == nil {
			o.segment, b, err = msgp.ReadUint64Bytes(b)
		}
		if err == nil {
			o.size, b, err = msgp.ReadUint64Bytes(b)
		}
		a.opened = append(a.opened, o)
	}
	return b, err
}

func readIDs(b []byte) ([]uint64, []byte, error) {
	m := message{}
	b, err := m.readObjects(b)
	return m.objects, b, err
}
