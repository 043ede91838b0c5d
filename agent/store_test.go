package agent

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

func (b *bench) storeUntil(what string, ok func(s *wire.StoreStatus) bool) {
	b.Helper()
	var s wire.StoreStatus
	for deadline := time.Now().Add(patience); ; {
		if err := b.ask("store", &wire.Empty{}, &s); err != nil {
			b.Fatal(err)
		}
		if ok(&s) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain for %s; the store has %+v", what, s)
		}
	}
}

func TestTheAgentsStore(t *testing.T) {
	t.Setenv("MUSTER_STORE_BYTES", "4MiB")
	t.Setenv("MUSTER_SPILL_DIR", "off")
	b := newBench(t, nil)
	_, err := store.Dial(b.join.Dir, 1, "guess", 1)
	if spec.AsError(err).Code != spec.CodeAuth {
		t.Errorf("a guess got %v", err)
	}
	c, err := store.Dial(b.join.Dir, 1, "the stores'", 9)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id, _, err := c.Put("a batch", []byte("bytes"))
	if err != nil {
		t.Fatal(err)
	}
	b.storeUntil("the object", func(s *wire.StoreStatus) bool {
		return s.Node == 1 && s.Budget == 4<<20 && s.SpillDir == "" && len(s.Objects) == 1 && s.Objects[0].State == "sealed"
	})
	tell := func(m *wire.Objects) {
		if err := wire.Notify(b.conn, "objects", m); err != nil {
			t.Fatal(err)
		}
	}
	tell(&wire.Objects{Hold: []uint64{id}, Gone: []uint64{9}})
	b.storeUntil("it to be held", func(s *wire.StoreStatus) bool { return len(s.Objects) == 1 && s.Objects[0].Held })
	_, err = c.Alloc(4 << 20)
	if e := spec.AsError(err); e.Code != spec.CodeStoreFull || e.Node != "node-1" || !strings.Contains(e.Message, "process ") || !strings.Contains(e.Message, "MUSTER_SPILL_DIR is off") {
		t.Errorf("got %v", err)
	}
	tell(&wire.Objects{Drop: []uint64{id}})
	b.storeUntil("it to go", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 })
	if err := wire.Notify(b.conn, "from_the_future", &wire.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.storeUntil("the agent to go on", func(*wire.StoreStatus) bool { return true })
}

func TestStoreOptions(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("MUSTER_SPILL_DIR", dir)
	whole, err := storeOptions(backend.Join{Node: 2, Name: "node-2", Sharing: 1}, 4096)
	if err != nil || whole.Budget == 0 || whole.SpillDir != dir || whole.SpillLimit == 0 || whole.Segments != 1024 || whole.Node != 2 || whole.Name != "node-2" {
		t.Errorf("%+v, %v", whole, err)
	}
	if free := whole.Free(); free == 0 || free == math.MaxUint64 {
		t.Errorf("%d bytes are free", free)
	}
	quarter, err := storeOptions(backend.Join{Sharing: 4}, 0)
	if err != nil || quarter.Budget > whole.Budget/3 || quarter.Budget < whole.Budget/6 || quarter.Segments != 0 {
		t.Errorf("%+v, %v", quarter, err)
	}
	t.Setenv("MUSTER_STORE_BYTES", "512MiB")
	t.Setenv("MUSTER_SPILL_BYTES", "1GiB")
	said, err := storeOptions(backend.Join{Sharing: 4}, 0)
	if err != nil || said.Budget != 512<<20 || said.SpillLimit != 1<<30 {
		t.Errorf("%+v, %v", said, err)
	}
	for _, off := range []string{"", "off"} {
		t.Setenv("MUSTER_SPILL_DIR", off)
		if none, err := storeOptions(backend.Join{}, 0); err != nil || none.SpillDir != "" || none.SpillOff == "" {
			t.Errorf("%+v, %v", none, err)
		}
	}
	for name, value := range map[string]string{"MUSTER_STORE_BYTES": "lots", "MUSTER_SPILL_BYTES": "-1", "MUSTER_SPILL_DIR": "/no/such/folder"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MUSTER_SPILL_DIR", dir)
			t.Setenv(name, value)
			if _, err := storeOptions(backend.Join{}, 0); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Nothing chosen: a disk, never memory.
func TestWhereToSpill(t *testing.T) {
	if notForSpill("/no/such/folder") == "" {
		t.Error("a folder that is not there")
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		if why := notForSpill("/dev/shm"); !strings.Contains(why, "memory itself") {
			t.Errorf("got %q", why)
		}
	}
}

func TestMemoryForStores(t *testing.T) {
	const gib = 1 << 30
	meminfo := "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n" // 16 and 12 GiB
	for name, c := range map[string]struct {
		root         fstest.MapFS
		budget, free uint64
	}{
		"the machine":      {files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n"), 8 * gib, 12 * gib},
		"a busy machine":   {files("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 5242880 kB\n"), 4 * gib, 5 * gib},
		"version 2":        {files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/job/1\n", "sys/fs/cgroup/job/memory.max", "4294967296\n", "sys/fs/cgroup/job/memory.current", "3221225472\n", "sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 1073741820\nactive_file 4\n", "sys/fs/cgroup/job/1/memory.max", "max\n"), 2 * gib, 2 * gib},
		"version 1":        {files("proc/meminfo", meminfo, "proc/self/cgroup", "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2147483648\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes", "2147483648\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), 1 * gib, 0},
		"from outside":     {files("proc/meminfo", meminfo, "proc/self/cgroup", "0::/docker/17\n", "sys/fs/cgroup/memory.max", "2147483648\n", "sys/fs/cgroup/memory.current", "1073741824\n"), 1 * gib, 1 * gib},
		"nothing is known": {files(), 0, math.MaxUint64},
	} {
		if got := defaultBudget(c.root); got != c.budget {
			t.Errorf("%s: a budget of %d, want %d", name, got, c.budget)
		}
		if got := availableMemory(c.root, memoryGroups(c.root)); got != c.free {
			t.Errorf("%s: %d are free, want %d", name, got, c.free)
		}
	}
}

// What is left alone is a share of what there is: of a job's part of a large
// machine too, which would else be nothing to a store.
func TestMemoryThatIsLeftAlone(t *testing.T) {
	const mib = 1 << 20
	root := files(
		"proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n", "proc/self/cgroup", "0::/job\n",
		"sys/fs/cgroup/job/memory.max", "1073741824\n", "sys/fs/cgroup/job/memory.current", "268435456\n",
	)
	if got := freeMemory(root); got != 704*mib { // the least that is left alone is more
		t.Errorf("%d MiB are free of 768", got/mib)
	}
	if got := freeMemory(files("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\n")); got != 0 {
		t.Errorf("%d MiB are free of a machine that has none to spare", got/mib)
	}
	if got := freeMemory(files("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n")); got < 56*1024*mib-2048*mib || got > 56*1024*mib {
		t.Errorf("%d MiB are free of a large machine", got/mib)
	}
}
