package ray_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/agent"
	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/backendtest"
	"github.com/muster-rl/muster/backend/ray"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

const patience = 30 * time.Second

// The test binary plays the programs that the backend starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "warden":
			os.Exit(agent.Warden())
		case "agent":
			os.Exit(agent.Main())
		}
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for those: else each ends a second late
	os.Exit(m.Run())
}

func newReaper(t *testing.T) *process.Reaper {
	t.Helper()
	reaper, err := process.NewReaper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reaper.Close)
	return reaper
}

func options(t *testing.T, python, address string) ray.Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "muster") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	source, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	return ray.Options{Address: address, Session: filepath.Base(dir), Dir: dir, LogDir: t.TempDir(), Python: python, Package: source}
}

// theRay is a Ray cluster of two nodes or more, this machine's among them.
func theRay(t *testing.T) (address, python string) {
	t.Helper()
	address, python = os.Getenv("MUSTER_TEST_RAY"), os.Getenv("MUSTER_TEST_RAY_PYTHON")
	if address == "" || python == "" {
		t.Skip("needs ray: MUSTER_TEST_RAY is the address of one with two nodes, MUSTER_TEST_RAY_PYTHON an interpreter that has it")
	}
	return address, python
}

func made(t *testing.T, reaper *process.Reaper, opts ray.Options) *ray.Backend {
	t.Helper()
	b, err := ray.New(reaper, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// farFirst has another node where the suite takes this machine's.
type farFirst struct{ *ray.Backend }

func (b farFirst) Nodes(ctx context.Context) ([]string, error) {
	names, err := b.Backend.Nodes(ctx)
	slices.Reverse(names)
	return names, err
}

func TestConformance(t *testing.T) {
	t.Run("here", func(t *testing.T) {
		conform(t, func(b *ray.Backend) backend.Backend { return b })
	})
	t.Run("far", func(t *testing.T) {
		conform(t, func(b *ray.Backend) backend.Backend { return farFirst{b} })
	})
}

func conform(t *testing.T, as func(*ray.Backend) backend.Backend) {
	t.Helper()
	address, python := theRay(t)
	reaper := newReaper(t)
	backendtest.Run(t, backendtest.Kit{
		New: func(t *testing.T) backend.Backend { return as(made(t, reaper, options(t, python, address))) },
		Left: func(t *testing.T) []string {
			all, err := process.Descendants(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, e := range all {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.Pid))
				left = append(left, fmt.Sprintf("%d %s", e.Pid, strings.ReplaceAll(string(text), "\x00", " ")))
			}
			return left
		},
	})
}

func TestGroupsAreReservedAndGivenBack(t *testing.T) {
	address, python := theRay(t)
	b := made(t, newReaper(t), options(t, python, address))
	ctx := context.Background()
	names, err := b.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := backend.Want{ID: 7, Nodes: len(names), Devices: 2, Patience: patience}
	grant, err := b.Reserve(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if len(grant.Nodes) != len(names) {
		t.Fatalf("got %+v of %v", grant, names)
	}
	for i, n := range grant.Nodes {
		if n.Name != names[i] {
			t.Errorf("node %d of the pool is %s, and of all %s", i, n.Name, names[i])
		}
		if len(n.Devices) != 2 || n.Devices[0] == n.Devices[1] || n.Address == "" {
			t.Errorf("got %+v", n)
		}
	}
	if kept, err := b.Kept(ctx); err != nil || len(kept) != 1 || kept[0] != 7 {
		t.Errorf("kept %v, %v", kept, err)
	}
	_, err = b.Reserve(ctx, backend.Want{ID: 8, Nodes: len(names) + 1, Devices: 1, Patience: patience})
	var told *spec.Error
	if !errors.As(err, &told) || told.Code != spec.CodeResources || !strings.Contains(told.Message, names[0]) {
		t.Errorf("more nodes than there are: %v", err)
	}
	if err := b.Release(ctx, 7); err != nil {
		t.Error(err)
	}
	if kept, err := b.Kept(ctx); err != nil || len(kept) != 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

// A head that was killed leaves its bridge to the next one.
func TestTheNextHeadFindsTheBridge(t *testing.T) {
	address, python := theRay(t)
	reaper := newReaper(t)
	opts := options(t, python, address)
	opts.Grace = patience
	first := made(t, reaper, opts)
	ctx := context.Background()
	if _, err := first.Reserve(ctx, backend.Want{ID: 3, Nodes: 1, Devices: 1, Patience: patience}); err != nil {
		t.Fatal(err)
	}
	first.Abandon()
	second := made(t, reaper, opts)
	if kept, err := second.Kept(ctx); err != nil || len(kept) != 1 || kept[0] != 3 {
		t.Errorf("the next one finds %v, %v", kept, err)
	}
}

func TestAClientsAddressIsRefused(t *testing.T) {
	_, err := ray.New(nil, ray.Options{Address: "ray://10.0.0.1:10001"})
	if err == nil || !strings.Contains(err.Error(), "6379") {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeJoined(t *testing.T) {
	python := anyPython(t)
	reaper := newReaper(t)
	for _, c := range []struct{ python, address, want string }{
		{"/no/such/python", "127.0.0.1:1", "/no/such/python"},
		{python, "127.0.0.1:1", "no Ray at 127.0.0.1:1"},
	} {
		b := made(t, reaper, options(t, c.python, c.address))
		_, err := b.Nodes(context.Background())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v", c.python, c.address, err)
		}
	}
}

func anyPython(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../build/venv/bin/python")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skip("needs python: there is no build/venv, which make venv makes")
	}
	return path
}
