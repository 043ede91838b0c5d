// Package cli is the muster command: what people type, and the hidden commands
// by which Muster's own processes are started (head, agent, warden).
//
// Commands only parse, call and print; what they do lives in the packages below.
package cli
