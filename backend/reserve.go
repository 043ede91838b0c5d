package backend

import (
	"context"
	"time"

	"github.com/muster-rl/muster/spec"
)

// Reserver is a Backend with more nodes than one session uses, and devices that
// others hold as well: what a pool needs is asked for, and given back. The first
// of its Nodes is the machine of the head; agents are launched on the others when
// a pool has them.
type Reserver interface {
	Backend

	// Reserve gets all of want, or nothing and an error that says what is wanted,
	// what there is and who holds it. It may wait for nodes to be added, until ctx
	// ends. When it fails nothing is held.
	Reserve(ctx context.Context, want Want) (Grant, error)

	// Look says whether want could be had, and why not, without holding anything.
	Look(ctx context.Context, want Want) (Outlook, error)

	// Census is the nodes that there are, in the order of Nodes, as far as the
	// backend knows them itself: name, address, cores, memory, and how many devices.
	Census(ctx context.Context) ([]spec.Node, error)

	// Release gives a reservation back. One that is not there is no error.
	Release(ctx context.Context, id int) error

	// Kept are the reservations that there are: of this head, and of the one
	// before it.
	Kept(ctx context.Context) ([]int, error)

	// Fit has a node that was launched get what a runtime names and it lacks, and
	// returns the runtime as it is there. The error names node and path.
	Fit(ctx context.Context, node int, rt spec.Runtime) (Fitted, error)
}

// Fitted is a runtime as it is on a node.
type Fitted struct {
	spec.Runtime
	Moved map[string]string // by where they are there: paths of the controller's machine
}

// Want is what a pool needs.
type Want struct {
	ID          int               `json:"id"` // for Release
	Nodes       int               `json:"nodes"`
	Devices     int               `json:"devices"` // on each node
	CPUs        float64           `json:"cpus,omitempty"`
	Bundles     []spec.Bundle     `json:"bundles,omitempty"`  // one per node, in the place of Devices and CPUs: the grant has their order
	Strategy    string            `json:"strategy,omitempty"` // as Ray has them; "": nodes apart
	Labels      map[string]string `json:"labels,omitempty"`
	Accelerator string            `json:"accelerator,omitempty"` // a type, as "H100"
	Node        string            `json:"node,omitempty"`        // the one that will do, by its name; "": any
	Users       map[int]string    `json:"users,omitempty"`       // of the session's other pools: their clusters, by ID
	Patience    time.Duration     `json:"-"`                     // for nodes to be added
	// Tell, where not nil, hears why it waits.
	Tell func(why string) `json:"-"`
}

// Outlook is what comes of a Want.
type Outlook struct {
	Now   bool   `json:"now"`   // all of it is free
	Waits bool   `json:"waits"` // nodes may be added: Reserve waits for them
	Text  string `json:"text"`  // for people: what there is, or what is lacking and who holds it
}

// Grant is what was reserved, in the pool's order.
type Grant struct {
	Nodes []Granted         `json:"nodes"`
	Env   map[string]string `json:"env"` // for workers that use the backend themselves
}

// Granted is a part of a Grant, on one node.
type Granted struct {
	Name    string   `json:"name"`    // as Nodes has it
	Address string   `json:"address"` // where others reach it
	Devices []string `json:"devices"` // their numbers or ids, as CUDA_VISIBLE_DEVICES takes them
	All     bool     `json:"all"`     // instead: all that the node has
}
