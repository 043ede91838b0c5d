package worker

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/process"
)

const (
	stacksSignal = 10 // SIGRTMIN+10, by which the agent asks for stacks
	stacksLimit  = 1 << 20
)

// watchStacks has the stacks of all goroutines written to a memory file
// whenever the agent asks for them, and returns the file's descriptor, which the
// agent opens through /proc.
func watchStacks() (int, error) {
	fd, err := unix.MemfdCreate("muster-stacks", unix.MFD_CLOEXEC)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND) //nolint:gosec // a descriptor
	}
	if err != nil {
		return 0, fmt.Errorf("no memory file for stacks: %w", err)
	}
	file := os.NewFile(uintptr(fd), "muster-stacks") //nolint:gosec // a descriptor
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, process.RealTime(stacksSignal))
	go func() {
		for range signals {
			_, _ = file.WriteString(stacks()) // a dump that is missing is told as that
		}
	}()
	return fd, nil
}

// stacks are those of all goroutines but our own, those inside methods first.
func stacks() string {
	text := make([]byte, stacksLimit)
	text = text[:runtime.Stack(text, true)]
	var methods, others []string
	for i, one := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		switch {
		case i == 0: // this one
		case strings.Contains(one, "worker.(*host).run("):
			one, _, _ = strings.Cut(one, "\nreflect.Value.call(")
			methods = append(methods, one)
		case !strings.Contains(one, "muster/worker.") && !strings.Contains(one, "os/signal."):
			others = append(others, one)
		}
	}
	all := slices.Concat(methods, others)
	if len(methods) == 0 {
		all = append([]string{"no method runs"}, all...)
	}
	return strings.Join(all, "\n\n") + "\n"
}
