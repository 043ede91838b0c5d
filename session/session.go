// Package session is where running heads live on disk: the folder of sockets and
// token that goes with a head, the folder of logs that stays, how to find the
// heads of this user, and how to clear what killed ones left.
//
// It imports nothing of Muster and talks to no head.
package session

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keptLogs is how many sessions' logs stay.
const keptLogs = 20

// maxSocketPath is what sun_path takes, less the longest name in the folder.
const maxSocketPath = 107 - len("/agent-4095.sock")

// Session is one head's place on disk.
type Session struct {
	Name   string // <pid>-<random>
	Dir    string // sockets and token, 0700; removed with the head
	LogDir string // workers' output; stays
	Pid    int
}

// Base is the folder that holds the sessions of this user.
func Base() (string, error) {
	var tried []string
	for _, root := range []string{os.Getenv("MUSTER_DIR"), os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if root == "" {
			continue
		}
		base := filepath.Join(root, "muster-"+strconv.Itoa(os.Getuid()))
		if len(base)+len("/4194304-0123456789ab") > maxSocketPath {
			tried = append(tried, base+" is too long for a socket")
			continue
		}
		if err := private(base); err != nil {
			tried = append(tried, err.Error())
			continue
		}
		return base, nil
	}
	return "", fmt.Errorf("no folder for sockets: %s", strings.Join(tried, "; "))
}

// private makes a folder that only this user can enter, and checks that it is.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a folder of this user's", dir)
	}
	return os.Chmod(dir, 0o700)
}

// New makes the folders of a session for this process.
func New() (Session, error) {
	base, err := Base()
	if err != nil {
		return Session{}, err
	}
	sweep(base)
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return Session{}, err
	}
	s := Session{Pid: os.Getpid()}
	s.Name = strconv.Itoa(s.Pid) + "-" + hex.EncodeToString(random)
	s.Dir = filepath.Join(base, s.Name)
	logs := os.Getenv("MUSTER_LOG_DIR")
	if logs == "" {
		logs = filepath.Join(base, "logs")
	}
	s.LogDir = filepath.Join(logs, time.Now().Format("20060102-150405")+"-"+s.Name)
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return Session{}, fmt.Errorf("cannot make the folder for sockets: %w", err)
	}
	if err := os.MkdirAll(s.LogDir, 0o700); err != nil {
		_ = os.Remove(s.Dir)
		return Session{}, fmt.Errorf("cannot make the folder for logs: %w", err)
	}
	prune(logs)
	return s, nil
}

// List returns the sessions of this user whose head is alive, oldest first.
func List() ([]Session, error) {
	base, err := Base()
	if err != nil {
		return nil, err
	}
	var live []Session
	for _, s := range all(base) {
		if alive(s.Pid) {
			live = append(live, s)
		}
	}
	return live, nil
}

// Token reads what opens a session's head.
func (s Session) Token() (string, error) {
	b, err := os.ReadFile(filepath.Join(s.Dir, "token"))
	return strings.TrimSpace(string(b)), err
}

// Socket is the address of a session's head.
func (s Session) Socket() string { return filepath.Join(s.Dir, "head.sock") }

func all(base string) []Session {
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var found []Session
	for _, e := range entries {
		pid, _, ok := strings.Cut(e.Name(), "-")
		n, err := strconv.Atoi(pid)
		if ok && err == nil && e.IsDir() {
			found = append(found, Session{Name: e.Name(), Dir: filepath.Join(base, e.Name()), Pid: n})
		}
	}
	return found
}

// alive says that a process of this number is there and runs this program: a
// number can come again.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.Contains(string(cmdline), "muster")
}

// sweep removes what heads that were killed, with all below them, left behind.
func sweep(base string) {
	for _, s := range all(base) {
		if !alive(s.Pid) {
			_ = os.RemoveAll(s.Dir)
		}
	}
}

// prune keeps the newest logs.
func prune(logs string) {
	entries, err := os.ReadDir(logs)
	if err != nil {
		return
	}
	var names []string
	for _, e := range entries {
		// Only what New made: a folder that the user named may hold other things.
		if e.IsDir() && len(e.Name()) > 16 && e.Name()[8] == '-' && e.Name()[15] == '-' {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for len(names) > keptLogs {
		_ = os.RemoveAll(filepath.Join(logs, names[0]))
		names = names[1:]
	}
}
