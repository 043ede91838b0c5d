// Package local is the backend of this machine: one node, or several virtual
// ones, each a warden with an agent below it.
//
// It starts wardens from the head's process and tells of their end. It never
// speaks to an agent.
package local
