package object

import (
	"bytes"
	"errors"
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

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

const (
	patience = 20 * time.Second
	mib      = 1 << 20
	token    = "secret"
)

// rig is the stores of two nodes behind sockets, and a head that only counts.
type rig struct {
	testing.TB
	dir    string
	stores [2]*store.Store
	*Stores
	*Link

	mu    sync.Mutex
	told  []string // what the head heard, in order
	count map[uint64]int
}

func newRig(t testing.TB) *rig {
	t.Helper()
	before := runtime.NumGoroutine()
	dir, err := os.MkdirTemp("", "mo")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, dir: dir, count: map[uint64]int{}}
	var serving sync.WaitGroup
	t.Cleanup(func() { // the last to run
		serving.Wait()
		os.RemoveAll(dir)
		r.until("no mapping and no goroutine is left", func() bool {
			text, _ := os.ReadFile("/proc/self/maps")
			return !strings.Contains(string(text), "memfd:muster") && runtime.NumGoroutine() <= before
		})
	})
	for node := range r.stores {
		s := store.New(store.Options{Node: node, Name: fmt.Sprint("node-", node), Token: token, Budget: 256 * mib})
		r.stores[node] = s
		listener, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("agent-%d.sock", node)))
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() {
			for {
				nc, err := listener.Accept()
				if err != nil {
					return
				}
				serving.Go(func() {
					conn := wire.NewConn(nc)
					if hello, err := wire.ReadHello(conn); err == nil {
						s.Serve(conn, hello)
					}
				})
			}
		})
		t.Cleanup(func() { listener.Close(); s.Close() })
	}
	ours, theirs := net.Pipe()
	head := wire.NewConn(theirs)
	head.SetLimit(wire.MaxFrame)
	serving.Go(func() { r.serveHead(head) })
	r.Stores = NewStores(wire.Welcome{StoreDir: dir, StoreNode: 1, StoreToken: token, Holder: 7})
	r.Link = NewLink(wire.NewConn(ours), r.Stores)
	t.Cleanup(func() {
		r.Stores.Close()
		ours.Close()
	})
	return r
}

// serveHead counts as a head does: New and release.
func (r *rig) serveHead(conn *wire.Conn) {
	for {
		f, err := conn.Read()
		if err != nil {
			return
		}
		r.mu.Lock()
		switch f.Kind {
		case wire.KindCall:
			for i := range f.Bufs {
				if ref, ok := f.Bufs[i].Ref(); ok {
					r.told = append(r.told, fmt.Sprintf("call %d new %v", ref.Object&0xffff, ref.New))
					if ref.New {
						r.count[ref.Object]++
						r.stores[ref.Object>>48].Objects(&wire.Objects{Hold: []uint64{ref.Object}})
					}
				}
			}
		case wire.KindNotice:
			_, body, err := wire.ReadVerb(f.Body)
			var releases wire.Releases
			if err == nil {
				_, err = releases.UnmarshalMsg(body)
			}
			if err != nil {
				r.Error(err)
			}
			for _, o := range releases.Objects {
				r.told = append(r.told, fmt.Sprintf("release %d %d", o.Object&0xffff, o.Count))
				if r.count[o.Object] -= o.Count; r.count[o.Object] == 0 {
					delete(r.count, o.Object)
					r.stores[o.Object>>48].Objects(&wire.Objects{Drop: []uint64{o.Object}})
				}
			}
		}
		r.mu.Unlock()
	}
}

// arrive is a frame from the head that names objects.
func (r *rig) arrive(ids ...uint64) *Set {
	var bufs []wire.Buf
	for _, id := range ids {
		bufs = append(bufs, wire.Ref{Object: id, Length: 3 * mib}.Buf())
	}
	r.mu.Lock()
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		r.count[id]++
		r.stores[id>>48].Objects(&wire.Objects{Hold: []uint64{id}})
	}
	r.mu.Unlock()
	return r.Arrived(bufs)
}

func (r *rig) send(set *Set, objects ...*Object) {
	var bufs []wire.Buf
	for _, o := range objects {
		bufs = append(bufs, wire.Ref{Object: o.ID, Length: 1}.Buf())
	}
	r.Send(set, bufs, func() { r.conn.Send(wire.Header{Kind: wire.KindCall, ID: 1}, []byte{0xc0}, bufs) })
}

func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			r.Fatalf("waited in vain: %s; told %q\n%s", what, r.told, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func (r *rig) hears(want ...string) {
	r.Helper()
	r.until(fmt.Sprint("the head hears ", want), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.told) >= len(want)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.told, want) {
		r.Fatalf("the head heard %q, want %q", r.told, want)
	}
	r.told = nil
}

// empty waits until neither store has anything.
func (r *rig) empty() {
	r.Helper()
	r.until("the stores are empty", func() bool {
		return len(r.stores[0].Status().Objects)+len(r.stores[1].Status().Objects) == 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.count) > 0 {
		r.Errorf("the head still counts %v", r.count)
	}
}

func (r *rig) put(fill byte, size int) *Object {
	r.Helper()
	o, _, err := r.Put("a test", bytes.Repeat([]byte{fill}, size))
	if err != nil {
		r.Fatal(err)
	}
	return o
}

func TestWhatIsMadeIsNewOnce(t *testing.T) {
	r := newRig(t)
	a, b := r.put('a', 100), r.put('b', 100)
	set := NewSet(a, b)
	r.send(set, a, b, a)
	r.send(set, b)
	r.hears("call 1 new true", "call 2 new true", "call 1 new false", "call 2 new false")
	if a.Node() != 1 {
		t.Error("it lies on node", a.Node())
	}
	a.Release()
	b.Release()
	if status := r.stores[1].Status(); len(status.Objects) != 2 {
		t.Errorf("%+v", status)
	}
	set.Release()
	r.empty()
	set.Release()
	if set.Find(a.ID) != nil {
		t.Error("it is still there")
	}
}

func TestWhatWasNeverNamedIsFreed(t *testing.T) {
	r := newRig(t)
	r.put('a', mib).Release()
	r.empty()
	if len(r.told) > 0 {
		t.Error(r.told)
	}
}

func TestWhatArrivedIsGivenBack(t *testing.T) {
	r := newRig(t)
	other, err := store.Dial(r.dir, 0, token, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var ids []uint64
	for _, fill := range []string{"x", "y"} {
		id, _, err := other.Put("theirs", []byte(strings.Repeat(fill, 1000)))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	set := r.arrive(ids[0], ids[1], ids[0])
	again := r.arrive(ids[0])
	x, y := set.Find(ids[0]), set.Find(ids[1])
	set.Release()
	mine := r.put('m', 10)
	mapped, err := Open(x, mine, y)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(mapped[0].Bytes[:2]) + string(mapped[1].Bytes) + string(mapped[2].Bytes[:2]); got != "xxmmmmmmmmmmyy" {
		t.Error(got)
	}
	if _, err := mapped[0].Cut(990, 11); !errors.Is(err, &spec.Error{Code: spec.CodeProtocol}) {
		t.Error(err)
	}
	if b, err := mapped[0].Cut(990, 10); err != nil || len(b) != 10 {
		t.Error(b, err)
	}
	x.Release()
	y.Release()
	mine.Release()
	r.until("both were given back", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.count) == 1 && r.count[ids[0]] == 1
	})
	again.Release()
	for _, m := range mapped {
		if m.Bytes[0] == 0 {
			t.Error("the bytes are gone before their lease")
		}
		m.Close()
		m.Close()
	}
	r.empty()
}

// The collector gives back what nobody released.
func TestGarbageIsGivenBack(t *testing.T) {
	r := newRig(t)
	for range 20 {
		func() {
			o := r.put('g', mib)
			set := NewSet(o)
			r.send(set, o)
			mapped, err := Open(o)
			if err != nil || mapped[0].Bytes[5] != 'g' {
				t.Error(err)
			}
			o.Release()
		}()
	}
	r.until("garbage is found", func() bool {
		runtime.GC()
		return len(r.stores[1].Status().Objects) == 0
	})
	r.empty()
}

// Without the collector being asked by us: large garbage makes it run.
func TestLargeGarbageHasTheCollectorRun(t *testing.T) {
	r := newRig(t)
	for range 40 { // 320 MiB through a store of 256
		o := r.put('g', 8*mib)
		set := NewSet(o)
		r.send(set, o)
		if _, err := Open(o); err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	r.until("garbage is found", func() bool {
		runtime.GC()
		return len(r.stores[1].Status().Objects) == 0
	})
}

func TestClosedStoresSaySo(t *testing.T) {
	r := newRig(t)
	o := r.put('a', 10)
	set := NewSet(o)
	r.send(set, o)
	kept, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Stores.Close()
	if _, err := Open(o); !errors.Is(err, &spec.Error{Code: spec.CodeHeadLost}) || !strings.Contains(err.Error(), "the session is closed") {
		t.Error(err)
	}
	if string(kept[0].Bytes) != "aaaaaaaaaa" {
		t.Error("what was mapped is gone")
	}
	kept[0].Close()
	o.Release()
	set.Release()
	r.stores[1].Objects(&wire.Objects{Gone: []uint64{7}})
}

func TestALostStoreIsDialledAgain(t *testing.T) {
	r := newRig(t)
	far := &Object{ID: 5<<48 | 1, stores: r.Stores}
	for range 2 {
		if _, err := Open(far); !errors.Is(err, &spec.Error{Code: spec.CodeNodeLost}) {
			t.Error(err)
		}
	}
	o := r.put('a', 10)
	defer o.Release()
	// Its end is noticed at the next request, and the one after that dials anew.
	c, err := r.at(1)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	var lost error
	for range 3 {
		p, _, err := r.Put("again", []byte("x"))
		if err != nil {
			lost = err
			continue
		}
		p.Release()
		return
	}
	t.Error("never again:", lost)
}

func TestMissingObjects(t *testing.T) {
	r := newRig(t)
	o := r.put('a', 10)
	defer o.Release()
	gone := &Object{ID: o.ID + 5, stores: r.Stores}
	if _, err := Open(o, gone); !errors.Is(err, &spec.Error{Code: spec.CodeNotFound}) {
		t.Error(err)
	}
	if views := r.stores[1].Status().Objects[0].Views; len(views) > 0 {
		t.Errorf("it still has views: %+v", views)
	}
	var none *Set
	none.Release()
	if none.Find(1) != nil || NewStores(wire.Welcome{}) != nil || (*Stores)(nil).Same(r.Stores) || !r.Stores.Same(&Stores{dir: r.dir}) {
		t.Error("nothing is something")
	}
	if set := r.Arrived(wire.Bytes([]byte("plain"))); set != nil {
		t.Error("a set of nothing")
	}
}
