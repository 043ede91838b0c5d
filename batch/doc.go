// Package batch knows handles: the small values that stand for batches whose
// rows lie in objects elsewhere. It slices, re-orders, selects and joins them,
// and decides which rows go together where a batch is cut for the ranks of a
// cluster, all without touching a row.
//
// A Handle names buffers by number: first the objects that hold rows, then
// what its metas need. What a buffer is (bytes, or a reference to an object in
// a store) is the business of the caller, who keeps a list of buffers beside the
// handle. Slice, Take and Select leave the numbers alone, Compact drops buffers
// that are no longer used, Concat says which buffers of which handle are left.
//
// Pieces that this package makes have one form for one sequence of rows: minRun
// rows or more that follow each other in one object are a range; all other rows
// that come from one object without a break are a list, or a range where they
// follow each other. So the slices of a handle, joined again, are that handle.
//
// Cutting (Cut.Shards), in the order of what decides:
//
//	groups    rows of one group stay together
//	multiple  so do blocks of that many rows; the last may be short
//	weights   shards weigh the same: largest differencing (of very many rows, of
//	          the heaviest), then exchanges; rows that weigh nothing are dealt by
//	          number
//	nothing   shards have as many rows, consecutive, larger ones first
//
// Rows keep the caller's order within a shard, and Restore gives it back to what
// the shards were made into.
//
// The package is pure: it does no I/O, reads no clock and keeps no state. It
// imports spec and msgp. Handles are values that nobody changes: new ones share
// memory with those they were made from, and with the bytes they were read from.
package batch
