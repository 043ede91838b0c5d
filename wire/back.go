package wire

// Messages of who comes back to a head after its connection was cut.

//go:generate go tool msgp -o back_gen.go -tests=false -io=false -file back.go

// CallerBack (notice back, of a controller) is what it has read, and which
// objects it knows of.
type CallerBack struct {
	Answers uint32     `msg:"answers"` // Answer frames, on all its connections
	Objects []Released `msg:"objects"`
}

// WorkerBack (notice back, of a worker) is which legs it has got and was not
// released of, oldest first, which objects it knows of, and how many of those
// counts came with where they lie and are read there. A worker that does not say
// may read all of them there.
type WorkerBack struct {
	Received uint32     `msg:"received"` // legs, ever
	Legs     []LegBack  `msg:"legs"`
	Objects  []Released `msg:"objects"`
	Lent     []Released `msg:"lent,allownil"`
	Ready    Ready      `msg:"ready"`
}

//msgp:tuple LegBack

// LegBack is one leg that a worker has got.
type LegBack struct {
	Seq    uint32
	Call   uint64
	Origin uint64
	Done   int // 1: its Result follows
}

// AgentBack (notice back, of an agent) is what there is on its node.
type AgentBack struct {
	Workers []WorkerAt `msg:"workers"`
	Exits   []Exited   `msg:"exits"`
	Objects []ObjectAt `msg:"objects"`
}

//msgp:tuple WorkerAt

// WorkerAt is a worker that an agent has.
type WorkerAt struct {
	Number uint32
	Pid    int
}

//msgp:tuple ObjectAt

// ObjectAt is an object that a store has, and the holder that made it.
type ObjectAt struct {
	Object  uint64
	Segment uint32
	Held    int // 1: the head had told it to hold it
	Maker   uint64
}

// Again (notice again, head to controller) names calls whose frames are needed
// once more: a worker came back without them.
type Again struct {
	Calls []uint64 `msg:"calls"`
}

// Acked (notice acked, head to worker) says which results may be dropped: those
// of legs up to Through, and of Calls.
type Acked struct {
	Through uint32   `msg:"through"`
	Calls   []uint64 `msg:"calls"`
}
