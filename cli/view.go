package cli

import (
	"github.com/muster-rl/muster/wire"
)

// What programs get: names that stay, without what only Muster's own processes
// need.

type sessionView struct {
	Session  string        `json:"session"`
	Pid      int           `json:"head_pid"`
	Error    string        `json:"error,omitempty"` // it did not answer; the rest is empty
	Release  string        `json:"release"`
	Owner    int           `json:"owner_pid"` // 0: a head of its own
	Script   string        `json:"script"`
	UpSec    float64       `json:"up_seconds"`
	LogDir   string        `json:"log_dir"`
	Virtual  string        `json:"virtual"`
	Nodes    []nodeView    `json:"nodes"`
	Unknown  string        `json:"unused_nodes_unknown,omitempty"` // why there may be more
	Clusters []clusterView `json:"clusters"`
	Calls    []callView    `json:"calls"`
}

type nodeView struct {
	Name    string       `json:"name"`
	State   string       `json:"state"`
	Why     string       `json:"why,omitempty"`
	Trouble string       `json:"trouble,omitempty"`
	Address string       `json:"address"`
	Cores   int          `json:"cores"`
	Memory  uint64       `json:"memory_bytes"`
	Devices []deviceView `json:"devices"`

	Load      *float64 `json:"load,omitempty"` // of the last minute
	Available *uint64  `json:"memory_available_bytes,omitempty"`
	// Of one on another machine: how long nothing has come from it, and how long
	// it takes to answer.
	Silent *float64 `json:"silent_seconds,omitempty"`
	Trip   *float64 `json:"round_trip_seconds,omitempty"`
}

type deviceView struct {
	Index  int    `json:"index"`
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Memory uint64 `json:"memory_bytes"`
}

type clusterView struct {
	Name    string       `json:"name"`
	Kind    string       `json:"kind,omitempty"` // "cluster" or "service"
	Pool    int          `json:"pool,omitempty"`
	World   int          `json:"world_size"`
	Shape   shapeView    `json:"shape"`
	Workers []workerView `json:"workers"`

	OnFailure string `json:"on_failure,omitempty"`
	Restarts  int    `json:"restarts,omitempty"`
	Draining  bool   `json:"draining,omitempty"` // it takes no more calls, and ends
}

type shapeView struct {
	DP int `json:"dp"`
	TP int `json:"tp"`
	PP int `json:"pp"`
	CP int `json:"cp"`
}

type workerView struct {
	Rank    int    `json:"rank"`
	Name    string `json:"name"`
	Node    string `json:"node"`
	Devices []int  `json:"devices"`       // ids in the pool
	Local   []int  `json:"local_devices"` // numbers on its node
	State   string `json:"state,omitempty"`
	Pid     int    `json:"pid,omitempty"`
	LogFile string `json:"log_file,omitempty"`

	Restarts int `json:"restarts,omitempty"` // how many processes had the rank before

	Engines []engineView `json:"engines,omitempty"`
}

type engineView struct {
	Name  string `json:"name"`
	Class string `json:"class"`
}

type callView struct {
	Cluster string  `json:"cluster"`
	Method  string  `json:"method"`
	State   string  `json:"state"`
	AgeSec  float64 `json:"age_seconds"`
	Ranks   int     `json:"ranks"`
	Missing []int   `json:"not_answered"`
	Caller  string  `json:"caller"`
	Warning string  `json:"warning,omitempty"`
}

func viewOf(r running) sessionView {
	s := r.status
	v := sessionView{
		Session: r.Name, Pid: r.Pid, Release: s.Release, Owner: s.Owner, Script: s.Script, UpSec: s.UpSec,
		LogDir: s.LogDir, Virtual: s.Virtual,
		Nodes: []nodeView{}, Clusters: clusterViews(s.Clusters), Calls: []callView{},
	}
	if r.err != nil {
		v.Error = r.err.Error()
	}
	v.Unknown = s.Unknown
	for _, n := range s.Nodes {
		node := nodeView{
			Name: n.Node.Name, State: n.State, Why: n.Why, Trouble: n.Node.Trouble, Address: n.Node.Address,
			Cores: n.Node.Cores, Memory: n.Node.Memory, Devices: []deviceView{},
		}
		if n.Load.Known {
			node.Load, node.Available = &n.Load.Load, &n.Load.Available
		}
		if n.Far {
			node.Silent, node.Trip = &n.SilentSec, &n.TripSec
		}
		for _, d := range n.Node.Devices {
			node.Devices = append(node.Devices, deviceView{d.Index, d.ID, d.Kind, d.Name, d.Memory})
		}
		v.Nodes = append(v.Nodes, node)
	}
	for _, c := range s.Calls {
		v.Calls = append(v.Calls, callView{c.Cluster, c.Method, c.State, c.AgeSec, c.Legs, append([]int{}, c.Out...), c.Caller, c.Warning})
	}
	return v
}

func clusterViews(clusters []wire.ClusterInfo) []clusterView {
	views := make([]clusterView, 0, len(clusters))
	for _, cl := range clusters {
		v := clusterView{Name: cl.Name, Kind: cl.Kind, Pool: cl.Pool, World: len(cl.Workers), Workers: []workerView{}, OnFailure: cl.OnFailure, Restarts: cl.Restarts, Draining: cl.Draining}
		if len(cl.Ranks) > 0 {
			r := cl.Ranks[0]
			v.Shape = shapeView{r.DPSize, r.TPSize, r.PPSize, r.CPSize}
		}
		for _, w := range cl.Workers {
			worker := workerView{
				Rank: w.Rank, Name: w.Name, Node: w.NodeName, Devices: []int{}, Local: []int{},
				State: w.State, Pid: w.Pid, LogFile: w.LogFile, Restarts: w.Restarts,
			}
			for _, d := range w.Devices {
				worker.Devices = append(worker.Devices, d.Global)
				worker.Local = append(worker.Local, d.Device)
			}
			for _, e := range w.Engines {
				worker.Engines = append(worker.Engines, engineView{e.Name, classText(e.Class)})
			}
			v.Workers = append(v.Workers, worker)
		}
		views = append(views, v)
	}
	return views
}
