package placement

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt: blocks of a command line, "----", and what
// comes out, parted by empty lines. The commands:
//
//	nodes 4x8 [kind=virtual] [cores=16]   the machine starts anew
//	          [ids=MIG]                   its devices go by IDs that begin so
//	          [trouble=WORDS_SO_JOINED]   and the last node says that of them
//	nodes 8,8,4                           nodes of these sizes
//	reserve ID PER_NODE NODES [by=WHO]    makes a pool and goes on with it
//	        [as=STRATEGY]
//	name ID 1,3 [by=WHO]                  makes a pool of the devices of these numbers
//	release ID
//	place NAME [mapping= world= per= tp= pp= cp= dp= ep= visible= span=yes env.X= controller.X=]
//	env NAME RANK
//	draw
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s script
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(string(text), "\n"), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		command, want, _ := strings.Cut(block+"\n", "----\n")
		for _, line := range strings.SplitAfter(command, "\n") {
			out.WriteString(line)
		}
		line := lastLine(command)
		if line == "" { // comments alone
			continue
		}
		got := strings.TrimRight(s.run(strings.Fields(line)), "\n") + "\n"
		out.WriteString("----\n" + got)
		if got != want && !*update {
			t.Errorf("%s\n--- got\n%s--- want\n%s", line, got, want)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// lastLine returns the command of a block, without the comments above it.
func lastLine(command string) string {
	lines := strings.Split(strings.TrimSpace(command), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "#") {
		return last
	}
	return ""
}

type script struct {
	nodes []spec.Node
	held  []Held
	pool  spec.Pool
	plans []Plan
}

func (s *script) run(words []string) string {
	args := map[string]string{}
	var plain []string
	for _, word := range words[1:] {
		if name, value, ok := strings.Cut(word, "="); ok && !strings.HasPrefix(word, "[") {
			args[name] = value
		} else {
			plain = append(plain, word)
		}
	}
	switch words[0] {
	case "nodes":
		return s.makeNodes(plain[0], args)
	case "reserve":
		pool, err := Reserve(s.nodes, s.held, Ask{PerNode: number(plain[1]), Nodes: number(plain[2]), Strategy: args["as"]})
		return s.hold(number(plain[0]), pool, err, args["by"])
	case "name":
		var numbers []int
		for _, n := range strings.Split(plain[1], ",") {
			numbers = append(numbers, number(n))
		}
		pool, err := ReserveNamed(s.nodes, s.held, numbers)
		return s.hold(number(plain[0]), pool, err, args["by"])
	case "bundles":
		var bundles []spec.Bundle
		for _, n := range strings.Split(plain[1], ",") {
			bundles = append(bundles, spec.Bundle{GPUs: number(n)})
		}
		pool, err := ReserveBundles(s.nodes, s.held, bundles, args["as"])
		return s.hold(number(plain[0]), pool, err, args["by"])
	case "release":
		s.held = slices.DeleteFunc(s.held, func(h Held) bool { return h.Pool.ID == number(plain[0]) })
		return "ok"
	case "place":
		return s.place(plain[0], args)
	case "env":
		return s.env(plain[0], number(plain[1]))
	case "draw":
		return Draw(s.pool, s.plans)
	}
	return "unknown command " + words[0]
}

func (s *script) makeNodes(sizes string, args map[string]string) string {
	kind := cmp.Or(args["kind"], "nvidia")
	var counts []int
	if v, err := spec.ParseVirtual(sizes); err == nil {
		counts = slices.Repeat([]int{v.Devices}, v.Nodes)
	} else {
		for _, n := range strings.Split(sizes, ",") {
			counts = append(counts, number(n))
		}
	}
	*s = script{nodes: makeNodes(kind, number(cmp.Or(args["cores"], "16")), counts...)}
	for _, node := range s.nodes {
		for d := range node.Devices {
			if ids := args["ids"]; ids != "" {
				node.Devices[d].Visible = fmt.Sprintf("%s-%d%d", ids, node.Index, d)
			}
		}
	}
	s.nodes[len(s.nodes)-1].Trouble = strings.ReplaceAll(args["trouble"], "_", " ")
	return "ok"
}

func (s *script) hold(id int, pool spec.Pool, err error, by string) string {
	if err != nil {
		return complain(err)
	}
	pool.ID = id
	s.pool, s.plans = pool, nil
	s.held = append(s.held, Held{Pool: pool, By: by})
	var parts []string
	for _, node := range pool.Nodes {
		parts = append(parts, fmt.Sprintf("%s[%s]", node.Name, spec.Spans(indexes(node.Devices))))
	}
	return strings.Join(parts, " ")
}

func (s *script) place(name string, args map[string]string) string {
	size := func(key string) int { return number(cmp.Or(args[key], "0")) }
	c := spec.Cluster{
		Name: name, MappingText: args["mapping"], World: size("world"), DevicesPerWorker: size("per"),
		SpanNodes: args["span"] == "yes", VisibleDevices: args["visible"],
		Shape: spec.Shape{TP: size("tp"), PP: size("pp"), CP: size("cp"), DP: size("dp"), EP: size("ep")},
		Env:   map[string]string{}, Runtime: spec.Runtime{Env: map[string]string{}},
	}
	for key, value := range args {
		if name, ok := strings.CutPrefix(key, "env."); ok {
			c.Env[name] = value
		}
		if name, ok := strings.CutPrefix(key, "controller."); ok {
			c.Runtime.Env[name] = value
		}
	}
	plan, err := Place(s.pool, c)
	if err != nil {
		return complain(err)
	}
	s.plans = append(s.plans, plan)
	var b strings.Builder
	for _, w := range plan.Workers {
		i := w.Info
		fmt.Fprintf(&b, "%-18s %s local %d of %d on node rank %d, tp %d cp %d dp %d pp %d", w.Name, w.NodeName,
			w.LocalRank, w.LocalWorld, w.NodeRank, i.TPRank, i.CPRank, i.DPRank, i.PPRank)
		for _, d := range w.Devices {
			fmt.Fprintf(&b, " %d=%d:%d", d.Global, d.Node, d.Device)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (s *script) env(name string, rank int) string {
	for i := range s.plans {
		if s.plans[i].Cluster.Name == name {
			env := s.plans[i].Env(rank, Master{Addr: "10.0.0.1", Port: 29500})
			var b strings.Builder
			for _, key := range slices.Sorted(maps.Keys(env)) {
				fmt.Fprintf(&b, "%s=%s\n", key, env[key])
			}
			return b.String()
		}
	}
	return "no such plan"
}

func complain(err error) string {
	e := spec.AsError(err)
	return fmt.Sprintf("error %s: %s", e.Code, e.Message)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func indexes(devices []spec.Device) []int {
	var out []int
	for _, d := range devices {
		out = append(out, d.Index)
	}
	return out
}

// makeNodes makes one node for each count of devices.
func makeNodes(kind string, cores int, counts ...int) []spec.Node {
	nodes := make([]spec.Node, len(counts))
	for i, count := range counts {
		nodes[i] = spec.Node{Index: i, Name: fmt.Sprintf("node-%d", i), Cores: cores, Virtual: kind == "virtual"}
		for d := range count {
			nodes[i].Devices = append(nodes[i].Devices, spec.Device{Index: d, Kind: kind, Name: "H200"})
		}
	}
	return nodes
}
