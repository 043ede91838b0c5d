package muster_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/muster-rl/muster"
)

const counting = `
class Counter:
    def __init__(self, start, step=1):
        self.value, self.step = start, step
    def size(self):
        return len(self.value)
    def add(self, times=1):
        self.value += self.step * times
        return self.value
`

// A service in Python, asked for by several at once in Go.
func TestServices(t *testing.T) {
	interpreter := python(t)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "counting.py"), []byte(counting), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, muster.Options{Virtual: "1x1", Python: interpreter})
	ctx := testContext(t)
	config := muster.ClusterConfig{Name: "counter", Class: "counting.Counter", PyModules: []string{folder}}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := s.Service(ctx, config, 10, muster.Kwargs{"step": 2}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c, err := s.GetService(ctx, "counter")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := muster.RankZero[int](ctx, c, "add", 3); err != nil || n != 16 {
		t.Error(n, err)
	}
	if err := c.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	_, err = s.GetService(ctx, "counter")
	code(t, err, muster.CodeNotFound, `no service "counter"`)
	_, err = s.Service(ctx, config, muster.Kwargs{"begin": 2})
	code(t, err, muster.CodeUser, "begin")
	_, err = s.Service(ctx, muster.ClusterConfig{Name: "x", Command: []string{"/bin/true"}})
	code(t, err, muster.CodeInvalid, "service x", "needs a Class")
}

// What is large of what workers are made with lies in the store, for as long as
// one may have to be made of it again.
func TestLargeConfigs(t *testing.T) {
	interpreter := python(t)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "counting.py"), []byte(counting), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, virtual := range []string{"2x1", "2x1+net"} {
		t.Run(virtual, func(t *testing.T) {
			s := start(t, muster.Options{Virtual: virtual, Python: interpreter})
			ctx := testContext(t)
			large := bytes.Repeat([]byte{3}, 4<<20)
			c, err := s.Service(ctx, muster.ClusterConfig{Name: "large", Class: "counting.Counter", PyModules: []string{folder}}, large)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := muster.RankZero[int](ctx, c, "size"); err != nil || n != len(large) {
				t.Error(n, err)
			}
			if err := c.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			s.empty(true)
			pool := get[*muster.Pool](t)(s.Pool(ctx, 2, 1))
			g := s.cluster("go", muster.ClusterConfig{
				Pool: pool, Devices: "0-1", OnFailure: "restart_worker", MaxRestarts: 10, Config: map[string]any{"label": "x", "weights": large},
			})
			want := fmt.Sprint([][]int{{len(large), 3, 3}, {len(large), 3, 3}})
			for range 2 {
				if got, err := muster.All[[]int](ctx, g, "weights"); err != nil || fmt.Sprint(got) != want {
					t.Fatal(got, err)
				}
				_, _ = muster.All[any](ctx, g, "die")
				eventually(t, "both are back", func() (bool, string) {
					at, err := muster.All[int](ctx, g, "first")
					return err == nil && len(at) == 2, fmt.Sprint(at, err)
				})
			}
			if err := g.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			s.empty(true)
		})
	}
}
