package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// Reaper starts children, adopts those that fall to this process, hears of
// their ends, and clears what is left over. Its methods may be called
// concurrently.
type Reaper struct {
	forks   chan func()
	signals chan os.Signal
	stopped chan struct{}

	// mu is held while forking and while waiting for children, so that a child
	// is known before its end can be heard.
	mu      sync.Mutex
	known   map[int]*Child
	holds   int
	kept    map[int]syscall.WaitStatus // ends of unknown children while held
	orphans uint64                     // ends of unknown children so far
	changed chan struct{}              // closed and renewed at every end and release
	running *clearing                  // the run of Clear that is under way
	waiting *clearing                  // the one that begins after it
	closed  bool
}

// Command is a program to start.
type Command struct {
	Path    string
	Args    []string // with the name it goes by first
	Env     []string
	Dir     string
	Files   []*os.File // by descriptor number, from 0; nil: /dev/null
	Session bool       // in a session of its own
	Orphan  bool       // lives on when this process dies; else the kernel kills it
}

// NewReaper makes this process a subreaper and starts to wait for children.
func NewReaper() (*Reaper, error) {
	if err := Subreaper(); err != nil {
		return nil, err
	}
	r := &Reaper{
		forks:   make(chan func()),
		signals: make(chan os.Signal, 1),
		stopped: make(chan struct{}),
		known:   make(map[int]*Child),
		kept:    make(map[int]syscall.WaitStatus),
		changed: make(chan struct{}),
	}
	signal.Notify(r.signals, syscall.SIGCHLD)
	go r.fork()
	go r.wait()
	return r, nil
}

// Close stops waiting. Children started without Orphan are killed by the
// kernel, for the thread that they were forked from ends.
func (r *Reaper) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	signal.Stop(r.signals)
	close(r.stopped)
}

// fork runs everything that forks on one thread that lives as long as the
// Reaper: a parent-death signal fires at the end of the thread that forked, and
// Go's threads come and go.
func (r *Reaper) fork() {
	runtime.LockOSThread()
	for {
		select {
		case f := <-r.forks:
			f()
		case <-r.stopped:
			return
		}
	}
}

// Start runs a program as a child.
func (r *Reaper) Start(c Command) (*Child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Path, err)
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Sys: &syscall.SysProcAttr{Setsid: c.Session}}
	if !c.Orphan {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	for _, f := range c.Files {
		if f == nil {
			f = null
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	type started struct {
		child *Child
		err   error
	}
	result := make(chan started, 1)
	work := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		pid, err := syscall.ForkExec(c.Path, c.Args, attr)
		if err != nil {
			result <- started{err: err}
			return
		}
		child := &Child{reaper: r, pid: pid, done: make(chan struct{})}
		r.known[pid] = child
		result <- started{child: child}
	}
	select {
	case r.forks <- work:
	case <-r.stopped:
		return nil, errors.New("cannot start " + c.Path + ": this process is stopping")
	}
	s := <-result
	runtime.KeepAlive(c.Files)
	return s.child, s.err
}

// Hold keeps unknown children alive, and their ends on record for Adopt, until
// release is called. Whoever has another process fork on its behalf holds from
// before it asks until it has adopted what it was told.
func (r *Reaper) Hold() (release func()) {
	r.mu.Lock()
	r.holds++
	r.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.holds--; r.holds == 0 {
				clear(r.kept)
				r.announce()
			}
		})
	}
}

// Adopt makes known a child (or one that is about to fall to this process) that
// another process forked. To be called while held.
func (r *Reaper) Adopt(pid int) *Child {
	r.mu.Lock()
	defer r.mu.Unlock()
	child := &Child{reaper: r, pid: pid, done: make(chan struct{})}
	if status, ok := r.kept[pid]; ok {
		delete(r.kept, pid)
		child.end(status)
		return child
	}
	r.known[pid] = child
	return child
}

func (r *Reaper) wait() {
	for {
		r.reap()
		select {
		case <-r.signals:
		case <-r.stopped:
			return
		}
	}
}

// reap takes every end there is: one signal may stand for many.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // the children are others' now
	}
	some := false
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		some = true
		if child := r.known[pid]; child != nil {
			delete(r.known, pid)
			child.end(status)
			continue
		}
		r.orphans++
		if r.holds > 0 {
			r.kept[pid] = status
		}
	}
	if some {
		r.announce()
	}
}

// announce wakes whoever waits for a change. Called with mu held.
func (r *Reaper) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Child is a process that the Reaper waits for.
type Child struct {
	reaper *Reaper
	pid    int
	done   chan struct{}
	status syscall.WaitStatus
}

// Pid is the child's number, which is its own until Done.
func (c *Child) Pid() int { return c.pid }

// Done is closed when the child has ended and was reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit says how it ended. Only after Done.
func (c *Child) Exit() Exit { return ExitOf(c.status) }

// Signal sends a signal; to one that has ended it does nothing.
func (c *Child) Signal(sig syscall.Signal) {
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	if c.reaper.known[c.pid] == c {
		_ = syscall.Kill(c.pid, sig)
	}
}

func (c *Child) end(status syscall.WaitStatus) {
	c.status = status
	close(c.done)
}
