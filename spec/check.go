package spec

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Defaults that Check fills in.
const (
	DefaultStartupSeconds = 300
	DefaultGraceSeconds   = 10
	DefaultMaxRestarts    = 3
	DefaultRestartWindow  = 600
)

// maxName keeps log files, sockets and process titles made from a cluster's
// name within what file systems take.
const maxName = 100

// maxSeconds is about three years: more would wrap when counted in nanoseconds.
const maxSeconds = 1e8

// RankVariables are what Muster itself sets in a worker's environment; a
// user's env may not.
func RankVariables() []string {
	return []string{
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK",
		"MASTER_ADDR", "MASTER_PORT", "CLUSTER_NAME", "WORKER_NAME",
		"MUSTER_LOCAL_RANK", "MUSTER_DEVICES",
		"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES",
	}
}

// Check refuses a cluster that no pool could hold, and fills in all that
// follows: the mapping from its text, World, DevicesPerWorker, the shape, and
// defaults. What it leaves is complete, and checking it again changes nothing.
// Sizes and mappings that cannot be have CodePlacement, the rest CodeInvalid.
func (c *Cluster) Check() error {
	for _, check := range []func() *Error{c.checkName, c.checkKind, c.checkGPUs, c.checkMapping, c.checkWorld, c.checkShape, c.checkRuntimeEnv, c.checkEnv, c.checkOptions} {
		if err := check(); err != nil {
			err.Cluster = c.Name
			if c.Name != "" {
				err.Message = cmp.Or(c.Kind, KindCluster) + " " + quoteOdd(c.Name) + ": " + err.Message
			}
			return err
		}
	}
	return nil
}

func (c *Cluster) checkName() *Error {
	const allowed = "a name has 1 to 100 of the characters a-z A-Z 0-9 _ - . and starts with a letter, a digit or _"
	if c.Name == "" {
		return Errorf(CodeInvalid, "a %s needs a name; %s", cmp.Or(c.Kind, KindCluster), allowed)
	}
	if len(c.Name) > maxName {
		return Errorf(CodeInvalid, "the name has %d characters; %s", len(c.Name), allowed)
	}
	for i, r := range c.Name {
		if !nameRune(r) {
			return Errorf(CodeInvalid, "%q cannot be in a name; %s", r, allowed)
		}
		if i == 0 && (r == '-' || r == '.') {
			return Errorf(CodeInvalid, "a name cannot start with %q; %s", r, allowed)
		}
	}
	return nil
}

// checkKind: a service is one process, whatever devices it has.
func (c *Cluster) checkKind() *Error {
	switch c.Kind {
	case "":
		c.Kind = KindCluster
	case KindCluster:
	case KindService:
		if c.World == 0 {
			c.World = 1
		}
		if c.World != 1 {
			return Errorf(CodeInvalid, "world_size is %d, and a service is one process: leave it out, or make a Cluster", c.World)
		}
	default:
		return Errorf(CodeInvalid, "kind is %q; it is %q or %q", c.Kind, KindCluster, KindService)
	}
	return nil
}

// checkGPUs: a service takes whole devices, or a part of one.
func (c *Cluster) checkGPUs() *Error {
	switch g := c.GPUs; {
	case g == 0:
		return nil
	case g < 0 || math.IsNaN(g) || g > MaxMapping || g > 1 && g != math.Trunc(g):
		return Errorf(CodeInvalid, "gpus is %v; it is a whole number, or the part of one GPU, between 0 and 1", g)
	case c.Kind != KindService:
		return Errorf(CodeInvalid, "gpus=%v is for services, whose devices are chosen for them: say which ones the workers of a cluster have by device_mapping", g)
	}
	return nil
}

func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
}

func (c *Cluster) checkMapping() *Error {
	if c.MappingText != "" {
		ids, err := ParseMapping(c.MappingText)
		if err != nil {
			return AsError(err)
		}
		c.HasMapping, c.Mapping = true, ids
	}
	if len(c.Mapping) > MaxMapping {
		return Errorf(CodePlacement, "device_mapping has %d entries; at most %d are possible", len(c.Mapping), MaxMapping)
	}
	c.HasMapping = c.HasMapping || len(c.Mapping) > 0
	if c.HasMapping && len(c.Mapping) == 0 {
		return Errorf(CodePlacement, "device_mapping is empty; name at least one device id, or leave it out and give world_size for CPU workers")
	}
	for i, id := range c.Mapping {
		if id < 0 {
			return Errorf(CodePlacement, "device_mapping has id %d at position %d; device ids start at 0", id, i)
		}
	}
	return nil
}

// checkWorld makes World x DevicesPerWorker = len(Mapping) hold.
func (c *Cluster) checkWorld() *Error {
	world, per, n := c.World, c.DevicesPerWorker, len(c.Mapping)
	switch {
	case world < 0:
		return Errorf(CodePlacement, "world_size is %d; it is 1 or more, or left out to follow from device_mapping", world)
	case per < 0:
		return Errorf(CodePlacement, "num_gpus_per_worker is %d; it is 1 or more, or left out to follow from device_mapping and world_size", per)
	case world > MaxMapping:
		return Errorf(CodePlacement, "world_size is %d; at most %d workers are possible", world, MaxMapping)
	case !c.HasMapping && per > 0:
		return Errorf(CodePlacement, "num_gpus_per_worker=%d without a device_mapping: say which devices, as device_mapping=\"0-%d\", or leave both out for CPU workers",
			per, min(max(world, 1), MaxMapping)*min(per, MaxMapping)-1)
	case !c.HasMapping && world == 0:
		return Errorf(CodePlacement, "how many workers? Give device_mapping (as \"0-7\") for workers with GPUs, or world_size for CPU workers")
	case !c.HasMapping:
		return nil
	case world > n:
		return Errorf(CodePlacement, "world_size %d is larger than device_mapping, which has %s; every worker needs at least one", world, entries(n))
	case world == 0 && per == 0:
		world, per = n, 1
	case world == 0 && n%per != 0:
		return Errorf(CodePlacement, "device_mapping has %s, which num_gpus_per_worker=%d does not divide", entries(n), per)
	case world == 0:
		world = n / per
	case n%world != 0:
		return Errorf(CodePlacement, "device_mapping has %s, which world_size %d does not divide: every worker gets the same number of devices", entries(n), world)
	case per == 0:
		per = n / world
	case per != n/world:
		return Errorf(CodePlacement, "world_size %d x num_gpus_per_worker=%d does not make the %s of device_mapping; with them each worker gets %d",
			world, per, entries(n), n/world)
	}
	c.World, c.DevicesPerWorker = world, per
	return c.checkRepeats()
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return strconv.Itoa(n) + " entries"
}

// checkRepeats looks for a device that one worker would get twice. Two workers
// on one device are fine.
func (c *Cluster) checkRepeats() *Error {
	n := c.DevicesPerWorker
	if n < 2 {
		return nil
	}
	group := make([]int, n)
	for rank := range c.World {
		copy(group, c.Mapping[rank*n:])
		slices.Sort(group)
		for i := 1; i < n; i++ {
			if group[i] == group[i-1] {
				err := Errorf(CodePlacement, "device_mapping gives id %d to rank %d twice (num_gpus_per_worker=%d, its entries are %s)",
					group[i], rank, n, brief(c.Mapping[rank*n:(rank+1)*n]))
				err.Rank = rank
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) checkShape() *Error { return c.Shape.settle(c.World) }

func (c *Cluster) checkEnv() *Error {
	ours := RankVariables()
	if c.RankEnv || c.Kind == KindService { // which has no rank
		ours = nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) { // sorted: the same error each time
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return Errorf(CodeInvalid, "env has a variable named %q; a name is not empty and has no \"=\" or NUL in it", name)
		case strings.Contains(c.Env[name], "\x00"):
			return Errorf(CodeInvalid, "env %s holds a NUL byte, which no environment can", name)
		case slices.Contains(ours, name):
			hint := "leave it out"
			if strings.HasSuffix(name, "_VISIBLE_DEVICES") {
				hint = `choose devices by device_mapping, or show workers all of their node's by visible_devices="node"`
			}
			return Errorf(CodeInvalid, "env sets %s=%q, which Muster sets for each worker by its rank; %s", name, c.Env[name], hint)
		}
	}
	return nil
}

func (c *Cluster) checkOptions() *Error {
	for _, option := range []struct {
		name    string
		value   *string
		allowed []string // the first is the default
	}{
		{"start", &c.Start, []string{"fork", "spawn"}},
		{"visible_devices", &c.VisibleDevices, []string{"own", "node"}},
		{"pickle", &c.Pickle, []string{"on", "off"}},
		{"on_failure", &c.OnFailure, []string{OnFailureFail, OnFailureWorker, OnFailureCluster}},
	} {
		if *option.value == "" {
			*option.value = option.allowed[0]
		}
		if !slices.Contains(option.allowed, *option.value) {
			last := len(option.allowed) - 1
			return Errorf(CodeInvalid, "%s is %q; it is \"%s\" or %q", option.name, *option.value, strings.Join(option.allowed[:last], `", "`), option.allowed[last])
		}
	}
	if c.MaxConcurrency < 0 {
		return Errorf(CodeInvalid, "max_concurrency is %d; it is 1 or more, or left out", c.MaxConcurrency)
	}
	if c.MaxRestarts < 0 {
		return Errorf(CodeInvalid, "max_restarts is %d; it is 1 or more, or left out; without restarts, on_failure is %q", c.MaxRestarts, OnFailureFail)
	}
	if c.MaxRestarts == 0 {
		c.MaxRestarts = DefaultMaxRestarts
	}
	for _, limit := range []struct {
		name   string
		value  *float64
		orElse float64
	}{
		{"startup_timeout", &c.StartupSeconds, DefaultStartupSeconds},
		{"grace", &c.GraceSeconds, DefaultGraceSeconds},
		{"restart_window", &c.RestartWindowSeconds, DefaultRestartWindow},
	} {
		if *limit.value < 0 || *limit.value > maxSeconds || math.IsNaN(*limit.value) {
			return Errorf(CodeInvalid, "%s is %v seconds; it is between 0 and %.0f", limit.name, *limit.value, maxSeconds)
		}
		if *limit.value == 0 {
			*limit.value = limit.orElse
		}
	}
	return nil
}
