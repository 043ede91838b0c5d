// Package wire is how Muster's processes talk: frames, the connection that
// carries them, the messages in them, and the surgery on values (cut, chain,
// splice) that lets the head route arguments without decoding them.
//
// docs/wire.md is the description; testdata/golden.json the byte vectors that
// this package and the Python side both reproduce. The package is written by
// hand because it is the hot path: a call costs tens of microseconds end to
// end, and a general RPC library costs more than that by itself.
//
// It imports nothing of Muster but spec. It never starts a process or decides
// what a message leads to.
package wire
