package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
)

// killBound is how long a warden may take to see its agent's end to the end,
// before it is killed too.
const killBound = 2 * time.Second

// Adopt watches the warden of an earlier head. It is nobody's child any more (of
// ours, that is), so its end is heard from a pidfd and its exit status is lost.
func (b *Backend) Adopt(_ context.Context, join backend.Join, handle backend.Handle) (backend.Agent, error) {
	watch, err := process.NewWatch(handle.Pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, backend.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take over the agent of %s: %w", join.Name, err)
	}
	if e, err := process.Read(handle.Pid); err != nil || e.Started != handle.Started || e.Gone() {
		watch.Close()
		return nil, backend.ErrGone // the number is another's now
	}
	a := &adopted{dir: join.Dir, handle: handle, watch: watch, done: make(chan struct{})}
	a.output = filepath.Join(join.LogDir, fmt.Sprintf("agent-%d.log", join.Node))
	if info, err := os.Stat(a.output); err == nil {
		a.said = info.Size()
	}
	go a.wait()
	return a, nil
}

// adopted is a warden that another head started, and all below it.
type adopted struct {
	dir    string
	handle backend.Handle
	watch  *process.Watch
	output string
	said   int64 // how much of output is of before
	done   chan struct{}
	err    error
	once   sync.Once
	killed atomic.Bool
}

func (a *adopted) wait() {
	<-a.watch.Done()
	session.EndStrays(a.dir) // what a killed warden had falls to nobody here
	info, err := os.Stat(a.output)
	if complained := err == nil && info.Size() > a.said; complained || a.killed.Load() {
		a.err = fmt.Errorf("it ended%s", lastLine(a.output))
	}
	close(a.done)
}

func (a *adopted) Done() <-chan struct{} { return a.done }

func (a *adopted) Err() error { return a.err }

func (a *adopted) Handle() backend.Handle { return a.handle }

// Kill ends the agent, and so has its warden clear what is left, which would
// fall to nobody here; then the warden, should it not be able to.
func (a *adopted) Kill() {
	a.once.Do(func() {
		a.killed.Store(true)
		_ = a.watch.Signal(syscall.SIGCONT) // a stopped one sees to nothing
		entries, _ := process.Scan()        // without it, there is the warden's end
		for _, e := range entries {
			if e.Parent == a.handle.Pid {
				_ = process.Kill(e)
			}
		}
		go func() {
			select {
			case <-a.done:
			case <-time.After(killBound):
				_ = a.watch.Signal(syscall.SIGKILL)
			}
		}()
	})
}
