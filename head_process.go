package muster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

const (
	exitNotice = 500 * time.Millisecond // within which a head that hung up must have exited
	lastLines  = 20
)

// headProcess is a head that this process started: a child in a session of its
// own, so that Ctrl-C in a terminal does not reach it. Its descriptor 3 is the
// other end of our connection.
type headProcess struct {
	cmd    *exec.Cmd
	errors *os.File // a memory file that collects its stderr
	done   chan struct{}
}

// findBinary is the muster program.
func findBinary(named string) (string, error) {
	from := "Options.Binary"
	if named == "" {
		named, from = os.Getenv("MUSTER_BINARY"), "MUSTER_BINARY"
	}
	if named != "" {
		if _, err := exec.LookPath(named); err != nil {
			return "", spec.Errorf(CodeInvalid, "%s is %q, which is not a program: %v", from, named, err)
		}
		return named, nil
	}
	found, err := exec.LookPath("muster")
	if err != nil || isScript(found) {
		return "", spec.Errorf(CodeNotFound, "the muster program is not there: set Options.Binary or MUSTER_BINARY to it, or put it on PATH. `make build` makes it; Muster's wheel brings it as muster/_bin/muster in the Python package")
	}
	return found, nil
}

// isScript says that it is the Python package's console script, not the program.
func isScript(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	first := make([]byte, 2)
	_, err = io.ReadFull(file, first)
	return err == nil && string(first) == "#!"
}

// startHead starts an embedded head and returns our end of its socket pair.
func startHead(binary string, args ...string) (*headProcess, net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, spec.Errorf(CodeLimit, "no descriptors are left to start the head with (%v): raise the limit (ulimit -n), or close some", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "head"), os.NewFile(uintptr(fds[1]), "head") //nolint:gosec // descriptors
	defer ours.Close()
	defer theirs.Close()
	memory, err := unix.MemfdCreate("muster-head-errors", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, spec.Errorf(CodeLimit, "no memory file for the head's errors: %v", err)
	}
	h := &headProcess{errors: os.NewFile(uintptr(memory), "muster-head-errors"), done: make(chan struct{})} //nolint:gosec // a descriptor
	h.cmd = &exec.Cmd{
		Path: binary, Args: append([]string{"muster", "head", "--embedded"}, args...), Stderr: h.errors,
		ExtraFiles: []*os.File{theirs}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	nc, err := net.FileConn(ours)
	if err == nil {
		if err = h.cmd.Start(); err != nil {
			_ = nc.Close()
		}
	}
	if err != nil {
		h.forget()
		return nil, nil, spec.Errorf(CodeStartup, "cannot start %s: %v", binary, err)
	}
	go func() {
		_ = h.cmd.Wait() // how it ended is in ProcessState
		close(h.done)
	}()
	return h, nc, nil
}

// end waits for the head's exit, and ends it where it takes too long; the agents
// below it then clear their nodes.
func (h *headProcess) end(patience time.Duration) {
	if !h.wait(patience) {
		_ = h.cmd.Process.Kill()
		<-h.done
	}
}

func (h *headProcess) wait(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-h.done:
		return true
	case <-timer.C:
		return false
	}
}

// orderly says that the head has ended because it was to.
func (h *headProcess) orderly() bool { return h.cmd.ProcessState.Success() }

// howEnded tells the head's end to people.
func (h *headProcess) howEnded() string {
	text := fmt.Sprintf("the head (process %d) closed its connection but still runs", h.cmd.Process.Pid)
	if h.wait(exitNotice) {
		how := h.cmd.ProcessState.String()
		if status, ok := h.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
			how = process.ExitOf(status).String()
		}
		text = fmt.Sprintf("the head (process %d) ended: %s", h.cmd.Process.Pid, how)
	}
	text += ". All its workers stop, and calls under way are lost; Start another session to go on"
	if last := h.lastWords(); len(last) > 0 {
		text += "\n\nlast lines of the head:\n  " + strings.Join(last, "\n  ")
	}
	return text
}

func (h *headProcess) lastWords() []string {
	const most = 64 << 10
	info, err := h.errors.Stat()
	if err != nil || info.Size() == 0 {
		return nil
	}
	text := make([]byte, min(info.Size(), most))
	if _, err := h.errors.ReadAt(text, info.Size()-int64(len(text))); err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	lines := strings.Split(strings.TrimRight(strings.ToValidUTF8(string(text), "?"), "\n"), "\n")
	return lines[max(0, len(lines)-lastLines):]
}

func (h *headProcess) forget() { _ = h.errors.Close() }
