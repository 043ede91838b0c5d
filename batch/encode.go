package batch

import (
	"encoding/binary"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// The least bytes that one of these takes, encoded. An array that claims more
// elements than its bytes can hold is refused before anything is made for it.
const (
	leastPart  = 7 // [[name], [[buf, rows]]]
	leastPiece = 4 // [buf, rows]
	leastName  = 1
	leastMeta  = 4 // [value, bufs]
)

// Parse reads a handle that has nbufs buffers. It keeps parts of the payload;
// what it allocates is bounded by the payload's size, whatever that claims.
func Parse(payload []byte, nbufs int) (Handle, error) {
	r := reader{rest: payload}
	var h Handle
	r.array("the handle", 4)
	h.Rows = r.number("its rows", MaxRows)
	h.Parts = r.parts(h.Rows)
	h.Cut = r.cut(h.Rows)
	h.Metas = r.metas(nbufs)
	if r.err == nil && len(r.rest) > 0 {
		r.fail("%d bytes follow its end", len(r.rest))
	}
	if r.err != nil {
		return Handle{}, r.err
	}
	if h.Objects = nbufs - h.Bufs(); h.Objects < 0 {
		return Handle{}, malformed("its metas need %d buffers of %d", nbufs-h.Objects, nbufs)
	}
	for i := range h.Parts {
		for j := range h.Parts[i].Pieces {
			if buf := h.Parts[i].Pieces[j].Buf; buf >= h.Objects {
				return Handle{}, malformed("piece %d of part %d lies in buffer %d of %d", j, i, buf, h.Objects)
			}
		}
	}
	if err := h.Cut.check(); err != nil {
		return Handle{}, err
	}
	return h, nil
}

func malformed(format string, args ...any) *spec.Error {
	e := spec.Errorf(spec.CodeProtocol, format, args...)
	e.Message = "a malformed batch: " + e.Message
	return e
}

// reader reads msgpack until something is wrong; after that it reads nothing.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = malformed(format, args...)
	}
}

// took notes what a read of msgp's left and whether it went well.
func (r *reader) took(what string, rest []byte, err error) {
	if err != nil {
		r.fail("%s cannot be read: %v", what, err)
		return
	}
	r.rest = rest
}

// array reads the head of an array of n elements.
func (r *reader) array(what string, n int) {
	if got := r.list(what, 0); r.err == nil && got != n {
		r.fail("%s has %d elements instead of %d", what, got, n)
	}
}

// list reads the head of an array whose elements take least bytes each.
func (r *reader) list(what string, least int) int {
	if r.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(r.rest)
	if r.took(what, rest, err); r.err != nil {
		return 0
	}
	if least > 0 && uint64(n)*uint64(least) > uint64(len(r.rest)) {
		r.fail("%s claims %d elements in %d bytes", what, n, len(r.rest))
		return 0
	}
	return int(n)
}

// number reads an integer from 0 to most.
func (r *reader) number(what string, most int) int {
	if r.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadUint64Bytes(r.rest)
	if r.took(what, rest, err); r.err != nil {
		return 0
	}
	if n > uint64(most) {
		r.fail("%s: %d is over %d", what, n, most)
		return 0
	}
	return int(n)
}

// bytes reads bytes without copying them; what is said of nil is nil.
func (r *reader) bytes(what string) []byte {
	if r.err != nil {
		return nil
	}
	b, rest, err := msgp.ReadBytesZC(r.rest)
	if r.took(what, rest, err); r.err != nil {
		return nil
	}
	return b
}

// none reads nil where there is one.
func (r *reader) none() bool {
	if r.err != nil || !msgp.IsNil(r.rest) {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

func (r *reader) parts(rows int) []Part {
	n := r.list("its parts", leastPart)
	if n == 0 {
		return nil
	}
	parts := make([]Part, n)
	names := make(map[string]struct{}, n)
	for i := range parts {
		r.array("a part", 2)
		parts[i].Columns = r.columns(names)
		if parts[i].Pieces = r.pieces(); r.err != nil {
			return nil
		}
		has := 0
		for j := range parts[i].Pieces {
			has += parts[i].Pieces[j].Len()
		}
		if has != rows {
			part := Handle{Parts: parts[i : i+1]}
			r.fail("part %d (%s) has %d rows instead of %d", i, quoted(part.Columns()), has, rows)
		}
	}
	return parts
}

func (r *reader) columns(seen map[string]struct{}) []string {
	n := r.list("the columns of a part", leastName)
	if n == 0 {
		r.fail("a part without columns")
		return nil
	}
	names := make([]string, n)
	for i := range names {
		column, rest, err := msgp.ReadStringBytes(r.rest)
		if r.took("the name of a column", rest, err); r.err != nil {
			return nil
		}
		name, _ := Split(column)
		if _, twice := seen[name]; twice {
			r.fail("column '%s' is there twice", name)
			return nil
		}
		seen[name] = struct{}{}
		names[i] = column
	}
	return names
}

func (r *reader) pieces() []Piece {
	n := r.list("the pieces of a part", leastPiece)
	if n == 0 {
		r.fail("a part without pieces")
		return nil
	}
	pieces := make([]Piece, n)
	for i := range pieces {
		p := &pieces[i]
		form := r.list("a piece", 0)
		p.Buf = r.number("the buffer of a piece", math.MaxInt32)
		switch form {
		case 3:
			p.From = r.number("where a piece begins", MaxRows)
			if p.To = r.number("where a piece ends", MaxRows); p.To < p.From {
				r.fail("a piece from row %d to %d", p.From, p.To)
			}
		case 2:
			p.Rows = numbers32(r, "the rows of a piece")
		default:
			r.fail("a piece of %d elements", form)
		}
		if r.err != nil {
			return nil
		}
	}
	return pieces
}

// numbers32 reads u32s; the result is never nil where all is well.
func numbers32(r *reader, what string) []uint32 {
	b := r.bytes(what)
	if len(b)%4 != 0 {
		r.fail("%s are %d bytes, which is no multiple of 4", what, len(b))
		return nil
	}
	out := make([]uint32, len(b)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

func (r *reader) cut(rows int) *Cut {
	if r.none() {
		return nil
	}
	var c Cut
	r.array("the cut", 3)
	if !r.none() {
		b := r.bytes("the weights")
		if r.err == nil && len(b) != 8*rows {
			r.fail("the weights are %d bytes instead of %d, 8 for each row", len(b), 8*rows)
		}
		if r.err != nil {
			return nil
		}
		c.Weights = make([]float64, rows)
		for i := range c.Weights {
			c.Weights[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	if !r.none() {
		c.Groups = numbers32(r, "the groups")
		if r.err == nil && len(c.Groups) != rows {
			r.fail("there are groups for %d rows of %d", len(c.Groups), rows)
		}
	}
	if c.Multiple = r.number("the multiple", MaxRows); c.Multiple == 1 {
		c.Multiple = 0
	}
	if c.Weights == nil && c.Groups == nil && c.Multiple == 0 {
		return nil
	}
	return &c
}

func (r *reader) metas(nbufs int) []Meta {
	n := r.list("its metas", leastMeta-1)
	if n == 0 {
		return nil
	}
	metas := make([]Meta, n)
	for i := range metas {
		form := r.list("a meta", 0)
		metas[i].Value = r.bytes("a meta")
		metas[i].Bufs = r.number("the buffers of a meta", nbufs)
		switch form {
		case 2:
		case 3:
			metas[i].Origin = r.origin()
		default:
			r.fail("a meta of %d elements", form)
		}
		if r.err != nil {
			return nil
		}
	}
	return metas
}

// origin reads whose metrics a meta has.
func (r *reader) origin() uint64 {
	if r.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadUint64Bytes(r.rest)
	if r.took("the origin of a meta", rest, err); r.err == nil && n == 0 {
		r.fail("the origin of a meta is 0")
	}
	return n
}

// Append encodes the handle behind dst.
func (h *Handle) Append(dst []byte) []byte {
	dst = msgp.Require(dst, h.size())
	dst = msgp.AppendArrayHeader(dst, 4)
	dst = msgp.AppendUint64(dst, uint64(h.Rows))
	dst = msgp.AppendArrayHeader(dst, uint32(len(h.Parts)))
	for i := range h.Parts {
		p := &h.Parts[i]
		dst = msgp.AppendArrayHeader(dst, 2)
		dst = msgp.AppendArrayHeader(dst, uint32(len(p.Columns)))
		for _, name := range p.Columns {
			dst = msgp.AppendString(dst, name)
		}
		dst = msgp.AppendArrayHeader(dst, uint32(len(p.Pieces)))
		for j := range p.Pieces {
			dst = p.Pieces[j].append(dst)
		}
	}
	dst = h.Cut.append(dst)
	dst = msgp.AppendArrayHeader(dst, uint32(len(h.Metas)))
	for i := range h.Metas {
		dst = h.Metas[i].append(dst)
	}
	return dst
}

// size is about what Append will take.
func (h *Handle) size() int {
	n := 32
	for i := range h.Parts {
		n += 12
		for _, name := range h.Parts[i].Columns {
			n += 5 + len(name)
		}
		for j := range h.Parts[i].Pieces {
			n += 14 + 4*len(h.Parts[i].Pieces[j].Rows)
		}
	}
	if c := h.Cut; c != nil {
		n += 8*len(c.Weights) + 4*len(c.Groups)
	}
	for i := range h.Metas {
		n += 25 + len(h.Metas[i].Value)
	}
	return n
}

func (p *Piece) append(dst []byte) []byte {
	if p.Rows != nil {
		dst = msgp.AppendArrayHeader(dst, 2)
		dst = msgp.AppendUint64(dst, uint64(p.Buf))
		return appendNumbers32(dst, p.Rows)
	}
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendUint64(dst, uint64(p.Buf))
	dst = msgp.AppendUint64(dst, uint64(p.From))
	return msgp.AppendUint64(dst, uint64(p.To))
}

func (m *Meta) append(dst []byte) []byte {
	elements := uint32(2)
	if m.Origin != 0 {
		elements = 3
	}
	dst = msgp.AppendArrayHeader(dst, elements)
	dst = msgp.AppendBytes(dst, m.Value)
	dst = msgp.AppendUint64(dst, uint64(m.Bufs))
	if m.Origin != 0 {
		dst = msgp.AppendUint64(dst, m.Origin)
	}
	return dst
}

func appendNumbers32(dst []byte, numbers []uint32) []byte {
	dst = msgp.AppendBytesHeader(dst, uint32(4*len(numbers)))
	for _, n := range numbers {
		dst = binary.LittleEndian.AppendUint32(dst, n)
	}
	return dst
}

func (c *Cut) append(dst []byte) []byte {
	if c == nil {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, 3)
	if c.Weights == nil {
		dst = msgp.AppendNil(dst)
	} else {
		dst = msgp.AppendBytesHeader(dst, uint32(8*len(c.Weights)))
		for _, w := range c.Weights {
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(w))
		}
	}
	if c.Groups == nil {
		dst = msgp.AppendNil(dst)
	} else {
		dst = appendNumbers32(dst, c.Groups)
	}
	return msgp.AppendUint64(dst, uint64(c.Multiple))
}
