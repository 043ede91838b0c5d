// Package head is the one process that knows nodes, pools, clusters and calls.
// It carries out what the pure packages decide: placement says who sits where,
// dispatch who gets what, call what is sent and answered when.
//
//	head.go      the Head: its options, its start and its end
//	accept.go    connections: hello, roles
//	reader.go    the lanes that read frames of many connections; what leaves them
//	link.go      ports: a connection of its own, or a link through an agent
//	caller.go    controllers: requests, calls, futures, back-pressure
//	route.go     the bytes of a call: its route, its legs, its joined answer
//	calls.go     calls come in; the orders of package call, carried out
//	cut.go       arguments cut as package dispatch says, futures spliced in
//	send.go      legs to workers
//	answer.go    results from workers, joined into answers
//	deadline.go  deadlines, stacks, cancels
//	watchdog.go  collective calls that look as if they hang
//	worker.go    workers: ready, failed, results, ends
//	failure.go   ranks that died, restarted: tries, budget.go how often
//	again.go     legs that are sent again, initialize that is run again
//	death.go     how a worker's end is told
//	cluster.go   clusters: start, describe, stop
//	layout.go    rank layouts, as asked for and as reported
//	node.go      agents: launch, join, loss
//	pool.go      pools and plans
//	events.go    log lines and progress for whoever listens
//
// Small frames are handled where they are read, in a lane: a loop that many
// connections share, so nothing that is called from it may wait. A frame that takes
// long, or a caller that must wait, takes its connection out of the lane for a while.
//
// One lock, Head.mu, guards all state. Nothing blocks while it is held: frames
// are queued under it (that is what gives every rank the same order) and flushed
// after it.
package head
