package muster_test

import (
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
