package head

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
)

// How a route picks ranks and joins results.
const (
	howMode = 0 // as the method is registered
	howAll  = 1 // every rank named, a list comes back
	howOne  = 2 // one rank, its result comes back alone
)

// Flags of a route.
const (
	routeSplit   = 1
	routeWaiting = 2
	routeMarked  = 4
	routeKeep    = 8
	routeWhole   = 16
	routeApart   = 32
	routeOwnRows = 64
)

// route is the head's part of a Call frame.
type route struct {
	cluster uint32
	method  []byte // borrowed from the frame
	how     uint8
	ranks   []int // nil: all
	timeout uint64
	parent  uint64
	flags   uint8
}

// over says that nothing is left of the time of a call that was sent again: it is
// answered, and does not begin any more.
func (r *route) over() bool { return r.timeout == 1 }

// read parses `[route, payload]` and returns the payload's bytes.
func (r *route) read(body []byte) (payload []byte, err error) {
	n, b, err := msgp.ReadArrayHeaderBytes(body)
	if err == nil && n != 2 {
		err = fmt.Errorf("%d parts instead of 2", n)
	}
	if err == nil {
		n, b, err = msgp.ReadArrayHeaderBytes(b)
	}
	if err == nil && n != 7 {
		err = fmt.Errorf("a route of %d fields instead of 7", n)
	}
	if err == nil {
		r.cluster, b, err = msgp.ReadUint32Bytes(b)
	}
	if err == nil {
		r.method, b, err = msgp.ReadStringZC(b)
	}
	if err == nil {
		r.how, b, err = msgp.ReadUint8Bytes(b)
	}
	if err == nil {
		b, err = r.readRanks(b)
	}
	if err == nil {
		r.timeout, b, err = msgp.ReadUint64Bytes(b)
	}
	if err == nil {
		r.parent, b, err = msgp.ReadUint64Bytes(b)
	}
	if err == nil {
		r.flags, b, err = msgp.ReadUint8Bytes(b)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeProtocol, "a call that cannot be read: %v", err)
	}
	return b, nil
}

func (r *route) readRanks(b []byte) ([]byte, error) {
	r.ranks = nil
	if msgp.IsNil(b) {
		return msgp.ReadNilBytes(b)
	}
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if int(n) > len(b) {
		return b, fmt.Errorf("%d ranks in %d bytes", n, len(b))
	}
	r.ranks = make([]int, n)
	for i := range r.ranks {
		if r.ranks[i], b, err = msgp.ReadIntBytes(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

// readIDs parses an array of ids.
func readIDs(body []byte) ([]uint64, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(body)
	if err != nil || int(n) > len(b) {
		return nil, spec.Errorf(spec.CodeProtocol, "a list of calls that cannot be read: %v", err)
	}
	ids := make([]uint64, n)
	for i := range ids {
		if ids[i], b, err = msgp.ReadUint64Bytes(b); err != nil {
			return nil, spec.Errorf(spec.CodeProtocol, "a list of calls that cannot be read: %v", err)
		}
	}
	return ids, nil
}

// appendLegHead appends what stands before the payload in a Leg.
func appendLegHead(dst []byte, method string, parent, origin uint64) []byte {
	dst = append(dst, 0x94)
	dst = msgp.AppendString(dst, method)
	dst = msgp.AppendUint64(dst, parent)
	return msgp.AppendUint64(dst, origin)
}
