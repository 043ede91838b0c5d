package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
)

// clearBound is how long what a killed agent left may take to die.
const clearBound = 10 * time.Second

// Backend launches agents on this machine.
type Backend struct {
	reaper *process.Reaper
	binary string
	nodes  int
	net    bool
}

// New makes a backend of so many virtual nodes; 0 means one node, the machine
// as it is. binary is the program that has the command warden; "" means this
// one. The reaper is the process's own: what falls to it is cleared.
func New(reaper *process.Reaper, binary string, nodes int) *Backend {
	if binary == "" {
		binary = "/proc/self/exe"
	}
	return &Backend{reaper: reaper, binary: binary, nodes: nodes}
}

// OverNet has the nodes join as other machines do, over the loopback device.
func (b *Backend) OverNet() *Backend {
	b.net = true
	return b
}

// Far says that nodes join over the network.
func (b *Backend) Far() bool { return b.net }

// Host is where they find the head.
func (b *Backend) Host() string { return "127.0.0.1" }

// Nodes names the nodes: node-0 and so on, or the machine.
func (b *Backend) Nodes(context.Context) ([]string, error) {
	if b.nodes == 0 {
		name, err := os.Hostname()
		if err != nil || name == "" {
			name = "localhost"
		}
		return []string{name}, nil
	}
	names := make([]string, b.nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	return names, nil
}

// Launch starts a warden in a session of its own. It gets no parent-death
// signal: when the head dies, its agent waits for another, or ends in order.
func (b *Backend) Launch(ctx context.Context, join backend.Join) (backend.Agent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if warden, ok := session.Holder(join.Dir, join.Node); ok {
		// Of a head that was killed before it could write that down.
		return b.Adopt(ctx, join, backend.Handle{Pid: warden.Pid, Started: warden.Started})
	}
	join.Sharing = max(1, b.nodes)
	text, err := json.Marshal(join)
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, launchError(join, err)
	}
	defer reader.Close()
	defer writer.Close()
	output, path := openOutput(join)
	if output != os.Stderr {
		defer output.Close()
	}
	child, err := b.reaper.Start(process.Command{
		Path: b.binary, Args: []string{"muster", "warden"}, Env: marked(join),
		Files: []*os.File{nil, output, output, reader}, Session: true, Orphan: true,
	})
	if err != nil {
		return nil, launchError(join, err)
	}
	a := &agent{child: child, reaper: b.reaper, output: path, done: make(chan struct{})}
	a.handle.Pid = child.Pid()
	if e, err := process.Read(child.Pid()); err == nil {
		a.handle.Started = e.Started
	}
	go a.watch()
	if _, err = writer.Write(text); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		a.Kill()
		<-a.done
		return nil, launchError(join, err)
	}
	return a, nil
}

// marked is this process's environment, and whose the warden is.
func marked(join backend.Join) []string {
	return append(os.Environ(), session.Mark+"="+session.MarkOf(join.Dir, join.Node))
}

func launchError(join backend.Join, err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return spec.Errorf(spec.CodeLimit, "cannot start the agent of %s: %v: raise the limit of open files (ulimit -n 65536)", join.Name, err)
	}
	return fmt.Errorf("cannot start the agent of %s: %w", join.Name, err)
}

// openOutput opens the file that warden and agent complain to. Without one they
// share our standard error.
func openOutput(join backend.Join) (*os.File, string) {
	if join.LogDir == "" {
		return os.Stderr, ""
	}
	path := filepath.Join(join.LogDir, fmt.Sprintf("agent-%d.log", join.Node))
	if os.MkdirAll(join.LogDir, 0o755) != nil {
		return os.Stderr, ""
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return os.Stderr, ""
	}
	return file, path
}

// agent is a warden that was started, and all below it.
type agent struct {
	child  *process.Child
	reaper *process.Reaper
	handle backend.Handle
	output string
	done   chan struct{}
	err    error
}

// watch waits for the warden. One that was killed leaves what it had to this
// process, which clears it.
func (a *agent) watch() {
	<-a.child.Done()
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	left := a.reaper.Clear(ctx)
	if exit := a.child.Exit(); exit != (process.Exit{}) || left != nil {
		a.err = fmt.Errorf("%v%s", exit, lastLine(a.output))
		if left != nil {
			a.err = fmt.Errorf("%w; %w", a.err, left)
		}
	}
	close(a.done)
}

func (a *agent) Done() <-chan struct{} { return a.done }

func (a *agent) Err() error { return a.err }

func (a *agent) Kill() { a.child.Signal(syscall.SIGKILL) }

func (a *agent) Handle() backend.Handle { return a.handle }

// lastLine is what the agent complained of last.
func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-4096), io.SeekStart)
	}
	text, _ := io.ReadAll(file)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return " (" + last + ")"
	}
	return ""
}
