// Package journal is what a head writes down for the one that comes after it:
// what changes rarely and nobody else could tell it. The rest (calls, leases,
// what runs) is told by those who have it; see "Coming back" in docs/wire.md.
//
// A session has one journal, a bbolt file in its folder, with one bucket for
// each kind of record. Values are sealed with AES-256-GCM, bound to their bucket
// and key, under a key that lies in the folder beside it: a journal that was
// copied away tells nothing of environments and tokens.
//
// Nothing is synced. What was written survives the end of the process, however
// it comes; when the machine itself goes down, so do all the processes that a
// journal tells of.
//
//	state    means                                left by
//	whole    every Put so far can be read again   a failed write -> broken; Close
//	broken   told once, set aside; Put does       (for good: no head can go on from it)
//	         nothing any more
//
// The package imports spec. It never decides what a record means.
package journal

//go:generate go tool msgp -o records_gen.go -tests=false -io=false -file records.go
