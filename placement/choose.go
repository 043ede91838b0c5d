package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Taken is how much of a device services have taken, and which ones.
type Taken struct {
	Share float64
	By    []string
}

// enough is what sums of parts may be beside the truth.
const enough = 1e-9

// Choose settles which devices a service gets that says how many GPUs it takes: whole
// ones of one node that nobody has taken, or one that has so much left; of those that
// its mapping names, in its order, or of all. What it returns has them as its mapping.
//
// taken is by id. What can never be has CodePlacement, what others have CodeResources.
func Choose(pool spec.Pool, c spec.Cluster, taken map[int]Taken) (spec.Cluster, error) {
	if err := c.Check(); err != nil {
		return c, err
	}
	ids, err := choose(pool, c, taken)
	if err != nil {
		err.Cluster, err.Message = c.Name, c.Kind+" "+c.Name+": "+err.Message
		return c, err
	}
	c.Mapping, c.HasMapping, c.MappingText = ids, true, ""
	c.DevicesPerWorker, c.Node = len(ids), ""
	return c, nil
}

func choose(pool spec.Pool, c spec.Cluster, taken map[int]Taken) ([]int, *spec.Error) {
	among, err := candidates(pool, c)
	if err != nil {
		return nil, err
	}
	want, ids := max(1, int(c.GPUs)), idsOf(pool)
	var nodes []int // in the order in which they are named
	there, left := map[int]int{}, map[int][]int{}
	for _, id := range among {
		node := ids.node(id)
		if there[node]++; there[node] == 1 {
			nodes = append(nodes, node)
		}
		if taken[id].Share+min(c.GPUs, 1) <= 1+enough {
			left[node] = append(left[node], id)
		}
	}
	most := 0
	for _, node := range nodes {
		if most = max(most, there[node]); len(left[node]) >= want {
			return left[node][:want:want], nil
		}
	}
	if most < want {
		return nil, spec.Errorf(spec.CodePlacement, "gpus=%v, and there are %s for it, which have to lie on one node", c.GPUs, plural(most, "GPU"))
	}
	return nil, spec.Errorf(spec.CodeResources, "gpus=%v: not so much is left of its pool's GPUs (%s); what is taken comes free when who has it ends", c.GPUs, holders(among, taken))
}

// candidates are the devices that a service may get.
func candidates(pool spec.Pool, c spec.Cluster) ([]int, *spec.Error) {
	ids := idsOf(pool)
	if ids.size() == 0 {
		return nil, spec.Errorf(spec.CodePlacement, "gpus=%v, but the pool is CPU only (num_gpus_per_node=0)", c.GPUs)
	}
	among := c.Mapping
	if !c.HasMapping {
		if err := fitsNode(pool, c); err != nil {
			return nil, err
		}
		for id := range ids.size() {
			if c.Node == "" || pool.Nodes[ids.node(id)].Name == c.Node {
				among = append(among, id)
			}
		}
	}
	for i, id := range among {
		if err := inPool(pool, ids, i, id); err != nil {
			return nil, err
		}
	}
	return among, nil
}

// holders tells who has taken how much: "device 0: a, b".
func holders(ids []int, taken map[int]Taken) string {
	const most = 8
	var parts []string
	for _, id := range ids {
		if t := taken[id]; t.Share > 0 {
			by := slices.Sorted(slices.Values(t.By))
			parts = append(parts, fmt.Sprintf("device %d: %s", id, strings.Join(by, ", ")))
		}
	}
	if len(parts) > most {
		parts = append(parts[:most], "…")
	}
	return strings.Join(parts, "; ")
}
