package placement

import "github.com/muster-rl/muster/spec"

// Shape is the pool that workers of a cluster need, each of them with so many
// devices, where a node has perNode: as few nodes as can be, and of each no more than
// its workers take, as what is left is for others. A worker with more devices than a
// node has gets whole nodes. Where perNode is 0, nothing is known: it is one node.
func Shape(workers, each, perNode int) (Ask, error) {
	total := workers * each
	switch {
	case workers < 1 || each < 0 || perNode < 0:
		return Ask{}, spec.Errorf(spec.CodeInvalid, "a pool is for 1 worker or more, each with 0 GPUs or more, got world_size=%d, num_gpus_per_worker=%d, num_gpus_per_node=%d", workers, each, perNode)
	case each == 0 || perNode == 0 || total <= perNode:
		return Ask{PerNode: total, Nodes: 1}, nil
	case each > perNode:
		return Ask{PerNode: perNode, Nodes: parts(total, perNode)}, nil
	case perNode%each != 0:
		return Ask{}, spec.Errorf(spec.CodeInvalid, "workers of %d GPUs do not fill nodes of %d: of %d, some would lie on two nodes; give each worker a number of GPUs that divides %d, or a pool of its own", each, perNode, workers, perNode)
	}
	nodes := parts(total, perNode)
	return Ask{PerNode: parts(workers, nodes) * each, Nodes: nodes}, nil
}

// parts is how many parts of a size make a whole.
func parts(whole, size int) int { return (whole + size - 1) / size }
