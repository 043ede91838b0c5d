package agent

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

// Shares of what there is that a machine's stores take when nothing is said.
const (
	shareOfMemory    = 0.5 // of the machine, and of the cgroup's limit
	shareOfAvailable = 0.8
	shareOfDisk      = 0.5
	shareOfFiles     = 4    // one in so many descriptors may be a segment's
	shareToSpare     = 0.03 // of the machine, or of the cgroup, that a store never takes
	leastToSpare     = 64 << 20
	// Below so much of it beyond that, a store keeps no memory that nothing lies in.
	shareToLeave = 0.1
	mostToLeave  = 8 << 30
)

// storeOptions says what the store of this node may have.
func storeOptions(join backend.Join, files uint64) (store.Options, error) {
	root := os.DirFS("/")
	opts := store.Options{
		Node: join.Node, Name: join.Name, Segments: int(files / shareOfFiles), //nolint:gosec // a limit of descriptors
	}
	opts.Free = func() uint64 { return freeMemory(root) }
	opts.Low = min(uint64(float64(memoryLimit(root))*shareToLeave), mostToLeave)
	opts.Sharing = join.Sharing
	var err error
	if text := os.Getenv("MUSTER_STORE_BYTES"); text == "" {
		opts.Budget = defaultBudget(root) / uint64(max(1, join.Sharing))
	} else if opts.Budget, err = store.ParseBytes(text); err != nil {
		return opts, fmt.Errorf("MUSTER_STORE_BYTES: %w", err)
	}
	err = spillOptions(&opts, join)
	return opts, err
}

// defaultBudget is what all stores of a machine may have together.
func defaultBudget(root fs.FS) uint64 {
	total := float64(memoryLimit(root)) * shareOfMemory
	if available := meminfo(root, "MemAvailable:"); available > 0 {
		total = min(total, float64(available)*shareOfAvailable)
	}
	return uint64(total)
}

// memoryLimit is what all processes here may have together: the machine's memory,
// or less, as a cgroup says that this one is in.
func memoryLimit(root fs.FS) uint64 { return leastLimit(root, memoryGroups(root)) }

func leastLimit(root fs.FS, groups []memoryGroup) uint64 {
	least := memory(root)
	for _, g := range groups {
		if g.limit > 0 && (least == 0 || g.limit < least) {
			least = g.limit
		}
	}
	return least
}

// freeMemory is what a store may take now.
func freeMemory(root fs.FS) uint64 {
	groups := memoryGroups(root)
	free, limit := availableMemory(root, groups), leastLimit(root, groups)
	spare := max(uint64(float64(limit)*shareToSpare), min(limit/4, leastToSpare))
	return free - min(free, spare)
}

// availableMemory is what can be taken now without another process having to
// pay for it: of the machine, and of every cgroup that this one is in.
func availableMemory(root fs.FS, groups []memoryGroup) uint64 {
	free := uint64(math.MaxUint64)
	if n := meminfo(root, "MemAvailable:"); n > 0 {
		free = n
	}
	for _, g := range groups {
		if g.limit == 0 {
			continue
		}
		used := g.used - min(g.used, g.cache)
		free = min(free, g.limit-min(g.limit, used))
	}
	return free
}

// meminfo reads a line of /proc/meminfo, in bytes; 0 if it is not there.
func meminfo(root fs.FS, name string) uint64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// memoryGroup is a cgroup's memory: its limit (0: none), what is used of it, and
// how much of that is cache that would go if need be.
type memoryGroup struct{ limit, used, cache uint64 }

// memoryGroups are the cgroups, version 2 or 1, that limit this process: its
// own and those above. In a container their paths may be those of outside; the
// walk up then still finds the root, which is the container's.
func memoryGroups(root fs.FS) []memoryGroup {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	var groups []memoryGroup
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, limit, used, cache := "sys/fs/cgroup", "memory.max", "memory.current", ""
		switch {
		case parts[0] == "0":
		case parts[1] == "memory":
			base, limit, used, cache = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		default:
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			dir := base + at
			stat, _ := fs.ReadFile(root, path.Join(dir, "memory.stat"))
			g := memoryGroup{limit: number(root, path.Join(dir, limit)), used: number(root, path.Join(dir, used))}
			for _, name := range []string{"inactive_file", "active_file"} {
				n, _ := counter(string(stat), cache+name)
				g.cache += n
			}
			if g.limit > 0 && g.limit < math.MaxInt64&^4095 { // version 1 says "no limit" by that
				groups = append(groups, g)
			}
			if at == "/" {
				break
			}
		}
	}
	return groups
}

// number reads a file that holds one; 0 for "max" and for no file.
func number(root fs.FS, name string) uint64 {
	text, _ := fs.ReadFile(root, name)
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// spillOptions says where objects go that memory has no room for.
func spillOptions(opts *store.Options, join backend.Join) error {
	dir, said := os.LookupEnv("MUSTER_SPILL_DIR")
	switch {
	case said && (dir == "" || dir == "off"):
		opts.SpillOff = "MUSTER_SPILL_DIR is off"
		return nil
	case said:
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return spec.Errorf(spec.CodeInvalid, "MUSTER_SPILL_DIR is %s, and nothing can be written there: %v", dir, err)
		}
	default:
		for _, dir = range []string{os.TempDir(), "/var/tmp"} {
			if opts.SpillOff = notForSpill(dir); opts.SpillOff == "" {
				break
			}
		}
		if opts.SpillOff != "" {
			return nil
		}
	}
	opts.SpillDir = dir
	if text := os.Getenv("MUSTER_SPILL_BYTES"); text != "" {
		var err error
		if opts.SpillLimit, err = store.ParseBytes(text); err != nil {
			return fmt.Errorf("MUSTER_SPILL_BYTES: %w", err)
		}
		return nil
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("cannot tell how much room there is in %s: %w", dir, err)
	}
	free := float64(disk.Bavail) * float64(disk.Bsize)
	opts.SpillLimit = uint64(free * shareOfDisk / float64(max(1, join.Sharing)))
	return nil
}

// notForSpill says why a folder that nobody chose is no place to spill to; ""
// if it is one.
func notForSpill(dir string) string {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fmt.Sprintf("%s: %v", dir, err)
	}
	if disk.Type == unix.TMPFS_MAGIC || disk.Type == unix.RAMFS_MAGIC {
		return dir + " is memory itself, so MUSTER_SPILL_DIR has to name a folder on a disk"
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Sprintf("%s: %v", dir, err)
	}
	return ""
}

// processName names a process for people: the worker that it is, if it is one
// of this node.
func (a *agent) processName(pid int) string {
	a.mu.Lock()
	workers := slices.Collect(maps.Values(a.workers))
	a.mu.Unlock()
	for _, w := range workers {
		if child := w.process(); child != nil && child.Pid() == pid {
			return w.start.Name
		}
	}
	return "process " + strconv.Itoa(pid)
}

// notice heeds what the head says without asking.
func (a *agent) notice(head *wire.Conn, f wire.Frame) error {
	verb, body, err := wire.ReadVerb(f.Body)
	switch {
	case err == nil && verb == "ping":
		return a.pinged(head, body)
	case err == nil && verb == "sources":
		m := &wire.Sources{}
		if err := read(verb, body, m); err != nil {
			return err
		}
		a.store.Sources(m)
		return nil
	case err == nil && verb == "holders":
		m := &wire.Holders{}
		if err := read(verb, body, m); err != nil {
			return err
		}
		a.holders.answered(m)
		return nil
	case err != nil || verb != "objects":
		return err // what a later head adds does not concern this agent
	}
	var m wire.Objects
	if err := read(verb, body, &m); err != nil {
		return err
	}
	a.store.Objects(&m)
	return nil
}

// moving tells the head that an object is about to be spilled. One that comes
// back is told again, by store.AskAgain.
func (a *agent) moving(object uint64) {
	a.head.notify("moving", &wire.Moving{Object: object})
}
