// Package session is where running heads live on disk: the folder of sockets and
// token that goes with a head, the folder of logs that stays, how to find the
// heads of this user, how a head takes over from one that was killed, and how to
// clear what killed ones left.
//
// A session's folder outlives a head that is killed. Who has it is told by locks:
//
//	head   nodes  owner   then
//	held   any    any     it runs
//	free   held   lives   a head can take over (Resume); agents keep all for the grace
//	free   held   gone    agents end by themselves, the last removes the folder
//	free   free   lives   nothing is left to take over, but the owner may not know yet
//	free   free   gone    left over: the next head to start removes it
//
// It imports process and talks to no head.
package session

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	Name   string // <pid of the first head>-<random>, or what its user called it
	Dir    string // sockets, token and journal, 0700; removed at the end
	LogDir string // workers' output; stays
	Pid    int    // of its head
	locks  []*lock
}

// longestName is that of a session, as New makes it.
const longestName = len("/4194304-0123456789ab")

// Places are the folders that may hold sessions of this user, in the order in
// which New tries them. MUSTER_DIR, where set, is the only one; else sessions
// are found also from a terminal whose variables differ from the script's.
func Places() []string {
	mine := "muster-" + strconv.Itoa(os.Getuid())
	if named := os.Getenv("MUSTER_DIR"); named != "" {
		return []string{filepath.Join(named, mine)}
	}
	var places []string
	for _, root := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp", filepath.Join("/run/user", strconv.Itoa(os.Getuid()))} {
		if place := filepath.Join(root, mine); root != "" && !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	return places
}

// Base is the folder that new sessions of this user go into, made if need be.
func Base() (string, error) {
	var tried []string
	for _, base := range Places() {
		if over := len(base) + longestName - maxSocketPath; over > 0 {
			tried = append(tried, fmt.Sprintf("%s is too long to hold sockets, by %d characters", base, over))
			continue
		}
		if err := private(base); err != nil {
			tried = append(tried, err.Error())
			continue
		}
		return base, nil
	}
	return "", fmt.Errorf("no folder for sockets: %s. Set MUSTER_DIR to a folder with a short name that you can write to", strings.Join(tried, "; "))
}

// private makes a folder that only this user can enter, and checks that it is.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if !ours(dir) {
		return fmt.Errorf("%s is not a folder of this user's", dir)
	}
	return os.Chmod(dir, 0o700)
}

// ours says that dir is a folder, no link, and of this user: others can make
// names in /tmp.
func ours(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return info.IsDir() && ok && int(st.Uid) == os.Getuid()
}

// New makes the folders of a session for this process, which is a head. owner is
// the process that it is for; 0: none.
func New(owner int) (Session, error) {
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return Session{}, err
	}
	return create(strconv.Itoa(os.Getpid())+"-"+hex.EncodeToString(random), owner)
}

// Named is New for a session that its user called name, or Resume where there is
// one whose head is gone and that has something left to take over.
func Named(name string, owner int) (s Session, resumed bool, err error) {
	if !chosen(name) {
		return s, false, fmt.Errorf("%q is no name for a session: a letter, then letters, digits, '-', '_' and '.', %d in all at most, and not \"logs\"", name, longestName-1)
	}
	base, err := Base()
	if err != nil {
		return s, false, err
	}
	dir := filepath.Join(base, name)
	if HeadAlive(dir) || len(wardens(dir)) > 0 {
		s, err = Resume(name, owner)
		return s, err == nil, err
	}
	if err := RemoveLast(dir); err != nil {
		return s, false, err
	}
	s, err = create(name, owner)
	return s, false, err
}

// chosen says that a name can be one that a user gives to a session.
func chosen(name string) bool {
	return len(name) < longestName && name != "logs" && chosenName.MatchString(name)
}

var chosenName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*$`)

func create(name string, owner int) (Session, error) {
	base, err := Base()
	if err != nil {
		return Session{}, err
	}
	clearBase(base, false, Mark, func(string) {})
	s := Session{Name: name, Pid: os.Getpid()}
	s.Dir = filepath.Join(base, s.Name)
	logs := LogsOf(base)
	s.LogDir = filepath.Join(logs, time.Now().Format(stamp)+s.Name)
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return Session{}, fmt.Errorf("cannot make the folder for sockets: %w", err)
	}
	if err := os.MkdirAll(s.LogDir, 0o700); err != nil {
		_ = os.Remove(s.Dir)
		return Session{}, fmt.Errorf("cannot make the folder for logs: %w. Set MUSTER_LOG_DIR to a folder that you can write to", err)
	}
	if err := s.hold(owner); err != nil {
		_ = os.RemoveAll(s.Dir)
		return Session{}, err
	}
	prune(logs)
	return s, nil
}

// hold takes the session's locks. That of the logs only keeps them from being
// pruned: some file systems know no locks.
func (s *Session) hold(owner int) error {
	text := mine(owner, s.LogDir).String()
	path := filepath.Join(s.Dir, headLock)
	bound := lockBound
	if r := readRecord(path); r.here() && lives(r.who) && len(words(r.who.Pid)) > 0 {
		bound /= 10 // one on its way out has lost its memory before its locks
	}
	for deadline := time.Now().Add(bound); ; {
		l, err := take(path, text)
		if err == nil {
			s.locks = append(s.locks, l)
			break
		}
		if !errors.Is(err, ErrHeld) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(firstLook) // the kernel may still be at its holder's end
	}
	if l, err := take(filepath.Join(s.LogDir, logLock), text); err == nil {
		s.locks = append(s.locks, l)
	}
	return nil
}

// firstLook is the pause between two tries to take over from a head that is
// being killed.
const firstLook = 5 * time.Millisecond

// Resume takes over a session whose head is gone. owner is as for New.
func Resume(name string, owner int) (Session, error) {
	for _, base := range Places() {
		dir := filepath.Join(base, name)
		if pidOf(name) == 0 && !chosen(name) || filepath.Base(name) != name || !ours(base) || !ours(dir) {
			continue
		}
		before := readRecord(filepath.Join(dir, headLock))
		s := Session{Name: name, Dir: dir, LogDir: before.logs, Pid: os.Getpid()}
		if s.LogDir == "" {
			return s, fmt.Errorf("session %s cannot be resumed: it does not say where its logs are", name)
		}
		err := s.hold(owner)
		switch {
		case errors.Is(err, ErrHeld):
			return s, fmt.Errorf("session %s has a head already: process %d", name, readRecord(filepath.Join(dir, headLock)).who.Pid)
		case errors.Is(err, os.ErrNotExist):
			continue // removed meanwhile
		case err != nil:
			return s, fmt.Errorf("session %s cannot be resumed: %w", name, err)
		}
		return s, nil
	}
	return Session{}, fmt.Errorf("there is no session %q to resume (looked in %s): it ended, or nobody came for it within the grace", name, strings.Join(Places(), ", "))
}

// Close lets go of a session; its folders stay.
func (s *Session) Close() {
	for _, l := range s.locks {
		l.release()
	}
	_ = os.Remove(filepath.Join(s.LogDir, logLock))
}

// LogsOf is where the sessions of a base keep their logs.
func LogsOf(base string) string {
	if named := os.Getenv("MUSTER_LOG_DIR"); named != "" {
		return named
	}
	return filepath.Join(base, "logs")
}

// List returns the sessions of this user whose head is alive, oldest first. It
// makes nothing, and passes over what cannot be read.
func List() []Session {
	var live []Session
	begun := map[string]time.Time{}
	for _, base := range Places() {
		if !ours(base) {
			continue
		}
		for _, s := range all(base) {
			info, err := os.Stat(s.Dir)
			if err == nil && s.runs() {
				begun[s.Dir] = info.ModTime()
				live = append(live, s)
			}
		}
	}
	slices.SortStableFunc(live, func(a, b Session) int { return begun[a.Dir].Compare(begun[b.Dir]) })
	return live
}

// Ended returns the sessions whose logs are still there and whose head is gone,
// newest first. They have no Dir.
func Ended() []Session {
	var past []Session
	seen := map[string]bool{}
	for _, base := range Places() {
		logs := LogsOf(base)
		if seen[logs] {
			continue
		}
		seen[logs] = true
		for _, name := range stampedFolders(logs) {
			pid := pidOf(name[stampLength:])
			if (pid > 0 || chosen(name[stampLength:])) && !writing(logs, name) && ours(filepath.Join(logs, name)) {
				past = append(past, Session{Name: name[stampLength:], LogDir: filepath.Join(logs, name), Pid: pid})
			}
		}
	}
	slices.SortStableFunc(past, func(a, b Session) int {
		return strings.Compare(filepath.Base(b.LogDir), filepath.Base(a.LogDir))
	})
	return past
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
		s := Session{Name: e.Name(), Dir: filepath.Join(base, e.Name()), Pid: pidOf(e.Name())}
		if !e.IsDir() || s.Pid == 0 && !chosen(s.Name) {
			continue
		}
		r := readRecord(filepath.Join(s.Dir, headLock))
		if r.who.Pid != 0 {
			s.Pid, s.LogDir = r.who.Pid, r.logs
		}
		if s.Pid != 0 { // else it is no session
			found = append(found, s)
		}
	}
	return found
}

// runs says that a session has a head.
func (s Session) runs() bool {
	path := filepath.Join(s.Dir, headLock)
	if _, err := os.Lstat(path); err != nil {
		return alive(s.Pid)
	}
	return held(path)
}

// writing says that a folder of logs is that of a session that has a head.
func writing(logs, name string) bool {
	path := filepath.Join(logs, name, logLock)
	pid := pidOf(name[stampLength:])
	return held(path) || pid > 0 && alive(pid)
}

// pidOf is the first head's in a session's name, 0 for what is no such name.
func pidOf(name string) int {
	pid, _, ok := strings.Cut(name, "-")
	n, err := strconv.Atoi(pid)
	if !ok || err != nil {
		return 0
	}
	return n
}

// alive says that a process of this number is there and is a head: a number can
// come again.
func alive(pid int) bool { return runs(pid, "head") }

// runs says that a process is there and is that part of Muster.
func runs(pid int, part string) bool {
	words := words(pid)
	return len(words) > 1 && words[1] == part
}

// words are a process's command line; none where it is gone, or about to be.
func words(pid int) []string {
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(cmdline) == 0 {
		return nil
	}
	return strings.Split(string(cmdline), "\x00")
}

// prune keeps the newest logs, and those of sessions that still run.
func prune(logs string) {
	names := stampedFolders(logs)
	for _, name := range names[:max(0, len(names)-keptLogs)] {
		if !writing(logs, name) {
			_ = os.RemoveAll(filepath.Join(logs, name))
		}
	}
}

// stamp begins the name of each folder of logs.
const (
	stamp       = "20060102-150405-"
	stampLength = len(stamp)
)

// stampedFolders are those that New made, oldest first: a folder that the user
// named may hold other things.
func stampedFolders(logs string) []string {
	entries, err := os.ReadDir(logs)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if len(e.Name()) <= stampLength || !e.IsDir() {
			continue
		}
		if _, err := time.Parse(stamp, e.Name()[:stampLength]); err == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}
