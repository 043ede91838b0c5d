package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/muster-rl/muster/process"
)

// Sweeper is the program `muster sweeper`, which stands between a keeper and
// Ray. It starts the command line that it is given, and waits. When that has
// ended, when it is told to stop, or when its lifeline ends because the keeper is
// gone, it ends all that is left below it. It has a session of its own, so that
// it outlives a kill of front and keeper together. It returns the exit code.
func Sweeper(command []string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "muster sweeper:", err)
		return 1
	}
	signals := catch()
	syscall.CloseOnExec(lifelineFd)
	reaper, err := process.NewReaper()
	if err != nil {
		return fail(err)
	}
	child, err := reaper.Start(process.Command{
		Path: command[0], Args: command, Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fail(fmt.Errorf("cannot start %s: %w", command[0], err))
	}
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifelineFd, "lifeline"))
		close(orphaned)
	}()
	alone := false // nobody waits for us, and nobody else will clear
	for ended := false; !ended; {
		select {
		case sig := <-signals:
			child.Signal(sig.(syscall.Signal))
		case <-orphaned:
			orphaned, alone = nil, true
			child.Signal(syscall.SIGKILL)
		case <-child.Done():
			ended = true
		}
	}
	ctx, cancel := context.Background(), func() {}
	if !alone {
		ctx, cancel = context.WithTimeout(ctx, stopWithin)
	}
	defer cancel()
	if err := reaper.Clear(ctx); err != nil {
		return fail(err)
	}
	return child.Exit().Shell()
}
