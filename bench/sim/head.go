package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
)

// Descriptors that the head's process inherits.
const (
	headOwner   = 3 // its owner's connection, as an embedded head has it
	headNodes   = 4 // to the process with the nodes
	headControl = 5 // asked for its costs
)

// Cost is what the head's process has used so far.
type Cost struct {
	CPU  float64 `json:"cpu"`  // seconds, user and system
	Heap uint64  `json:"heap"` // bytes in use after a collection; only where asked for
	RSS  uint64  `json:"rss"`
}

func runHead(profile string) error {
	debug.SetGCPercent(400) // as the real one does
	owner, err := inherited(headOwner)
	if err != nil {
		return err
	}
	nodes, err := inherited(headNodes)
	if err != nil {
		return err
	}
	control, err := inherited(headControl)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if profile != "" {
		file, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	h, err := head.New(head.Options{
		Dir: dir + "/s", LogDir: dir, Session: "sim",
		Backend: func(v spec.Virtual, _ bool) (backend.Backend, error) { return newRemote(nodes, v.Nodes), nil },
	})
	if err != nil {
		return err
	}
	go tellCosts(control)
	return h.Run(context.Background(), owner)
}

func inherited(fd uintptr) (net.Conn, error) {
	file := os.NewFile(fd, "inherited")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: %w: this role is started by the program itself", fd, err)
	}
	return conn, nil
}

// tellCosts answers each line: "cpu", or "heap" for all.
func tellCosts(control net.Conn) {
	lines := bufio.NewScanner(control)
	for lines.Scan() {
		c := Cost{CPU: cpuSeconds()}
		if lines.Text() == "heap" {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			c.Heap, c.RSS = m.HeapAlloc, resident()
		}
		_ = json.NewEncoder(control).Encode(c)
	}
}

func cpuSeconds() float64 {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9
}

func resident() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	var size, pages uint64
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// remote is the backend of nodes in another process: lines of JSON between.
type remote struct {
	nodes  int
	mu     sync.Mutex
	to     *json.Encoder
	agents map[int]*remoteAgent
}

// order goes to the process with the nodes, ended comes back.
type order struct {
	Join *backend.Join `json:"join,omitempty"`
	Kill *int          `json:"kill,omitempty"`
}

type ended struct {
	Node int    `json:"node"`
	Err  string `json:"err"`
}

type remoteAgent struct {
	r    *remote
	node int
	done chan struct{}
	err  error
}

func newRemote(conn net.Conn, nodes int) *remote {
	r := &remote{nodes: nodes, to: json.NewEncoder(conn), agents: map[int]*remoteAgent{}}
	go func() {
		for dec := json.NewDecoder(conn); ; {
			var e ended
			if dec.Decode(&e) != nil {
				return
			}
			r.mu.Lock()
			a := r.agents[e.Node]
			r.mu.Unlock()
			if e.Err != "" {
				a.err = errors.New(e.Err)
			}
			close(a.done)
		}
	}()
	return r
}

func (r *remote) Nodes(context.Context) ([]string, error) {
	names := make([]string, r.nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	return names, nil
}

func (r *remote) Launch(_ context.Context, join backend.Join) (backend.Agent, error) {
	a := &remoteAgent{r: r, node: join.Node, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agents[join.Node] = a
	return a, r.to.Encode(order{Join: &join})
}

func (r *remote) Adopt(context.Context, backend.Join, backend.Handle) (backend.Agent, error) {
	return nil, backend.ErrGone // its heads are not killed
}

func (a *remoteAgent) Handle() backend.Handle { return backend.Handle{} }

func (a *remoteAgent) Done() <-chan struct{} { return a.done }
func (a *remoteAgent) Err() error            { return a.err }

func (a *remoteAgent) Kill() {
	a.r.mu.Lock()
	defer a.r.mu.Unlock()
	_ = a.r.to.Encode(order{Kill: &a.node})
}

// machine is what it ran on, for people.
func machine() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	model := ""
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), model, runtime.Version())
}
