package placement

import (
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// deviceIDs are the global ids of a pool's devices: the first of each node, and how many
// there are in all.
type deviceIDs []int

func idsOf(pool spec.Pool) deviceIDs {
	first := make(deviceIDs, len(pool.Nodes)+1)
	for i := range pool.Nodes {
		first[i+1] = first[i] + len(pool.Nodes[i].Devices)
	}
	return first
}

func (first deviceIDs) size() int { return first[len(first)-1] }

// node is the index of the node that has a device. Nodes without any have none of the ids.
func (first deviceIDs) node(id int) int {
	after, _ := slices.BinarySearch(first, id+1)
	return after - 1
}

// perNode says how many devices nodes have: "4", or "4, 2 and 1".
func (first deviceIDs) perNode(pool spec.Pool) string {
	const most = 8
	if pool.PerNode > 0 {
		return strconv.Itoa(pool.PerNode)
	}
	sizes := make([]int, len(pool.Nodes))
	for i := range sizes {
		sizes[i] = first[i+1] - first[i]
	}
	return listed(sizes, most)
}

// each says the same in words: "4 devices a node".
func (first deviceIDs) each(pool spec.Pool) string {
	if pool.PerNode > 0 {
		return first.perNode(pool) + " devices a node"
	}
	return "nodes of " + first.perNode(pool) + " devices"
}

// listed is numbers in a sentence: "4, 2 and 1"; of many, some.
func listed(numbers []int, most int) string {
	var b strings.Builder
	for i, number := range numbers {
		switch {
		case i >= most:
			b.WriteString(", …")
			return b.String()
		case i > 0 && i == len(numbers)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(number))
	}
	return b.String()
}
