package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// forkPatience is how long a zygote may still take to fork a worker whose start
// was given up. A fork takes milliseconds, so one that takes longer is stuck.
const forkPatience = time.Second

// line is the socket pair to a Python process that the agent started: requests
// go out, each with a descriptor if it has one, and answers come back in any
// order. It is used for zygotes and for spawned workers.
type line struct {
	socket *net.UnixConn
	conn   *wire.Conn // reads only; writing here carries descriptors

	writing sync.Mutex
	mu      sync.Mutex
	next    uint64
	open    map[uint64]chan<- lineAnswer
	err     error
}

type lineAnswer struct {
	body []byte
	err  error
}

// newLine makes the pair; the other end is for the child's descriptor 3.
func newLine() (*line, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line")
	nc, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	l := &line{socket: nc.(*net.UnixConn), conn: wire.NewConn(nc), open: map[uint64]chan<- lineAnswer{}}
	l.conn.SetLimit(wire.MaxFrame)
	return l, theirs, nil
}

// send writes a request whose first byte carries file, and returns where its
// answer will come.
func (l *line) send(verb string, m msgp.Marshaler, file *os.File) (<-chan lineAnswer, error) {
	body, err := wire.AppendVerb(nil, verb, m)
	if err != nil {
		return nil, err
	}
	answers := make(chan lineAnswer, 1)
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return nil, l.err
	}
	l.next++
	id := l.next
	l.open[id] = answers
	l.mu.Unlock()
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	frame := wire.AppendFrame(nil, wire.Header{Kind: wire.KindRequest, ID: id}, body, nil)
	l.writing.Lock()
	defer l.writing.Unlock()
	n, _, err := l.socket.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = l.socket.Write(frame[n:])
	}
	if err != nil {
		l.mu.Lock()
		delete(l.open, id)
		l.mu.Unlock()
		return nil, err
	}
	return answers, nil
}

// read hands out answers until the other end is gone.
func (l *line) read() {
	for {
		f, err := l.conn.Read()
		if err != nil {
			l.fail(err)
			return
		}
		if f.Kind != wire.KindResponse {
			continue
		}
		a := lineAnswer{}
		if f.Flags&wire.FlagError != 0 {
			a.err = wire.ReadError(f.Body)
		} else {
			f.Keep()
			a.body = f.Body
		}
		l.mu.Lock()
		answers := l.open[f.ID]
		delete(l.open, f.ID)
		l.mu.Unlock()
		if answers != nil {
			answers <- a
		}
	}
}

// errLine means that the other end went away before it answered.
var errLine = errors.New("the process went away")

func (l *line) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("%w: %w", errLine, cause)
	for id, answers := range l.open {
		answers <- lineAnswer{err: l.err}
		delete(l.open, id)
	}
}

func (l *line) close() { _ = l.conn.Close() }

// zygote is a warm interpreter that workers are forked from.
type zygote struct {
	node    string
	runtime spec.Runtime
	reaper  *process.Reaper
	child   *process.Child
	line    *line
	output  *stream

	ready    chan struct{} // closed when loading is over
	loadErr  error         // after ready
	forkSafe bool
	why      string
	tellOnce sync.Once // of why, to the user

	waiting int         // workers that wait until it is ready; under the lock of zygotes
	doomed  atomic.Bool // it was killed, and may not be gone yet

	gone chan struct{} // closed when it has ended and its forks have failed
}

// doing says what keeps the zygote from making a worker, and of which process
// that is said.
func (z *zygote) doing() string {
	pid := z.child.Pid()
	entry, _ := process.Read(pid)
	what := "has not forked it yet"
	select {
	case <-z.ready:
	default:
		what = "is still starting"
		if title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
			if module, ok := strings.CutPrefix(string(title), importing); ok {
				module, _, _ = strings.Cut(module, "\x00")
				what = "is importing " + strings.ToValidUTF8(module, "?") + " (preload)"
			}
		}
	}
	if entry.State == 'T' {
		what += " and is stopped (SIGSTOP)"
	}
	return fmt.Sprintf("its zygote %s (%s, %s)", what, describe(pid), z.runtime.Python)
}

// importing is how the title of a zygote begins that imports what it preloads.
const importing = "muster zygote: importing "

// pythonArgs is the start line of a process of the runtime. The padding is room
// for the title that it gives itself.
func pythonArgs(rt spec.Runtime, module string) []string {
	args := append([]string{rt.Python}, rt.Flags...)
	code := "import sys; sys.path.insert(0, sys.argv[1]); from muster._runtime." + module + " import main; main()"
	return append(args, "-c", code, rt.Package, strings.Repeat("_", 200))
}

// startPython starts a process of the runtime with a line on descriptor 3 and
// output on 1 and 2.
func startPython(r *process.Reaper, node, module string, rt spec.Runtime, env map[string]string, output *os.File) (*process.Child, *line, error) {
	return startLined(r, node, "interpreter", process.Command{
		Path: rt.Python, Args: pythonArgs(rt, module), Env: environ(env), Dir: rt.Dir,
	}, output)
}

// startLined starts a program with a line on descriptor 3 and output on 1 and
// 2; what is what it is called in errors.
func startLined(r *process.Reaper, node, what string, c process.Command, output *os.File) (*process.Child, *line, error) {
	if info, err := os.Stat(c.Dir); c.Dir != "" && (err != nil || !info.IsDir()) {
		return nil, nil, spec.Errorf(spec.CodeStartup, "the working directory %s is not there on node %s", c.Dir, node)
	}
	l, theirs, err := newLine()
	if err != nil {
		return nil, nil, limitError(spec.Errorf(spec.CodeStartup, "cannot start %s on node %s: %v", c.Path, node, err), err)
	}
	defer theirs.Close()
	c.Files = []*os.File{nil, output, output, theirs}
	c.Env = append(c.Env, session.Mark+"="+os.Getenv(session.Mark))
	child, err := r.Start(c)
	if err != nil {
		l.close()
		return nil, nil, limitError(spec.Errorf(spec.CodeStartup, "cannot start the %s %s on node %s: %v", what, c.Path, node, err), err)
	}
	go l.read()
	return child, l, nil
}

// startProgram starts a worker that is a program of its own. Its arguments are
// its title, as Python workers give it to themselves, and then the user's.
func startProgram(r *process.Reaper, node, name string, rt spec.Runtime, env map[string]string, output *os.File) (*process.Child, *line, error) {
	return startLined(r, node, "program", process.Command{
		Path: rt.Command[0], Args: append([]string{"muster", "worker", name}, rt.Command[1:]...),
		Env: environ(env), Dir: rt.Dir, Session: true,
	}, output)
}

// load has the zygote import what it should, and tells how that went by ready.
func (z *zygote) load() {
	defer close(z.ready)
	answers, err := z.line.send("load", load{z.runtime}, nil)
	if err == nil {
		a := <-answers
		err = a.err
		if err == nil {
			var got loaded
			if _, err = got.UnmarshalMsg(a.body); err == nil {
				z.forkSafe, z.why = got.forkSafe, got.why
				return
			}
		}
	}
	var told *spec.Error
	if errors.As(err, &told) {
		told.Node = z.node
		z.loadErr = told
	} else {
		z.loadErr = z.lost("while it was loading" + z.preloads())
	}
	z.kill()
}

func (z *zygote) preloads() string {
	if len(z.runtime.Preload) == 0 {
		return ""
	}
	return " (preload: " + strings.Join(z.runtime.Preload, ", ") + ")"
}

// fork has the zygote make a worker, unless stopping is closed before. The reaper
// is held while that is under way, for a worker that is not announced yet looks
// like a left-over.
func (z *zygote) fork(m fork, output *os.File, stopping <-chan struct{}) (*process.Child, error) {
	release := z.reaper.Hold()
	defer release()
	doing := "while it was forking " + m.worker.Name
	answers, err := z.line.send("fork", m, output)
	if err != nil {
		release() // or its end would wait for us
		return nil, z.lost(doing)
	}
	var a lineAnswer
	select {
	case a = <-answers:
	case <-stopping:
		timer := time.NewTimer(forkPatience)
		defer timer.Stop()
		select {
		case a = <-answers:
		case <-timer.C:
			z.kill()
			return nil, spec.Errorf(spec.CodeStartup, "the zygote of node %s (pid %d) did not fork %s until its start was given up, and was killed: start the cluster again, or use start=\"spawn\"%s",
				z.node, z.child.Pid(), m.worker.Name, z.preloads())
		}
	}
	var told *spec.Error
	switch {
	case errors.As(a.err, &told):
		return nil, told
	case a.err != nil:
		release()
		return nil, z.lost(doing)
	}
	var got forked
	if _, err := got.UnmarshalMsg(a.body); err != nil || got.pid <= 0 {
		return nil, spec.Errorf(spec.CodeProtocol, "the zygote of node %s gave an answer to fork that cannot be read: pid %d, %v", z.node, got.pid, err)
	}
	return z.reaper.Adopt(got.pid), nil
}

// lost words the end of a zygote: which, how, what it said last, what to do.
func (z *zygote) lost(doing string) error {
	z.kill() // it has closed its line: it ends, or must
	<-z.gone
	e := spec.Errorf(spec.CodeStartup,
		"the zygote of node %s (pid %d, %s) ended %s: %v. Start the cluster again: it gets a new zygote. If it happens each time, look for a module in preload that does not survive a fork, or use start=\"spawn\"",
		z.node, z.child.Pid(), z.runtime.Python, doing, z.child.Exit())
	e.Node, e.Worker, e.Logs = z.node, "zygote", z.output.last()
	exit := z.child.Exit()
	e.ExitCode, e.Signal = exit.Code, exit.Signal
	return e
}

// kill ends the zygote; nobody is given it any more.
func (z *zygote) kill() {
	z.doomed.Store(true)
	z.child.Signal(syscall.SIGKILL)
}

// watch sees to the zygote's end: whatever it left goes, forks that it did not
// announce among it.
func (z *zygote) watch() {
	<-z.child.Done()
	z.line.close()
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	_ = z.reaper.Clear(ctx)
	z.output.drain()
	close(z.gone)
}
