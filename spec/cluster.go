package spec

import (
	"path"
	"slices"
)

// Cluster is one named group of workers as its user asked for it: checked by
// Check, placed by package placement, started by the head.
type Cluster struct {
	Name  string `msg:"name"`
	Kind  string `msg:"kind"` // "cluster" (default) or "service"
	Class Class  `msg:"class"`

	// World is the number of workers; 0 means that it follows from the mapping.
	World int `msg:"world"`
	// HasMapping tells an empty mapping from none. MappingText, where not
	// empty, is parsed into Mapping by Check.
	HasMapping  bool   `msg:"has_mapping"`
	MappingText string `msg:"mapping_text"`
	Mapping     []int  `msg:"mapping"`
	// DevicesPerWorker is 0 where it follows from World and the mapping.
	DevicesPerWorker int `msg:"devices_per_worker"`
	// Node, where not empty, is the node of the pool that CPU workers run on.
	Node string `msg:"node"`
	// SpanNodes lets one worker's devices lie on several nodes.
	SpanNodes bool `msg:"span_nodes"`
	// GPUs is how many a service takes, of those that its mapping names or of all: a
	// whole number, or a part of one. Which ones, package placement chooses among those
	// that other services have left; they are the mapping then.
	GPUs float64 `msg:"gpus,omitempty"`

	Shape Shape `msg:"shape"`

	Env            map[string]string `msg:"env"`
	RankEnv        bool              `msg:"rank_env"`        // Env may set rank variables, too
	MaxConcurrency int               `msg:"max_concurrency"` // 0: 1, or 1000 for classes with async methods
	Start          string            `msg:"start"`           // "fork" (default) or "spawn"
	VisibleDevices string            `msg:"visible_devices"` // "own" (default) or "node"
	StartupSeconds float64           `msg:"startup_timeout"` // 0: 300
	GraceSeconds   float64           `msg:"grace"`           // TERM to KILL; 0: 10
	Pickle         string            `msg:"pickle"`          // "on" (default) or "off"

	// OnFailure says what follows when a worker's process ends: "fail" (default),
	// "restart_worker" or "restart_cluster", the latter MaxRestarts times at most
	// within RestartWindowSeconds.
	OnFailure            string  `msg:"on_failure"`
	MaxRestarts          int     `msg:"max_restarts"`   // 0: 3
	RestartWindowSeconds float64 `msg:"restart_window"` // 0: 600

	Runtime Runtime `msg:"runtime"`
	// Config is what the class's constructor gets, as a value: its worker_config,
	// or for a service its args and kwargs.
	Config []byte `msg:"config"`
}

// A service is one worker that hosts an object of any class under a name, which
// its script and all its workers can ask for, and that goes with its script.
const (
	KindCluster = "cluster"
	KindService = "service"
)

// What a cluster does when a worker's process ends.
const (
	OnFailureFail    = "fail"
	OnFailureWorker  = "restart_worker"
	OnFailureCluster = "restart_cluster"
)

// Restarts says that ranks that die are started again.
func (c *Cluster) Restarts() bool {
	return c.OnFailure == OnFailureWorker || c.OnFailure == OnFailureCluster
}

// Class says where a worker class comes from: an import path, or a pickle of
// the class itself where it cannot be imported (notebooks, python -c).
type Class struct {
	Module string `msg:"module"`
	Name   string `msg:"name"` // qualified name in the module
	Pickle []byte `msg:"pickle"`
}

// Runtime is all that a worker's interpreter needs before user code runs. Two
// workers with the same Runtime (and the same load-time variables) can be
// forked from one zygote.
type Runtime struct {
	Python  string            `msg:"python"`
	Flags   []string          `msg:"flags"`   // interpreter flags, as -O
	Package string            `msg:"package"` // the folder that holds the muster package
	SysPath []string          `msg:"sys_path"`
	Dir     string            `msg:"dir"`
	Preload []string          `msg:"preload"`
	Env     map[string]string `msg:"env"`  // the controller's environment
	Main    Main              `msg:"main"` // the controller's script
	// Command, where not empty, is a program that is the worker itself (package
	// worker), with its arguments. Of the rest only Dir and Env then matter.
	Command []string `msg:"command"`
	// RuntimeEnv is Ray's runtime_env, as JSON. Check takes out of it what Muster
	// does itself, and leaves what is Ray's to set up on each node.
	RuntimeEnv string `msg:"runtime_env,omitempty"`
	// Modules are folders and files of modules; what holds them goes in front of
	// SysPath, by InFront, once they are where the workers start.
	Modules []string `msg:"modules,omitempty"`
}

// Back is a runtime that a worker has told, with the paths of the controller's
// machine: moved has them by where they are on the worker's node, files and folders.
func (r Runtime) Back(moved map[string]string) Runtime {
	if len(moved) == 0 {
		return r
	}
	back := func(told string) string {
		for at := told; ; at = path.Dir(at) {
			if from, ok := moved[at]; ok {
				return from + told[len(at):]
			}
			if at == path.Dir(at) {
				return told
			}
		}
	}
	all := func(paths []string) []string {
		found := make([]string, len(paths))
		for i, told := range paths {
			found[i] = back(told)
		}
		return found
	}
	r.Python, r.Package, r.Dir, r.Main.Path = back(r.Python), back(r.Package), back(r.Dir), back(r.Main.Path)
	r.SysPath, r.Modules = all(r.SysPath), all(r.Modules)
	if len(r.Command) > 0 {
		r.Command = append([]string{back(r.Command[0])}, r.Command[1:]...)
	}
	return r
}

// InFront is the runtime with its Modules found by SysPath.
func (r Runtime) InFront() Runtime {
	front := make([]string, 0, len(r.Modules)+len(r.SysPath))
	for _, module := range r.Modules {
		if folder := path.Dir(module); !slices.Contains(front, folder) {
			front = append(front, folder)
		}
	}
	r.SysPath, r.Modules = append(front, r.SysPath...), nil
	return r
}

// Main says how the controller's __main__ can be imported again.
type Main struct {
	Path   string   `msg:"path"`   // python script.py
	Module string   `msg:"module"` // python -m pkg.mod
	Args   []string `msg:"args"`   // sys.argv[1:], which the script may read when imported
}

// Shape is the parallel shape asked for; 0 means 1. DP follows.
type Shape struct {
	DP int `msg:"dp"`
	TP int `msg:"tp"`
	PP int `msg:"pp"`
	CP int `msg:"cp"`
	EP int `msg:"ep"`
}

// RankInfo is one rank's place in the parallel layout.
type RankInfo struct {
	WorldSize int `msg:"world_size"`
	TPSize    int `msg:"tp_size"`
	DPSize    int `msg:"dp_size"`
	PPSize    int `msg:"pp_size"`
	CPSize    int `msg:"cp_size"`
	Rank      int `msg:"rank"`
	TPRank    int `msg:"tp_rank"`
	DPRank    int `msg:"dp_rank"`
	PPRank    int `msg:"pp_rank"`
	CPRank    int `msg:"cp_rank"`
}
