package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Make is the script that a seed leads to: mostly a small world, now and then one
// of ten thousand workers.
func Make(seed uint64) *Script {
	r := rand.New(rand.NewPCG(seed, 0x6d7573746572)) //nolint:gosec // the same for the same seed
	s := &Script{Seed: seed, Nodes: 1 + r.IntN(3), PerNode: 1 + r.IntN(4), Callers: 1 + r.IntN(3)}
	m := maker{s: s, r: r, calls: 4 + r.IntN(40), span: 20*millisecond + int64(r.IntN(int(2*second)))}
	m.clusters()
	if seed%100 == 77 {
		m.large()
	}
	m.kinds()
	for range m.calls {
		m.call()
	}
	for range r.IntN(12) {
		m.fault()
	}
	slices.SortStableFunc(s.Inputs, func(a, b Input) int { return int(a.At - b.At) })
	number := uint64(0)
	for i := range s.Inputs { // calls are numbered in the order of their times
		if in := &s.Inputs[i]; in.Do == "call" {
			number++
			in.Call.Number = number
			m.needs(&in.Call)
		}
	}
	for i := range s.Inputs {
		if in := &s.Inputs[i]; in.Do == "cancel" {
			in.Call.Number = 1 + r.Uint64N(number)
		}
	}
	return s
}

// maker makes a script.
type maker struct {
	s      *Script
	r      *rand.Rand
	calls  int
	span   int64
	faults []func() Input
	fails  bool // calls fail by themselves
	made   map[int][]*CallIn
}

func (m *maker) clusters() {
	size := m.s.Nodes * m.s.PerNode
	for i := range 1 + m.r.IntN(3) {
		c := ClusterIn{Name: string(rune('a' + i)), World: 1 + m.r.IntN(size), TP: 1, Limit: 1 + 999*m.r.IntN(2)}
		if c.World%2 == 0 {
			c.TP = 1 + m.r.IntN(2)
		}
		switch m.r.IntN(4) {
		case 0:
			c.OnFailure = "restart_worker"
		case 1:
			c.OnFailure = "restart_cluster"
		}
		m.s.Clusters = append(m.s.Clusters, c)
	}
}

// large makes it ten thousand workers on 1,250 nodes.
func (m *maker) large() {
	m.s.Nodes, m.s.PerNode, m.calls = 1250, 8, 6
	m.s.Clusters = []ClusterIn{
		{Name: "a", World: 8000, TP: 8, Limit: 1},
		{Name: "b", World: 2000, TP: 1, Limit: 1000, OnFailure: "restart_worker"},
	}
}

// kinds picks what goes wrong in this script: with few kinds more is promised.
func (m *maker) kinds() {
	worker := func() string {
		c := m.s.Clusters[m.r.IntN(len(m.s.Clusters))]
		return fmt.Sprintf("%s/%d", c.Name, m.r.IntN(c.World))
	}
	node := func() string { return fmt.Sprint(m.r.IntN(m.s.Nodes)) }
	caller := func() string { return fmt.Sprint(1 + m.r.IntN(m.s.Callers)) }
	all := []func() Input{
		func() Input { return Input{Do: "cut", What: "worker", Name: worker()} },
		func() Input { return Input{Do: "cut", What: "caller", Name: caller()} },
		func() Input { return Input{Do: "cut", What: "node", Name: node()} },
		func() Input { return Input{Do: "kill", What: "head", Name: fmt.Sprint(m.r.IntN(300_000))} },
		func() Input { return Input{Do: "kill", What: "head", Name: fmt.Sprint(m.r.IntN(3_000))} },
		func() Input { return Input{Do: "kill", What: "worker", Name: worker()} },
		func() Input { return Input{Do: "kill", What: "node", Name: node()} },
		func() Input { return Input{Do: "kill", What: "caller", Name: caller()} },
		func() Input { return Input{Do: "leave", What: "caller", Name: caller()} },
		func() Input { return Input{Do: "cancel", Kill: m.r.IntN(3) == 0} },
		func() Input { return Input{Do: "cancel"} },
		func() Input {
			return Input{Do: "stop", What: "cluster", Name: m.s.Clusters[m.r.IntN(len(m.s.Clusters))].Name}
		},
	}
	m.fails = m.r.IntN(2) == 0
	for i, kind := range all {
		if m.r.IntN(3) == 0 || i < 5 && m.r.IntN(2) == 0 {
			m.faults = append(m.faults, kind)
		}
	}
}

func (m *maker) fault() {
	if len(m.faults) == 0 {
		return
	}
	in := m.faults[m.r.IntN(len(m.faults))]()
	in.At = m.r.Int64N(m.span)
	m.s.Inputs = append(m.s.Inputs, in)
}

func (m *maker) call() {
	to := m.s.Clusters[m.r.IntN(len(m.s.Clusters))]
	c := CallIn{By: 1 + m.r.IntN(m.s.Callers), To: to.Name, Rows: m.r.IntN(8), Raises: -1, Hangs: -1}
	c.Method = []string{"all", "rows", "rows", "some"}[m.r.IntN(4)]
	if c.Method == "some" {
		c.Ranks = m.r.Perm(to.World)[:1+m.r.IntN(min(4, to.World))]
	}
	c.Split = c.Method != "rows" && m.r.IntN(4) == 0
	c.Apart = c.Split && c.Rows%2 == 0
	c.Idempotent = m.r.IntN(3) == 0
	c.Collective = m.r.IntN(4) == 0
	if m.fails {
		switch m.r.IntN(12) {
		case 0:
			c.Raises = m.r.IntN(to.World)
		case 1:
			c.Hangs, c.Deaf, c.Timeout, c.OnTimeout = m.r.IntN(to.World), m.r.IntN(2) == 0, 1+m.r.Int64N(second), "kill"
		case 2:
			c.Timeout, c.OnTimeout = 1+m.r.Int64N(20*millisecond), []string{"", "cancel", "kill"}[m.r.IntN(3)]
		}
	}
	if len(m.s.Clusters) > 1 && to.World < 100 && m.r.IntN(8) == 0 {
		c.Nest = m.s.Clusters[m.r.IntN(len(m.s.Clusters))].Name
	}
	at := m.r.Int64N(m.span)
	if n := len(m.s.Inputs); n > 0 && m.r.IntN(2) == 0 { // bursts
		at = m.s.Inputs[n-1].At + m.r.Int64N(300)
	}
	m.s.Inputs = append(m.s.Inputs, Input{At: at, Do: "call", Call: c})
}

// needs gives some calls the results of earlier ones of their caller.
func (m *maker) needs(c *CallIn) {
	if m.made == nil {
		m.made = map[int][]*CallIn{}
	}
	before := m.made[c.By]
	m.made[c.By] = append(before, c)
	if len(before) == 0 || m.r.IntN(3) > 0 {
		return
	}
	count := 1
	if c.Method == "rows" {
		c.Rows = 0 // its one list is what the other gives
	} else {
		count += m.r.IntN(2)
	}
	for range count {
		dep := before[max(0, len(before)-1-m.r.IntN(4))]
		if slices.Contains(c.Needs, dep.Number) || c.Method == "rows" && dep.Split {
			continue
		}
		c.Needs = append(c.Needs, dep.Number)
	}
}
