package place

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Place is where a replica stands. From says where each value came from.
type Place struct {
	Rank, World         int
	RankFrom, WorldFrom string
	Leader              string // a name or an address; "": this host
	LeaderFrom          string
	Notes               []string // what was seen and not used
}

// Flags are what the command line says; nil and "" are not given.
type Flags struct {
	Rank, World *int
	Leader      string
	Service     string // the headless service of a Kubernetes Indexed Job
}

// Input is all that Find looks at.
type Input struct {
	Flags
	Env    func(name string) string
	Host   string // this host's name
	Domain string // what follows it in its full name, where that is known
}

// scheduler is a family of variables that belong together.
type scheduler struct {
	name   string
	rank   []string // the first that is set counts
	world  []string // so here
	leader []string
}

const (
	slurm = "Slurm"
	kube  = "a Kubernetes Indexed Job"
	torch = "torchrun's variables"
)

// schedulers in the order in which they are asked. RANK and WORLD_SIZE are not
// among torchrun's here: they count processes, unless they stand alone (plain).
var schedulers = []scheduler{
	{"Beaker", []string{"BEAKER_REPLICA_RANK"}, []string{"BEAKER_REPLICA_COUNT"}, []string{"BEAKER_LEADER_REPLICA_HOSTNAME", "BEAKER_LEADER_REPLICA_IP"}},
	{slurm, []string{"SLURM_NODEID"}, []string{"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}},
	{"a LeaderWorkerSet", []string{"LWS_WORKER_INDEX"}, []string{"LWS_GROUP_SIZE"}, []string{"LWS_LEADER_ADDRESS"}},
	{kube, []string{"JOB_COMPLETION_INDEX"}, nil, nil},
	{torch, []string{"NODE_RANK", "GROUP_RANK", "PET_NODE_RANK"}, []string{"NNODES", "GROUP_WORLD_SIZE", "PET_NNODES"}, []string{"MASTER_ADDR", "PET_MASTER_ADDR"}},
}

// plain are torchrun's variables where each node is started as one process.
var plain = scheduler{torch, []string{"RANK"}, []string{"WORLD_SIZE"}, nil}

// found is a value and the variable or flag that has it.
type found struct {
	text, from string
	scheduler  string
}

// Find finds the place of a replica. The error tells all that is missing or
// wrong, a line each.
func Find(in Input) (Place, error) {
	var p Place
	var wrong []error
	fail := func(err error) {
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	families := in.families()
	worlds := in.gather(families, worldOf)
	if len(worlds) == 0 && in.Env("GROUP_RANK") == "" {
		worlds = in.gather([]scheduler{plain}, worldOf)
	}
	var err error
	p.Rank, p.RankFrom, err = number("rank", in.Rank, in.gather(families, rankOf), rankOf)
	fail(err)
	p.World, p.WorldFrom, err = number("world", in.World, worlds, worldOf)
	fail(err)
	if in.Rank == nil {
		fail(in.once(p.RankFrom))
	}
	if len(wrong) > 0 {
		return p, errors.Join(wrong...)
	}
	switch {
	case p.World < 1:
		return p, fmt.Errorf("the number of replicas is %d (%s): at least one is needed", p.World, p.WorldFrom)
	case p.Rank < 0 || p.Rank >= p.World:
		return p, fmt.Errorf("rank %d (%s) is not one of 0 to %d: there are %d replicas (%s)", p.Rank, p.RankFrom, p.World-1, p.World, p.WorldFrom)
	}
	return p, in.leader(&p)
}

// families are those whose rank and number of replicas count. RANK is one of
// processes where torchrun says the node's by another name.
func (in Input) families() []scheduler {
	if in.Env("RANK") == "" {
		return schedulers
	}
	for _, s := range schedulers {
		if s.name == torch && len(in.gather([]scheduler{s}, rankOf)) > 0 {
			return schedulers
		}
	}
	return slices.Concat(schedulers, []scheduler{plain})
}

func rankOf(s scheduler) []string   { return s.rank }
func worldOf(s scheduler) []string  { return s.world }
func leaderOf(s scheduler) []string { return s.leader }

// gather returns what each family says, in their order.
func (in Input) gather(families []scheduler, kind func(scheduler) []string) []found {
	var all []found
	for _, s := range families {
		for _, name := range kind(s) {
			if text := strings.TrimSpace(in.Env(name)); text != "" {
				all = append(all, found{text, name, s.name})
				break
			}
		}
	}
	return all
}

// number is the flag's, or what all variables agree on.
func number(what string, flag *int, said []found, kind func(scheduler) []string) (int, string, error) {
	if flag != nil {
		return *flag, "--" + what, nil
	}
	if len(said) == 0 {
		var names []string
		for _, s := range slices.Concat(schedulers, []scheduler{plain}) {
			names = append(names, kind(s)...)
		}
		return 0, "", fmt.Errorf("the %s is not known: give --%s, or set one of %s", meaning(what), what, strings.Join(names, ", "))
	}
	first, err := wholeNumber(said[0])
	for _, other := range said[1:] {
		n, wrong := wholeNumber(other)
		if wrong == nil && err == nil && n != first {
			return 0, "", fmt.Errorf("%s=%s and %s=%s disagree about the %s: say which by --%s", said[0].from, said[0].text, other.from, other.text, meaning(what), what)
		}
		err = errors.Join(err, wrong)
	}
	return first, said[0].from, err
}

func meaning(what string) string {
	if what == "world" {
		return "number of replicas"
	}
	return what
}

func wholeNumber(f found) (int, error) {
	n, err := strconv.Atoi(f.text)
	if err != nil {
		hint := ""
		if low, high, isRange := strings.Cut(f.text, ":"); isRange && parseNumber(low) >= 0 && parseNumber(high) >= 0 {
			hint = "; of a range, say by --world how many there are"
		}
		return 0, fmt.Errorf("%s is %q, which is no whole number%s", f.from, f.text, hint)
	}
	return n, nil
}

// once refuses to be one of several processes of a node.
func (in Input) once(rankFrom string) error {
	several := func(name, advice string) error {
		if n := parseNumber(in.Env(name)); n > 0 {
			return fmt.Errorf("%s is %d: one muster node is enough for a whole node, and here are several; %s", name, n, advice)
		}
		return nil
	}
	switch rankFrom {
	case "SLURM_NODEID":
		return several("SLURM_LOCALID", "start it by srun --ntasks-per-node=1")
	case "RANK", "GROUP_RANK":
		return several("LOCAL_RANK", "start it by itself, not by torchrun")
	}
	return nil
}

// leader finds the leader's name or address.
func (in Input) leader(p *Place) error {
	if in.Leader != "" {
		p.Leader, p.LeaderFrom = in.Leader, "--leader"
		return checkHost(&p.Leader, "--leader")
	}
	said := in.gather(schedulers, leaderOf)
	if p.RankFrom == "JOB_COMPLETION_INDEX" {
		if derived, ok := in.firstPod(p.Rank); ok {
			said = append([]found{derived}, said...)
		}
	}
	if len(said) == 0 {
		switch {
		case p.World == 1:
			p.LeaderFrom = "the only replica"
		case p.Rank == 0:
			p.LeaderFrom = "rank 0"
		case p.RankFrom == "JOB_COMPLETION_INDEX":
			return fmt.Errorf("the leader's address is not known: give --leader, or by --service the headless service of the job, from which and from this pod's name (%s) it follows", in.Host)
		default:
			return fmt.Errorf("the leader's address is not known: give --leader, or set one of %s", strings.Join(leaderNames(), ", "))
		}
		return nil
	}
	first := said[0]
	for _, other := range said[1:] {
		if !strings.EqualFold(other.text, first.text) {
			p.Notes = append(p.Notes, fmt.Sprintf("%s=%s is not used: %s has the leader", other.from, other.text, first.from))
		}
	}
	p.Leader, p.LeaderFrom = first.text, first.from
	if first.scheduler == slurm {
		nodes, err := Nodelist(first.text)
		if err != nil {
			return fmt.Errorf("%s is %q: %w", first.from, first.text, err)
		}
		if in.World == nil && p.WorldFrom != "" && strings.HasPrefix(p.WorldFrom, "SLURM_") && len(nodes) != p.World {
			return fmt.Errorf("%s=%d and %s=%s disagree: the list has %d nodes; say how many by --world and which is the leader by --leader", p.WorldFrom, p.World, first.from, first.text, len(nodes))
		}
		p.Leader, p.LeaderFrom = nodes[0], "the first of "+first.from
	}
	return checkHost(&p.Leader, p.LeaderFrom)
}

func leaderNames() []string {
	var names []string
	for _, s := range schedulers {
		names = append(names, s.leader...)
	}
	return names
}

// firstPod derives the name of an Indexed Job's first pod: the pods are called
// after the job and their index, and a headless service makes names of them.
func (in Input) firstPod(rank int) (found, bool) {
	job, ok := strings.CutSuffix(in.Host, "-"+strconv.Itoa(rank))
	if !ok || job == "" {
		return found{}, false
	}
	switch {
	case in.Service != "":
		return found{job + "-0." + in.Service, fmt.Sprintf("the pod's name %s and --service", in.Host), kube}, true
	case in.Domain != "":
		return found{job + "-0." + in.Domain, fmt.Sprintf("the pod's full name %s.%s", in.Host, in.Domain), kube}, true
	}
	return found{}, false
}

// checkHost takes names and addresses alone; [::1] becomes ::1.
func checkHost(host *string, from string) error {
	text := *host
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		text = strings.TrimSuffix(inner, "]")
	}
	name, port, hasPort := strings.Cut(text, ":")
	if hasPort && !strings.Contains(port, ":") {
		return fmt.Errorf("the leader %q (%s) has a port: give the host alone (%s), and Ray's port by --port", *host, from, name)
	}
	for _, c := range text {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-._:%", c)
		if !ok {
			return fmt.Errorf("the leader %q (%s) is neither a host's name nor an address", *host, from)
		}
	}
	if text == "" || strings.HasPrefix(text, "-") {
		return fmt.Errorf("the leader %q (%s) is neither a host's name nor an address", *host, from)
	}
	*host = text
	return nil
}
