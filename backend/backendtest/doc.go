// Package backendtest is the conformance suite of backend.Backend: what a head
// may rely on, whatever gives it its nodes. Every backend's tests call Run.
//
// The suite plays the head: it listens, welcomes or refuses the agents that
// dial in, hangs up, and looks at what is left. It knows no backend.
package backendtest
