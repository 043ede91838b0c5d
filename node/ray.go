package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-rl/muster/process"
)

// upLine is what `ray start` prints when its node is part of the cluster.
const upLine = "Ray runtime started"

// slowLine is what it says where a node took longer than the 30 s that Ray allows
// itself, on a machine that is busy, or reads Ray from a slow disk.
const slowLine = "timed out during startup"

// stopWithin is how long Ray may take to stop by itself.
const stopWithin = 15 * time.Second

// rayNode is the Ray of this host: a sweeper, `ray start --block` below it, and
// all below that. Its processes die with it by the kernel's hand; what does not,
// the sweeper ends, also when we are gone.
type rayNode struct {
	child    *process.Child
	lifeline *os.File
	tail     *tail
	stopped  atomic.Bool            // it was told to
	missing  atomic.Pointer[string] // the process that ended, where ray start did not mind
}

// looks is how many times in a row a process of Ray's must not be there.
const looks = 3

// startRay starts it. up is called once, when the node is part of the cluster;
// ended once, at the end.
func startRay(reaper *process.Reaper, command, env, needed []string, up func(), ended func(how string)) (*rayNode, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	theirs, lifeline, err := os.Pipe()
	if err != nil {
		_ = reader.Close()
		return nil, err
	}
	defer theirs.Close()
	child, err := reaper.Start(process.Command{
		Path: "/proc/self/exe", Args: append([]string{"muster", "sweeper", "--"}, command...), Env: env, Dir: "/",
		Files: []*os.File{nil, writer, writer, theirs}, Orphan: true,
		Session: true, // so that a terminal's ^C, and a kill of our group, are for us alone
	})
	if err != nil {
		_ = reader.Close()
		_ = lifeline.Close()
		return nil, fmt.Errorf("cannot start %s: %w", command[0], err)
	}
	r := &rayNode{child: child, lifeline: lifeline, tail: &tail{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer reader.Close()
		r.tail.read(reader, func(line string) {
			if up != nil && strings.Contains(line, upLine) {
				up()
				up = nil
				go r.watch(needed)
			}
		})
	}()
	go func() {
		<-child.Done()
		select { // what it said last; but who inherited the pipe may hold it for ever
		case <-read:
		case <-time.After(time.Second):
		}
		_ = lifeline.Close()
		how := child.Exit().String()
		if name := r.missing.Load(); name != nil {
			how = *name + " has ended"
		}
		ended(how)
	}()
	return r, nil
}

// watch looks whether the processes are there that Ray cannot do without. `ray
// start --block` says when one of them crashed, but not when it ended by itself.
func (r *rayNode) watch(needed []string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for bad := 0; bad < looks; {
		select {
		case <-tick.C:
		case <-r.child.Done():
			return
		}
		below, err := process.Descendants(r.child.Pid())
		if err != nil {
			continue // nothing was seen
		}
		there := make(map[string]bool)
		for _, e := range below {
			there[e.Name] = true
		}
		bad++
		name := ""
		for _, want := range needed {
			if !there[want] {
				name = want
			}
		}
		if name == "" {
			bad = 0
		} else if bad == looks && !r.stopped.Load() {
			r.missing.Store(&name)
			_ = r.lifeline.Close()
		}
	}
}

// stop has it end: kindly, and after a while not.
func (r *rayNode) stop() {
	r.stopped.Store(true)
	r.child.Signal(syscall.SIGTERM)
	time.AfterFunc(stopWithin, func() { _ = r.lifeline.Close() })
}

// tail keeps the last lines of what a program prints.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 40

func (t *tail) read(from io.Reader, each func(string)) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		text, err := in.ReadSlice('\n')
		if len(text) > 0 {
			one := strings.TrimRight(string(text), "\r\n")
			t.mu.Lock()
			t.lines = append(t.lines, one)
			if len(t.lines) > tailLines {
				t.lines = t.lines[1:]
			}
			t.mu.Unlock()
			each(one)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

// RayCommand finds the program that starts Ray: the interpreter that --python
// names, that of the ray program in PATH, or the one that scripts run with.
func RayCommand(python string, fallback func() (string, error)) ([]string, error) {
	if python == "" {
		if program, err := exec.LookPath("ray"); err == nil {
			python = shebang(program)
			if python == "" {
				program, err = filepath.Abs(program)
				return []string{program}, err
			}
		}
	}
	if python == "" {
		found, err := fallback()
		if err != nil {
			return nil, err
		}
		python = found
	}
	path, err := exec.LookPath(python)
	if err != nil {
		return nil, fmt.Errorf("--python names %s, which is no program that can be run", python)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	return []string{path, "-u", "-m", "ray.scripts.scripts"}, nil
}

// shebang is the interpreter of a script, "" if that is not a Python.
func shebang(program string) string {
	file, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer file.Close()
	first, _ := bufio.NewReader(io.LimitReader(file, 512)).ReadString('\n')
	interpreter, ok := strings.CutPrefix(strings.TrimSpace(first), "#!")
	if !ok || strings.ContainsAny(interpreter, " \t") || !strings.HasPrefix(filepath.Base(interpreter), "python") {
		return ""
	}
	return interpreter
}

// ours are flags of `ray start` that are not the user's to give here.
var ours = []string{"--head", "--address", "--port", "--block", "--temp-dir", "--node-ip-address", "--redis-password"}

// CheckRayFlags refuses those that muster node sets by itself.
func CheckRayFlags(flags []string) error {
	for _, f := range flags {
		name, _, _ := strings.Cut(f, "=")
		for _, own := range ours {
			if name == own {
				return fmt.Errorf("--ray-flag %s: muster node sets %s by itself", f, own)
			}
		}
		if !strings.HasPrefix(f, "--") {
			return fmt.Errorf("--ray-flag %q is no flag of ray start; write --ray-flag=--num-gpus=8", f)
		}
	}
	return nil
}

// startWords is the command line that starts Ray's head (address "") or joins.
func startWords(command []string, address string, self netip.Addr, port int, temp string, flags []string) []string {
	words := append([]string{}, command...)
	words = append(words, "start", "--block", "--disable-usage-stats", "--node-ip-address="+self.String(), "--temp-dir="+temp)
	if address == "" {
		words = append(words, "--head", "--port="+strconv.Itoa(port))
		if !named(flags, "--include-dashboard") {
			words = append(words, "--include-dashboard=false")
		}
	} else {
		words = append(words, "--address="+address)
	}
	return append(words, flags...)
}

func named(flags []string, name string) bool {
	for _, f := range flags {
		if got, _, _ := strings.Cut(f, "="); got == name {
			return true
		}
	}
	return false
}

// environ is base with changes; "" removes.
func environ(base []string, changes ...[2]string) []string {
	var env []string
	for _, pair := range base {
		name, _, _ := strings.Cut(pair, "=")
		keep := true
		for _, c := range changes {
			keep = keep && c[0] != name
		}
		if keep {
			env = append(env, pair)
		}
	}
	for _, c := range changes {
		if c[1] != "" {
			env = append(env, c[0]+"="+c[1])
		}
	}
	return env
}
