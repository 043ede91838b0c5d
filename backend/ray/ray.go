package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/local"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

const (
	// joinBound is how long the bridge may take to be in Ray or to say why not.
	joinBound = 40 * time.Second
	// leaveBound is how long it may take to be out of it.
	leaveBound = 10 * time.Second
	// startBound is how long an agent may take to be started on a node.
	startBound = 90 * time.Second
)

// Options say how the bridge is started.
type Options struct {
	Address string // of Ray's GCS; "": RAY_ADDRESS, or the Ray of this machine
	Session string // what actors and groups are named after
	Dir     string // of the session, where the bridge listens
	LogDir  string // where it complains to
	Python  string // an interpreter that has ray
	Package string // the folder that has the package muster; "": the interpreter finds it
	Binary  string // the muster program; "": this one
	Owner   int    // pid of the process that all this is for; 0: none
	Grace   time.Duration
	Warn    func(string) // hears what people should know; nil: nobody
}

// Backend is the nodes of a Ray cluster.
type Backend struct {
	opts   Options
	reaper *process.Reaper
	here   *local.Backend

	starting sync.Mutex // one start of a bridge at a time
	mu       sync.Mutex
	bridge   *bridge
	said     hello
	warned   bool
	closed   bool
	agents   map[int]*agent
	failed   error // to join, for who asks next
}

// New makes the backend; Ray is joined when it is first asked for something.
func New(reaper *process.Reaper, opts Options) (*Backend, error) {
	if opts.Address == "" {
		opts.Address = os.Getenv("RAY_ADDRESS")
	}
	if strings.HasPrefix(opts.Address, "ray://") {
		return nil, spec.Errorf(spec.CodeInvalid,
			"%s is an address of Ray's client, which can hold no placement groups and no actors for Muster: run the script on a node of the Ray cluster and give the address of its GCS (host:6379), or none", opts.Address)
	}
	if opts.Binary == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("cannot tell which program this is: %w", err)
		}
		opts.Binary = path
	}
	if opts.Warn == nil {
		opts.Warn = func(string) {}
	}
	return &Backend{opts: opts, reaper: reaper, here: local.New(reaper, opts.Binary, 0), agents: map[int]*agent{}}, nil
}

// Far says that there are nodes on other machines.
func (b *Backend) Far() bool { return true }

// Host is this machine's address, as Ray has it; "" where Ray cannot be joined,
// which Nodes then says.
func (b *Backend) Host() string {
	nodes, err := b.list(context.Background())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed = err; err != nil {
		return ""
	}
	return nodes[0].Address
}

// node is one of Ray's.
type node struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Here    bool   `json:"here"`
	Cores   int    `json:"cores"`
	Memory  uint64 `json:"memory"`
	GPUs    int    `json:"gpus"`
}

func (b *Backend) list(ctx context.Context) ([]node, error) {
	b.mu.Lock()
	failed := b.failed
	b.failed = nil
	b.mu.Unlock()
	if failed != nil {
		return nil, failed // a moment ago
	}
	br, err := b.reach(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []node
	if err := br.ask(ctx, "nodes", nil, &nodes, nil); err != nil {
		return nil, err
	}
	if len(nodes) == 0 || !nodes[0].Here {
		return nil, spec.Errorf(spec.CodeResources, "this machine is no node of the Ray cluster at %s: start Ray here too (ray start --address=…)", b.said.Address)
	}
	return nodes, nil
}

// Nodes names the nodes of Ray that are alive, this machine's first.
func (b *Backend) Nodes(ctx context.Context) ([]string, error) {
	nodes, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names, nil
}

// Launch starts the agent of this machine, or has Ray start one on the node of
// that name.
func (b *Backend) Launch(ctx context.Context, join backend.Join) (backend.Agent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	nodes, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	if nodes[0].Name == join.Name {
		join.Hosts, join.Address = nil, nodes[0].Address // by the unix socket
		return b.here.Launch(ctx, join)
	}
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	br, err := b.reach(ctx)
	if err != nil {
		return nil, err
	}
	join.Relay = true // its workers cannot reach the head
	a := newAgent(b, join.Node, br)
	b.mu.Lock()
	b.agents[join.Node] = a
	b.mu.Unlock()
	var got known
	err = br.ask(ctx, "launch", map[string]any{"join": join, "program": b.opts.Binary}, &got, nil)
	if err != nil {
		_ = br.ask(context.Background(), "kill", map[string]int{"node": join.Node}, nil, nil)
		b.agentEnded(join.Node, err.Error())
		return nil, fmt.Errorf("cannot start the agent of %s: %w", join.Name, err)
	}
	a.handle = backend.Handle{Pid: got.Pid, Started: got.Started}
	go a.watch()
	return a, nil
}

// Adopt finds an agent of an earlier head: this machine's own, or one that the
// bridge, which outlived that head, has kept.
func (b *Backend) Adopt(ctx context.Context, join backend.Join, handle backend.Handle) (backend.Agent, error) {
	nodes, err := b.list(ctx)
	if err != nil || nodes[0].Name == join.Name { // its agent does not need Ray
		if a, err := b.here.Adopt(ctx, join, handle); join.Node == 0 || err == nil {
			return a, err
		}
		return nil, backend.ErrGone
	}
	br, err := b.reach(ctx)
	if err != nil {
		return nil, backend.ErrGone
	}
	var said hello
	if err := br.ask(ctx, "hello", b.greeting(), &said, nil); err != nil {
		return nil, err
	}
	for _, k := range said.Agents {
		if k.Node != join.Node || k.Pid != handle.Pid || k.Started != handle.Started {
			continue
		}
		b.mu.Lock()
		a := b.agents[join.Node]
		if a == nil || a.bridge != br {
			a = newAgent(b, join.Node, br)
			a.handle = handle
			b.agents[join.Node] = a
			go a.watch()
		}
		b.mu.Unlock()
		return a, nil
	}
	return nil, backend.ErrGone
}

// Reserve makes a placement group.
func (b *Backend) Reserve(ctx context.Context, want backend.Want) (backend.Grant, error) {
	var grant backend.Grant
	br, err := b.reach(ctx)
	if err != nil {
		return grant, err
	}
	asked := struct {
		backend.Want
		Seconds float64 `json:"seconds"`
	}{want, want.Patience.Seconds()}
	if err := br.ask(ctx, "reserve", asked, &grant, want.Tell); err != nil {
		go func() { // it may have been made all the same
			_ = br.ask(context.Background(), "release", map[string]int{"id": want.ID}, nil, nil)
		}()
		return backend.Grant{}, err
	}
	return grant, nil
}

// Look asks Ray what is free.
func (b *Backend) Look(ctx context.Context, want backend.Want) (backend.Outlook, error) {
	var outlook backend.Outlook
	br, err := b.reach(ctx)
	if err == nil {
		err = br.ask(ctx, "look", want, &outlook, nil)
	}
	return outlook, err
}

// Census tells the nodes of Ray that are alive, with what Ray counts on them.
func (b *Backend) Census(ctx context.Context) ([]spec.Node, error) {
	nodes, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]spec.Node, len(nodes))
	for i, n := range nodes {
		all[i] = spec.Node{Name: n.Name, Address: n.Address, Cores: n.Cores, Memory: n.Memory, Devices: make([]spec.Device, n.GPUs)}
		for d := range all[i].Devices {
			all[i].Devices[d] = spec.Device{Index: d, Kind: "gpu"}
		}
	}
	return all, nil
}

// Release removes a placement group.
func (b *Backend) Release(ctx context.Context, id int) error {
	b.mu.Lock()
	br := b.bridge
	b.mu.Unlock()
	if br == nil {
		return nil // its groups went with it
	}
	return br.ask(ctx, "release", map[string]int{"id": id}, nil, nil)
}

// Kept are the groups that the bridge has.
func (b *Backend) Kept(ctx context.Context) ([]int, error) {
	br, err := b.reach(ctx)
	if err != nil {
		return nil, err
	}
	var said hello
	err = br.ask(ctx, "hello", b.greeting(), &said, nil)
	return said.Groups, err
}

// Fit has the bridge ship what a node lacks, and Ray set up what a runtime_env
// names. This machine lacks nothing that the script did not lack.
func (b *Backend) Fit(ctx context.Context, node int, rt spec.Runtime) (backend.Fitted, error) {
	b.mu.Lock()
	a := b.agents[node]
	b.mu.Unlock()
	program := len(rt.Command) > 0
	if rt.Python == "" && !program || a == nil && rt.RuntimeEnv == "" {
		return backend.Fitted{Runtime: rt}, nil
	}
	asked := runtime{Dir: rt.Dir}
	if program {
		asked.Program = rt.Command[0]
	} else {
		asked.Python, asked.Package, asked.SysPath, asked.Main, asked.Modules = rt.Python, rt.Package, rt.SysPath, rt.Main.Path, rt.Modules
	}
	if rt.RuntimeEnv != "" {
		asked.RuntimeEnv = json.RawMessage(rt.RuntimeEnv)
	}
	var br *bridge
	var err error
	if a != nil {
		br = a.bridge
	} else if br, err = b.reach(ctx); err != nil {
		return backend.Fitted{Runtime: rt}, err
	}
	var got runtime
	if err := br.ask(ctx, "fit", map[string]any{"node": node, "runtime": asked}, &got, nil); err != nil {
		return backend.Fitted{Runtime: rt}, err
	}
	rt.Dir, rt.RuntimeEnv = got.Dir, ""
	if program {
		rt.Command = append([]string{got.Program}, rt.Command[1:]...)
	} else {
		rt.Python, rt.Package, rt.SysPath, rt.Main.Path, rt.Modules = got.Python, got.Package, got.SysPath, got.Main, got.Modules
	}
	if len(got.Env)+len(got.Path) > 0 {
		env := map[string]string{}
		maps.Copy(env, rt.Env)
		maps.Copy(env, got.Env)
		env["PATH"] = strings.Join(slices.DeleteFunc(append(got.Path, env["PATH"]), func(p string) bool { return p == "" }), ":")
		rt.Env = env
	}
	return backend.Fitted{Runtime: rt, Moved: got.Moved}, nil
}

// runtime is what of a spec.Runtime differs from node to node.
type runtime struct {
	Python     string            `json:"python"`
	Package    string            `json:"package"`
	SysPath    []string          `json:"sys_path"`
	Dir        string            `json:"dir"`
	Main       string            `json:"main"`
	Modules    []string          `json:"modules"`
	Program    string            `json:"program"` // in the place of an interpreter: the worker itself
	RuntimeEnv json.RawMessage   `json:"runtime_env,omitempty"`
	Env        map[string]string `json:"env,omitempty"`  // variables that it has there, beyond the controller's
	Path       []string          `json:"path,omitempty"` // folders in front of PATH
	Moved      map[string]string `json:"moved,omitempty"`
}

// Close has the bridge leave Ray, with all that it has there.
func (b *Backend) Close() {
	b.starting.Lock()
	defer b.starting.Unlock()
	b.mu.Lock()
	br := b.bridge
	b.bridge, b.closed = nil, true
	b.mu.Unlock()
	if br != nil {
		br.close(leaveBound)
	}
}

func (b *Backend) greeting() map[string]any {
	return map[string]any{"address": b.opts.Address, "session": b.opts.Session, "owner": b.opts.Owner, "grace": b.opts.Grace.Seconds()}
}

// reach returns a bridge that is in Ray: the one in use, one that an earlier head
// has left, or a new one.
func (b *Backend) reach(ctx context.Context) (*bridge, error) {
	b.starting.Lock()
	defer b.starting.Unlock()
	b.mu.Lock()
	br, closed := b.bridge, b.closed
	b.mu.Unlock()
	if closed {
		return nil, errors.New("the backend is closed")
	}
	if br != nil {
		select {
		case <-br.done:
		default:
			return br, nil
		}
	}
	br, child, err := b.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, joinBound, fmt.Errorf("the bridge to Ray did not answer within %v%s", joinBound, lastLine(br.log)))
	defer cancel()
	var said hello
	if err := br.ask(ctx, "hello", b.greeting(), &said, nil); err != nil {
		_ = br.conn.Close() // it ends with that, as it is not in Ray
		if child != nil && ctx.Err() != nil {
			child.Signal(9)
		}
		return nil, err
	}
	if br.watch, err = process.NewWatch(said.Pid); err != nil {
		_ = br.conn.Close()
		return nil, fmt.Errorf("the bridge to Ray (process %d) is gone%s", said.Pid, lastLine(br.log))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bridge, b.said = br, said
	if said.Warning != "" && !b.warned {
		b.warned = true
		go b.opts.Warn(said.Warning)
	}
	return br, nil
}

// connect dials the bridge of an earlier head, or starts one.
func (b *Backend) connect() (*bridge, *process.Child, error) {
	path := filepath.Join(b.opts.Dir, "ray.sock")
	log := filepath.Join(b.opts.LogDir, "ray.log")
	at := &net.UnixAddr{Name: path, Net: "unix"}
	if conn, err := net.DialUnix("unix", nil, at); err == nil {
		return serve(conn, log, b.agentEnded), nil, nil
	}
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unix", at)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen for the bridge to Ray: %w", err)
	}
	listener.SetUnlinkOnClose(false) // it is the bridge's
	defer listener.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, nil, err
	}
	conn, err := net.DialUnix("unix", nil, at) // it waits there until it is accepted
	if err != nil {
		return nil, nil, err
	}
	child, err := b.start(listener, log)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return serve(conn, log, b.agentEnded), child, nil
}

// start starts the bridge's process. It gets no parent-death signal: the head that
// comes after one that was killed finds it.
func (b *Backend) start(listener *net.UnixListener, log string) (*process.Child, error) {
	file, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := os.MkdirAll(b.opts.LogDir, 0o755); err != nil {
		return nil, err
	}
	output, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot start the bridge to Ray: %w", err)
	}
	defer output.Close()
	path, _ := json.Marshal(b.opts.Package) // as a string in Python
	code := "from muster._ray.bridge import main; main()"
	if b.opts.Package != "" {
		code = "import sys; sys.path.insert(0, " + string(path) + "); " + code
	}
	child, err := b.reaper.Start(process.Command{
		Path: b.opts.Python, Args: []string{b.opts.Python, "-c", code, log}, Env: os.Environ(),
		Files: []*os.File{nil, output, output, file}, Session: true, Orphan: true,
	})
	if err != nil {
		return nil, spec.Errorf(spec.CodeResources, "cannot start the bridge to Ray with %s: %v", b.opts.Python, err)
	}
	return child, nil
}

func (b *Backend) agentEnded(node int, why string) {
	b.mu.Lock()
	a := b.agents[node]
	delete(b.agents, node)
	b.mu.Unlock()
	if a != nil {
		a.end(why)
	}
}
