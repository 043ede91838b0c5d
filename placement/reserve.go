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

// Ask is what a pool shall have: PerNode devices Nodes times, spread over nodes by
// a Strategy. With PerNode 0 it holds nothing.
type Ask struct {
	PerNode, Nodes int
	Strategy       string // "": StrictSpread
}

// Strategies, by Ray's names. Where several nodes of a pool are one node in truth,
// each has its own devices.
const (
	StrictSpread = "STRICT_SPREAD" // each on a node of its own
	Spread       = "SPREAD"        // the same, as far as nodes go
	Pack         = "PACK"          // on as few nodes as can be
	StrictPack   = "STRICT_PACK"   // all on one node
)

// Strategies lists them, the default first.
func Strategies() []string { return []string{StrictSpread, Spread, Pack, StrictPack} }

// Reserve picks devices that no held pool has, all that are asked for or none.
// Nodes that fit tightest are taken first, so that large requests find whole nodes
// later; the pool lists them in the order given. The caller numbers the pool.
//
// nodes are the ones alive; held pools name them by Node.Index. What is not
// there has CodeResources, what can never be CodeInvalid.
func Reserve(nodes []spec.Node, held []Held, ask Ask) (spec.Pool, error) {
	ask.Strategy = cmp.Or(ask.Strategy, StrictSpread)
	switch {
	case ask.PerNode < 0:
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "num_gpus_per_node is %d; it is 0 (CPU only) or more", ask.PerNode)
	case ask.Nodes < 1:
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "num_nodes is %d; it is 1 or more", ask.Nodes)
	case !slices.Contains(Strategies(), ask.Strategy):
		return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "strategy is %q; there are %s", ask.Strategy, strings.Join(Strategies(), ", "))
	}
	free := make([][]spec.Device, len(nodes))
	room := make([]int, len(nodes)) // how often PerNode is free there
	taken := takenDevices(held)
	for i, node := range nodes {
		free[i] = freeDevices(node, taken)
		room[i] = ask.Nodes
		if ask.PerNode > 0 {
			room[i] = min(ask.Nodes, len(free[i])/ask.PerNode)
		}
	}
	counts := ask.counts(room, free)
	if counts == nil {
		return spec.Pool{}, lacking(nodes, held, free, room, ask)
	}
	pool := spec.Pool{PerNode: ask.PerNode, Nodes: make([]spec.Node, 0, ask.Nodes)}
	for i, count := range counts {
		for at := range count {
			node, first := nodes[i], at*ask.PerNode
			node.Devices = free[i][first : first+ask.PerNode : first+ask.PerNode]
			pool.Nodes = append(pool.Nodes, node)
		}
	}
	return pool, nil
}

// counts says how many nodes of the pool each node is; nil if there is not room
// for all.
func (ask Ask) counts(room []int, free [][]spec.Device) []int {
	var fits []int // positions, tightest first
	for i := range room {
		if room[i] > 0 {
			fits = append(fits, i)
		}
	}
	if ask.PerNode > 0 {
		slices.SortStableFunc(fits, func(a, b int) int { return cmp.Compare(len(free[a]), len(free[b])) })
	}
	counts, left := make([]int, len(room)), ask.Nodes
	put := func(i, n int) {
		counts[i] += n
		left -= n
	}
	switch ask.Strategy {
	case StrictSpread, Spread:
		for again := true; again && left > 0; {
			again = false
			for _, i := range fits {
				if left > 0 && counts[i] < room[i] {
					put(i, 1)
					again = ask.Strategy == Spread
				}
			}
		}
	default:
		for left > 0 && len(fits) > 0 {
			at := slices.IndexFunc(fits, func(i int) bool { return room[i] >= left }) // the tightest that takes the rest
			if at < 0 && ask.Strategy == StrictPack {
				return nil
			}
			if at < 0 { // else the tightest of those with most room
				most := room[fits[len(fits)-1]]
				at = slices.IndexFunc(fits, func(i int) bool { return room[i] == most })
			}
			put(fits[at], min(left, room[fits[at]]))
			fits = slices.Delete(fits, at, at+1)
		}
	}
	if left > 0 {
		return nil
	}
	return counts
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

// Free says how many devices of each node no held pool has, by Node.Index.
func Free(nodes []spec.Node, held []Held) map[int]int {
	taken, free := takenDevices(held), map[int]int{}
	for i := range nodes {
		free[nodes[i].Index] = len(freeDevices(nodes[i], taken))
	}
	return free
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
func lacking(nodes []spec.Node, held []Held, free [][]spec.Device, room []int, ask Ask) error {
	var b strings.Builder
	perNode, count := ask.PerNode, ask.Nodes
	fmt.Fprintf(&b, "not enough for ResourceManager(num_gpus_per_node=%d, num_nodes=%d", perNode, count)
	if ask.Strategy != StrictSpread {
		fmt.Fprintf(&b, ", strategy=%q", ask.Strategy)
	}
	b.WriteString("): ")
	if perNode == 0 {
		fmt.Fprintf(&b, "wanted %s, there %s", plural(count, "node"), isAre(len(nodes)))
		return spec.Errorf(spec.CodeResources, "%s; for more on this machine ask for virtual ones: %s", &b, ask.virtualHint())
	}
	ask.wanted(&b, room)
	could := make([]int, len(nodes)) // if nothing were held
	for i, node := range nodes {
		could[i] = min(count, len(node.Devices)/perNode)
	}
	thereIs(&b, nodes, held, free, ask.counts(could, free) != nil, ask.virtualHint())
	return spec.Errorf(spec.CodeResources, "%s", &b)
}

// thereIs tells what each node has, who holds it, and what to do. could says that it
// would be enough if nothing were held.
func thereIs(b *strings.Builder, nodes []spec.Node, held []Held, free [][]spec.Device, could bool, hint string) {
	holders := holdersByNode(held)
	const most = 16 // lines
	virtual := false
	for i, node := range nodes {
		virtual = virtual || node.Virtual
		if i < most {
			fmt.Fprintf(b, "\n  %s: %s", node.Name, describe(node, free[i], holders[node.Index]))
		} else if i == most {
			fmt.Fprintf(b, "\n  … and %s", plural(len(nodes)-most, "more node"))
		}
	}
	if len(nodes) == 0 {
		b.WriteString("\n  there are no nodes")
	}
	switch {
	case could:
		b.WriteString("\nwhat is held comes free when the pool that holds it is released; clusters that share devices share one ResourceManager")
	case virtual:
		fmt.Fprintf(b, "\nthe GPUs here are virtual; for more of them: %s", hint)
	default:
		fmt.Fprintf(b, "\nto run without real GPUs ask for virtual ones: %s", hint)
	}
}

// wanted says what was asked for, and how much of it there is room for.
func (ask Ask) wanted(b *strings.Builder, room []int) {
	each := plural(ask.PerNode, "GPU")
	if ask.Strategy != StrictSpread {
		there := 0
		for _, r := range room {
			if ask.Strategy == StrictPack {
				there = max(there, r)
			} else {
				there += r
			}
		}
		where := ""
		if ask.Strategy == StrictPack {
			where = " on one node"
		}
		fmt.Fprintf(b, "wanted %s free %d times%s, and there is room for %d", each, ask.Nodes, where, there)
		return
	}
	fmt.Fprintf(b, "wanted %s with %s free on each, ", plural(ask.Nodes, "node"), each)
	fit := 0
	for _, r := range room {
		fit += min(r, 1)
	}
	switch fit {
	case 0:
		b.WriteString("no node has that")
	case 1:
		b.WriteString("1 node has that")
	default:
		fmt.Fprintf(b, "%d nodes have that", fit)
	}
}

// virtualHint names the option in all its spellings, sized to what was wanted.
func (ask Ask) virtualHint() string {
	count, perNode := ask.Nodes, ask.PerNode
	if ask.Strategy == StrictPack {
		count, perNode = 1, ask.Nodes*perNode
	}
	return virtualHint(count, perNode)
}

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
		numbers := map[int][]int{} // a pool may have a node several times
		for _, node := range h.Pool.Nodes {
			for _, d := range node.Devices {
				numbers[node.Index] = append(numbers[node.Index], d.Index)
			}
		}
		for node, held := range numbers {
			slices.Sort(held)
			byNode[node] = append(byNode[node], who+" holds "+spec.Spans(held))
		}
	}
	return byNode
}

// Describe names the nodes of a pool and their devices, for people.
func Describe(pool spec.Pool) string {
	var b strings.Builder
	shown, elided := edges(len(pool.Nodes), drawNodes)
	for i, n := range shown {
		if i > 0 {
			b.WriteString(", ")
		}
		if i > 0 && n != shown[i-1]+1 {
			fmt.Fprintf(&b, "… %s …, ", plural(elided, "more node"))
		}
		numbers := make([]int, len(pool.Nodes[n].Devices))
		for at, d := range pool.Nodes[n].Devices {
			numbers[at] = d.Index
		}
		b.WriteString(pool.Nodes[n].Name)
		if len(numbers) > 0 {
			b.WriteString(" GPU " + spec.Spans(numbers))
		}
	}
	return b.String()
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
