// Package column is the columns of batches in Go: what lies in a batch object,
// as Arrow arrays, and back.
//
// An object (docs/batches.md) holds columns of as many rows. Their buffers are
// those of Arrow arrays, so reading one copies nothing: the arrays that Record
// makes are views of the object's bytes, and keep the memory.Buffer that it was
// read from until they are released.
//
//	kind    in the object                    as Arrow
//	fixed   rows of one shape                a primitive; bool8 (BoolType) for bool;
//	                                         fixed_shape_tensor (TensorType) for shapes
//	ragged  rows that differ in their first  large_list of the above
//	        dimension
//	text    UTF-8                            large_string
//	bytes                                    large_binary
//	object  pickles of Python's              large_binary, muster.kind "object"
//
// Elements that Arrow has no type for (complex, bfloat16, float8, records, texts
// of fixed width) are fixed_size_binary. What an Arrow type alone does not tell
// stands in the metadata of its field, under the names Meta…, and is read from
// there on the way back.
//
// The way in takes more: bits for bools, 32-bit offsets, views, lists of fixed
// size, dates and times. What has no place in a batch (missing numbers, structs,
// dictionaries, lists of texts) is refused by name.
//
// Bytes that were read are not trusted: Read checks every size and offset, so
// that no array reaches outside of its buffers.
//
// The package imports batch, spec, msgp and Arrow. It does no I/O and knows
// nothing of where objects lie.
package column
