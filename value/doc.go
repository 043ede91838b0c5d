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
// The package imports wire and spec. It does no I/O and keeps no state.
package value
