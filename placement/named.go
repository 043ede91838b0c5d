package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// ReserveNamed picks the devices of these numbers, of the first node that has all of
// them free; the pool lists them by number. The caller numbers the pool.
func ReserveNamed(nodes []spec.Node, held []Held, numbers []int) (spec.Pool, error) {
	for i, number := range numbers {
		if number < 0 || slices.Contains(numbers[:i], number) {
			return spec.Pool{}, spec.Errorf(spec.CodeInvalid, "devices is %v; it names devices of a node by their numbers, each once", numbers)
		}
	}
	numbers = slices.Sorted(slices.Values(numbers))
	taken := takenDevices(held)
	exist := false // somewhere, if not free
	for _, node := range nodes {
		found := numbered(freeDevices(node, taken), numbers)
		if len(found) == len(numbers) {
			node.Devices = found
			return spec.Pool{PerNode: len(numbers), Nodes: []spec.Node{node}}, nil
		}
		exist = exist || len(numbered(node.Devices, numbers)) == len(numbers)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "not enough for ResourceManager(devices=%s): no node has all of these free", list(numbers))
	holders := holdersByNode(held)
	for _, node := range nodes {
		fmt.Fprintf(&b, "\n  %s: %s", node.Name, describe(node, freeDevices(node, taken), holders[node.Index]))
	}
	if exist {
		b.WriteString("\nwhat is held comes free when the pool that holds it is released; clusters that share devices share one ResourceManager")
	}
	return spec.Pool{}, spec.Errorf(spec.CodeResources, "%s", &b)
}

// numbered is those of the devices that have these numbers, in the order of the numbers.
func numbered(devices []spec.Device, numbers []int) []spec.Device {
	var found []spec.Device
	for _, number := range numbers {
		if at := slices.IndexFunc(devices, func(d spec.Device) bool { return d.Index == number }); at >= 0 {
			found = append(found, devices[at])
		}
	}
	return found
}

// list is numbers as Python writes them.
func list(numbers []int) string {
	return strings.ReplaceAll(fmt.Sprint(numbers), " ", ", ")
}
