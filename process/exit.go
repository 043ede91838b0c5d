package process

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit is how a process ended: a code, or a signal by name.
type Exit struct {
	Code   int
	Signal string
}

// ExitOf reads a wait status.
func ExitOf(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Signal: SignalName(status.Signal())}
	}
	return Exit{Code: status.ExitStatus()}
}

// String says it for people: "exit code 17", "killed by SIGKILL".
func (e Exit) String() string {
	if e.Signal != "" {
		return "killed by " + e.Signal
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Shell is the code that a shell would show: 128 + n for a signal.
func (e Exit) Shell() int {
	if e.Signal == "" {
		return e.Code
	}
	return 128 + int(unix.SignalNum(e.Signal))
}

// SignalName names a signal as people do: SIGKILL, SIGRTMIN+10.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	if sig >= realTimeMin {
		return fmt.Sprintf("SIGRTMIN+%d", sig-realTimeMin)
	}
	return fmt.Sprintf("signal %d", sig)
}

// realTimeMin is SIGRTMIN as the C library numbers it, which keeps the
// kernel's first two for itself. Python shows the same number.
const realTimeMin = syscall.Signal(34)

// RealTime returns SIGRTMIN+n.
func RealTime(n int) syscall.Signal { return realTimeMin + syscall.Signal(n) }
