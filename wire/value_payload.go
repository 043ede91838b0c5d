package wire

import (
	"encoding/binary"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

// ArgKind says what can be done with an argument.
type ArgKind uint8

// The kinds of arguments; package dispatch has the same in the same order.
const (
	ArgWhole     ArgKind = iota // goes as it is
	ArgList                     // can be cut
	ArgTuple                    // can be cut
	ArgPerRank                  // an element for each rank
	ArgBroadcast                // goes whole where others are cut
	ArgFuture                   // stands for the result of another call: see Splice
	ArgBatch                    // rows by reference: can be cut
)

// Arg is one argument of a payload: where it lies, not what it holds.
type Arg struct {
	Kind ArgKind
	Len  int    // elements of a list, tuple or PerRank; rows of a batch
	Raw  []byte // the value, mark included
	Bufs []Buf  // of the frame it came in

	Batch     *batch.Handle // of a batch
	batchBufs []Buf         // those that it numbers

	key      []byte // its keyword, encoded; nil for a positional one
	name     []byte // the same, its text alone
	body     []byte // a list's elements; what a Broadcast holds; a future's fields
	elements elements
}

// Name is the argument's keyword, "" for a positional one.
func (a *Arg) Name() string { return string(a.name) }

// Future returns the call that the argument waits for, and the rank whose
// result is meant, or -1.
func (a *Arg) Future() (call uint64, rank int) {
	if a.Kind != ArgFuture {
		return 0, -1
	}
	return binary.LittleEndian.Uint64(a.body), int(int32(binary.LittleEndian.Uint32(a.body[8:])))
}

// Payload is the arguments of a call, taken apart but not decoded. It points
// into the bytes it was parsed from. It is not safe for concurrent use.
type Payload struct {
	Args       []Arg // positional ones, then keywords
	Positional int
}

// maxArgs bounds what a small frame can make a reader allocate.
const maxArgs = 1 << 16

// ParsePayload takes apart `[[arg, …], {name: arg, …}]`, whose buffers are bufs.
func ParsePayload(b []byte, bufs []Buf) (Payload, error) {
	var p Payload
	err := p.Parse(b, bufs)
	return p, err
}

// Parse is ParsePayload into p, whose memory is used again.
func (p *Payload) Parse(b []byte, bufs []Buf) error {
	p.Args, p.Positional = p.Args[:0], 0
	h, err := readHead(b, 0)
	if err != nil {
		return err
	}
	if h.then != array || h.count != 2 {
		return spec.Errorf(spec.CodeProtocol, "a malformed payload: a %s where [arguments, keywords] was expected", TypeName(b))
	}
	if h, err = readHead(b, h.end); err != nil {
		return err
	}
	if h.then != array {
		return spec.Errorf(spec.CodeProtocol, "a malformed payload: its arguments are no array")
	}
	p.Positional = h.count
	i := h.end
	for range h.count {
		if i, err = p.arg(b, i, bufs); err != nil {
			return err
		}
	}
	if h, err = readHead(b, i); err != nil {
		return err
	}
	if h.then != pairs {
		return spec.Errorf(spec.CodeProtocol, "a malformed payload: its keywords are no map")
	}
	i = h.end
	for range h.count {
		key, err := readHead(b, i)
		if err != nil {
			return err
		}
		if TypeName(b[i:]) != "str" {
			return spec.Errorf(spec.CodeProtocol, "a malformed payload: a keyword is a %s", TypeName(b[i:]))
		}
		at := i
		if i, err = p.arg(b, key.end, bufs); err != nil {
			return err
		}
		a := &p.Args[len(p.Args)-1]
		a.key, a.name = b[at:key.end], b[key.start:key.end]
	}
	if i != len(b) {
		return trailingBytes(len(b) - i)
	}
	return nil
}

// arg parses the value at b[i] as the next argument and returns where it ends.
func (p *Payload) arg(b []byte, i int, bufs []Buf) (int, error) {
	end, err := skipValues(b, i, 1, MaxDepth)
	if err != nil {
		return 0, err
	}
	n := len(p.Args)
	if n == maxArgs {
		return 0, spec.Errorf(spec.CodeTooLarge, "a call has more than %d arguments: pass them as one list", maxArgs)
	}
	if n < cap(p.Args) {
		p.Args = p.Args[:n+1] // its index is there to be used again
	} else {
		p.Args = append(p.Args, Arg{})
	}
	return end, p.Args[n].parse(b[i:end:end], bufs)
}

// parse makes a the argument of value raw.
func (a *Arg) parse(raw []byte, bufs []Buf) error {
	*a = Arg{Raw: raw, Bufs: bufs, body: raw, elements: elements{marks: a.elements.marks[:0]}}
	h, err := readHead(raw, 0)
	if err != nil {
		return err
	}
	switch {
	case h.then == array:
		a.Kind, a.Len, a.body = ArgList, h.count, raw[h.end:]
		return nil
	case h.then != extension:
		return nil
	}
	inside := raw[h.start:h.end]
	switch h.code {
	case extTuple, extPerRank:
		in, err := readHead(inside, 0)
		if err != nil {
			return err
		}
		if in.then != array {
			return spec.Errorf(spec.CodeProtocol, "a malformed payload: a %s that holds a %s", TypeName(raw), TypeName(inside))
		}
		a.Kind, a.Len, a.body = ArgTuple, in.count, inside[in.end:]
		if h.code == extPerRank {
			a.Kind = ArgPerRank
		}
	case extBroadcast:
		end, err := skipValues(inside, 0, 1, MaxDepth)
		if err != nil {
			return err
		}
		if end != len(inside) {
			return trailingBytes(len(inside) - end)
		}
		a.Kind, a.body = ArgBroadcast, inside
	case extBatch:
		return a.parseBatch(inside)
	case extFuture:
		if len(inside) != 12 {
			return spec.Errorf(spec.CodeProtocol, "a malformed payload: a future of %d bytes instead of 12", len(inside))
		}
		a.Kind, a.body = ArgFuture, inside
	}
	return nil
}

// Cuttable says whether a value can be cut by rows.
func Cuttable(raw []byte) bool {
	var a Arg
	return a.parse(raw, nil) == nil && (a.Kind == ArgList || a.Kind == ArgTuple || a.Kind == ArgBatch)
}

// Splice puts value, with the buffers of its own frame, in the place of
// argument i: the result of the call that a future stood for.
func (p *Payload) Splice(i int, value []byte, bufs []Buf) error {
	a := &p.Args[i]
	key, name := a.key, a.name
	end, err := skipValues(value, 0, 1, MaxDepth)
	if err == nil && end != len(value) {
		err = trailingBytes(len(value) - end)
	}
	if err == nil {
		err = a.parse(value, bufs)
	}
	a.key, a.name = key, name
	if err == nil && a.Kind > ArgTuple && a.Kind != ArgBatch {
		err = spec.Errorf(spec.CodeInvalid,
			"a call returned a %s and its future is an argument of another: return the plain value and mark the argument instead", TypeName(value))
	}
	return err
}

// Futures is the number of arguments that wait for other calls.
func (p *Payload) Futures() int {
	n := 0
	for i := range p.Args {
		if p.Args[i].Kind == ArgFuture {
			n++
		}
	}
	return n
}

// elements finds the elements of a cuttable argument. Every step-th one's
// offset is kept, so that cutting a list into many parts walks it twice at
// most, and the offsets of a long list take little memory.
type elements struct {
	marks []uint32
	step  int
}

const (
	denseElements = 1 << 14 // up to here every offset is kept
	sparseStep    = 32
)

// at returns where element i of the argument begins in its body, for i up to
// its length.
func (a *Arg) at(i int) (int, error) {
	e := &a.elements
	if len(e.marks) == 0 {
		if err := a.index(); err != nil {
			return 0, err
		}
	}
	return skipValues(a.body, int(e.marks[i/e.step]), i%e.step, MaxDepth)
}

func (a *Arg) index() error {
	e := &a.elements
	e.step = 1
	if a.Len > denseElements {
		e.step = sparseStep
	}
	if want := a.Len/e.step + 1; cap(e.marks) < want {
		e.marks = make([]uint32, 0, want)
	}
	marks, i := append(e.marks[:0], 0), 0
	var err error
	for n := 0; n < a.Len; {
		step := min(e.step, a.Len-n)
		if i, err = skipValues(a.body, i, step, MaxDepth); err != nil {
			return err
		}
		n += step
		if n%e.step == 0 {
			marks = append(marks, uint32(i))
		}
	}
	if i != len(a.body) {
		return trailingBytes(len(a.body) - i)
	}
	e.marks = marks
	return nil
}
