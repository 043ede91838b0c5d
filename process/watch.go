package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// isGone says that an error means: no such process (any more).
func isGone(err error) bool { return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) }

// Subreaper makes this process the one that everything below falls to when its
// parent ends.
func Subreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become a child subreaper: %w", err)
	}
	return nil
}

// Watch waits for the end of a process that need not be a child.
type Watch struct {
	pid  int
	file *os.File // a pidfd: it names this process and no later one of its number
	done chan struct{}
	once sync.Once
	stop *os.File
}

// NewWatch starts to watch pid. That it is gone already is an error that
// errors.Is ESRCH.
func NewWatch(pid int) (*Watch, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	w := &Watch{
		pid:  pid,
		file: os.NewFile(uintptr(fd), "pidfd"),
		done: make(chan struct{}),
		stop: os.NewFile(uintptr(pipe[1]), "stop"),
	}
	go w.wait(fd, pipe[0])
	return w, nil
}

func (w *Watch) wait(pidfd, stopped int) {
	defer unix.Close(stopped)
	defer w.file.Close()
	polled := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(stopped), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(polled, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if polled[0].Revents != 0 {
			close(w.done)
			return
		}
		if polled[1].Revents != 0 {
			return
		}
	}
}

// Done is closed when the process has ended. It is never closed after Close.
func (w *Watch) Done() <-chan struct{} { return w.done }

// Signal sends a signal to exactly this process. One that has ended is no error.
func (w *Watch) Signal(sig syscall.Signal) error {
	select {
	case <-w.done:
		return nil
	default:
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return nil //nolint:nilerr // it was closed, at the end of the process
	}
	if isGone(sent) {
		return nil
	}
	return sent
}

// Close ends the watch.
func (w *Watch) Close() { w.once.Do(func() { w.stop.Close() }) }

// Kill ends exactly the process of an entry: not one that got its number since.
func Kill(e Entry) error {
	fd, err := unix.PidfdOpen(e.Pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return syscall.Kill(e.Pid, syscall.SIGKILL)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := Read(e.Pid)
	if err != nil {
		return err
	}
	if now.Started != e.Started {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
