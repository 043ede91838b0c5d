// Package node is what `muster node` does on every replica: it starts Ray there,
// the head on rank 0, runs the command on rank 0 when the others have joined, and
// sees to it that all end together, with the command's code and with nothing left
// behind. Where a replica stands is found by node/place; what it does next is
// decided by node/course; here are the effects.
//
// Two processes make up a replica. The front is what the user has started; it
// starts the keeper, passes signals on and waits. The keeper has Ray and the
// command as children. Both are child subreapers, and each ends all below it when
// the other is gone, so that a kill of one leaves nothing; of both, what the
// kernel kills with its parent (Ray's own processes, the command).
//
// Replicas hear of each other by the board, a listener on rank 0 beside Ray's
// port: who knows the token of Ray may say that it has joined, and is told when
// all is over and with which code. Nothing is ever written into Ray.
//
// The package imports process and wire's release, and nothing else of Muster. It
// never stops a Ray that it has not started.
package node
