package agent

import (
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/backend"
)

// leashBound is how long an agent may take to end everything once nobody keeps its
// warden any more.
const leashBound = 10 * time.Second

// onLeash has a warden end with the process that keeps its descriptor 0 open: by
// the end of that, and by the kernel's word on the death of its parent, whichever
// comes. A warden that is nobody's leaves when its head is gone for too long.
func onLeash(join backend.Join, signals chan<- os.Signal) {
	if join.Leash == 0 {
		return
	}
	go func() {
		runtime.LockOSThread() // the kernel's word goes with the thread that asked for it
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
		if os.Getppid() == join.Leash {
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		signals <- syscall.SIGTERM
		time.Sleep(leashBound)
		signals <- syscall.SIGKILL
	}()
}
