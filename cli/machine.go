package cli

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/agent"
	"github.com/muster-rl/muster/head"
)

const (
	littleMemory = 2 << 30
	littleShared = 1 << 30
	littleDisk   = 1 << 30
)

// devices tells the accelerators, by kind of model.
func (p patient) devices(ctx context.Context) finding {
	const virtual = "for stand-ins without GPUs: muster run --virtual 1x8 SCRIPT, or MUSTER_VIRTUAL=1x8"
	found, err := p.find(ctx, p.Machine)
	f := finding{What: "GPUs", State: stateOK}
	var models []string
	counts := map[string]int{}
	for _, d := range found {
		model := d.Name
		if model == "" {
			model = d.Kind
		}
		if d.Memory > 0 {
			model += ", " + size(d.Memory)
		}
		if counts[model] == 0 {
			models = append(models, model)
		}
		counts[model]++
	}
	for i, m := range models {
		models[i] = fmt.Sprintf("%d x %s", counts[m], shown(m))
	}
	f.Found = strings.Join(models, "; ")
	if len(found) == 0 {
		f.State, f.Found, f.Do = stateNote, "none", virtual
	}
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"} {
		if value, set := p.Env(name); set {
			f.Found += fmt.Sprintf(" (%s=%s)", name, shown(value))
			if len(found) == 0 {
				f.Do = name + " hides what there may be: unset it; " + virtual
			}
		}
	}
	if err != nil {
		f.State = stateNote
		f.Found += "; " + shown(err.Error())
	}
	if value, _ := p.Env("MUSTER_VIRTUAL"); value != "" {
		f.Found += fmt.Sprintf("; MUSTER_VIRTUAL=%s has scripts use virtual ones", shown(value))
		f.Do = ""
	}
	return f
}

// memory tells what there is, and what this cgroup may have of it.
func (p patient) memory() finding {
	total, available := p.meminfo("MemTotal:"), p.meminfo("MemAvailable:")
	f := finding{What: "memory", State: stateOK, Found: fmt.Sprintf("%s, %s available", size(total), size(available))}
	if total == 0 {
		return finding{What: "memory", State: stateNote, Found: "cannot be told: there is no /proc/meminfo"}
	}
	if limit := p.cgroup("memory.max", "memory/memory.limit_in_bytes"); limit > 0 && limit < total {
		used := p.cgroupUse("memory.current", "memory/memory.usage_in_bytes")
		f.Found += fmt.Sprintf("; the cgroup allows %s and uses %s", size(limit), size(used))
		available = min(available, limit-min(limit, used))
	}
	if available < littleMemory {
		f.State, f.Do = stateNote, "a bare worker takes some 15 MiB, one that has loaded torch some hundred; give the container or the job more"
	}
	return f
}

func (p patient) meminfo(name string) uint64 {
	text, _ := fs.ReadFile(p.Files, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// cgroup is the least that this cgroup, or one above it, sets as a limit: in
// version 2's file, or in version 1's; 0 for none.
func (p patient) cgroup(v2, v1 string) uint64 {
	least := uint64(0)
	for _, file := range append(p.cgroupFiles(v2), path.Join("sys/fs/cgroup", v1)) {
		if n := p.number(file); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

func (p patient) cgroupUse(v2, v1 string) uint64 {
	for _, file := range append(p.cgroupFiles(v2), path.Join("sys/fs/cgroup", v1)) {
		if n := p.number(file); n > 0 {
			return n
		}
	}
	return 0
}

// cgroupFiles are the places of a file from our own cgroup upwards.
func (p patient) cgroupFiles(name string) []string {
	text, _ := fs.ReadFile(p.Files, "proc/self/cgroup")
	own := "/"
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path.Clean("/" + rest)
		}
	}
	var files []string
	for dir := own; ; dir = path.Dir(dir) {
		files = append(files, path.Join("sys/fs/cgroup", dir, name))
		if dir == "/" {
			return files
		}
	}
}

// number reads a file of one number; 0 for none, as for "max".
func (p patient) number(file string) uint64 {
	text, err := fs.ReadFile(p.Files, file)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// files tells for how many workers the limit of open files is enough.
func (p patient) files() finding {
	soft, hard, err := p.limit(unix.RLIMIT_NOFILE)
	if err != nil {
		return finding{What: "open files", State: stateNote, Found: "the limit cannot be told: " + err.Error()}
	}
	// The head and the agents raise the soft limit for themselves.
	need := func(workers int) int { return max(head.FilesFor(workers), agent.FilesFor(workers)) }
	room := sort.Search(1<<20, func(n int) bool { return uint64(need(n+1)) > hard })
	f := finding{What: "open files", State: stateOK, Found: fmt.Sprintf("soft limit %d, hard limit %s; %s need %d", soft, limitText(hard), count(p.workers, "worker"), need(p.workers))}
	if room < p.workers {
		f.State = stateMissing
		f.Found += fmt.Sprintf(", so there is room for %d", room)
		f.Do = fmt.Sprintf("raise the hard limit: ulimit -Hn %d as root, LimitNOFILE= of a service, --ulimit nofile=65536 of a container", max(65536, need(p.workers)))
	}
	return f
}

func limitText(n uint64) string {
	if n >= 1<<62 {
		return "none"
	}
	return strconv.FormatUint(n, 10)
}

// processes tells how many there may be: a worker has a few threads, and torch
// starts one for each core.
func (p patient) processes() finding {
	f := finding{What: "processes", State: stateOK, Found: "no limit"}
	_, hard, err := p.limit(unix.RLIMIT_NPROC)
	least := p.cgroup("pids.max", "pids/pids.max")
	from := "the cgroup's pids.max"
	if err == nil && hard < 1<<62 && (least == 0 || hard < least) {
		least, from = hard, "ulimit -u"
	}
	if least == 0 {
		return f
	}
	f.Found = fmt.Sprintf("at most %d, threads included (%s)", least, from)
	if need := uint64(p.workers)*4 + 64; least < need {
		f.State, f.Do = stateMissing, fmt.Sprintf("%s need about %d: raise it (docker run --pids-limit, or ulimit -u)", count(p.workers, "worker"), need)
	}
	return f
}

// sharedMemory is of interest for what workers use, not for Muster.
func (p patient) sharedMemory() finding {
	total, free, err := p.space("/dev/shm")
	if err != nil {
		return finding{What: "/dev/shm", State: stateNote, Found: "not there; Muster does not need it, torch's data loaders and NCCL do",
			Do: "mount a tmpfs on it, or give the container --shm-size 8g"}
	}
	f := finding{What: "/dev/shm", State: stateOK, Found: fmt.Sprintf("%s, %s free", size(total), size(free))}
	if total < littleShared {
		f.State = stateNote
		f.Found += "; Muster does not need it, torch's data loaders and NCCL do"
		f.Do = "give the container --shm-size 8g"
	}
	return f
}

// kernel is what this machine's can do.
type kernel struct {
	release  string
	features []feature
}

type feature struct {
	name   string
	err    error
	needed bool
}

func thisKernel() kernel {
	var k kernel
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		k.release = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	closing := func(fd int, err error) error {
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	k.features = []feature{
		{"pidfd", closing(unix.PidfdOpen(os.Getpid(), 0)), true},
		{"memfd", closing(unix.MemfdCreate("muster-doctor", unix.MFD_CLOEXEC)), true},
		{"subreaper", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0), true},
		{"user namespaces", userNamespaces(os.DirFS("/")), false},
	}
	return k
}

// userNamespaces reads the settings that turn them off.
func userNamespaces(files fs.FS) error {
	for _, name := range []string{"proc/sys/user/max_user_namespaces", "proc/sys/kernel/unprivileged_userns_clone"} {
		if text, err := fs.ReadFile(files, name); err == nil && strings.TrimSpace(string(text)) == "0" {
			return syscall.EPERM
		}
	}
	if _, err := fs.Stat(files, "proc/self/ns/user"); err != nil {
		return syscall.ENOSYS
	}
	return nil
}

func (p patient) kernelFeatures() []finding {
	k := p.kernel()
	var have, lack []string
	var missing []finding
	for _, f := range k.features {
		switch {
		case f.err == nil:
			have = append(have, f.name)
		case f.needed:
			missing = append(missing, finding{What: f.name, State: stateMissing, Found: f.err.Error(),
				Do: "Linux 5.10 or newer has it; in a container its seccomp profile may forbid it (docker run --security-opt seccomp=unconfined)"})
		default:
			lack = append(lack, f.name)
		}
	}
	text := shown(k.release) + " with " + strings.Join(have, ", ")
	if len(lack) > 0 {
		text += "; without " + strings.Join(lack, ", ") + " (not needed)"
	}
	return append([]finding{{What: "kernel", State: stateOK, Found: text}}, missing...)
}

// folders are where sessions and logs go.
func (p patient) folders() []finding {
	base, err := p.base()
	if err != nil {
		return []finding{{What: "sessions", State: stateMissing, Found: shown(err.Error()), Do: "set MUSTER_DIR to a folder with a short name that you can write to"}}
	}
	sessions := finding{What: "sessions", State: stateOK, Found: "in " + shown(base)}
	logs := finding{What: "logs", State: stateOK}
	dir, err := p.logs(base)
	logs.Found = "in " + shown(dir)
	if err != nil {
		logs.State, logs.Found, logs.Do = stateMissing, fmt.Sprintf("cannot be written to %s: %v", shown(dir), err), "set MUSTER_LOG_DIR to a folder that you can write to"
	} else if _, free, err := p.space(dir); err == nil {
		logs.Found += fmt.Sprintf(", %s free", size(free))
		if free < littleDisk {
			logs.State, logs.Do = stateNote, "make room, or set MUSTER_LOG_DIR to a folder on another disk"
		}
	}
	return []finding{sessions, logs}
}
