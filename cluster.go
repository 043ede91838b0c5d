package muster

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

// ClusterConfig is what is asked of a cluster. Name is needed, one of Class and
// Command, and one of Devices and World.
type ClusterConfig struct {
	Name string
	// Class is a Python class by its import path: "pkg.module.Class".
	Class string
	// Command is a program made with package worker, and its arguments. A path
	// is taken from this process's folder.
	Command []string
	// Pool is where the workers go; none is needed for CPU workers on one node.
	Pool *Pool

	// Devices lists global device ids of the pool, as "0-7,16-23"; rank r takes
	// the r-th group of DevicesPerWorker (by default they follow from World).
	// Without, there are World CPU workers. DeviceIDs are the same as a list.
	Devices          string
	DeviceIDs        []int
	World            int
	DevicesPerWorker int
	SpanNodes        bool // lets the devices of one worker lie on several nodes
	// Parallel sizes; 0 means 1.
	TP, PP, CP, EP int

	// Config reaches each worker as its worker_config, by value. Large arrays and
	// bytes in it lie in the store, as those of arguments do.
	Config any
	// Env is on top of this process's own environment.
	Env map[string]string
	Dir string // working folder; default: this process's

	MaxConcurrency int           // calls a worker runs at once; 0: what its class says
	StartupTimeout time.Duration // until every worker must be ready; 0: 5 min
	Grace          time.Duration // from asking a worker to end until it is ended; 0: 10 s
	NodeDevices    bool          // workers see all devices of their node, not just their own

	// OnFailure says what follows when a worker's process ends: "fail" (default),
	// "restart_worker" or "restart_cluster", which happens MaxRestarts times at
	// most (0: 3) within RestartWindow (0: 10 min).
	OnFailure     string
	MaxRestarts   int
	RestartWindow time.Duration

	// For Python classes: the interpreter (default: Options.Python), folders in
	// front of sys.path, modules to import once before workers are forked, and
	// whether workers are spawned instead.
	Python    string
	PyModules []string
	Preload   []string
	Spawn     bool
}

// mapped says that its workers have devices.
func (c ClusterConfig) mapped() bool { return c.Devices != "" || c.DeviceIDs != nil }

// check refuses what contradicts itself.
func (c ClusterConfig) check() error {
	if c.Devices != "" && c.DeviceIDs != nil {
		return spec.Errorf(CodeInvalid, "cluster %s: Devices %q and DeviceIDs %v both say which devices it gets: leave out one", c.Name, c.Devices, c.DeviceIDs)
	}
	return nil
}

// spec is the configuration as the head takes it, but for runtime and config.
func (c ClusterConfig) spec() spec.Cluster {
	s := spec.Cluster{
		Name: c.Name, World: c.World, HasMapping: c.mapped(), MappingText: c.Devices, Mapping: c.DeviceIDs,
		DevicesPerWorker: c.DevicesPerWorker, SpanNodes: c.SpanNodes,
		Shape: spec.Shape{TP: c.TP, PP: c.PP, CP: c.CP, EP: c.EP}, Env: c.Env, MaxConcurrency: c.MaxConcurrency,
		StartupSeconds: c.StartupTimeout.Seconds(), GraceSeconds: c.Grace.Seconds(),
		OnFailure: c.OnFailure, MaxRestarts: c.MaxRestarts, RestartWindowSeconds: c.RestartWindow.Seconds(),
	}
	if c.Spawn {
		s.Start = "spawn"
	}
	if c.NodeDevices {
		s.VisibleDevices = "node"
	}
	if module, name, ok := strings.Cut(c.Class, ":"); ok {
		s.Class = spec.Class{Module: module, Name: name}
	} else {
		s.Class = spec.Class{Name: c.Class}
	}
	return s
}

// Cluster is a named group of workers, called as one.
type Cluster struct {
	session *Session
	info    wire.ClusterInfo
	methods map[string]*method
}

// WorkerInfo is one worker of a cluster: its rank, name, node, process, log file.
type WorkerInfo = wire.WorkerInfo

// Cluster starts a cluster and returns when every worker is ready, or with the
// first cause of why one is not. When ctx ends first, what has started is
// stopped.
func (s *Session) Cluster(ctx context.Context, config ClusterConfig) (*Cluster, error) {
	return s.create(ctx, config, wire.ClusterCreate{Spec: config.spec()})
}

// create starts what req asks for, with all that config adds.
func (s *Session) create(ctx context.Context, config ClusterConfig, req wire.ClusterCreate) (*Cluster, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	runtime, err := s.runtime(ctx, config)
	if err != nil {
		return nil, err
	}
	req.Spec.Runtime = runtime
	pool := config.Pool
	if pool == nil {
		if config.mapped() {
			devices := cmp.Or(config.Devices, fmt.Sprint(config.DeviceIDs))
			return nil, spec.Errorf(CodeInvalid, "cluster %s: its devices %s are those of a Pool: make one, and say which", config.Name, devices)
		}
		if pool, err = s.Pool(ctx, 1, 0); err != nil {
			return nil, err
		}
		// It stays as long as the cluster uses it.
		defer func() { _ = pool.Release(context.WithoutCancel(ctx)) }()
	}
	req.Pool = pool.pool.ID
	setup := value.NewMessage(s.conn.link) // after the pool, with whose nodes come stores
	defer setup.Release()
	if err := appendConfig(setup, config); err != nil {
		return nil, err
	}
	req.Spec.Config = setup.Raw
	c := &Cluster{session: s}
	if err := s.conn.askWith(ctx, "cluster.create", &req, setup, &c.info); err != nil {
		if ctx.Err() != nil && !req.Reuse { // else it may be somebody else's
			s.abandon(config.Name)
		}
		return nil, err
	}
	c.describe()
	s.mu.Lock()
	s.clusters[c.info.Number] = c
	s.mu.Unlock()
	return c, nil
}

// abandon stops a cluster whose start was given up.
func (s *Session) abandon(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	_ = s.conn.ask(ctx, "cluster.stop", &wire.ClusterRef{Name: name}, &wire.Mark{}) // it may never have been
}

// appendConfig encodes what workers are made with. What is large of it lies in the
// store then, where the head holds it for as long as it may have to make one anew.
func appendConfig(setup *value.Message, config ClusterConfig) error {
	if config.Config == nil {
		return nil
	}
	err := setup.Append(config.Config)
	if err == nil {
		err = setup.Settle("the config of " + config.Name)
	}
	return err
}

// runtime is what the cluster's workers are started with.
func (s *Session) runtime(ctx context.Context, config ClusterConfig) (spec.Runtime, error) {
	switch {
	case (config.Class == "") == (len(config.Command) == 0):
		return spec.Runtime{}, spec.Errorf(CodeInvalid, "cluster %s: one of Class and Command says what its workers are", config.Name)
	case config.Class != "":
		return s.pythonRuntime(ctx, config)
	}
	program, err := exec.LookPath(config.Command[0])
	if err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil {
		return spec.Runtime{}, spec.Errorf(CodeImport, "cluster %s: its program %s cannot be run: %v", config.Name, config.Command[0], err)
	}
	rt := ownRuntime()
	rt.Command = append([]string{program}, config.Command[1:]...)
	return runtimeIn(rt, config.Dir), nil
}

// Attached is the live cluster of that name, whoever started it.
func (s *Session) Attached(ctx context.Context, name string) (*Cluster, error) {
	return s.attached(ctx, wire.ClusterRef{Name: name})
}

func (s *Session) attached(ctx context.Context, ref wire.ClusterRef) (*Cluster, error) {
	c := &Cluster{session: s}
	if err := s.conn.ask(ctx, "cluster.describe", &ref, &c.info); err != nil {
		return nil, err
	}
	c.describe()
	return c, nil
}

func (c *Cluster) describe() {
	c.methods = map[string]*method{}
	for i := range c.info.Description.Methods {
		m := &c.info.Description.Methods[i]
		c.methods[m.Name] = newMethod(m, c.info.Description.Class)
	}
}

func (c *Cluster) target() target { return target{cluster: c, how: howMode} }

// All is every rank: each gets all arguments, a list in rank order comes back.
func (c *Cluster) All() Target { return target{cluster: c, how: howAll} }

// Rank is one rank; its result comes back alone.
func (c *Cluster) Rank(rank int) Target { return target{cluster: c, how: howOne, rank: rank} }

// RankZero is rank 0.
func (c *Cluster) RankZero() Target { return c.Rank(0) }

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.info.Name }

// World is the number of workers.
func (c *Cluster) World() int { return len(c.info.Workers) }

// Workers are the cluster's workers by rank, as they were when it was made.
func (c *Cluster) Workers() []WorkerInfo { return c.info.Workers }

// Master is where the workers' own rendezvous is: an address of rank 0's node,
// and a port that is kept free for it.
func (c *Cluster) Master() (addr string, port int) { return c.info.MasterAddr, c.info.MasterPort }

// Layout is each rank's place in the parallel layout, as it is now.
func (c *Cluster) Layout(ctx context.Context) ([]RankInfo, error) {
	var now wire.ClusterInfo
	err := c.session.conn.ask(ctx, "cluster.describe", &wire.ClusterRef{Number: c.info.Number, Name: c.info.Name}, &now)
	return now.Ranks, err
}

// Clear lets workers take calls again into which a cancel put an exception.
func (c *Cluster) Clear(ctx context.Context) error {
	return c.session.conn.ask(ctx, "cluster.clear", &wire.ClusterRef{Number: c.info.Number, Name: c.info.Name}, &wire.Empty{})
}

// Shutdown stops every worker, also inside a call, and returns when all their
// processes are gone and their output is written. It may be called again.
func (c *Cluster) Shutdown(ctx context.Context) error { return c.stop(ctx, 0) }

// Drain is Shutdown after the calls that were made before are answered; later ones
// are refused. They have as long as that, or until ctx ends.
func (c *Cluster) Drain(ctx context.Context, most time.Duration) error {
	return c.stop(ctx, max(0, most.Seconds()))
}

func (c *Cluster) stop(ctx context.Context, drain float64) error {
	var mark wire.Mark
	if err := c.session.conn.ask(ctx, "cluster.stop", &wire.ClusterRef{Number: c.info.Number, Drain: drain}, &mark); err != nil {
		return err
	}
	c.session.mu.Lock()
	delete(c.session.clusters, c.info.Number)
	c.session.mu.Unlock()
	if c.session.events != nil {
		c.session.events.waitFor(mark.Mark)
	}
	return nil
}
