// Package cli is the muster command: what people type, and the hidden commands
// by which Muster's own processes are started (head, agent, warden; keeper and
// sweeper for muster node) or that the SDK asks (mapping).
//
// Commands parse, ask and print; what they show of running scripts they ask the
// heads for, over the wire and within a deadline (client.go). What is printed is
// made by functions that take an answer and return text, so that tests compare
// it with testdata.
//
// It never starts, stops or changes anything of a script that runs.
package cli
