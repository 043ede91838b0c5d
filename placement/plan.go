package placement

import (
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Plan says where each worker of one cluster sits.
type Plan struct {
	Pool    spec.Pool
	Cluster spec.Cluster // as Check left it
	Workers []Worker     // by rank
	Nodes   []int        // the pool's nodes that it uses, by NodeRank
}

// Worker is one rank's place.
type Worker struct {
	Rank       int
	Name       string
	Node       int // index in the pool
	NodeName   string
	Devices    []DeviceAt // in the mapping's order; none for CPU workers
	NodeRank   int        // index among the nodes that the cluster uses, by order of first rank
	LocalRank  int        // the true one: index among the cluster's workers on its node, by rank
	LocalWorld int        // how many of the cluster's workers its node has
	Info       spec.RankInfo
}

// DeviceAt is a device by its place in the pool. wire.DeviceAt converts from it.
type DeviceAt struct {
	Node   int // index in the pool
	Device int // node-local number
	Global int // id in the mapping
}

// longestDevices bounds the device numbers in a name: log files are named after
// workers, and one worker may have hundreds.
const longestDevices = 64

// Place checks a cluster and seats it in a pool. Rank r takes the r-th group of
// DevicesPerWorker entries of the mapping, in its order; these lie on one node,
// or, with SpanNodes, the worker runs on the node of the first. Without a
// mapping rank r is a CPU worker on node r modulo the nodes, or on the one that
// Node names. Devices may be used by any number of clusters. A service's one
// worker is named as the service is.
//
// Its errors name the offending id or size and what there is: CodePlacement, or
// those of spec.Cluster.Check.
func Place(pool spec.Pool, c spec.Cluster) (Plan, error) {
	if err := c.Check(); err != nil {
		return Plan{}, err
	}
	if err := fitsPool(pool, c); err != nil {
		err.Cluster = c.Name
		err.Message = c.Kind + " " + c.Name + ": " + err.Message
		return Plan{}, err
	}
	infos, err := spec.Layout(c.World, c.Shape)
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{Pool: pool, Cluster: c, Workers: make([]Worker, c.World)}
	n := c.DevicesPerWorker
	devices := make([]DeviceAt, len(c.Mapping)) // one block for all workers
	ids := idsOf(pool)
	for i, id := range c.Mapping {
		node := ids.node(id)
		devices[i] = DeviceAt{Node: node, Device: pool.Nodes[node].Devices[id-ids[node]].Index, Global: id}
	}
	nodeRanks := make([]int, len(pool.Nodes)) // + 1; 0: not used
	locals := make([]int, len(pool.Nodes))
	var scratch nameScratch
	for r := range plan.Workers {
		w := &plan.Workers[r]
		w.Rank, w.Info = r, infos[r]
		if c.HasMapping {
			w.Devices = devices[r*n : (r+1)*n : (r+1)*n]
			w.Node = w.Devices[0].Node
		} else if w.Node = r % len(pool.Nodes); c.Node != "" {
			w.Node = slices.IndexFunc(pool.Nodes, func(n spec.Node) bool { return n.Name == c.Node })
		}
		if nodeRanks[w.Node] == 0 {
			plan.Nodes = append(plan.Nodes, w.Node)
			nodeRanks[w.Node] = len(plan.Nodes)
		}
		w.NodeRank = nodeRanks[w.Node] - 1
		w.NodeName = pool.Nodes[w.Node].Name
		w.LocalRank = locals[w.Node]
		locals[w.Node]++
		if w.Name = c.Name; c.Kind != spec.KindService {
			w.Name = scratch.name(c.Name, w)
		}
	}
	for r := range plan.Workers {
		plan.Workers[r].LocalWorld = locals[plan.Workers[r].Node]
	}
	return plan, nil
}

// fitsPool checks all that Place relies on.
func fitsPool(pool spec.Pool, c spec.Cluster) *spec.Error {
	if len(pool.Nodes) == 0 {
		return spec.Errorf(spec.CodePlacement, "the pool has no nodes")
	}
	for _, node := range pool.Nodes {
		if len(node.Devices) < pool.PerNode {
			return spec.Errorf(spec.CodeInternal, "pool %d should have %d devices of %s and has %d", pool.ID, pool.PerNode, node.Name, len(node.Devices))
		}
	}
	if err := fitsNode(pool, c); err != nil || !c.HasMapping {
		return err
	}
	ids := idsOf(pool)
	if ids.size() == 0 {
		return spec.Errorf(spec.CodePlacement,
			"device_mapping names device %d, but the pool is CPU only (num_gpus_per_node=0); reserve GPUs, or leave device_mapping out and give world_size", c.Mapping[0])
	}
	n := c.DevicesPerWorker
	for i, id := range c.Mapping {
		if err := inPool(pool, ids, i, id); err != nil {
			return err
		}
		if first := c.Mapping[i-i%n]; !c.SpanNodes && ids.node(id) != ids.node(first) {
			err := spec.Errorf(spec.CodePlacement,
				"rank %d would get device %d on %s and device %d on %s (num_gpus_per_worker=%d, %s); devices of one worker lie on one node, unless span_nodes=True allows more",
				i/n, first, pool.Nodes[ids.node(first)].Name, id, pool.Nodes[ids.node(id)].Name, n, ids.each(pool))
			err.Rank = i / n
			return err
		}
	}
	return nil
}

// inPool checks that a pool has the device of an id, which is the i-th.
func inPool(pool spec.Pool, ids deviceIDs, i, id int) *spec.Error {
	if size := ids.size(); id >= size {
		return spec.Errorf(spec.CodePlacement, "device_mapping has id %d at position %d, but the pool has %s (%s of %s): ids 0 to %d",
			id, i, plural(size, "device"), plural(len(pool.Nodes), "node"), ids.perNode(pool), size-1)
	}
	return nil
}

// fitsNode checks that the node asked for, if one is, is in the pool.
func fitsNode(pool spec.Pool, c spec.Cluster) *spec.Error {
	if c.Node == "" {
		return nil
	}
	if c.HasMapping {
		return spec.Errorf(spec.CodePlacement, "node=%q together with a device_mapping, which says itself where workers run: leave one of them out", c.Node)
	}
	names := make([]string, len(pool.Nodes))
	for i := range pool.Nodes {
		if names[i] = pool.Nodes[i].Name; names[i] == c.Node {
			return nil
		}
	}
	return spec.Errorf(spec.CodePlacement, "node=%q is not in the pool, which has %s", c.Node, strings.Join(names, ", "))
}

// nameScratch is memory that names are built in, kept from one to the next.
type nameScratch struct {
	text    []byte
	numbers []int
}

// name is {cluster}-{rank}-G{sorted numbers, joined} of the devices on the
// worker's own node, {cluster}-{rank} without devices. Where the numbers get
// too long for a file name they are told as first, last and count.
func (s *nameScratch) name(cluster string, w *Worker) string {
	s.text = append(append(s.text[:0], cluster...), '-')
	s.text = strconv.AppendInt(s.text, int64(w.Rank), 10)
	if len(w.Devices) == 0 {
		return string(s.text)
	}
	s.numbers = s.numbers[:0]
	for _, d := range w.Devices {
		if d.Node == w.Node {
			s.numbers = append(s.numbers, d.Device)
		}
	}
	slices.Sort(s.numbers)
	s.text = append(s.text, "-G"...)
	start := len(s.text)
	for _, number := range s.numbers {
		s.text = strconv.AppendInt(s.text, int64(number), 10)
	}
	if len(s.text)-start > longestDevices {
		s.text = strconv.AppendInt(s.text[:start], int64(s.numbers[0]), 10)
		s.text = append(s.text, ".."...)
		s.text = strconv.AppendInt(s.text, int64(s.numbers[len(s.numbers)-1]), 10)
		s.text = append(s.text, 'x')
		s.text = strconv.AppendInt(s.text, int64(len(s.numbers)), 10)
	}
	return string(s.text)
}
