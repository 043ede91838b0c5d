// Package objecttest has the stores of two nodes behind sockets, and a head that
// only counts, for tests of what is built over package object.
package objecttest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

const (
	patience = 20 * time.Second
	token    = "secret"
	budget   = 256 << 20
)

// Rig is a process with a link to a head, and stores. It fails the test that
// leaves a mapping or a goroutine.
type Rig struct {
	testing.TB
	Dir    string
	Stores [2]*store.Store // the process puts into that of node 1
	Conn   *wire.Conn      // the process's connection to the head
	Link   *object.Link

	serving   sync.WaitGroup
	listeners [2]net.Listener

	mu    sync.Mutex
	told  []string // what the head heard, in order
	count map[uint64]int
}

// New makes a rig for a test; others are those that the test has already. The
// first of them looks for what is left when all are gone.
func New(t testing.TB, others ...*Rig) *Rig {
	t.Helper()
	before := runtime.NumGoroutine()
	dir, err := os.MkdirTemp("", "mo")
	if err != nil {
		t.Fatal(err)
	}
	r := &Rig{TB: t, Dir: dir, count: map[uint64]int{}}
	t.Cleanup(func() { // the last to run
		r.serving.Wait()
		_ = os.RemoveAll(dir)
		if len(others) > 0 {
			return
		}
		r.Until("no mapping and no goroutine is left", func() bool {
			text, _ := os.ReadFile("/proc/self/maps")
			return !strings.Contains(string(text), "memfd:muster") && runtime.NumGoroutine() <= before
		})
	})
	for node := range r.Stores {
		r.Start(node)
		t.Cleanup(func() { r.Stop(node) })
	}
	ours, theirs := net.Pipe()
	head := wire.NewConn(theirs)
	head.SetLimit(wire.MaxFrame)
	r.serving.Go(func() { r.serveHead(head) })
	r.Conn = wire.NewConn(ours)
	stores := object.NewStores(wire.Welcome{StoreDir: dir, StoreNode: 1, StoreToken: token, Holder: 7})
	r.Link = object.NewLink(r.Conn, stores)
	t.Cleanup(func() {
		stores.Close()
		_ = ours.Close()
	})
	return r
}

// Start starts the store of a node.
func (r *Rig) Start(node int) {
	r.Helper()
	listener, err := net.Listen("unix", filepath.Join(r.Dir, fmt.Sprintf("agent-%d.sock", node)))
	if err != nil {
		r.Fatal(err)
	}
	s := store.New(store.Options{Node: node, Name: fmt.Sprint("node-", node), Token: token, Budget: budget})
	r.Stores[node], r.listeners[node] = s, listener
	r.serving.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			r.serving.Go(func() {
				conn := wire.NewConn(nc)
				if hello, err := wire.ReadHello(conn); err == nil {
					s.Serve(conn, hello)
				}
			})
		}
	})
}

// Stop ends the store of a node.
func (r *Rig) Stop(node int) {
	r.listeners[node].Close()
	r.Stores[node].Close()
}

// serveHead counts as a head does: New and release.
func (r *Rig) serveHead(conn *wire.Conn) {
	for {
		f, err := conn.Read()
		if err != nil {
			return
		}
		switch f.Kind {
		case wire.KindCall:
			r.called(f.Bufs)
		case wire.KindNotice:
			_, body, err := wire.ReadVerb(f.Body)
			var releases wire.Releases
			if err == nil {
				_, err = releases.UnmarshalMsg(body)
			}
			if err != nil {
				r.Error(err)
			}
			r.released(releases)
		}
	}
}

func (r *Rig) called(bufs []wire.Buf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range bufs {
		ref, ok := bufs[i].Ref()
		if !ok {
			continue
		}
		r.told = append(r.told, fmt.Sprintf("call %d new %v", ref.Object&0xffff, ref.New))
		if ref.New {
			r.holdLocked(ref.Object)
		}
	}
}

func (r *Rig) holdLocked(id uint64) {
	r.count[id]++
	r.Stores[id>>48].Objects(&wire.Objects{Hold: []uint64{id}})
}

// Told has the head count what a link that came back says, and nothing else.
func (r *Rig) Told(objects []wire.Released) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.count
	r.count = map[uint64]int{}
	for _, o := range objects {
		r.holdLocked(o.Object)
		r.count[o.Object] = o.Count
	}
	for id := range before {
		if r.count[id] == 0 {
			r.Stores[id>>48].Objects(&wire.Objects{Drop: []uint64{id}})
		}
	}
}

func (r *Rig) released(releases wire.Releases) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range releases.Lent {
		r.told = append(r.told, fmt.Sprintf("lent %d %d", o.Object&0xffff, o.Count))
	}
	for _, o := range releases.Objects {
		r.told = append(r.told, fmt.Sprintf("release %d %d", o.Object&0xffff, o.Count))
		if r.count[o.Object] -= o.Count; r.count[o.Object] == 0 {
			delete(r.count, o.Object)
			r.Stores[o.Object>>48].Objects(&wire.Objects{Drop: []uint64{o.Object}})
		}
	}
}

// Other is a connection of another process to the store of node 0.
func (r *Rig) Other() *store.Client {
	r.Helper()
	c, err := store.Dial(r.Dir, 0, token, 9)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

// Arrive is a frame from the head with these buffers.
func (r *Rig) Arrive(bufs ...wire.Buf) *object.Set {
	r.sent(bufs)
	return r.Link.Arrived(bufs)
}

// Leg is Arrive for a leg.
func (r *Rig) Leg(bufs ...wire.Buf) *object.Set {
	r.sent(bufs)
	return r.Link.Lent(bufs)
}

// sent counts what a frame from the head names.
func (r *Rig) sent(bufs []wire.Buf) {
	var ids []uint64
	for i := range bufs {
		if bufs[i].Object != 0 {
			ids = append(ids, bufs[i].Object)
		}
	}
	slices.Sort(ids)
	r.mu.Lock()
	for _, id := range slices.Compact(ids) {
		r.holdLocked(id)
	}
	r.mu.Unlock()
}

// Send sends a call with these buffers, whose objects are in the set.
func (r *Rig) Send(set *object.Set, bufs ...wire.Buf) {
	r.Link.Send(set, bufs, func() { r.Conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0xc0}, bufs) })
}

// Until waits for what nobody tells of.
func (r *Rig) Until(what string, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.Fatalf("waited in vain: %s; the head was told %q, the stores have %+v, %+v\n%s",
				what, r.told, r.Stores[0].Status().Objects, r.Stores[1].Status().Objects, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// Hears checks what the head was told since the last time, in order.
func (r *Rig) Hears(want ...string) {
	r.Helper()
	r.Until(fmt.Sprint("the head hears ", want), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.told) >= len(want)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.told, want) {
		r.Errorf("the head heard %q, want %q", r.told, want)
	}
	r.told = nil
}

// Counts is how often the head counts the process, over all objects.
func (r *Rig) Counts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, count := range r.count {
		n += count
	}
	return n
}

// Objects is how many there are in both stores.
func (r *Rig) Objects() int {
	return len(r.Stores[0].Status().Objects) + len(r.Stores[1].Status().Objects)
}

// Empty waits until the stores are.
func (r *Rig) Empty() {
	r.Helper()
	r.Until("the stores are empty, and the head counts nothing", func() bool { return r.Objects() == 0 && r.Counts() == 0 })
}

// Collected is Empty for what only the collector gives back.
func (r *Rig) Collected() {
	r.Helper()
	r.Until("all garbage is given back", func() bool {
		runtime.GC()
		return r.Objects() == 0 && r.Counts() == 0
	})
}
