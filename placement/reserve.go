package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Held is a pool that is already given out. By says whose it is ("actor_train,
// critic"), for messages; it may be empty.
type Held struct {
	Pool spec.Pool
	By   string
}

// Reserve picks count nodes and perNode devices on each that no held pool has,
// all of them or none. Nodes that fit tightest are taken first, so that large
// requests find whole nodes later; the pool lists them in the order given.
// With perNode 0 it takes the first count nodes and holds nothing. The caller
// numbers the pool.
//
// nodes are the ones alive; held pools name them by Node.Index. What is not
// there has CodeResources, what can never be CodeInvalid.
func Reserve(nodes []spec.Node, held []Held, perNode, count int) (spec.Pool, error) {
	if perNode < 0 {
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "num_gpus_per_node is %d; it is 0 (CPU only) or more", perNode)
	}
	if count < 1 {
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "num_nodes is %d; it is 1 or more", count)
	}
	free := make([][]spec.Device, len(nodes))
	taken := takenDevices(held)
	var fits []int // positions in nodes
	for i, node := range nodes {
		free[i] = freeDevices(node, taken)
		if len(free[i]) >= perNode {
			fits = append(fits, i)
		}
	}
	if len(fits) < count {
		return spec.Pool{}, lacking(nodes, held, free, perNode, count, len(fits))
	}
	if perNode > 0 {
		slices.SortStableFunc(fits, func(a, b int) int { return cmp.Compare(len(free[a]), len(free[b])) })
	}
	fits = fits[:count]
	slices.Sort(fits)
	pool := spec.Pool{PerNode: perNode, Nodes: make([]spec.Node, 0, count)}
	for _, i := range fits {
		node := nodes[i]
		node.Devices = free[i][:perNode:perNode]
		pool.Nodes = append(pool.Nodes, node)
	}
	return pool, nil
}

type deviceKey struct{ node, device int }

func takenDevices(held []Held) map[deviceKey]bool {
	taken := map[deviceKey]bool{}
	for _, h := range held {
		for _, node := range h.Pool.Nodes {
			for _, d := range node.Devices {
				taken[deviceKey{node.Index, d.Index}] = true
			}
		}
	}
	return taken
}

// freeDevices returns them by number, in memory of their own.
func freeDevices(node spec.Node, taken map[deviceKey]bool) []spec.Device {
	free := make([]spec.Device, 0, len(node.Devices))
	for _, d := range node.Devices {
		if !taken[deviceKey{node.Index, d.Index}] {
			free = append(free, d)
		}
	}
	slices.SortStableFunc(free, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	return free
}

// lacking tells what was wanted, what there is, who holds it and what to do.
func lacking(nodes []spec.Node, held []Held, free [][]spec.Device, perNode, count, fit int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "not enough for ResourceManager(num_gpus_per_node=%d, num_nodes=%d): ", perNode, count)
	if perNode == 0 {
		fmt.Fprintf(&b, "wanted %s, there %s", plural(count, "node"), isAre(len(nodes)))
		return spec.Errorf(spec.CodeResources, "%s; for more on this machine ask for virtual ones: %s", &b, virtualHint(count, perNode))
	}
	fmt.Fprintf(&b, "wanted %s with %s free on each, ", plural(count, "node"), plural(perNode, "GPU"))
	switch fit {
	case 0:
		b.WriteString("no node has that")
	case 1:
		b.WriteString("1 node has that")
	default:
		fmt.Fprintf(&b, "%d nodes have that", fit)
	}
	holders := holdersByNode(held)
	const most = 16 // lines
	couldFit, virtual := 0, false
	for i, node := range nodes {
		virtual = virtual || node.Virtual
		if len(node.Devices) >= perNode {
			couldFit++
		}
		if i < most {
			fmt.Fprintf(&b, "\n  %s: %s", node.Name, describe(node, free[i], holders[node.Index]))
		} else if i == most {
			fmt.Fprintf(&b, "\n  … and %s", plural(len(nodes)-most, "more node"))
		}
	}
	if len(nodes) == 0 {
		b.WriteString("\n  there are no nodes")
	}
	switch {
	case couldFit >= count:
		b.WriteString("\nwhat is held comes free when the pool that holds it is released; clusters that share devices share one ResourceManager")
	case virtual:
		fmt.Fprintf(&b, "\nthe GPUs here are virtual; for more of them: %s", virtualHint(count, perNode))
	default:
		fmt.Fprintf(&b, "\nto run without real GPUs ask for virtual ones: %s", virtualHint(count, perNode))
	}
	return spec.Errorf(spec.CodeResources, "%s", &b)
}

// virtualHint names the option in all its spellings, sized to what was wanted.
func virtualHint(count, perNode int) string {
	size := "4x8"
	if count <= spec.MaxVirtualNodes && perNode <= spec.MaxVirtualDevices {
		size = spec.Virtual{Nodes: count, Devices: perNode}.String()
	}
	return fmt.Sprintf("muster.init(virtual=%q), MUSTER_VIRTUAL=%s or muster run --virtual %s", size, size, size)
}

func describe(node spec.Node, free []spec.Device, holders []string) string {
	trouble := ""
	if node.Trouble != "" {
		trouble = "; " + node.Trouble
	}
	if len(node.Devices) == 0 {
		return "no GPUs" + trouble
	}
	text := plural(len(node.Devices), "GPU")
	if name := node.Devices[0].Name; name != "" && !node.Virtual {
		text += " (" + name + ")"
	}
	if len(holders) == 0 {
		return text + ", all free" + trouble
	}
	return fmt.Sprintf("%s, %d free; %s%s", text, len(free), strings.Join(holders, "; "), trouble)
}

// holdersByNode says, by Node.Index, which pool holds which devices.
func holdersByNode(held []Held) map[int][]string {
	byNode := map[int][]string{}
	for _, h := range held {
		who := fmt.Sprintf("pool %d", h.Pool.ID)
		if h.By != "" {
			who += " (" + h.By + ")"
		}
		for _, node := range h.Pool.Nodes {
			if len(node.Devices) > 0 {
				numbers := make([]int, len(node.Devices))
				for i, d := range node.Devices {
					numbers[i] = d.Index
				}
				byNode[node.Index] = append(byNode[node.Index], who+" holds "+spec.Spans(numbers))
			}
		}
	}
	return byNode
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func isAre(n int) string {
	if n == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", n)
}
