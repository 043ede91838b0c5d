// Package node is what `muster node` does on every replica: it starts Ray there,
// the head on rank 0, runs the command on rank 0 when the others have joined, and
// sees to it that all end together, with the command's code and with nothing left
// behind. Where a replica stands is found by node/place; what it does next is
// decided by node/course; here are the effects.
//
// Three processes make up a replica. The front is what the user has started; it
// starts the keeper, passes signals on and waits. The keeper decides, and has the
// command and the sweeper as children; the sweeper has Ray. Each is a child
// subreaper and ends all below it when the one above is gone, or when the one
// below is, so that no kill leaves anything; the kernel does the rest, for Ray's
// own processes and the command die with their parents.
//
// Replicas hear of each other by the board, a listener on rank 0 beside Ray's
// port: who knows the token of Ray may say that it has joined, and is told when
// all is over and with which code. Nothing is ever written into Ray.
//
// The package imports process and wire's release, and nothing else of Muster. It
// never stops a Ray that it has not started.
package node
