package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// clearBound is how long left-overs may take to die of SIGKILL.
	clearBound = 10 * time.Second
	// becomeBound is how long a spawned interpreter may take to come up.
	becomeBound = 120 * time.Second
)

// worker is one worker of this node, from the request to start it until it is
// gone. doc.go has its states.
type worker struct {
	start  wire.WorkerStart
	python string // its interpreter; "" for a program

	launched chan struct{} // closed when it has a process, or startErr
	startErr error
	stopping chan struct{} // closed when it should end
	gone     chan struct{} // closed when nothing of it is left and that was told

	mu      sync.Mutex
	asked   bool    // someone asked for its end
	why     string  // and said this
	zygote  *zygote // that it is to be forked from
	child   *process.Child
	control *control
	output  *stream
	dumping sync.Mutex // one stack dump at a time: they share a file
}

func newWorker(start wire.WorkerStart) *worker {
	return &worker{start: start, launched: make(chan struct{}), stopping: make(chan struct{}), gone: make(chan struct{})}
}

// process returns the worker's process, nil before it has one.
func (w *worker) process() *process.Child {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.child
}

// end asks the worker to end: TERM now and KILL after the grace, or KILL at
// once. Before it has a process, its start is given up.
func (w *worker) end(grace time.Duration, why string) {
	w.mu.Lock()
	if !w.asked {
		w.asked, w.why = true, why
		close(w.stopping)
	}
	child := w.child
	w.mu.Unlock()
	if child != nil {
		w.signal(child, grace)
	}
}

func (w *worker) signal(child *process.Child, grace time.Duration) {
	if grace <= 0 {
		child.Signal(syscall.SIGKILL)
		return
	}
	child.Signal(syscall.SIGTERM)
	w.mu.Lock()
	control := w.control
	w.mu.Unlock()
	go func() {
		// A signal can come at the one moment when Python does not hear it.
		if control != nil {
			_ = wire.Notify(control.conn, "shutdown", &wire.Empty{})
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-child.Done():
		case <-timer.C:
			child.Signal(syscall.SIGKILL)
		}
	}()
}

// launch gives the worker a process, or says why it has none.
func (a *agent) launch(w *worker, req *wire.Start) error {
	path := filepath.Join(a.join.LogDir, fileName(req.Cluster), fileName(w.start.Name)+".log")
	output, writer, err := openStream(a.out, path, w.start.Number, w.start.Name)
	if err != nil {
		return limitError(a.workerError(w, spec.CodeStartup, "cannot start %s on node %s: %v", w.start.Name, a.join.Name, err), err)
	}
	defer writer.Close()
	w.mu.Lock()
	w.output = output
	w.mu.Unlock()
	message := fork{setup: req.Setup, worker: w.start, env: workerEnv(req.Runtime, w.start.Env), agentPid: os.Getpid()}
	message.env[session.Mark] = os.Getenv(session.Mark)
	child, err := a.makeProcess(w, req, message, writer)
	if err != nil {
		e := spec.AsError(err)
		if e.Rank < 0 {
			e.Rank = w.start.Rank
		}
		if e.Worker == "" {
			e.Worker = w.start.Name
		}
		e.Node = a.join.Name
		return e
	}
	w.mu.Lock()
	w.child = child
	asked := w.asked
	w.mu.Unlock()
	go a.watch(w, child)
	if asked { // while it was being made
		child.Signal(syscall.SIGKILL)
	}
	return nil
}

// makeProcess forks the worker from a zygote, or spawns it where that was asked
// for or the zygote cannot be forked.
func (a *agent) makeProcess(w *worker, req *wire.Start, message fork, output *os.File) (*process.Child, error) {
	if req.Start == "spawn" || len(req.Runtime.Command) > 0 {
		return a.spawn(w, req, message, output)
	}
	z, err := a.zygotes.get(req.Runtime, message.env)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.zygote = z
	w.mu.Unlock()
	if !a.zygotes.wait(z, w.stopping) {
		return nil, a.stopped(w)
	}
	switch {
	case z.loadErr != nil:
		e := *spec.AsError(z.loadErr) // every worker that waited for it gets its own
		return nil, &e
	case !z.forkSafe:
		z.tellOnce.Do(func() { a.zygotes.tellUnsafe(z) })
		return a.spawn(w, req, message, output)
	}
	return z.fork(message, output, w.stopping)
}

// spawn starts an interpreter for this worker alone, or the program that it is.
func (a *agent) spawn(w *worker, req *wire.Start, message fork, output *os.File) (*process.Child, error) {
	command := req.Runtime.Command
	what := fmt.Sprintf("the interpreter of %s on node %s (%s)", w.start.Name, a.join.Name, req.Runtime.Python)
	var child *process.Child
	var l *line
	var err error
	if len(command) > 0 {
		what = fmt.Sprintf("the program of %s on node %s (%s)", w.start.Name, a.join.Name, command[0])
		child, l, err = startProgram(a.reaper, a.join.Name, w.start.Name, req.Runtime, message.env, output)
	} else {
		child, l, err = startPython(a.reaper, a.join.Name, "spawn", req.Runtime, message.env, output)
	}
	if err != nil {
		return nil, err
	}
	defer l.close()
	giveUp := func() {
		child.Signal(syscall.SIGKILL)
		<-child.Done()
		_ = a.clear() // what is left shows at the next look
	}
	bound := time.NewTimer(becomeBound)
	defer bound.Stop()
	ask := func(verb string, m msgp.Marshaler, file *os.File) error {
		answers, err := l.send(verb, m, file)
		if err != nil {
			return err
		}
		select {
		case answer := <-answers:
			return answer.err
		case <-w.stopping:
			return a.stopped(w)
		case <-bound.C:
			return a.workerError(w, spec.CodeStartup, "%s did not come up within %v", what, becomeBound)
		}
	}
	if len(command) > 0 {
		err = ask("become", message, nil) // its 1 and 2 are the log already
	} else if err = ask("load", load{req.Runtime}, nil); err == nil {
		err = ask("become", message, output)
	}
	if err == nil {
		return child, nil
	}
	giveUp()
	if told := (*spec.Error)(nil); !errors.As(err, &told) {
		e := a.workerError(w, spec.CodeStartup, "%s ended before it had become a worker: %v", what, child.Exit())
		if len(command) > 0 {
			e.Message += ". A worker in Go calls worker.Main, and nothing that waits or ends before it"
		}
		e.Logs, e.ExitCode, e.Signal = w.lastLines(), child.Exit().Code, child.Exit().Signal
		err = e
	}
	return nil, err
}

// watch sees to a worker's end: what it left goes, its log is read to the end,
// and only then is it told.
func (a *agent) watch(w *worker, child *process.Child) {
	<-child.Done()
	exit := child.Exit()
	w.mu.Lock()
	asked, why, control, output := w.asked, w.why, w.control, w.output
	w.mu.Unlock()
	if control != nil {
		_ = control.conn.Close()
	}
	oom := exit.Signal == "SIGKILL" && !asked && a.oom.take()
	memory := ""
	if oom {
		memory = a.oom.figures()
	}
	left := a.clear()
	output.drain()
	notice := &wire.Exited{
		Worker: w.start.Number, Pid: child.Pid(), Code: exit.Code, Signal: exit.Signal,
		OOM: oom, Asked: asked, Logs: output.last(), Why: exitReason(exit, oom, memory, asked, why, left),
	}
	a.ended(w, notice) // before it is told: the head may use the number again then
	a.out.flush(func() { a.tellExit(notice) })
	close(w.gone)
}

// exitReason tells an end in words.
func exitReason(exit process.Exit, oom bool, memory string, asked bool, why string, left error) string {
	reason := exit.String()
	switch {
	case oom:
		if memory != "" {
			memory = "; " + memory
		}
		reason += " by the kernel for lack of memory (OOM" + memory + "): give the node or its cgroup more memory, or run fewer workers on it"
	case asked && why != "":
		reason += " (" + why + ")"
	case exit.Signal == "SIGKILL":
		reason += ", not by Muster and not for lack of memory as far as the kernel tells"
	}
	if left != nil {
		reason += fmt.Sprintf("; not all that it had started could be ended: %v", left)
	}
	return reason
}

// clear ends what dead workers left behind.
func (a *agent) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	return a.reaper.Clear(ctx)
}

func (w *worker) lastLines() []string {
	w.mu.Lock()
	output := w.output
	w.mu.Unlock()
	if output == nil {
		return nil
	}
	return output.last()
}

func (a *agent) stopped(w *worker) *spec.Error {
	w.mu.Lock()
	why := w.why
	w.mu.Unlock()
	return a.workerError(w, spec.CodeCancelled, "%s was stopped while it was starting (%s)", w.start.Name, why)
}

func (a *agent) workerError(w *worker, code spec.Code, format string, args ...any) *spec.Error {
	e := spec.Errorf(code, format, args...)
	e.Rank, e.Worker, e.Node = w.start.Rank, w.start.Name, a.join.Name
	return e
}

// fileName makes a name safe as one part of a path.
func fileName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r == '/' || r == 0 {
			return '_'
		}
		return r
	}, name)
	if name == "" || name == "." || name == ".." {
		return "_" + name
	}
	return name
}
