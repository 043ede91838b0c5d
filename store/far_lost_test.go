package store

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-rl/muster/spec"
)

// Who has a copy serves it when the node that the object is of is lost.
func TestALostSource(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		f := newFarRig(t, farOptions{nodes: 3, tls: tls})
		id, content := f.put(0, 3*ChunkSize)
		other, _ := f.put(0, 3*ChunkSize)
		f.same(f.client(1, 7), id, content)
		c := f.client(2, 8)
		views, err := c.OpenSome(other)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.hosts[0].server.Close()
		f.lose(0)
		f.same(c, id, content)
		wantError(t, views[0].Need(0, 3*ChunkSize), spec.CodeNodeLost, "node-0 is lost", "node-2", "node 0")
		views[0].Close()
		_, err = c.Open(other)
		wantError(t, err, spec.CodeNodeLost, "node-0 is lost")
		f.drop(id)
		f.drop(other)
		f.empty()
	})
}

// One that is away for a moment is waited for; one that stays away is not, and
// the error says who and where.
func TestASourceThatCannotBeReached(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	id, content := f.put(0, 3*ChunkSize)
	f.mu.Lock()
	address := f.hosts[0].address
	f.hosts[0].address = "127.0.0.1:1"
	f.mu.Unlock()
	c := f.client(1, 7)
	opened := make(chan error, 1)
	go func() {
		views, err := c.Open(id)
		if err == nil {
			views[0].Close()
		}
		opened <- err
	}()
	f.waitAsked(3)
	f.mu.Lock()
	f.hosts[0].address = address
	f.mu.Unlock()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	f.same(c, id, content)
	f.drop(id)
	f.empty()
}

// One that stays away is given up after a while.
func TestASourceThatIsNotThere(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	f.hosts[1].farPatience = 50 * time.Millisecond
	id, _ := f.put(0, 100)
	f.mu.Lock()
	f.hosts[0].address = "127.0.0.1:1"
	f.mu.Unlock()
	_, err := f.client(1, 7).Open(id)
	wantError(t, err, spec.CodeNodeLost, "node-0 (at 127.0.0.1:1)", "refused", "node-1")
	f.drop(id)
	f.empty()
}

// One that fails after a while is not asked for ever.
func TestASourceThatFailsHalfWay(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	f.hosts[1].farPatience = 50 * time.Millisecond
	id, _ := f.put(0, 8*ChunkSize)
	var n atomic.Int64
	f.hosts[0].spoiled(func(w http.ResponseWriter, _ *http.Request) bool {
		if n.Add(1) <= 4 {
			return false
		}
		http.Error(w, "out of order", http.StatusInternalServerError)
		return true
	})
	_, err := f.client(1, 7).Open(id)
	wantError(t, err, spec.CodeNodeLost, "out of order", "node-0", "node-1")
	f.drop(id)
	f.empty()
}

// A node that answers and then says nothing more is asked again.
func TestASourceThatStalls(t *testing.T) {
	both(t, func(t *testing.T, tls bool) {
		f := newFarRig(t, farOptions{nodes: 2, tls: tls})
		f.hosts[1].peering.stall = 100 * time.Millisecond
		id, content := f.put(0, 3*ChunkSize)
		var n atomic.Int64
		f.hosts[0].spoiled(func(_ http.ResponseWriter, r *http.Request) bool {
			if n.Add(1) != 2 {
				return false
			}
			<-r.Context().Done()
			return true
		})
		f.same(f.client(1, 7), id, content)
		f.drop(id)
		f.empty()
	})
}

// What a head was asked that is gone, the next one is asked again.
func TestAHeadThatComesBack(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	id, _ := f.put(0, 3*ChunkSize)
	f.mu.Lock()
	f.silent = true
	f.mu.Unlock()
	c := f.client(1, 7)
	opened := make(chan error, 1)
	go func() {
		views, err := c.Open(id)
		if err == nil {
			views[0].Close()
		}
		opened <- err
	}()
	f.waitAsked(1)
	f.mu.Lock()
	f.silent = false
	f.mu.Unlock()
	f.hosts[1].AskAgain()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if copies := f.hosts[1].Copies(); len(copies) != 1 || copies[0].Object != id || copies[0].Runs[0].To != 3 {
		t.Errorf("%+v", copies)
	}
	if back := f.hosts[1].Back(); len(back) != 0 {
		t.Errorf("copies are told as objects: %+v", back)
	}
	f.drop(id)
	f.empty()
}

// Nobody waits any more for what is on its way: it is given up.
func TestDroppedOnItsWay(t *testing.T) {
	f := newFarRig(t, farOptions{nodes: 2})
	id, _ := f.put(0, 20*ChunkSize)
	var n atomic.Int64
	stuck := make(chan struct{})
	f.hosts[0].spoiled(func(http.ResponseWriter, *http.Request) bool {
		if n.Add(1) > 3 {
			<-stuck
			panic(http.ErrAbortHandler)
		}
		return false
	})
	c := f.client(1, 7)
	views, err := c.OpenSome(id)
	if err != nil {
		t.Fatal(err)
	}
	needed := make(chan error, 1)
	go func() { needed <- views[0].Need(0, 20*ChunkSize) }()
	for n.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	c.Close() // its process lives on, so its view does; the test's rig ends that
	<-needed
	views[0].Close()
	f.hosts[1].mu.Lock()
	for p := range f.hosts[1].ledger.peers {
		for id, v := range p.views {
			f.hosts[1].ledger.unview(p, id, v.count)
		}
	}
	f.hosts[1].unlock()
	f.drop(id)
	close(stuck)
	f.empty()
}
