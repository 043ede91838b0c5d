package value

import (
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Mark is an argument that says itself how it goes to the ranks. It is made by
// PerRank, Broadcast and FutureOf.
type Mark struct {
	code  int8
	value any
	len   int
}

// PerRank gives each rank its own element of a slice.
func PerRank[T any](values []T) Mark { return Mark{extPerRank, values, len(values)} }

// Broadcast gives every rank all of x, whatever the method's mode.
func Broadcast(x any) Mark { return Mark{extBroadcast, x, 0} }

// FutureOf stands for the result of call id of the same connection, or for one
// rank's part in it; rank -1 means all.
func FutureOf(id uint64, rank int) Mark {
	body := binary.LittleEndian.AppendUint64(nil, id)
	return Mark{extFuture, binary.LittleEndian.AppendUint32(body, uint32(int32(rank))), 0} //nolint:gosec // a rank
}

// PerRankLen is the number of elements of a PerRank; ok is false for others.
func (m Mark) PerRankLen() (n int, ok bool) { return m.len, m.code == extPerRank }

// Kwargs are keyword arguments: the last argument of a call, if it is one.
type Kwargs map[string]any

// Split takes keyword arguments off the end of args.
func Split(args []any) ([]any, Kwargs) {
	if n := len(args); n > 0 {
		if kwargs, ok := args[n-1].(Kwargs); ok {
			return args[:n-1], kwargs
		}
	}
	return args, nil
}

// AppendPayload appends the arguments of a call and says whether there are
// marks among them.
func AppendPayload(dst *wire.Value, args []any, kwargs Kwargs) (marked bool, err error) {
	dst.Array(2)
	dst.Array(len(args))
	for i, arg := range args {
		is, err := appendArg(dst, arg)
		if err != nil {
			return false, about(err, fmt.Sprintf("argument %d", i))
		}
		marked = marked || is
	}
	dst.Raw = msgp.AppendMapHeader(dst.Raw, uint32(len(kwargs))) //nolint:gosec // arguments
	for _, name := range slices.Sorted(maps.Keys(kwargs)) {
		dst.Raw = msgp.AppendString(dst.Raw, name)
		is, err := appendArg(dst, kwargs[name])
		if err != nil {
			return false, about(err, fmt.Sprintf("argument %q", name))
		}
		marked = marked || is
	}
	return marked, wire.CheckSize(wire.Size(nil, dst.Raw, dst.Bufs), len(dst.Bufs))
}

func about(err error, what string) error {
	e := *spec.AsError(err)
	e.Message = what + ": " + e.Message
	return &e
}

func appendArg(dst *wire.Value, arg any) (bool, error) {
	m, ok := arg.(Mark)
	if !ok {
		return false, Append(dst, arg)
	}
	switch m.code {
	case extFuture:
		return true, appendWith(dst, func(e *encoder) error {
			e.extension(extFuture, m.value.([]byte))
			return nil
		})
	case extPerRank:
		return true, appendWith(dst, func(e *encoder) error {
			return e.wrapped(extPerRank, func() error { return e.elements(reflect.ValueOf(m.value)) })
		})
	case extBroadcast:
		return true, appendWith(dst, func(e *encoder) error {
			return e.wrapped(extBroadcast, func() error { return e.any(m.value) })
		})
	}
	return false, spec.Errorf(spec.CodeInvalid, "an empty Mark; use PerRank or Broadcast")
}

// elements writes a slice as a list, also one of bytes.
func (e *encoder) elements(v reflect.Value) error {
	e.out.Array(v.Len())
	for i := range v.Len() {
		if err := e.any(v.Index(i).Interface()); err != nil {
			return inside(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}
