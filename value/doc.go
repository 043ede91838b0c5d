// Package value turns Go values into values of the wire and back, as
// docs/wire.md describes them: plain msgpack, extensions for what Python has
// beside it, and large buffers out of band.
//
//	Python                      into any         into
//	None                        nil              nil of a pointer, slice, map
//	bool, str, bytes            the same         the same
//	int                         int64, uint64,   any int that holds it, floats,
//	                            *big.Int         big.Int
//	float                       float64          floats
//	complex                     complex128       complex
//	list, tuple, set            []any            slices, arrays
//	dict                        map[string]any,  maps, structs by field names
//	                            map[any]any
//	dataclass                   map[string]any   maps, structs by field names
//	range                       Range            Range, slices
//	numpy.ndarray, CPU tensor   Array            Array; one dimension: slices
//	numpy scalar                the number       numbers
//	Batch                       *Batch           *Batch
//	anything else (pickled)     an error         Raw, to pass it on
//
// The other way, slices and arrays become lists (nil ones empty lists), maps and
// structs dicts, []byte bytes, types with MarshalText text. A struct's field is
// called what its tag `muster:"name"` or `json:"name"` says, else what it is
// called; reading ignores case and underscores where no name fits exactly.
//
// The codec is our own rather than a general library's: those know extensions
// only by a registry of the whole process, cannot read one into a slice (a tuple
// into []int), and do not see the buffers of a frame.
//
// # Batches and large buffers
//
// A Batch is a handle: its rows lie in objects of stores, as package column lays
// them out, and package batch cuts and joins handles. Rows are read when Record
// is called, and written when a batch that was made here is first sent. Buffers
// of 256 KiB and more are put into the store when a Message is settled, and are
// copied from there when they are read.
//
// The package imports column, batch, object, wire and spec. It reaches stores
// through package object alone, and keeps no state but what its values hold.
package value
