package cli

import (
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/muster-rl/muster/spec"
)

// workerFields are the fields of the SDK's WorkerConfig, in its order; what each
// means for a plan. Those without a setter matter only at a start.
var workerFields = []struct {
	name string
	set  func(p *planParser, c *spec.Cluster, e entry)
}{
	{"world_size", func(p *planParser, c *spec.Cluster, e entry) { c.World = p.size(e) }},
	{"device_mapping", (*planParser).deviceMapping},
	{"num_gpus_per_worker", func(p *planParser, c *spec.Cluster, e entry) { c.DevicesPerWorker = p.whole(e) }},
	{"tp", func(p *planParser, c *spec.Cluster, e entry) { c.Shape.TP = p.size(e) }},
	{"pp", func(p *planParser, c *spec.Cluster, e entry) { c.Shape.PP = p.size(e) }},
	{"cp", func(p *planParser, c *spec.Cluster, e entry) { c.Shape.CP = p.size(e) }},
	{"ep", func(p *planParser, c *spec.Cluster, e entry) { c.Shape.EP = p.size(e) }},
	{"strategy_args", nil}, // read after the others, as it gives way to them
	{"env", (*planParser).env},
	{"system_envs", (*planParser).env},
	{"max_concurrency", func(p *planParser, c *spec.Cluster, e entry) { c.MaxConcurrency = p.whole(e) }},
	{"preload", nil},
	{"start", func(p *planParser, c *spec.Cluster, e entry) { c.Start = p.text(e) }},
	{"startup_timeout", func(p *planParser, c *spec.Cluster, e entry) { c.StartupSeconds = p.seconds(e) }},
	{"visible_devices", func(p *planParser, c *spec.Cluster, e entry) { c.VisibleDevices = p.text(e) }},
	{"python", nil},
	{"working_dir", nil},
	{"py_modules", nil},
	{"pickle", func(p *planParser, c *spec.Cluster, e entry) { c.Pickle = p.onOff(e) }},
	{"grace", func(p *planParser, c *spec.Cluster, e entry) { c.GraceSeconds = p.seconds(e) }},
	{"on_failure", func(p *planParser, c *spec.Cluster, e entry) { c.OnFailure = p.text(e) }},
	{"max_restarts", func(p *planParser, c *spec.Cluster, e entry) { c.MaxRestarts = p.size(e) }},
	{"restart_window", func(p *planParser, c *spec.Cluster, e entry) { c.RestartWindowSeconds = p.seconds(e) }},
	{"gpus", func(p *planParser, c *spec.Cluster, e entry) { c.GPUs = p.number(e, "a number of GPUs") }},
	{"gpus_timeout", nil},
	{"span_nodes", func(p *planParser, c *spec.Cluster, e entry) { c.SpanNodes = p.truth(e) }},
	{"node", func(p *planParser, c *spec.Cluster, e entry) { c.Node = p.text(e) }},
	{"resource_manager", nil},
	{"rank_env", func(p *planParser, c *spec.Cluster, e entry) { c.RankEnv = p.truth(e) }},
	{"ray", nil},
	{"runtime_env", nil},
}

// cluster reads the fields of one cluster.
func (p *planParser) cluster(e entry) spec.Cluster {
	c := spec.Cluster{Name: e.key}
	known := make([]string, len(workerFields))
	for i, f := range workerFields {
		known[i] = f.name
	}
	var strategy *yaml.Node
	entries := p.mapping(e.value, "cluster "+shown(e.key), "the fields of WorkerConfig")
	for _, field := range entries {
		i := slices.Index(known, field.key)
		switch {
		case i < 0:
			p.unknown(field, "cluster "+shown(e.key), known)
		case field.value.Tag == "!!null": // as None: not given
		case field.key == "strategy_args":
			strategy = field.value
		case workerFields[i].set != nil:
			workerFields[i].set(p, &c, field)
		}
	}
	if strategy != nil {
		p.strategyArgs(&c, strategy)
	}
	if e.value.Tag == "!!null" {
		c.World = 1 // as Cluster() without a worker_config
	}
	return c
}

func (p *planParser) deviceMapping(c *spec.Cluster, e entry) {
	c.HasMapping = true
	switch {
	case e.value.Kind == yaml.ScalarNode && (e.value.Tag == "!!str" || e.value.Tag == "!!int"):
		c.MappingText = e.value.Value
	case e.value.Kind == yaml.SequenceNode:
		for _, item := range e.value.Content {
			item = follow(item)
			c.Mapping = append(c.Mapping, p.whole(entry{"an id in device_mapping", item.Line, item}))
		}
	default:
		p.fail(e.value.Line, `device_mapping is %s; it takes text such as "0-7", or a list of global device ids`, kindOf(e.value))
	}
}

func (p *planParser) env(c *spec.Cluster, e entry) {
	for _, v := range p.mapping(e.value, e.key, "variables and their values") {
		if v.value.Kind != yaml.ScalarNode {
			p.fail(v.line, "%s[%s] is %s; both sides must be text", e.key, shown(v.key), kindOf(v.value))
			continue
		}
		if before, given := c.Env[v.key]; given && before != v.value.Value {
			p.fail(v.line, "env says %s=%q, system_envs (the same under another name) says %q; give one of them", shown(v.key), before, v.value.Value)
		}
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[v.key] = v.value.Value
	}
}

// strategySizes are the names under which strategy_args gives parallel sizes,
// as the SDK's WorkerConfig reads them.
var strategySizes = []struct {
	name      string
	of        func(*spec.Shape) *int
	spellings []string
}{
	{"tp", func(s *spec.Shape) *int { return &s.TP }, []string{"tensor_model_parallel_size", "tensor_parallel_size"}},
	{"pp", func(s *spec.Shape) *int { return &s.PP }, []string{"pipeline_model_parallel_size", "pipeline_parallel_size"}},
	{"cp", func(s *spec.Shape) *int { return &s.CP }, []string{"context_parallel_size", "context_model_parallel_size"}},
	{"ep", func(s *spec.Shape) *int { return &s.EP }, []string{"expert_model_parallel_size", "expert_parallel_size"}},
}

// withinWorker is an inference engine's own parallelism, which lies inside one
// worker that has several devices: it is then no matter of ranks.
const withinWorker = "tensor_parallel_size"

// strategyArgs takes the sizes that were not given themselves.
func (p *planParser) strategyArgs(c *spec.Cluster, n *yaml.Node) {
	entries := p.mapping(n, "strategy_args", "the strategy's own settings")
	if i := slices.IndexFunc(entries, func(e entry) bool { return e.key == "strategy_config" }); i >= 0 {
		entries = append(entries, p.mapping(entries[i].value, "strategy_config", "the strategy's own settings")...)
	}
	for _, s := range strategySizes {
		given := *s.of(&c.Shape)
		for _, spelling := range s.spellings {
			i := slices.IndexFunc(entries, func(e entry) bool { return e.key == spelling })
			if i < 0 || entries[i].value.Tag == "!!null" || spelling == withinWorker && c.DevicesPerWorker > 1 {
				continue
			}
			size := p.size(entry{"strategy_args' " + spelling, entries[i].line, entries[i].value})
			if size == 0 {
				continue // told already
			}
			if given != 0 && size != given && spelling != withinWorker {
				p.fail(entries[i].line, "%s=%d, but strategy_args says %s=%d; give one of them, or the same in both", s.name, given, spelling, size)
			}
			if *s.of(&c.Shape) == 0 {
				*s.of(&c.Shape) = size
			}
		}
	}
}

// whole reads a whole number.
func (p *planParser) whole(e entry) int {
	var n int
	if e.value.Kind != yaml.ScalarNode || e.value.Tag != "!!int" || e.value.Decode(&n) != nil || n > math.MaxInt32 || n < math.MinInt32 {
		p.fail(e.value.Line, "%s is %s; it must be a whole number", e.key, kindOf(e.value))
		return 0
	}
	return n
}

// size reads a number of 1 or more: 0 would mean that it was left out.
func (p *planParser) size(e entry) int {
	before := len(p.wrong)
	n := p.whole(e)
	if n < 1 && len(p.wrong) == before {
		p.fail(e.value.Line, "%s is %d; it must be 1 or more, or left out", e.key, n)
		return 0
	}
	return n
}

func (p *planParser) seconds(e entry) float64 { return p.number(e, "a number of seconds") }

func (p *planParser) number(e entry, what string) float64 {
	var s float64
	if e.value.Kind != yaml.ScalarNode || e.value.Tag != "!!int" && e.value.Tag != "!!float" || e.value.Decode(&s) != nil {
		p.fail(e.value.Line, "%s is %s; it is %s", e.key, kindOf(e.value), what)
	}
	return s
}

func (p *planParser) text(e entry) string {
	if e.value.Kind != yaml.ScalarNode || e.value.Tag != "!!str" {
		p.fail(e.value.Line, "%s is %s; it must be text", e.key, kindOf(e.value))
	}
	return e.value.Value
}

func (p *planParser) truth(e entry) bool {
	truth, err := strconv.ParseBool(e.value.Value)
	if e.value.Tag != "!!bool" || err != nil {
		p.fail(e.value.Line, "%s is %s; it is true or false", e.key, kindOf(e.value))
	}
	return truth
}

// onOff reads pickle, where false reads as naturally as "off".
func (p *planParser) onOff(e entry) string {
	if e.value.Tag == "!!bool" {
		if p.truth(e) {
			return "on"
		}
		return "off"
	}
	return p.text(e)
}
