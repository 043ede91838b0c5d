package column

import (
	"math"

	"github.com/tinylib/msgp/msgp"
)

// reader reads an object's header until something is wrong; after that it reads
// nothing.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) took(what string, rest []byte, err error) {
	if err != nil {
		r.err = malformed("%s cannot be read: %v", what, err)
		return
	}
	r.rest = rest
}

// list reads the head of an array, each element of which takes a byte or more.
func (r *reader) list(what string) int {
	if r.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(r.rest)
	if r.took(what, rest, err); r.err == nil && uint64(n) > uint64(len(r.rest)) {
		r.err = malformed("%s claim %d elements in %d bytes", what, n, len(r.rest))
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *reader) array(what string, n int) {
	if got := r.list(what); r.err == nil && got != n {
		r.err = malformed("%s has %d elements instead of %d", what, got, n)
	}
}

func (r *reader) number(what string, most int) int {
	if r.err != nil {
		return 0
	}
	n, rest, err := msgp.ReadUint64Bytes(r.rest)
	if r.took(what, rest, err); r.err == nil && n > uint64(most) {
		r.err = malformed("%s: %d is over %d", what, n, most)
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *reader) text(what string) string {
	if r.err != nil {
		return ""
	}
	s, rest, err := msgp.ReadStringBytes(r.rest)
	r.took(what, rest, err)
	return s
}

// column reads what a header says of one.
func (r *reader) column() (c Column, spans []span) {
	r.array("a column", 6)
	c.Name = r.text("the name of a column")
	c.Kind = r.text("the kind of a column")
	c.Type = r.text("the type of a column")
	for range r.list("a shape") {
		c.Shape = append(c.Shape, r.number("a dimension", math.MaxInt))
	}
	c.Lib = r.text("the library of a column")
	for range r.list("the buffers of a column") {
		r.array("a buffer", 2)
		s := span{r.number("where a buffer begins", math.MaxInt), 0}
		s.length = r.number("the length of a buffer", math.MaxInt)
		spans = append(spans, s)
	}
	return c, spans
}
