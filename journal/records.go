package journal

import "github.com/muster-rl/muster/spec"

// Record is one thing that is written down: a Meta, Node, Caller, Pool, Cluster
// or Beginning. Its key is told from its fields, so a record that is put again
// replaces the one before, and Delete needs no more than those.
//
//msgp:ignore Record
type Record interface {
	bucket() string
	key() uint64
	MarshalMsg([]byte) ([]byte, error)
}

// Meta is the session itself; there is one.
type Meta struct {
	Session string  `msg:"session"`
	LogDir  string  `msg:"log_dir"`
	Secret  []byte  `msg:"secret"`  // what tokens are made from
	Virtual string  `msg:"virtual"` // as spec.ParseVirtual reads it; "": real devices
	Owner   Process `msg:"owner"`   // whom all this is for; none for a head of its own
	Begun   float64 `msg:"begun"`   // unix seconds, of the first head

	// Where the head listens for agents of other machines, "" where it does not,
	// whether without TLS, and the authority that they know it by.
	Listen    string `msg:"listen"`
	Plain     bool   `msg:"plain"`
	Authority []byte `msg:"authority"`
}

// Process is a process that can be told from a later one of its number.
type Process struct {
	Pid     int    `msg:"pid"`
	Started uint64 `msg:"started"` // ticks since boot, as process.Entry has it; 0: not known
}

// Node is an agent that was launched.
type Node struct {
	Index  int     `msg:"index"`
	Name   string  `msg:"name"`
	Warden Process `msg:"warden"` // what the backend needs to take it over
	Agent  Process `msg:"agent"`  // once it has joined

	Moved map[string]string `msg:"moved"` // what was shipped there: by its place, where it is from
}

// Caller is a controller that has not left.
type Caller struct {
	Number uint32  `msg:"number"`
	Proc   Process `msg:"proc"`
	Worker uint32  `msg:"worker"` // the worker that it is in; 0: a script
	Owner  bool    `msg:"owner"`  // of an embedded head
}

// Pool is a reservation.
type Pool struct {
	Pool     spec.Pool `msg:"pool"`
	Origin   uint64    `msg:"origin"` // of the request that made it: caller << 32 | id
	Owner    uint32    `msg:"owner"`  // the caller that it goes with
	Released bool      `msg:"released"`
}

// Cluster is a cluster, from before its first process until after its last.
// Place is deterministic: Spec and the pool give the same plan again.
type Cluster struct {
	Number      uint32           `msg:"number"`
	Spec        spec.Cluster     `msg:"spec"` // as it was checked
	Pool        int              `msg:"pool"`
	Origin      uint64           `msg:"origin"`
	Owner       uint32           `msg:"owner"`
	Workers     []Worker         `msg:"workers"` // by rank
	Description spec.Description `msg:"description"`
	Ranks       []spec.RankInfo  `msg:"ranks"` // the layout in force
	MasterAddr  string           `msg:"master_addr"`
	MasterPort  int              `msg:"master_port"`
	Up          bool             `msg:"up"`       // every worker was ready; else its start was under way
	Stopping    bool             `msg:"stopping"` // its end was asked for
	Restarts    []float64        `msg:"restarts"` // when ranks were started again, unix seconds
	Lost        []uint64         `msg:"lost"`     // origins of calls that went with processes that were replaced
	Bufs        [][]byte         `msg:"bufs"`     // that Spec's Config names
	Objects     []uint64         `msg:"objects"`  // that Bufs name; 0: these are bytes
}

// Worker is one rank of a Cluster.
type Worker struct {
	Number uint32      `msg:"number"`
	Rank   int         `msg:"rank"`
	State  string      `msg:"state"`
	Pid    int         `msg:"pid"`
	Why    *spec.Error `msg:"why"`   // of its death
	Final  bool        `msg:"final"` // killed for good: nobody is to take its place
}

// Beginning is what the ranks of a cluster that restarts them were initialized
// with. It is apart from its Cluster, for it may be large.
type Beginning struct {
	Cluster uint32     `msg:"cluster"`
	Legs    []BegunLeg `msg:"legs"`
	Values  []Value    `msg:"values"` // each is that of one leg or of several
}

// BegunLeg is the leg of an initialize that a rank was sent.
type BegunLeg struct {
	Rank   int    `msg:"rank"`
	Call   uint64 `msg:"call"`
	Parent uint64 `msg:"parent"`
	Origin uint64 `msg:"origin"`
	Flags  uint8  `msg:"flags"`
	Value  int    `msg:"value"` // an index
}

// Value is encoded arguments, with their buffers.
type Value struct {
	Raw     []byte   `msg:"raw"`
	Bufs    [][]byte `msg:"bufs"`
	Objects []uint64 `msg:"objects"` // that Bufs name; 0: these are bytes
}

// Names of buckets.
const (
	metaBucket      = "meta"
	nodeBucket      = "nodes"
	callerBucket    = "callers"
	poolBucket      = "pools"
	clusterBucket   = "clusters"
	beginningBucket = "beginnings"
)

func (m *Meta) bucket() string      { return metaBucket }
func (n *Node) bucket() string      { return nodeBucket }
func (c *Caller) bucket() string    { return callerBucket }
func (p *Pool) bucket() string      { return poolBucket }
func (c *Cluster) bucket() string   { return clusterBucket }
func (b *Beginning) bucket() string { return beginningBucket }

func (m *Meta) key() uint64      { return metaKey }
func (n *Node) key() uint64      { return uint64(n.Index) } //nolint:gosec // an index is not negative
func (c *Caller) key() uint64    { return uint64(c.Number) }
func (p *Pool) key() uint64      { return uint64(p.Pool.ID) } //nolint:gosec // counted from 1
func (c *Cluster) key() uint64   { return uint64(c.Number) }
func (b *Beginning) key() uint64 { return uint64(b.Cluster) }

// Keys in the bucket meta.
const (
	metaKey  = 0
	epochKey = 1
)

// State is all that a journal holds, each kind in the order of its numbers.
//
//msgp:ignore State
type State struct {
	Epoch    uint32
	Meta     Meta
	Nodes    []Node
	Callers  []Caller
	Pools    []Pool
	Clusters []Cluster
	Begun    []Beginning
}
