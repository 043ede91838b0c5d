package sim

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
)

// Script is what is done and what goes wrong in a run.
type Script struct {
	Seed     uint64
	Nodes    int
	PerNode  int
	Clusters []ClusterIn
	Callers  int
	Inputs   []Input // by time
}

// ClusterIn is a cluster that there is from the start.
type ClusterIn struct {
	Name      string
	World     int
	TP        int
	Limit     int    // calls that a worker runs at once
	OnFailure string // "": fail
}

// Input is something that happens from outside, at a time.
type Input struct {
	At   int64
	Do   string // call, cancel, cut, kill, leave, stop
	What string // of cut, kill, leave, stop: worker, caller, node, head, cluster
	Name string // which one; of kill head: for how long there is none, in microseconds
	Kill bool   // of cancel

	Call CallIn // of call; of cancel, its number
}

// CallIn is a call that a caller makes.
type CallIn struct {
	Number     uint64
	By         int // caller, from 1
	To         string
	Method     string // all, rows or some
	Ranks      []int  // of some
	Rows       int
	Needs      []uint64 // calls whose results are arguments
	Split      bool
	Apart      bool // with Split
	Collective bool
	Idempotent bool
	Timeout    int64  // microseconds
	OnTimeout  string // "", cancel, kill
	Raises     int    // the rank that raises, or -1
	Hangs      int    // the rank that does not end by itself, or -1
	Deaf       bool   // and does not listen to a cancel
	Nest       string // the cluster that each rank calls in turn
}

// String is the script as Parse reads it.
func (s *Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d nodes %dx%d callers %d\n", s.Seed, s.Nodes, s.PerNode, s.Callers)
	for _, c := range s.Clusters {
		fmt.Fprintf(&b, "cluster %s %d tp=%d limit=%d", c.Name, c.World, c.TP, c.Limit)
		if c.OnFailure != "" {
			fmt.Fprintf(&b, " on_failure=%s", c.OnFailure)
		}
		b.WriteByte('\n')
	}
	for i := range s.Inputs {
		fmt.Fprintf(&b, "at %d %s\n", s.Inputs[i].At, s.Inputs[i].text())
	}
	return b.String()
}

func (in *Input) text() string {
	switch in.Do {
	case "call":
		return in.Call.text()
	case "cancel":
		if in.Kill {
			return fmt.Sprintf("cancel %d kill", in.Call.Number)
		}
		return fmt.Sprintf("cancel %d", in.Call.Number)
	}
	return fmt.Sprintf("%s %s %s", in.Do, in.What, in.Name)
}

func (c *CallIn) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "call %d by=%d %s.%s rows=%d", c.Number, c.By, c.To, c.Method, c.Rows)
	if c.Ranks != nil {
		fmt.Fprintf(&b, " ranks=%s", list(c.Ranks))
	}
	if c.Needs != nil {
		fmt.Fprintf(&b, " needs=%s", list(c.Needs))
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"split", c.Split}, {"apart", c.Apart}, {"collective", c.Collective}, {"idempotent", c.Idempotent}, {"deaf", c.Deaf}} {
		if flag.set {
			b.WriteString(" " + flag.name)
		}
	}
	if c.Timeout > 0 {
		fmt.Fprintf(&b, " timeout=%d", c.Timeout)
	}
	if c.OnTimeout != "" {
		fmt.Fprintf(&b, " on_timeout=%s", c.OnTimeout)
	}
	if c.Raises >= 0 {
		fmt.Fprintf(&b, " raises=%d", c.Raises)
	}
	if c.Hangs >= 0 {
		fmt.Fprintf(&b, " hangs=%d", c.Hangs)
	}
	if c.Nest != "" {
		fmt.Fprintf(&b, " nest=%s", c.Nest)
	}
	return b.String()
}

func list[T int | uint64](numbers []T) string {
	var texts []string
	for _, n := range numbers {
		texts = append(texts, fmt.Sprint(n))
	}
	return strings.Join(texts, ",")
}

// Parse reads what String wrote.
func Parse(text string) (*Script, error) {
	s := &Script{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := s.line(f); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, lines.Err()
}

func (s *Script) line(f []string) error {
	switch {
	case f[0] == "seed" && len(f) == 6:
		_, err := fmt.Sscanf(strings.Join(f, " "), "seed %d nodes %dx%d callers %d", &s.Seed, &s.Nodes, &s.PerNode, &s.Callers)
		return err
	case f[0] == "cluster" && len(f) > 2:
		world, err := strconv.Atoi(f[2])
		s.Clusters = append(s.Clusters, ClusterIn{Name: f[1], World: world, TP: number(f, "tp", 1), Limit: number(f, "limit", 1), OnFailure: option(f, "on_failure")})
		return err
	case f[0] == "at" && len(f) > 3:
		at, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return err
		}
		in := Input{At: at, Do: f[2]}
		switch f[2] {
		case "call":
			err = in.Call.parse(f[3:])
		case "cancel":
			in.Kill = has(f, "kill")
			in.Call.Number, err = strconv.ParseUint(f[3], 10, 64)
		default:
			in.What, in.Name = f[3], f[len(f)-1]
		}
		s.Inputs = append(s.Inputs, in)
		return err
	}
	return fmt.Errorf("what is %q?", strings.Join(f, " "))
}

func (c *CallIn) parse(f []string) (err error) {
	if c.Number, err = strconv.ParseUint(f[0], 10, 64); err != nil {
		return err
	}
	var ok bool
	if c.To, c.Method, ok = strings.Cut(f[2], "."); !ok {
		return fmt.Errorf("%q is no cluster.method", f[2])
	}
	c.By, c.Rows, c.Timeout = number(f, "by", 1), number(f, "rows", 0), int64(number(f, "timeout", 0))
	c.Split, c.Apart, c.Collective = has(f, "split"), has(f, "apart"), has(f, "collective")
	c.Idempotent, c.Deaf = has(f, "idempotent"), has(f, "deaf")
	c.OnTimeout, c.Nest = option(f, "on_timeout"), option(f, "nest")
	c.Raises, c.Hangs = number(f, "raises", -1), number(f, "hangs", -1)
	for _, text := range split(option(f, "ranks")) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		c.Ranks = append(c.Ranks, n)
	}
	for _, text := range split(option(f, "needs")) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		c.Needs = append(c.Needs, n)
	}
	return nil
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

func has(f []string, word string) bool {
	for _, x := range f {
		if x == word {
			return true
		}
	}
	return false
}

func option(f []string, name string) string {
	for _, x := range f {
		if v, ok := strings.CutPrefix(x, name+"="); ok {
			return v
		}
	}
	return ""
}

func number(f []string, name string, otherwise int) int {
	n, err := strconv.Atoi(option(f, name))
	if err != nil {
		return otherwise
	}
	return n
}
