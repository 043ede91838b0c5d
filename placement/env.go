package placement

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Master is where rank 0 of a cluster listens for its process group.
type Master struct {
	Addr string
	Port int
}

// Env is what one worker's environment says beyond the controller's own, which
// it goes over (Cluster.Runtime.Env); the user's env goes over it in turn, and
// Check saw to it that this changes no rank variable.
//
// LOCAL_RANK is always a valid index among the devices the worker sees, as
// torch code passes it to set_device: 0 where a worker sees only its own (the
// default) or none; with visible_devices="node", where it sees all that the
// pool has of its node, the index of its first device there. That is the true
// local rank when the cluster fills the node in order. MUSTER_LOCAL_RANK is
// always the true one. MUSTER_DEVICES lists all devices in the mapping's order
// as node:number, also those on other nodes (SpanNodes).
func (p *Plan) Env(rank int, master Master) map[string]string {
	w, c := &p.Workers[rank], &p.Cluster
	env := make(map[string]string, 20+len(c.Env))
	env["RANK"] = strconv.Itoa(w.Rank)
	env["WORLD_SIZE"] = strconv.Itoa(c.World)
	env["LOCAL_WORLD_SIZE"] = strconv.Itoa(w.LocalWorld)
	env["NODE_RANK"] = strconv.Itoa(w.NodeRank)
	env["MASTER_ADDR"] = master.Addr
	env["MASTER_PORT"] = strconv.Itoa(master.Port)
	env["CLUSTER_NAME"] = c.Name
	env["WORKER_NAME"] = w.Name
	env["MUSTER_LOCAL_RANK"] = strconv.Itoa(w.LocalRank)

	visible := p.visible(w)
	env["LOCAL_RANK"] = "0"
	if len(w.Devices) > 0 {
		if c.VisibleDevices == "node" {
			env["LOCAL_RANK"] = strconv.Itoa(slices.Index(visible, w.Devices[0].Device))
		}
		env["MUSTER_DEVICES"] = deviceList(w.Devices)
	}
	node := &p.Pool.Nodes[w.Node]
	setVisible(env, kindOf(node), names(node.Devices, visible))

	byDefault := func(name, value string) {
		if _, ok := c.Runtime.Env[name]; !ok {
			env[name] = value
		}
	}
	byDefault("OMP_NUM_THREADS", strconv.Itoa(max(1, node.Cores/w.LocalWorld)))
	if len(w.Devices) > 0 && kindOf(node) == "nvidia" {
		// Device numbers are those of nvidia-smi, which go by the bus; CUDA's own
		// default puts the fastest first.
		byDefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	}
	maps.Copy(env, p.Pool.Env)
	maps.Copy(env, c.Env)
	return env
}

// visible is the node-local numbers a worker sees, sorted.
func (p *Plan) visible(w *Worker) []int {
	var numbers []int
	switch {
	case len(w.Devices) == 0:
	case p.Cluster.VisibleDevices == "node":
		for _, d := range p.Pool.Nodes[w.Node].Devices {
			numbers = append(numbers, d.Index)
		}
	default:
		for _, d := range w.Devices {
			if d.Node == w.Node {
				numbers = append(numbers, d.Device)
			}
		}
	}
	slices.Sort(numbers)
	return numbers
}

// names is what the variable takes for each of these numbers: the number, or
// the UUID that the device asks for.
func names(devices []spec.Device, numbers []int) []string {
	list := make([]string, len(numbers))
	for i, number := range numbers {
		list[i] = strconv.Itoa(number)
		at := slices.IndexFunc(devices, func(d spec.Device) bool { return d.Index == number })
		if at >= 0 && devices[at].Visible != "" {
			list[i] = devices[at].Visible
		}
	}
	return list
}

// kindOf is the kind of a node's devices; a node has one kind.
func kindOf(node *spec.Node) string {
	if len(node.Devices) == 0 {
		return ""
	}
	return node.Devices[0].Kind
}

// setVisible writes the variables by which a kind's runtime chooses devices.
// A worker without devices sees none: CUDA's variable is set empty even where
// the node's kind is not known.
func setVisible(env map[string]string, kind string, names []string) {
	list := strings.Join(names, ",")
	switch kind {
	case "amd":
		// ROCR's choice comes first, and HIP counts among what that leaves.
		env["ROCR_VISIBLE_DEVICES"] = list
		among := make([]string, len(names))
		for i := range among {
			among[i] = strconv.Itoa(i)
		}
		env["HIP_VISIBLE_DEVICES"] = strings.Join(among, ",")
	case "ascend":
		env["ASCEND_RT_VISIBLE_DEVICES"] = list
	default: // nvidia, virtual
		env["CUDA_VISIBLE_DEVICES"] = list
	}
	if len(names) == 0 {
		env["CUDA_VISIBLE_DEVICES"] = ""
	}
}

func deviceList(devices []DeviceAt) string {
	var b strings.Builder
	for i, d := range devices {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(d.Node) + ":" + strconv.Itoa(d.Device))
	}
	return b.String()
}
