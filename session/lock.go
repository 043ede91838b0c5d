package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/process"
)

const (
	headLock = "head.lock" // in the session's folder, held by its head
	logLock  = ".running"  // in its folder of logs, likewise
	// lockBound is how long a head that was killed may take to be gone.
	lockBound = 2 * time.Second
)

// lock is held on an open file, and goes with the process that has it open, in
// whatever way it ends. Its holder can be asked for without taking it, also from
// another pid namespace.
type lock struct{ fd int }

// ErrHeld says that another process has it.
var ErrHeld = errors.New("another process has it")

// take locks the file at path, made if need be, and puts text in it.
func take(path, text string) (*lock, error) {
	// No os.File: one that nobody refers to any more is closed.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	l := &lock{fd}
	how := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &how); err != nil {
		l.release()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = ErrHeld
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	if !l.at(path) {
		l.release()
		return nil, &os.PathError{Op: "lock", Path: path, Err: os.ErrNotExist} // removed meanwhile
	}
	if err := l.write(text); err != nil {
		l.release()
		return nil, &os.PathError{Op: "write", Path: path, Err: err}
	}
	return l, nil
}

// at says that what is locked is still what the path names.
func (l *lock) at(path string) bool {
	var mine, there unix.Stat_t
	return unix.Fstat(l.fd, &mine) == nil && unix.Lstat(path, &there) == nil && mine.Ino == there.Ino && mine.Dev == there.Dev
}

// write puts a record in the place of the one before, of which some may be left
// behind its end for a moment. There is always one to read.
func (l *lock) write(text string) error {
	if _, err := unix.Pwrite(l.fd, []byte(text), 0); err != nil {
		return err
	}
	return unix.Ftruncate(l.fd, int64(len(text)))
}

func (l *lock) release() {
	if l != nil && l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
}

// held says that somebody holds the lock at path.
func held(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	how := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &how) == nil && how.Type != unix.F_UNLCK
}

// record is what a lock's file says, for those who find it.
type record struct {
	who   process.Entry // who holds, or held, it
	owner process.Entry // whom a head is for
	space string        // the pid namespace that these numbers are of
	logs  string
}

// mine is the record of this process.
func mine(owner int, logs string) record {
	r := record{space: pidSpace(), logs: logs}
	r.who.Pid, r.owner.Pid = os.Getpid(), owner
	if e, err := process.Read(r.who.Pid); err == nil {
		r.who.Started = e.Started
	}
	if e, err := process.Read(owner); owner != 0 && err == nil {
		r.owner.Started = e.Started
	}
	return r
}

func pidSpace() string {
	space, _ := os.Readlink("/proc/self/ns/pid")
	return space
}

func (r record) String() string {
	return fmt.Sprintf("process %d %d\nowner %d %d\nspace %s\nlogs %s\nend\n", r.who.Pid, r.who.Started, r.owner.Pid, r.owner.Started, r.space, r.logs)
}

// readRecord reads what it can.
func readRecord(path string) record {
	var r record
	text, err := os.ReadFile(path)
	if err != nil || len(text) > 1<<16 {
		return r
	}
	number := func(e *process.Entry, rest string) {
		pid, started, _ := strings.Cut(rest, " ")
		e.Pid, _ = strconv.Atoi(pid)
		e.Started, _ = strconv.ParseUint(started, 10, 64)
	}
	for line := range strings.Lines(string(text)) {
		what, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch what {
		case "process":
			number(&r.who, rest)
		case "owner":
			number(&r.owner, rest)
		case "space":
			r.space = rest
		case "logs":
			r.logs = rest
		case "end":
			return r
		}
	}
	return r
}

// here says that the numbers of a record mean something to this process.
func (r record) here() bool { return r.space == pidSpace() }

// lives says that a process of a record is there, and not only its number.
func lives(e process.Entry) bool {
	if e.Pid <= 0 {
		return false
	}
	now, err := process.Read(e.Pid)
	return err == nil && !now.Gone() && (e.Started == 0 || now.Started == e.Started)
}

// HeadAlive says that a head has the session in dir.
func HeadAlive(dir string) bool { return held(filepath.Join(dir, headLock)) }

func wardenLock(dir string, node int) string {
	return filepath.Join(dir, fmt.Sprintf("warden-%d.lock", node))
}

// HoldNode says, for as long as this process lives and release is not called,
// that a node of the session in dir is looked after. ErrHeld: by another.
func HoldNode(dir string, node int) (release func(), err error) {
	l, err := take(wardenLock(dir, node), mine(0, "").String())
	if err != nil {
		return func() {}, fmt.Errorf("cannot take charge of node %d: %w", node, err)
	}
	return l.release, nil
}

// Holder is the process that holds a node of the session in dir, if one does.
func Holder(dir string, node int) (process.Entry, bool) {
	path := wardenLock(dir, node)
	if !held(path) {
		return process.Entry{}, false
	}
	r := readRecord(path)
	return r.who, r.here() && lives(r.who)
}

// wardens are those who hold a node of the session in dir.
func wardens(dir string) []record {
	paths, _ := filepath.Glob(filepath.Join(dir, "warden-*.lock"))
	var all []record
	for _, path := range paths {
		if held(path) {
			all = append(all, readRecord(path))
		}
	}
	return all
}

// RemoveLast removes the folder of a session that has no head, unless another
// node of it is still looked after.
func RemoveLast(dir string) error {
	if len(wardens(dir)) > 0 {
		return nil
	}
	path := filepath.Join(dir, headLock)
	if _, err := os.Lstat(path); err == nil {
		l, err := take(path, readRecord(path).String())
		if errors.Is(err, ErrHeld) {
			return nil // a head came back for it
		}
		if err == nil {
			defer l.release()
		} else if errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return os.RemoveAll(dir)
}

// ClearBeside removes folders beside dir whose wardens were killed, as that of dir
// may be. Where what starts wardens kills with a process all that is below it,
// nobody is left on that machine to clear up; so the next one does.
func ClearBeside(dir string) {
	paths, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "muster-*", "warden-*.lock"))
	for _, path := range paths {
		left := filepath.Dir(path)
		_, err := os.Lstat(filepath.Join(left, headLock)) // then it is a session's, and a head clears it
		if left == filepath.Clean(dir) || err == nil || !readRecord(path).here() || len(wardens(left)) > 0 {
			continue
		}
		_ = os.RemoveAll(left) // the next one tries again
	}
}
