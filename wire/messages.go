package wire

import "github.com/muster-rl/muster/spec"

//go:generate go tool msgp -o messages_gen.go -tests=false -io=false -file messages.go

// Hello opens every connection; docs/wire.md says which role fills what.
type Hello struct {
	Magic   string       `msg:"magic"`
	Version int          `msg:"version"`
	Release string       `msg:"release"`
	Role    string       `msg:"role"`
	Token   string       `msg:"token"`
	Pid     int          `msg:"pid"`
	Worker  uint32       `msg:"worker,omitempty"`
	Node    *spec.Node   `msg:"node,omitempty"`
	Virtual string       `msg:"virtual,omitempty"`
	Runtime spec.Runtime `msg:"runtime,omitempty"`
	// StacksFd is the worker's own number of the descriptor that its stack
	// dumps go to (role control).
	StacksFd int `msg:"stacks_fd,omitempty"`
	// Holder is the process as the head and the stores know it (role store).
	Holder uint64 `msg:"holder,omitempty"`
	// Back is not 0 for one that was here before: a caller's number, 1 for a
	// worker or an agent. It tells what it has next; see "Coming back".
	Back uint32 `msg:"back,omitempty"`
	// Request asks for the certificate of a node (role agent), as PEM.
	Request []byte `msg:"request,omitempty"`
}

// Roles of a Hello.
const (
	RoleOwner      = "owner"
	RoleController = "controller"
	RoleEvents     = "events"
	RoleWorker     = "worker"
	RoleAgent      = "agent"
	RoleControl    = "control"
	RoleStore      = "store"
)

// Welcome answers Hello.
type Welcome struct {
	Version int    `msg:"version"`
	Release string `msg:"release"`
	Session string `msg:"session"`
	Token   string `msg:"token,omitempty"`
	Address string `msg:"address"`
	LogDir  string `msg:"log_dir"`
	Pid     int    `msg:"pid"`
	// Holder is the number of the process that is welcomed, for leases; the
	// rest is where stores are, which of them is its own, and what they ask for.
	Holder     uint64 `msg:"holder,omitempty"`
	StoreDir   string `msg:"store_dir,omitempty"`
	StoreNode  int    `msg:"store_node"`
	StoreToken string `msg:"store_token,omitempty"`
	// StoreApart says that no other store is reached than one's own, which gets
	// what lies in others. PeerToken is what stores show each other (agents only).
	StoreApart bool   `msg:"store_apart,omitempty"`
	PeerToken  string `msg:"peer_token,omitempty"`
	// Caller is the number of the controller that is welcomed, Epoch how many
	// heads this session has had.
	Caller uint32 `msg:"caller,omitempty"`
	Epoch  uint32 `msg:"epoch,omitempty"`
	// Cert is what Hello.Request asked for, CA whom all nodes trust, as PEM.
	Cert []byte `msg:"cert,omitempty"`
	CA   []byte `msg:"ca,omitempty"`
}

// Empty is the body of answers that say nothing more.
type Empty struct{}

// Releases (notice release) says how often less its sender knows of objects, and
// which of those that it still knows of it does not read any more where they lie:
// it will ask the store for them.
type Releases struct {
	Objects []Released `msg:"objects"`
	Lent    []Released `msg:"lent,omitempty"`
}

//msgp:tuple Released

// Released is an object and how many of the sender's counts of it are given back.
type Released struct {
	Object uint64
	Count  int
}

// --- controller -> head -------------------------------------------------

// PoolCreate (verb pool.create) is answered by spec.Pool.
type PoolCreate struct {
	PerNode int     `msg:"gpus_per_node"`
	Nodes   int     `msg:"nodes"`
	Timeout float64 `msg:"timeout"`
	// For a backend that chooses among nodes; see backend.Want.
	CPUs        float64           `msg:"cpus_per_node,omitempty"`
	Strategy    string            `msg:"strategy,omitempty"`
	Labels      map[string]string `msg:"labels,omitempty"`
	Accelerator string            `msg:"accelerator_type,omitempty"`
	Node        string            `msg:"node,omitempty"` // the only one that will do
	// Wait: what others hold is waited for, until the timeout.
	Wait bool `msg:"wait,omitempty"`
	// Workers, of so many GPUs each, are what the pool is for: the head then says of how many
	// nodes it is, and PerNode is what a node has.
	Workers   int `msg:"workers,omitempty"`
	PerWorker int `msg:"gpus_per_worker,omitempty"`
	// Devices are the numbers of those that it shall have, of one node.
	Devices []int `msg:"devices,omitempty"`
	// Bundles, in the place of all these, are what each node of the pool shall have.
	Bundles []spec.Bundle `msg:"bundles,omitempty"`
}

// PoolOutlook answers verb pool.look, which takes a PoolCreate and makes nothing.
type PoolOutlook struct {
	Now   bool   `msg:"now"`   // it could be had
	Waits bool   `msg:"waits"` // nodes may be added: pool.create waits for them
	Text  string `msg:"text"`
}

// PoolRelease (verb pool.release): the pool goes when no cluster uses it. With verb
// pool.end, those that do are stopped.
type PoolRelease struct {
	Pool int `msg:"pool"`
}

// ClusterCreate (verb cluster.create) is answered by ClusterInfo once every
// worker is ready, or by the first cause of why not.
type ClusterCreate struct {
	Pool int          `msg:"pool"`
	Spec spec.Cluster `msg:"spec"`
	// Reuse: a living service of that name is the answer, if there is one.
	Reuse bool `msg:"reuse,omitempty"`
	// Patience is how many seconds a service that takes GPUs waits for those that others
	// have. A service that names no pool (0) gets one of its own.
	Patience float64 `msg:"patience,omitempty"`
	// Others are pools that will do as well for a service that takes GPUs.
	Others []int `msg:"others,omitempty"`
}

// ClusterRef names a cluster by number or, where that is 0, by name; with both, one that
// has both: a number alone may be another session's (verbs
// cluster.describe, cluster.stop, cluster.clear, cluster.kill).
type ClusterRef struct {
	Number uint32 `msg:"number"`
	Name   string `msg:"name"`
	// Kind, where not empty, is the only one meant; a service is then one that lives.
	Kind string `msg:"kind,omitempty"`
	// Drain is how many seconds a cluster that is stopped takes no more calls, and
	// goes on with those that it has; 0: it is stopped at once.
	Drain float64 `msg:"drain,omitempty"`
	// Ranks are those that cluster.kill ends, or cluster.clear clears; none: all.
	Ranks []int `msg:"ranks,omitempty"`
	// Why is what a rank that is killed is said to have been ended by.
	Why string `msg:"why,omitempty"`
	// Final: they stay dead, whatever on_failure says.
	Final bool `msg:"final,omitempty"`
}

// Names answers the request service.list (Empty): the services that live, sorted.
type Names struct {
	Names []string `msg:"names"`
}

// ClusterInfo describes a live cluster.
type ClusterInfo struct {
	Number      uint32           `msg:"number"`
	Name        string           `msg:"name"`
	Kind        string           `msg:"kind"`
	Pool        int              `msg:"pool"`
	MasterAddr  string           `msg:"master_addr"`
	MasterPort  int              `msg:"master_port"`
	Workers     []WorkerInfo     `msg:"workers"`
	Ranks       []spec.RankInfo  `msg:"ranks"`
	Description spec.Description `msg:"description"`
	OnFailure   string           `msg:"on_failure"`
	Restarts    int              `msg:"restarts"`           // of ranks, or of all at once, since it was made
	Draining    bool             `msg:"draining,omitempty"` // it takes no more calls
}

// WorkerInfo describes one worker of a cluster.
type WorkerInfo struct {
	Number   uint32     `msg:"number"`
	Rank     int        `msg:"rank"`
	Name     string     `msg:"name"`
	Node     int        `msg:"node"` // index in the pool
	NodeName string     `msg:"node_name"`
	Address  string     `msg:"address"`
	Devices  []DeviceAt `msg:"devices"` // in the mapping's order
	Pid      int        `msg:"pid"`
	State    string     `msg:"state"`
	LogFile  string     `msg:"log_file"`
	Restarts int        `msg:"restarts"` // how many processes had the rank before this one

	Engines []spec.Engine `msg:"engines"` // in the order in which they were made
}

// DeviceAt is a device by its place in the pool.
type DeviceAt struct {
	Node   int `msg:"node"`
	Device int `msg:"device"` // node-local number
	Global int `msg:"global"`
}

// PlanRequest (verb plan) is answered by PlanAnswer; nothing starts.
type PlanRequest struct {
	Pool     int            `msg:"pool"`
	Clusters []spec.Cluster `msg:"clusters"`
}

// PlanAnswer says who would sit where.
type PlanAnswer struct {
	Pool     spec.Pool     `msg:"pool"`
	Clusters []ClusterInfo `msg:"clusters"`
	Text     string        `msg:"text"` // drawn for people
}

// StatusRequest (verb status) is answered by Status: all that the head knows.
type StatusRequest struct {
	Unused bool `msg:"unused"` // tell of nodes that no pool has had, too
}

// Status is a head as people want to see it.
type Status struct {
	Session  string        `msg:"session"`
	Release  string        `msg:"release"`
	Pid      int           `msg:"pid"`
	Owner    int           `msg:"owner"`  // pid, 0 for a head of its own
	Script   string        `msg:"script"` // the owner's
	UpSec    float64       `msg:"up_s"`
	LogDir   string        `msg:"log_dir"`
	Virtual  string        `msg:"virtual"`
	Nodes    []NodeInfo    `msg:"nodes"`
	Unknown  string        `msg:"unknown"` // why nodes that no pool has had are not told
	Pools    []spec.Pool   `msg:"pools"`
	Clusters []ClusterInfo `msg:"clusters"`
	Calls    []CallInfo    `msg:"calls"` // unanswered, oldest first; at most 1000
}

// NodeInfo is a node and how it is.
type NodeInfo struct {
	Node      spec.Node `msg:"node"`
	State     string    `msg:"state"` // "joining", "up", "suspect", "away", "lost"; in Nodes "unused" as well
	Why       string    `msg:"why"`
	Load      Load      `msg:"load"`
	Far       bool      `msg:"far"`      // it joined over the network
	SilentSec float64   `msg:"silent_s"` // how long nothing has come from it; of a far one
	TripSec   float64   `msg:"trip_s"`   // how long its machine takes to answer; of a far one
	Free      int       `msg:"free"`     // devices that no pool holds; in Nodes
}

// NodesRequest (verb nodes) is answered by Nodes, once the nodes have joined that
// are starting, or so many seconds are over.
type NodesRequest struct {
	WaitSec float64 `msg:"wait_s"`
}

// Nodes is the nodes that are to be had: those of the session, and, as "unused" and
// with an index of -1, those of a backend's where no pool has needed an agent.
type Nodes struct {
	Nodes []NodeInfo `msg:"nodes"`
}

// CallInfo is a call that is under way.
type CallInfo struct {
	Number  uint64  `msg:"number"`
	Cluster string  `msg:"cluster"`
	Method  string  `msg:"method"`
	State   string  `msg:"state"`
	AgeSec  float64 `msg:"age_s"`
	Legs    int     `msg:"legs"`
	Out     []int   `msg:"out"` // ranks that have not answered
	Caller  string  `msg:"caller"`
	Warning string  `msg:"warning"` // what the watchdog found
}

// ClusterStacks (verb cluster.stacks) is answered by StacksAnswer: what the
// ranks named (none: all) of a cluster are doing.
type ClusterStacks struct {
	Name  string `msg:"name"`
	Ranks []int  `msg:"ranks"`
}

// WorkerEnv (verb worker.env; from head to agent to worker: env) changes the
// environment of a living worker, at once, whatever it runs. It is answered by
// Environment.
type WorkerEnv struct {
	Cluster uint32            `msg:"cluster"`
	Rank    int               `msg:"rank"`
	Worker  uint32            `msg:"worker"` // filled in by the head
	Set     map[string]string `msg:"set"`
	Unset   []string          `msg:"unset"`
}

// Environment is all of a process's variables.
type Environment struct {
	Env map[string]string `msg:"env"`
}

// --- head -> events subscribers, agent -> head ---------------------------

// Log (notice log) carries whole lines of workers' output, without the newline,
// rubbish escaped.
type Log struct {
	Lines []LogLine `msg:"lines"`
}

// LogLine is one line.
type LogLine struct {
	Number uint32 `msg:"number"`
	Worker string `msg:"worker"`
	Text   string `msg:"text"`
}

// Progress (notice progress) tells how far a cluster or pool is.
type Progress struct {
	Subject string `msg:"subject"` // "cluster actor_train"
	Doing   string `msg:"doing"`   // "starting workers"
	Done    int    `msg:"done"`
	Total   int    `msg:"total"`
	Waiting string `msg:"waiting"` // what is waited for
	Final   bool   `msg:"final"`
}

// Warning (notice warning) is a line for whoever runs the script.
type Warning struct {
	Text string `msg:"text"`
}

// Mark (notice mark; also the answer to cluster.stop and shutdown) lets a caller
// wait on its events connection until it has seen all that came before.
type Mark struct {
	Mark uint64 `msg:"mark"`
}

// --- worker -> head -------------------------------------------------------

// Ready (notice ready) is a worker's first word: it can be called.
type Ready struct {
	Pid         int              `msg:"pid"`
	Description spec.Description `msg:"description"`
	Info        *spec.RankInfo   `msg:"info"` // where its constructor changed it
	Engines     []spec.Engine    `msg:"engines"`
}

// Engines (notice engines): the further objects that a worker hosts, from now on.
type Engines struct {
	Engines []spec.Engine `msg:"engines"`
}

// Failed (notice failed): the worker could not become ready, and exits.
type Failed struct {
	Error spec.Error `msg:"error"`
}

// --- head -> agent --------------------------------------------------------

// Warm (verb warm) has the agent start a zygote ahead of its first use.
type Warm struct {
	Runtime spec.Runtime `msg:"runtime"`
}

// Start (verb start) is answered by Empty when every worker has a process.
type Start struct {
	Cluster string        `msg:"cluster"`
	Number  uint32        `msg:"number"`
	Start   string        `msg:"start"` // "fork" or "spawn"
	Runtime spec.Runtime  `msg:"runtime"`
	Setup   WorkerSetup   `msg:"setup"`
	Workers []WorkerStart `msg:"workers"`
}

//msgp:tuple Buffer

// Buffer is a Buf in a message.
type Buffer struct {
	Data   []byte
	Object uint64
}

// WorkerSetup is what all workers of a cluster are told alike.
type WorkerSetup struct {
	Kind           string     `msg:"kind"`
	Class          spec.Class `msg:"class"`
	Main           spec.Main  `msg:"main"`
	Config         []byte     `msg:"config"`
	ConfigBufs     []Buffer   `msg:"config_bufs"` // that Config names
	Pickle         string     `msg:"pickle"`
	MaxConcurrency int        `msg:"max_concurrency"`
	Cluster        string     `msg:"cluster"`
	ClusterNumber  uint32     `msg:"cluster_number"`
	// CallAddress is where the worker's calls come from: the head's socket, or
	// the agent's own where it relays (the agent fills that in).
	CallAddress    string `msg:"call_address"`
	ControlAddress string `msg:"control_address"` // the agent fills that in
	Node           string `msg:"node"`
	LogDir         string `msg:"log_dir"`
}

// WorkerStart is what one worker is told by itself.
type WorkerStart struct {
	Number uint32            `msg:"number"`
	Rank   int               `msg:"rank"`
	Name   string            `msg:"name"`
	Token  string            `msg:"token"`
	Env    map[string]string `msg:"env"` // complete but for the controller's own
	Info   spec.RankInfo     `msg:"info"`
}

// Stop (verb stop) is answered when every named worker, what it started, and
// the last line of its output are gone. All: everything the agent has.
type Stop struct {
	Workers      []uint32 `msg:"workers"`
	All          bool     `msg:"all"`
	GraceSeconds float64  `msg:"grace"`
	Why          string   `msg:"why"`
}

// StacksRequest (verb stacks) is answered by StacksAnswer.
type StacksRequest struct {
	Workers []uint32 `msg:"workers"`
}

// StacksAnswer has one Stack per worker asked for, in order.
type StacksAnswer struct {
	Stacks []spec.Stack `msg:"stacks"`
}

// CancelLeg (verb cancel) is answered by Cancelled.
type CancelLeg struct {
	Worker uint32 `msg:"worker"`
	Call   uint64 `msg:"call"`
	Kill   bool   `msg:"kill"`
}

// Cancelled answers CancelLeg. State is the worker's word ("queued",
// "interrupted", "loop", "done"), or the agent's: "killed", "gone" (no such
// worker any more), "still in C" (the worker did not answer).
type Cancelled struct {
	State string `msg:"state"`
}

// HoldPorts (verb hold_ports) binds ports on the agent's node until
// release_ports, whose body is the same (Count does not matter), or until the
// agent ends.
type HoldPorts struct {
	Cluster uint32 `msg:"cluster"`
	Count   int    `msg:"count"`
}

// Ports answers HoldPorts.
type Ports struct {
	Ports []int `msg:"ports"`
}

// Ping (notice ping, either way on an agent's connection over the network) is
// answered by Notice pong. It is sent when nothing has come for a while.
type Ping struct {
	Silent float64 `msg:"silent"` // seconds for which the sender has heard nothing
}

// Leaving (notice leaving) is an agent's word that it is about to end, with its
// workers, whose ends it tells after it.
type Leaving struct {
	Why string `msg:"why"`
}

// Load (notice load) is how busy a node is, every few seconds.
type Load struct {
	Load      float64 `msg:"load"`      // of the last minute, as /proc/loadavg has it
	Available uint64  `msg:"available"` // bytes of memory that can be had
	Known     bool    `msg:"known"`
}

// Exited (notice exited) is the agent's word on a worker's end. It is sent when
// nothing of the worker is left and its log is complete.
type Exited struct {
	Worker uint32   `msg:"worker"`
	Pid    int      `msg:"pid"`
	Code   int      `msg:"code"`
	Signal string   `msg:"signal"`
	OOM    bool     `msg:"oom"`
	Asked  bool     `msg:"asked"` // the head had asked for it
	Logs   []string `msg:"logs"`
	Why    string   `msg:"why"`
}

// Objects (notice objects) tells a store who needs its objects, in the order
// of effect: Hold those that the head has seen, those that were Lent may be read
// where they lie, Moved are those that nobody is told the place of any more,
// Drop those that nobody has a handle of any more, and free what holders that
// are Gone made and never told the head of. With All, nothing is lent but what
// Lent says.
type Objects struct {
	Hold  []uint64 `msg:"hold"`
	Lent  []Lent   `msg:"lent"`
	Moved []uint64 `msg:"moved"`
	Drop  []uint64 `msg:"drop"`
	Gone  []uint64 `msg:"gone"`
	All   bool     `msg:"all,omitempty"`
}

//msgp:tuple Lent

// Lent says that a holder was told where an object lies, or, with Count -1, that
// it reads it there no more.
type Lent struct {
	Object uint64
	Holder uint64
	Count  int
}

// Moving (notice moving) asks the head not to tell anybody any more where an
// object lies: the store answers it by Objects.Moved before it spills it.
type Moving struct {
	Object uint64 `msg:"object"`
}

// StoreStatus answers the request store (Empty): all that one store holds.
type StoreStatus struct {
	Node       int           `msg:"node"`
	Budget     uint64        `msg:"budget"`
	Used       uint64        `msg:"used"`    // bytes of segments with an object in them
	Pooled     uint64        `msg:"pooled"`  // bytes of segments kept for the next objects
	Spilled    uint64        `msg:"spilled"` // bytes of objects that lie on disk
	SpillLimit uint64        `msg:"spill_limit"`
	SpillDir   string        `msg:"spill_dir"` // "" where nothing can be spilled
	Objects    []StoreObject `msg:"objects"`   // largest first
}

// StoreObject is one object of a store.
type StoreObject struct {
	Object uint64      `msg:"object"`
	Bytes  uint64      `msg:"bytes"`
	Here   uint64      `msg:"here"`  // those of them that are here: fewer of a copy of which a part was needed
	State  string      `msg:"state"` // "writing", "sealed", "spilled", "broken", "copy"
	What   string      `msg:"what"`
	Maker  uint64      `msg:"maker"` // a holder
	Held   bool        `msg:"held"`  // somebody has a handle, says the head
	Since  float64     `msg:"since"` // unix seconds
	Views  []StoreView `msg:"views"`
	// Handles are who knows of it, as the head has counted; a store leaves them out.
	Handles []StoreHandle `msg:"handles"`
}

// StoreHandle says that somebody has a handle of an object: a process, or a call.
type StoreHandle struct {
	Holder  uint64  `msg:"holder"`
	Count   int     `msg:"count"`
	Seconds float64 `msg:"seconds"` // for how long
}

// StoreView says that a process has an object's bytes in use.
type StoreView struct {
	Holder uint64  `msg:"holder"`
	Count  int     `msg:"count"`
	Since  float64 `msg:"since"` // unix seconds
}

// StoreReport answers the head's request store (Empty): the stores of all
// nodes, and who the holders in them are.
type StoreReport struct {
	Nodes   []StoreStatus `msg:"nodes"`
	Holders []HolderName  `msg:"holders"`
}

// HoldersAsk (notice holders, of an agent) asks who has handles of objects, for the
// error of a store that is full. The head answers by Holders.
type HoldersAsk struct {
	ID      uint64   `msg:"id"`
	Objects []uint64 `msg:"objects"`
}

// Holders (notice holders) answers HoldersAsk.
type Holders struct {
	ID   uint64 `msg:"id"`
	Held []Held `msg:"held"`
}

//msgp:tuple Held

// Held is an object, and somebody who has a handle of it, for how many seconds.
type Held struct {
	Object  uint64
	Holder  string
	Seconds float64
}

// HolderName names a holder for people: a worker, a controller's process, or a call.
type HolderName struct {
	Holder uint64 `msg:"holder"`
	Name   string `msg:"name"`
}
