package agent

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"github.com/muster-rl/muster/spec"
)

// Descriptors that the agent needs per worker: the log pipe (one end stays, the
// other is there while it is handed over), the log file, the control
// connection, that to the store; and the call connection and perhaps a
// controller's where it relays.
const (
	filesPerWorker      = 5
	filesPerRelay       = 2
	filesPerSpawn       = 2 // the socket pair that the worker is told over
	filesToSpare        = 32
	adviceOfFiles       = "raise it before the script starts (ulimit -n 65536, or LimitNOFILE= of its service)"
	wantedFiles    uint = 1 << 20
)

// FilesFor is how many open files the agent of a node needs at most for so many
// workers.
func FilesFor(workers int) int {
	return workers*(filesPerWorker+filesPerRelay+filesPerSpawn) + filesToSpare
}

// raiseFiles raises the soft limit of open files as far as the hard one allows
// and returns it. Go does that for itself, and gives children the old one back;
// so it does nothing unless someone took that away.
func raiseFiles() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	if limit.Cur < limit.Max && limit.Cur < uint64(wantedFiles) {
		raised := syscall.Rlimit{Cur: min(limit.Max, uint64(wantedFiles)), Max: limit.Max}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			return raised.Cur
		}
	}
	return limit.Cur
}

// openFiles counts the descriptors in use, 0 if that cannot be told.
func openFiles() int {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return max(0, len(names)-1)
}

// checkFiles says whether workers can be started as far as open files go.
func checkFiles(node string, workers, perWorker, open int, limit uint64) error {
	need := workers*perWorker + filesToSpare
	if limit == 0 || uint64(open)+uint64(need) <= limit {
		return nil
	}
	return spec.Errorf(spec.CodeLimit,
		"too few open files on node %s to start %d workers: the limit is %d, %d are open and %d more are needed: %s, or start fewer workers",
		node, workers, limit, open, need, adviceOfFiles)
}

// limitError returns e, or an error on open files where cause means that.
func limitError(e *spec.Error, cause error) *spec.Error {
	if !errors.Is(cause, syscall.EMFILE) && !errors.Is(cause, syscall.ENFILE) {
		return e
	}
	var limit syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	what := "of this process"
	if errors.Is(cause, syscall.ENFILE) {
		what = "of the whole machine"
	}
	out := *e
	out.Code = spec.CodeLimit
	out.Message += ": the limit of open files " + what + " is reached (ulimit -n: " + strconv.FormatUint(limit.Cur, 10) + "): " + adviceOfFiles
	return &out
}
