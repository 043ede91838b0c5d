package agent

import (
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

func files(pairs ...string) fstest.MapFS {
	root := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		root[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return root
}

func TestOOMKills(t *testing.T) {
	vmstat := "pgfault 12\noom_kill 5\n"
	for name, c := range map[string]struct {
		root  fstest.MapFS
		want  uint64
		known bool
	}{
		"version 2":           {files("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\noom 9\noom_kill 3\n", "proc/vmstat", vmstat), 3, true},
		"seen from outside":   {files("proc/self/cgroup", "0::/docker/1\n", "sys/fs/cgroup/memory.events", "oom_kill 2\n", "proc/vmstat", vmstat), 2, true},
		"version 1":           {files("proc/self/cgroup", "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control", "under_oom 0\noom_kill 7\n"), 7, true},
		"the root group":      {files("proc/self/cgroup", "0::/\n", "proc/vmstat", vmstat), 5, true},
		"an old kernel":       {files("proc/self/cgroup", "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.oom_control", "under_oom 0\n"), 0, false},
		"nothing":             {files(), 0, false},
		"a path that goes up": {files("proc/self/cgroup", "0::/../../x\n", "proc/vmstat", vmstat), 5, true},
	} {
		if got, known := oomKills(c.root); got != c.want || known != c.known {
			t.Errorf("%s: got %d, %v", name, got, known)
		}
	}
}

func TestMemoryFigures(t *testing.T) {
	meminfo := "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:    1048576 kB\n"
	for name, c := range map[string]struct {
		root fstest.MapFS
		want string
	}{
		"version 2": {
			files("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "8589934592\n", "sys/fs/cgroup/a/memory.current", "1073741824\n", "sys/fs/cgroup/a/memory.peak", "8589934592\n", "proc/meminfo", meminfo),
			"limit of its cgroup 8.00 GiB, in use now 1.00 GiB, at most 8.00 GiB",
		},
		"seen from outside": {
			files("proc/self/cgroup", "0::/docker/1\n", "sys/fs/cgroup/memory.max", "1610612736\n"),
			"limit of its cgroup 1.50 GiB",
		},
		"version 1": {
			files("proc/self/cgroup", "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "536870912\n"),
			"limit of its cgroup 1.00 GiB, in use now 0.50 GiB",
		},
		"no limit":  {files("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "max\n", "proc/meminfo", meminfo), "memory of the machine 64.00 GiB, available now 1.00 GiB"},
		"limit 1":   {files("proc/self/cgroup", "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", "proc/meminfo", meminfo), "memory of the machine 64.00 GiB, available now 1.00 GiB"},
		"nothing":   {files(), ""},
		"malformed": {files("proc/self/cgroup", "rubbish\n", "proc/meminfo", "MemTotal: much\n"), ""},
	} {
		if got := memoryFigures(c.root); got != c.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestOOMLedger(t *testing.T) {
	root := files("proc/vmstat", "oom_kill 4\n")
	l := newOOMLedger(root)
	if l.take() {
		t.Error("a kill from before was claimed")
	}
	root["proc/vmstat"].Data = []byte("oom_kill 6\n")
	for i, want := range []bool{true, true, false} {
		if l.take() != want {
			t.Errorf("death %d: two kills are two deaths", i)
		}
	}
	root["proc/vmstat"].Data = []byte("oom_kill 7\n")
	l.settle()
	if l.take() {
		t.Error("an old kill was claimed")
	}
}

func TestMemory(t *testing.T) {
	meminfo := "MemFree: 1 kB\nMemTotal:       2048 kB\n"
	for want, root := range map[uint64]fstest.MapFS{
		2 << 20:   files("proc/meminfo", meminfo, "sys/fs/cgroup/memory.max", "max\n"),
		1 << 20:   files("proc/meminfo", meminfo, "sys/fs/cgroup/memory.max", "1048576\n"),
		512 << 10: files("proc/meminfo", meminfo, "sys/fs/cgroup/memory/memory.limit_in_bytes", "524288\n"),
		0:         files(),
	} {
		if got := memory(root); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

func TestAZygoteIsNotKilledThatSomebodyIsAboutToWaitFor(t *testing.T) {
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	child, err := reaper.Start(process.Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		child.Signal(syscall.SIGKILL)
		<-child.Done()
	}()
	z := &zygote{child: child, ready: make(chan struct{})}
	zs := &zygotes{byKey: map[string]*zygote{zygoteKey(spec.Runtime{}, nil): z}}
	for range 2 {
		if got, err := zs.get(spec.Runtime{}, nil); got != z || err != nil {
			t.Fatal(got, err)
		}
	}
	stopping := make(chan struct{})
	close(stopping)
	for n, doomed := range []bool{false, true} { // the one gives up before the other waits
		if zs.wait(z, stopping) || z.doomed.Load() != doomed {
			t.Errorf("after %d have given up: killed %v", n+1, !doomed)
		}
	}
}

func TestZygoteKeys(t *testing.T) {
	base := spec.Runtime{Python: "python", SysPath: []string{"a"}, Env: map[string]string{"OMP_NUM_THREADS": "1", "HOME": "/"}}
	preload := base
	preload.Preload = []string{"torch"}
	flags := base
	flags.Flags = []string{"-O"}
	type env = map[string]string
	same := func(a spec.Runtime, x env, b spec.Runtime, y env) bool { return zygoteKey(a, x) == zygoteKey(b, y) }
	for what, ok := range map[string]bool{
		"ranks share":                         same(base, env{"RANK": "0"}, base, env{"RANK": "1"}),
		"threads do not matter without":       same(base, nil, base, env{"OMP_NUM_THREADS": "4"}),
		"threads matter with a preload":       !same(preload, nil, preload, env{"OMP_NUM_THREADS": "4"}),
		"the loader's variables always do":    !same(base, nil, base, env{"LD_PRELOAD": "x"}),
		"the interpreter's always do":         !same(base, nil, base, env{"PYTHONHASHSEED": "1"}),
		"flags do":                            !same(base, nil, flags, nil),
		"a preload does":                      !same(base, nil, preload, nil),
		"devices do not, even with a preload": same(preload, env{"CUDA_VISIBLE_DEVICES": "0"}, preload, env{"CUDA_VISIBLE_DEVICES": "1"}),
	} {
		if !ok {
			t.Errorf("%s: not so", what)
		}
	}
	got := zygoteEnv(preload, env{"OMP_NUM_THREADS": "4", "RANK": "3"})
	if got["OMP_NUM_THREADS"] != "4" || got["RANK"] != "" || got["HOME"] != "/" || base.Env["OMP_NUM_THREADS"] != "1" {
		t.Errorf("got %v", got)
	}
}

func TestFileLimits(t *testing.T) {
	if err := checkFiles("n", 64, 4, 20, 1024); err != nil {
		t.Error(err)
	}
	err := checkFiles("node-1", 300, 4, 20, 1024)
	if e := spec.AsError(err); err == nil || e.Code != spec.CodeLimit || !strings.Contains(e.Message, "1024") || !strings.Contains(e.Message, "ulimit -n") || !strings.Contains(e.Message, "node-1") {
		t.Errorf("got %v", err)
	}
	e := limitError(spec.Errorf(spec.CodeStartup, "cannot"), syscall.EMFILE)
	if e.Code != spec.CodeLimit || !strings.Contains(e.Message, "ulimit -n") {
		t.Errorf("got %v", e)
	}
	if e := limitError(spec.Errorf(spec.CodeStartup, "cannot"), syscall.ENOENT); e.Code != spec.CodeStartup {
		t.Errorf("got %v", e)
	}
}

func TestFileNames(t *testing.T) {
	for in, want := range map[string]string{"a-0-G1": "a-0-G1", "../x": ".._x", "..": "_..", "": "_"} {
		if got := fileName(in); got != want {
			t.Errorf("%q gave %q", in, got)
		}
	}
}
