package store

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	patience = 20 * time.Second
	kib      = 1 << 10
	mib      = 1 << 20
	unit     = mib + slack // exactly a segment
	token    = "secret"
)

// rig is a store behind a socket, as an agent has it.
type rig struct {
	testing.TB
	*Store
	dir string
}

func newRig(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	leakCheck(t)
	dir, err := os.MkdirTemp("", "ms")
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Node: 3, Name: "node-3", Token: token, Budget: 64 * mib, SpillDir: t.TempDir(), SpillLimit: 256 * mib}
	if change != nil {
		change(&opts)
	}
	r := &rig{TB: t, Store: New(opts), dir: dir}
	r.spillPatience, r.fullPatience = time.Millisecond, 10*time.Millisecond
	listener, err := net.Listen("unix", filepath.Join(dir, "agent-3.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				conn := wire.NewConn(nc)
				hello, err := wire.ReadHello(conn)
				if err != nil {
					wire.Refuse(conn, spec.AsError(err))
					return
				}
				r.Serve(conn, hello)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.Close()
		serving.Wait()
		os.RemoveAll(dir)
		if left, _ := os.ReadDir(opts.SpillDir); len(left) > 0 {
			t.Errorf("files are left in the spill folder: %v", left)
		}
	})
	return r
}

// client is a connection that ends with the test.
func (r *rig) client(holder uint64) *Client {
	r.Helper()
	c, err := Dial(r.dir, 3, token, holder)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

// until waits for the store to be as wanted; it has no events of its own.
func (r *rig) until(what string, ok func(s *wire.StoreStatus) bool) {
	r.Helper()
	deadline := time.Now().Add(patience)
	for {
		s := r.Status()
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("waited in vain for %s; the store has %+v", what, s)
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) hold(ids ...uint64) { r.Objects(&wire.Objects{Hold: ids}) }
func (r *rig) drop(ids ...uint64) { r.Objects(&wire.Objects{Drop: ids}) }

// put writes an object full of one byte.
func put(t testing.TB, c *Client, size int, fill byte) uint64 {
	t.Helper()
	d, err := c.Alloc(uint64(size))
	if err != nil {
		t.Fatal(err)
	}
	for i := range d.Bytes {
		d.Bytes[i] = fill
	}
	id := d.Object
	if err := d.Seal(uint64(size), fmt.Sprintf("a batch of %d", fill)); err != nil {
		t.Fatal(err)
	}
	return id
}

func open(t testing.TB, c *Client, ids ...uint64) []*View {
	t.Helper()
	views, err := c.Open(ids...)
	if err != nil {
		t.Fatal(err)
	}
	return views
}

// filled says whether all bytes are what they should be.
func filled(b []byte, size int, fill byte) error {
	if len(b) != size {
		return fmt.Errorf("%d bytes, not %d", len(b), size)
	}
	for i := range b {
		if b[i] != fill {
			return fmt.Errorf("byte %d of %d is %d, not %d", i, len(b), b[i], fill)
		}
	}
	return nil
}

func wantError(t testing.TB, err error, code spec.Code, words ...string) {
	t.Helper()
	if err == nil || spec.AsError(err).Code != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err.Error(), w)
		}
	}
}

// leakCheck fails the test when it leaves descriptors, mappings of segments or
// goroutines.
func leakCheck(t testing.TB) {
	t.Helper()
	if warm, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		warm.Close() // has the runtime open what it polls by
	}
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(patience)
		for {
			fds, maps, now := descriptors(t), mappings(t), runtime.NumGoroutine()
			if fds <= before && maps == 0 && now <= goroutines {
				return
			}
			if time.Now().After(deadline) {
				stacks := make([]byte, 64*kib)
				t.Errorf("left: %d descriptors of %d before, %d mappings, %d goroutines of %d before\n%s",
					fds, before, maps, now, goroutines, stacks[:runtime.Stack(stacks, true)])
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func descriptors(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func mappings(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "memfd:muster")
}
