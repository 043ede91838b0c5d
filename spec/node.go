package spec

// Device is one accelerator of a node as the agent found it.
type Device struct {
	Index   int    `msg:"index"`   // node-local number, what CUDA_VISIBLE_DEVICES takes unless Visible is set
	ID      string `msg:"id"`      // UUID where there is one
	Visible string `msg:"visible"` // what goes into the variable instead of the number: a UUID, where no number names the device
	Kind    string `msg:"kind"`    // "nvidia", "amd", "ascend", "virtual"; "gpu" where only their number is known
	Name    string `msg:"name"`
	Memory  uint64 `msg:"memory"` // bytes, 0 if not known
}

// Node is what an agent reports of its machine when it joins.
type Node struct {
	Index   int      `msg:"index"`
	Name    string   `msg:"name"`
	Address string   `msg:"address"` // where others reach it: 127.0.0.1 on one machine
	Cores   int      `msg:"cores"`
	Memory  uint64   `msg:"memory"`
	Files   uint64   `msg:"files"` // open files allowed
	Virtual bool     `msg:"virtual"`
	Devices []Device `msg:"devices"`
	Trouble string   `msg:"trouble"` // for people: why devices are missing from the list; empty if none is
	Pid     int      `msg:"pid"`
	Boot    string   `msg:"boot"` // tells a machine from itself after it was started anew
	Life    string   `msg:"life"` // tells an agent from another one of the same node
}

// Bundle is what one node of a pool shall have, where nodes differ.
type Bundle struct {
	GPUs int     `msg:"gpus" json:"gpus"`
	CPUs float64 `msg:"cpus,omitempty" json:"cpus,omitempty"` // for a backend that counts them
}

// Pool is a reservation: Nodes, in pool order, with PerNode devices of each, or, in a
// pool of bundles, as many as each has. Global device ids count on from node to node.
type Pool struct {
	ID      int    `msg:"id"`
	PerNode int    `msg:"per_node"` // 0 where nodes differ
	Nodes   []Node `msg:"nodes"`    // Devices cut to the ones reserved
	// Env is what workers on the pool find beside their own variables.
	Env map[string]string `msg:"env,omitempty"`
}
