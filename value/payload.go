package value

import (
	"encoding/binary"
	"fmt"
	"reflect"

	"github.com/muster-rl/muster/spec"
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

func about(err error, what string) error {
	e := *spec.AsError(err)
	e.Message = what + ": " + e.Message
	return &e
}

func (m *Message) appendArg(arg any) (bool, error) {
	mark, ok := arg.(Mark)
	if !ok {
		return false, m.Append(arg)
	}
	switch mark.code {
	case extFuture:
		return true, m.appendWith(func(e *encoder) error {
			e.extension(extFuture, mark.value.([]byte))
			return nil
		})
	case extPerRank:
		return true, m.appendWith(func(e *encoder) error {
			return e.wrapped(extPerRank, func() error { return e.elements(reflect.ValueOf(mark.value)) })
		})
	case extBroadcast:
		return true, m.appendWith(func(e *encoder) error {
			return e.wrapped(extBroadcast, func() error { return e.any(mark.value) })
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
