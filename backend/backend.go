// Package backend says where nodes come from: one small interface, its
// implementations in folders below (local: this machine, real or cut into
// virtual nodes; fake: in-process, for tests and simulation), and one
// conformance suite, backendtest, that each of them passes.
//
// A backend starts agents and tells of their end. It never speaks to them: an
// agent dials the head by itself, with what Join tells it.
package backend

import (
	"context"
	"errors"
)

// Backend gives nodes. Its methods may be called concurrently.
type Backend interface {
	// Nodes says how many nodes there are to be had, and their names. The
	// devices of a node are the agent's to report.
	Nodes(ctx context.Context) ([]string, error)

	// Launch starts the agent of one node and returns once it is under way; the
	// agent then dials join.Head. The caller owns the Agent and must see to its
	// end: by telling the agent to stop, or by Kill. When ctx ends before Launch
	// returned, nothing is left behind.
	Launch(ctx context.Context, join Join) (Agent, error)

	// Adopt takes over an agent that an earlier head of the session launched,
	// by the Handle that it had then; join is what Launch would be told now, and
	// is not passed on. The error is ErrGone where nothing is left of it.
	Adopt(ctx context.Context, join Join, handle Handle) (Agent, error)
}

// ErrGone says that there is no such agent any more.
var ErrGone = errors.New("the agent is gone")

// Handle names a launched agent for a later head: a process, and when it began,
// in ticks since boot, which tells it from a later one of its number.
type Handle struct {
	Pid     int
	Started uint64
}

// Agent is a started agent.
type Agent interface {
	// Done is closed exactly once: when nothing that the agent started, nor the
	// agent itself, is left.
	Done() <-chan struct{}
	// Err is what ended the agent, in words that follow its name; nil after an
	// orderly end. Only after Done.
	Err() error
	// Kill ends the agent and all below it at once. It may be called at any
	// time, any number of times.
	Kill()
	// Handle is what Adopt takes.
	Handle() Handle
}

// Join is all that an agent is told at its start. It holds secrets, so it
// travels over an inherited descriptor, never in arguments or the environment.
type Join struct {
	Head    string `json:"head"`    // unix socket of the head
	Token   string `json:"token"`   // proves that this is the agent of Node
	Node    int    `json:"node"`    // index among the backend's nodes
	Name    string `json:"name"`    // for people: "node-0", a host name
	Dir     string `json:"dir"`     // for sockets; gone when the session is
	LogDir  string `json:"log_dir"` // for logs; stays
	Owner   int    `json:"owner"`   // pid of the process all this is for; 0: none
	Virtual int    `json:"virtual"` // number of virtual devices; -1: find real ones
	Sharing int    `json:"sharing"` // nodes that share the machine, this one included; Launch fills that in
	Relay   bool   `json:"relay"`   // workers' calls go through the agent
	Python  string `json:"python"`  // interpreter for what must load a driver's library; "": any
	// Grace is how many seconds the agent keeps what it has while there is no
	// head; 0: it ends with the head's connection.
	Grace float64 `json:"grace"`
	// Leash is the process that keeps descriptor 0 of the warden open, which ends
	// when either does; 0: there is none.
	Leash int `json:"leash,omitempty"`
	Far
}

// Far is what an agent needs whose node is another machine than the head's. The
// head fills it in where the backend is Distant; Launch empties Hosts for a node
// that joins by the unix socket all the same.
type Far struct {
	Hosts     []string `json:"hosts,omitempty"`     // host:port of the head, tried in order
	Transport string   `json:"transport,omitempty"` // TLS, or Plain on a network that is trusted
	Pin       string   `json:"pin,omitempty"`       // of the head's certificate; see package secure
	Address   string   `json:"address,omitempty"`   // where others reach the node; "": what it reaches the head by
	// NodeGrace is how many seconds the agent tries to come back over a network
	// that is cut; Ping and Silent are how long nothing may come before it asks,
	// and before it dials again.
	NodeGrace float64 `json:"node_grace,omitempty"`
	Ping      float64 `json:"ping,omitempty"`
	Silent    float64 `json:"silent,omitempty"`
}

// Transports.
const (
	TLS   = "tls"
	Plain = "plain"
)

// Distant is a Backend that may have nodes on other machines, which join over
// the network.
type Distant interface {
	Backend
	// Far says that there are such nodes. The head then listens for them.
	Far() bool
	// Host is the address of this machine that they reach; "": whatever it has.
	Host() string
}
