// Package agent is the one process per node that starts, watches and reaps that
// node's workers, keeps their logs, holds ports, tells stacks, has the node's
// store, and relays calls where workers do not reach the head themselves; and
// the warden around it.
//
// A worker's life at the agent:
//
//	state     means                            left by
//	asked     registered, no process yet       fork answered -> running; stop, failure -> gone
//	running   has a process, maybe no control  reaped -> ending; stop: TERM, grace, KILL
//	ending    what it left is being cleared    children and log pipe at their end -> gone
//	gone      told by the notice exited        (a worker without a process is told by the failed start)
//
// The agent's own, by its connection to the head (follow.go):
//
//	state     means                            left by
//	joined    the head is there                connection lost -> waiting; stop all -> leaving
//	waiting   no head: all is kept, dialling   a head answers -> joined, after "back"; the grace
//	          again and again                  is over, the owner gone, or a head refuses -> ending
//	leaving   the head takes all down          connection lost -> ending
//	ending    workers, zygotes, ports go       nothing is left -> the process ends, and its warden
//
// Supervision is the kernel's (package process): zygotes are children, workers
// become children when the zygote's second fork loses its parent, all carry
// PDEATHSIG, and a child nobody announced is left over from a dead worker.
//
// The package imports wire, spec, store, backend, device, session and process. It
// never decides which worker runs where, never reads what calls carry, and never dials a
// worker.
package agent
