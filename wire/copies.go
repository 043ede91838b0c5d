package wire

// Messages about objects that lie on one node and are read on another.

//go:generate go tool msgp -o copies_gen.go -tests=false -io=false -file copies.go

//msgp:tuple Run

// Run is chunks From to (not included) To of an object.
type Run struct {
	From uint32
	To   uint32
}

// Fetch (notice fetch, agent to head) asks where chunks of an object are to be
// had. The head answers by Sources; an agent whose connection was cut asks again.
type Fetch struct {
	ID     uint64 `msg:"id"` // the agent's own, for the answer
	Object uint64 `msg:"object"`
	Runs   []Run  `msg:"runs"`
	Avoid  []int  `msg:"avoid"` // nodes that could not give them just now
}

// Sources (notice sources, head to agent) answers a Fetch.
type Sources struct {
	ID      uint64   `msg:"id"`
	Sources []Source `msg:"sources"`
	Error   []byte   `msg:"error,omitempty"` // an encoded Error, in the place of sources
}

//msgp:tuple Source

// Source says that chunks From to To are to be had from a node's store, which
// listens at Address.
type Source struct {
	From    uint32
	To      uint32
	Node    int
	Name    string
	Address string
}

// Copied (notice copied, agent to head) says which chunks of an object have
// arrived, or, with Gone, that the node has nothing of it any more.
type Copied struct {
	Object uint64 `msg:"object"`
	Runs   []Run  `msg:"runs"`
	Gone   bool   `msg:"gone,omitempty"`
}

// Serving (notice serving, agent to head) says where a node's store listens for
// those of other nodes, and in which folder its own processes find it. Without a
// host the address is one of the head's machine.
type Serving struct {
	Address string `msg:"address"`
	Dir     string `msg:"dir"`
}
