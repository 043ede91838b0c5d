// Package head is the one process that knows nodes, pools, clusters and calls.
// It carries out what the pure packages decide: placement says who sits where,
// dispatch who gets what, call what is sent and answered when.
//
//	head.go      the Head: its options, its start and its end
//	accept.go    connections: hello, roles
//	reader.go    the lanes that read frames of many connections; what leaves them
//	link.go      ports: a connection of its own, or a link through an agent
//	line.go      connections that are cut, and followed by others
//	back.go      what those say who are back; keep.go answers until they are read
//	resume.go    a head that follows one that was killed; resume_objects.go its leases
//	journal.go   what is written down for the next
//	fault.go     ends at chosen steps, for tests
//	caller.go    controllers: requests, calls, futures, back-pressure
//	route.go     the bytes of a call: its route, its legs, its joined answer
//	calls.go     calls come in; the orders of package call, carried out
//	cut.go       arguments cut as package dispatch says, futures spliced in; pair.go
//	             futures whose parts can be taken one by one; prepare.go cuts that take
//	             long, while others go on
//	leases.go    who holds which objects; holders.go says it to people; copies.go which nodes have them
//	send.go      legs to workers
//	answer.go    results from workers, joined into answers
//	deadline.go  deadlines, stacks, cancels
//	watchdog.go  collective calls that look as if they hang
//	worker.go    workers: ready, failed, results, ends
//	failure.go   ranks that died, restarted: tries, budget.go how often; lost.go what
//	             the next head must not run again
//	again.go     legs that are sent again, initialize that is run again
//	kill.go      ranks that are killed because somebody asks
//	death.go     how a worker's end is told
//	cluster.go   clusters: start, describe, stop; setup.go what their workers are made with;
//	             drain.go an end that waits for calls
//	layout.go    rank layouts, as asked for and as reported
//	node.go      agents: join, loss; launch.go their start, far.go those on other
//	             machines, liveness.go whether they are there
//	nodes.go     which nodes there are; status.go all that the head knows, for people
//	pool.go      pools and plans; reserve.go those of a backend that chooses nodes
//	service.go   services: one of a name; devices.go which GPUs they take
//	events.go    log lines and progress for whoever listens
//
// Small frames are handled where they are read, in a lane: a loop that many
// connections share, so nothing that is called from it may wait. A frame that takes
// long, or a caller that must wait, takes its connection out of the lane for a while.
//
// A process that is cut off:
//
//	who      while it is away                       gone for good
//	caller   calls go on, answers are kept          it said so (leave), its process ended,
//	                                                the grace is over: its clusters stop
//	worker   its cluster's calls are held, its      its agent tells of its exit, the grace
//	         results are kept by itself             is over: WorkerLost
//	agent    requests wait, its workers' links      its process ended, the grace is over:
//	         are cut with it                        its workers are lost
//
// Back before that, it says what it has, and only what is missing is sent. Of two
// connections of one process the later counts; what is read from the other is dropped.
//
// One lock, Head.mu, guards all state. Nothing blocks while it is held: frames
// are queued under it (that is what gives every rank the same order) and flushed
// after it.
package head
