// Package fake is a backend whose agents and workers are goroutines of this
// process. They speak the wire to the head over real sockets, so that the head
// cannot tell them from others, and do what a Script says: become ready or
// fail, answer legs at once, later or never, die, hang up, send rubbish. With
// Join.Relay a node's workers are links of its agent's one connection, and a
// node costs one goroutine however many workers it has; that is what the
// simulation of large clusters stands on.
//
// It is for tests and simulation: it starts no process, holds no port and
// writes no log file.
package fake
