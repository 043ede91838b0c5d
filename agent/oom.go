package agent

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
	"sync"
)

// oomKills reads how many processes the kernel has killed for lack of memory
// where this process lives: in its cgroup (version 2, else 1), or, where that
// cannot be read, on the whole machine. root is the file system's root.
func oomKills(root fs.FS) (count uint64, known bool) {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for _, place := range oomFiles(string(groups)) {
		if text, err := fs.ReadFile(root, place); err == nil {
			if n, ok := counter(string(text), "oom_kill"); ok {
				return n, true
			}
		}
	}
	return 0, false
}

// oomFiles lists where the counter may be, most telling first. In a container
// the cgroup's path may be seen from outside, and its files are then at the root.
func oomFiles(cgroups string) []string {
	var files []string
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		group := strings.TrimPrefix(path.Clean("/"+parts[2]), "/")
		switch {
		case parts[0] == "0":
			files = append(files, path.Join("sys/fs/cgroup", group, "memory.events"), "sys/fs/cgroup/memory.events")
		case parts[1] == "memory":
			files = append(files, path.Join("sys/fs/cgroup/memory", group, "memory.oom_control"), "sys/fs/cgroup/memory/memory.oom_control")
		}
	}
	return append(files, "proc/vmstat")
}

// counter reads "name value" from lines of such.
func counter(text, name string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// oomLedger tells which SIGKILL was the kernel's for lack of memory: each kill
// that it has counted stands for one death.
type oomLedger struct {
	root fs.FS
	mu   sync.Mutex
	told uint64 // kills that are accounted for
}

func newOOMLedger(root fs.FS) *oomLedger {
	l := &oomLedger{root: root}
	l.told, _ = oomKills(root)
	return l
}

// take says whether there is a kill that no death has claimed, and claims it.
func (l *oomLedger) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, known := oomKills(l.root)
	if !known || now <= l.told {
		return false
	}
	l.told++
	return true
}

// settle forgets kills that nobody claimed: they were of processes that are not
// workers, and must not be blamed for a later death.
func (l *oomLedger) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, known := oomKills(l.root); known {
		l.told = now
	}
}

// figures tells how much memory there is and was, for people.
func (l *oomLedger) figures() string { return memoryFigures(l.root) }

// memoryFigures tells the limit of the cgroup that kills for lack of memory, what is
// in use and what was at most, or the machine's where there is no limit; "" where
// nothing is known.
func memoryFigures(root fs.FS) string {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, names := "sys/fs/cgroup", [...]string{"memory.max", "memory.current", "memory.peak"}
		switch {
		case parts[0] == "0":
		case parts[1] == "memory":
			base, names = "sys/fs/cgroup/memory", [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes"}
		default:
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			limit := number(root, path.Join(base, at, names[0]))
			if limit > 0 && limit < math.MaxInt64&^4095 {
				text := "limit of its cgroup " + gib(limit)
				if used := number(root, path.Join(base, at, names[1])); used > 0 {
					text += ", in use now " + gib(used)
				}
				if peak := number(root, path.Join(base, at, names[2])); peak > 0 {
					text += ", at most " + gib(peak)
				}
				return text
			}
			if at == "/" {
				break
			}
		}
	}
	meminfo, _ := fs.ReadFile(root, "proc/meminfo")
	total, known := kilobytes(string(meminfo), "MemTotal:")
	if !known {
		return ""
	}
	text := "memory of the machine " + gib(total)
	if free, ok := kilobytes(string(meminfo), "MemAvailable:"); ok {
		text += ", available now " + gib(free)
	}
	return text
}

// kilobytes reads "name value kB" from lines of such.
func kilobytes(text, name string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name {
			n, err := strconv.ParseUint(fields[1], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

func gib(n uint64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }
