// Package store is where the bytes of one node lie: objects in segments of
// shared memory that processes map, leased by who has them in use, recycled,
// held to a budget, and spilled to disk beyond it. Server and client are here.
//
// An object is written once, by its maker, and never changes after it is
// sealed. It has one segment to itself: a memfd, or an unlinked file once it is
// spilled. Memfds have no names, so nothing is left to clean up after a kill,
// and no limit of /dev/shm counts. Pages are taken by fallocate, and only as
// many as the machine can spare, so a shortage is an error and not a SIGBUS, nor
// a process that the kernel kills. Those of large segments are huge ones, as far
// as the machine has any (huge.go).
//
// Who needs an object is told from two sides. The head says that somebody has a
// handle (hold, drop, gone); a connection says that it has a view of the bytes
// (open, close). An object that nobody needs is freed, its segment goes to the
// pool, and the next object of about that size lies in the same, already
// touched pages: writing those is many times faster than fresh ones. That it is
// not needed any more comes by way of the head, so the wish for the next one may
// overtake it: a maker waits a little for its own memory (reusePatience). Where
// memory is short for others, the pool is given back (ease.go).
//
// The states of an object:
//
//	state    means                      left by
//	writing  its maker fills it         seal -> sealed; free -> freed; its maker gone or its connection ended -> broken
//	sealed   bytes in memory, final     copied out to make room -> spilled; nobody needs it -> freed
//	spilled  bytes in a file            nobody needs it -> freed
//	broken   never to be sealed; its    its maker's process ended -> memory freed, and once
//	         memory may still be written dropped or its maker gone (before or after) -> freed
//	freed    not known any more
//
// And what else an event does:
//
//	event          writing             sealed                 spilled             broken
//	open           waits               a view                 a view of the file  error
//	close          -                   a view less            a view less         -
//	hold           noted               noted                  noted               noted
//	drop           freed when sealed   freed without views    the same            forgotten
//	gone (maker)   broken if not held  freed if not held, nor viewed   the same   forgotten
//	no room        -                   spilled if without views, least recently used first   -  -
//
// The leases of a connection that ended stay until its process has ended: its
// views may still be read, and a recycled segment would change under them.
//
// A segment that is given up is cut to no bytes first. So its memory is free
// although processes still have it mapped; they are told at their next request
// (stale). Nobody has a view of it then.
//
// An object of another node is had as a copy: room for all of it, and those of its
// chunks that were needed. (Room for these alone would not do: readers map segments
// whole, a device that registers one takes every page of it, behind the accounting,
// and a segment with holes is of no use to the next object.) The first chunk brings
// the size; the rest comes when somebody opens all of it, or needs bytes of it. The
// head says whom to ask, and that may be a store that has a copy itself, or is getting one: chunks are passed
// on as they arrive. A copy is sealed from the beginning; instead of being spilled
// it is given up.
//
//	chunk    means                            left by
//	absent   nobody here needed it            needed -> coming
//	coming   asked for, by one for all        arrived and its sum is right -> here; no source left -> absent
//	here     final, and passed on             with the copy
//
// ledger.go, chunks.go and their like decide, without effects: they do the accounting of
// segments, objects, leases and the budget. store.go carries out, serve.go
// speaks the protocol (docs/wire.md), client.go is the other end of it. fetch.go gets
// chunks, peers.go asks other stores for them, remote.go answers those, bulk.go is
// what lies below its TLS.
//
// The package imports wire, spec and process. It never reads what the bytes
// mean, and never decides who may have them: the token is all the proof.
package store
