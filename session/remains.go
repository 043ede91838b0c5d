package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/process"
)

// Mark is the variable that everything below a warden carries: of which session
// and node it is. Most of what dies leaves its children to a warden or to a head,
// which end them without asking for marks; this is for what fell to nobody,
// because those were killed as well.
const Mark = "MUSTER_OF"

// MarkOf is the value of Mark for one node of the session in dir, started by this
// process. It holds the cgroup as well: variables go further than processes do,
// into jobs that a worker hands to a batch system, say, which are nobody's
// remains and run in cgroups of their own.
func MarkOf(dir string, node int) string {
	return dir + "#" + strconv.Itoa(node) + "#" + groupOf("self")
}

// groupOf stands for the cgroup that a process is in.
func groupOf(pid string) string {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

const (
	// goneAfter is how long something killed may take to be gone.
	goneAfter = 10 * time.Second
	lookEvery = 50 * time.Millisecond
	// foreignAge is from when on a folder is taken for left over whose processes
	// cannot be looked at from here: they are another container's.
	foreignAge = 24 * time.Hour
)

// ClearRemains ends and removes what earlier heads of this user left whose owner
// is gone: processes whose warden was killed, at once; sessions without a head,
// at once where nothing of them lives, else when those who do had the grace in
// which a head may come back. Nothing of a living owner, or of a living head, is
// touched. It returns when all is clear or ctx has ended; told hears what was
// ended.
func ClearRemains(ctx context.Context, grace time.Duration, told func(string)) {
	clearRemains(ctx, grace, Mark, told)
}

// clearRemains does so for processes that are marked by a variable.
func clearRemains(ctx context.Context, grace time.Duration, variable string, told func(string)) {
	endStrays(variable, "", told)
	deadline := time.Now().Add(grace)
	for {
		waiting := false
		for _, base := range Places() {
			if ours(base) {
				waiting = clearBase(base, time.Now().After(deadline), variable, told) || waiting
			}
		}
		if !waiting {
			return
		}
		timer := time.NewTimer(20 * lookEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// clearBase removes the sessions of a base that nobody needs, and says whether
// there are some to come back to. late: who still is there had its time.
func clearBase(base string, late bool, variable string, told func(string)) (waiting bool) {
	for _, s := range all(base) {
		if !s.abandoned() {
			continue
		}
		left := wardens(s.Dir)
		if len(left) > 0 && !late {
			waiting = true
			continue
		}
		for _, r := range left {
			if r.here() && lives(r.who) {
				told(fmt.Sprintf("ending warden %d of session %s, whose head and owner are gone", r.who.Pid, s.Name))
				endTree(r.who)
			}
		}
		if len(left) > 0 {
			endStrays(variable, s.Dir, told)
		}
		_ = RemoveLast(s.Dir) // what is left shows at the next start
	}
	return waiting
}

// abandoned says that a session has neither a head nor an owner.
func (s Session) abandoned() bool {
	path := filepath.Join(s.Dir, headLock)
	info, err := os.Lstat(path)
	if err != nil {
		return !alive(s.Pid) // of a head that has not got that far
	}
	r := readRecord(path)
	if !r.here() {
		return !held(path) && time.Since(info.ModTime()) > foreignAge
	}
	return !held(path) && !lives(r.owner)
}

// EndStrays ends what the session in dir has left that no warden looks after.
func EndStrays(dir string) { endStrays(Mark, dir, func(string) {}) }

// endStrays ends processes that carry a mark (of the session in dir; "": of any)
// and have no warden of that mark above them any more. A worker that runs always
// has one: its agent's.
func endStrays(variable, dir string, told func(string)) {
	for deadline := time.Now().Add(goneAfter); ; {
		strays := findStrays(variable, dir)
		for _, e := range strays {
			told(fmt.Sprintf("ending process %d (%s), left over from a session whose warden was killed", e.Pid, e.Name))
			_ = process.Kill(e) // gone is as good; anything else shows in the next look
		}
		if len(strays) == 0 || time.Now().After(deadline) {
			return
		}
		told = func(string) {}
		time.Sleep(lookEvery) // nothing tells of the end of a stranger's child
	}
}

// findStrays is those processes that are seen to have no warden twice. A look
// takes a while: of a session that ends in order meanwhile, what was still there
// at its beginning has none at its end.
func findStrays(variable, dir string) []process.Entry {
	strays := lookForStrays(variable, dir)
	if len(strays) == 0 {
		return nil
	}
	again := lookForStrays(variable, dir)
	return slices.DeleteFunc(strays, func(e process.Entry) bool {
		return !slices.ContainsFunc(again, func(a process.Entry) bool { return a.Pid == e.Pid && a.Started == e.Started })
	})
}

// lookForStrays looks at every process of this user. One that hides its
// environment is passed over.
func lookForStrays(variable, dir string) []process.Entry {
	entries, err := process.Scan()
	if err != nil {
		return nil
	}
	byPid := make(map[int]process.Entry, len(entries))
	marks := map[int]string{}
	for _, e := range entries {
		byPid[e.Pid] = e
		if mark := markOf(e.Pid, variable); mark != "" && (dir == "" || strings.HasPrefix(mark, dir+"#")) && !e.Gone() {
			marks[e.Pid] = mark
		}
	}
	var strays []process.Entry
	for pid, mark := range marks {
		looked := false
		for at, depth := pid, 0; at > 0 && depth < len(entries); at, depth = byPid[at].Parent, depth+1 {
			if marks[at] == mark && runs(at, "warden") {
				looked = true
				break
			}
		}
		if !looked {
			strays = append(strays, byPid[pid])
		}
	}
	return strays
}

// markOf reads a process's mark; "" where it has none, is another user's, or has
// been taken elsewhere.
func markOf(pid int, variable string) string {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	info, err := os.Stat(proc)
	if err != nil {
		return ""
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
		return ""
	}
	env, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(variable+"=")); ok {
			mark := string(value)
			if group := mark[strings.LastIndexByte(mark, '#')+1:]; group == "" || group != groupOf(strconv.Itoa(pid)) {
				return ""
			}
			return mark
		}
	}
	return ""
}

// endTree ends a process and all below it: the leaves' new parents are among
// them until the last look.
func endTree(root process.Entry) {
	for deadline := time.Now().Add(goneAfter); time.Now().Before(deadline); {
		entries, err := process.Scan()
		if err != nil {
			return
		}
		living := 0
		for _, e := range process.Below(entries, func(e process.Entry) bool { return e.Pid == root.Pid && e.Started == root.Started }) {
			if !e.Gone() {
				living++
				_ = process.Kill(e)
			}
		}
		if living == 0 {
			return
		}
		time.Sleep(lookEvery) // nothing tells of the end of a stranger's child
	}
}
