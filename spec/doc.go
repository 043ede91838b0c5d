// Package spec is the vocabulary: what a user asks for (a cluster, a pool),
// what a node has, how ranks are laid out, what a worker class offers, and the
// one error type that crosses every boundary.
//
// It imports nothing of Muster and does no I/O. Its types travel in wire's
// messages; their msgpack code is generated (make generate).
package spec

//go:generate go tool msgp -o spec_gen.go -tests=false -io=false -file .
