package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// planFile is a file of muster plan.
type planFile struct {
	line            int // of nodes
	wire.PoolCreate     // as a ResourceManager asks for it
	clusters        []plannedCluster
}

type plannedCluster struct {
	spec.Cluster
	line int
}

// complaint is something wrong with a line.
type complaint struct {
	line int
	text string
}

// mostDevices bounds the pool that a file may ask for.
const mostDevices = spec.MaxMapping

// pool makes up nodes and reserves them as a head would.
func (f *planFile) pool() (spec.Pool, error) {
	if f.Nodes > mostDevices || f.PerNode > 0 && f.Nodes > 0 && f.PerNode > mostDevices/f.Nodes {
		return spec.Pool{}, fmt.Errorf("%d nodes of %d GPUs are more than a plan can have (%d GPUs)", f.Nodes, f.PerNode, mostDevices)
	}
	nodes := make([]spec.Node, max(0, f.Nodes))
	for i := range nodes {
		nodes[i] = spec.Node{Index: i, Name: "node-" + strconv.Itoa(i), Devices: make([]spec.Device, max(0, f.PerNode))}
		for d := range nodes[i].Devices {
			nodes[i].Devices[d].Index = d
		}
	}
	return placement.Reserve(nodes, nil, placement.Ask{PerNode: f.PerNode, Nodes: f.Nodes})
}

// parsePlan reads a file. It goes over all of it, so that everything that is
// wrong is told at once.
func parsePlan(text []byte) (*planFile, []complaint) {
	p := &planParser{}
	f := &planFile{line: 1}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return f, []complaint{yamlComplaint(err)}
	}
	if doc.Kind == 0 {
		p.fail(1, `the file is empty; it has nodes, gpus_per_node and clusters (muster plan --help shows one)`)
		return f, p.wrong
	}
	top := p.mapping(doc.Content[0], "a plan", "nodes, gpus_per_node and clusters")
	for _, e := range top {
		switch e.key {
		case "nodes":
			f.Nodes, f.line = p.whole(e), e.line
		case "gpus_per_node":
			f.PerNode = p.whole(e)
		case "strategy":
			f.Strategy = p.text(e)
			if known := placement.Strategies(); !slices.Contains(known, f.Strategy) {
				p.fail(e.value.Line, "strategy is %s; there are %s", kindOf(e.value), strings.Join(known, ", "))
			}
		case "cpus_per_node":
			f.CPUs = p.number(e, "a number of CPUs")
		case "labels":
			f.Labels = p.labels(e)
		case "accelerator_type":
			f.Accelerator = p.text(e)
		case "clusters":
			f.clusters = p.clusters(e.value)
		default:
			if strings.HasPrefix(e.key, "x-") {
				continue // what anchors are kept in
			}
			p.unknown(e, "a plan", []string{"nodes", "gpus_per_node", "strategy", "cpus_per_node", "labels", "accelerator_type", "clusters"})
		}
	}
	for _, name := range []string{"nodes", "gpus_per_node", "clusters"} {
		missing := !slices.ContainsFunc(top, func(e entry) bool { return e.key == name })
		if missing && len(p.wrong) == 0 {
			p.fail(doc.Content[0].Line, "%s is missing; a plan has nodes, gpus_per_node (0 for CPU workers alone) and clusters", name)
		}
	}
	slices.SortStableFunc(p.wrong, func(a, b complaint) int { return a.line - b.line })
	return f, p.wrong
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// yamlComplaint takes the line out of the YAML package's words.
func yamlComplaint(err error) complaint {
	text := err.Error()
	line := 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		text = text[len(m[0]):]
	}
	return complaint{line, "not YAML: " + shown(text)}
}

// planParser collects what is wrong.
type planParser struct {
	wrong []complaint
	depth int // of << in <<, which may go round in a circle
}

func (p *planParser) fail(line int, format string, args ...any) {
	p.wrong = append(p.wrong, complaint{line, fmt.Sprintf(format, args...)})
}

// entry is one line of a mapping.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// mapping returns the entries of a node, those that << brings in included. Keys
// given twice are told.
func (p *planParser) mapping(n *yaml.Node, what, expected string) []entry {
	n = follow(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.fail(n.Line, "%s is a mapping with %s, and here is %s", what, expected, kindOf(n))
		return nil
	}
	var entries, merged []entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], follow(n.Content[i+1])
		if key.Tag == "!!merge" {
			sources := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				sources = value.Content
			}
			if p.depth++; p.depth > 20 {
				p.fail(key.Line, "<< brings in what brings in itself")
				sources = nil
			}
			for _, source := range sources {
				merged = append(merged, p.mapping(source, "what << brings in", "more of the same")...)
			}
			p.depth--
			continue
		}
		if j := slices.IndexFunc(entries, func(e entry) bool { return e.key == key.Value }); j >= 0 {
			p.fail(key.Line, "%s is given twice; first on line %d", shown(key.Value), entries[j].line)
			continue
		}
		entries = append(entries, entry{key.Value, key.Line, value})
	}
	for _, m := range merged { // what is written here goes before what is brought in
		if !slices.ContainsFunc(entries, func(e entry) bool { return e.key == m.key }) {
			entries = append(entries, m)
		}
	}
	return entries
}

// follow goes from an alias to what it stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

// other names that people try, from ResourceManager and elsewhere.
var planHints = map[string]string{
	"num_nodes": "nodes", "num_gpus_per_node": "gpus_per_node", "n_gpus_per_node": "gpus_per_node", "gpus": "gpus_per_node",
	"tensor_model_parallel_size": "tp", "tensor_parallel_size": "tp", "pipeline_model_parallel_size": "pp",
	"context_parallel_size": "cp", "expert_model_parallel_size": "ep",
	"devices": "device_mapping", "gpus_per_worker": "num_gpus_per_worker", "workers": "world_size", "num_workers": "world_size",
}

func (p *planParser) unknown(e entry, what string, known []string) {
	near := planHints[e.key]
	if !slices.Contains(known, near) {
		near = spec.NearestName(e.key, known)
	}
	if near != "" {
		p.fail(e.line, "%s has no %s; did you mean %s?", what, shown(e.key), near)
		return
	}
	p.fail(e.line, "%s has no %s; it has %s", what, shown(e.key), strings.Join(known, ", "))
}

// labels reads what nodes shall have; what each means is the backend's to say.
func (p *planParser) labels(e entry) map[string]string {
	labels := map[string]string{}
	for _, l := range p.mapping(e.value, "labels", "names and values") {
		if l.value.Kind != yaml.ScalarNode {
			p.fail(l.line, "labels[%s] is %s; both sides must be text", shown(l.key), kindOf(l.value))
			continue
		}
		labels[l.key] = l.value.Value
	}
	return labels
}

func (p *planParser) clusters(n *yaml.Node) []plannedCluster {
	entries := p.mapping(n, "clusters", "a name and its fields for each")
	if len(entries) == 0 && len(p.wrong) == 0 {
		p.fail(n.Line, `there are no clusters; each is a name with its fields, as actor_train: {device_mapping: "0-7"}`)
	}
	var all []plannedCluster
	for _, e := range entries {
		all = append(all, plannedCluster{p.cluster(e), e.line})
	}
	return all
}
