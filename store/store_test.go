package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func TestWriteSealOpenClose(t *testing.T) {
	r := newRig(t, nil)
	maker, reader := r.client(1), r.client(2)
	id := put(t, maker, 300*kib, 7)
	if id>>48 != 3 {
		t.Errorf("object %x is not of node 3", id)
	}
	views := open(t, reader, id, id)
	for _, v := range views {
		if err := filled(v.Bytes, 300*kib, 7); err != nil {
			t.Error(err)
		}
	}
	s := r.Status()
	if len(s.Objects) != 1 || s.Objects[0].Bytes != 300*kib || s.Objects[0].State != "sealed" || s.Objects[0].Maker != 1 ||
		s.Objects[0].What != "a batch of 7" || len(s.Objects[0].Views) != 1 || s.Objects[0].Views[0].Count != 2 || s.Objects[0].Views[0].Holder != 2 {
		t.Errorf("status: %+v", s)
	}
	r.hold(id)
	r.drop(id)
	if err := filled(views[0].Bytes, 300*kib, 7); err != nil {
		t.Errorf("a view outlives the last handle: %v", err)
	}
	if n := len(r.Status().Objects); n != 1 {
		t.Errorf("%d objects while one is viewed", n)
	}
	views[0].Close()
	views[0].Close()
	views[1].Close()
	r.until("the object to be freed", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Used == 0 && s.Pooled == 320*kib })
	_, err := reader.Open(id)
	wantError(t, err, spec.CodeNotFound, "node 3", "released")

	// What a head lent that was killed before it could tell the end of it.
	id = put(t, maker, kib, 7)
	r.Objects(&wire.Objects{Hold: []uint64{id}, Lent: []wire.Lent{{Object: id, Holder: 9, Count: 1}}})
	r.drop(id)
	r.until("the object to be freed", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 })
}

// The next object of about that size lies in the same pages, for the one who
// has them mapped, and its bytes are its own.
func TestRecycling(t *testing.T) {
	r := newRig(t, nil)
	c, reader := r.client(1), r.client(2)
	kept := open(t, reader, put(t, c, mib, 200))[0]
	r.hold(kept.Object)
	r.drop(kept.Object)
	for i := range 100 {
		size := mib + 3*mib/64*(i%3)
		id := put(t, c, size, byte(i))
		r.hold(id)
		v := open(t, reader, id)[0]
		if err := filled(v.Bytes, size, byte(i)); err != nil {
			t.Fatal(err)
		}
		v.Bytes[0]++
		r.drop(id)
		v.Close()
		r.until("the segment to be free", func(s *wire.StoreStatus) bool { return len(s.Objects) == 1 })
	}
	if err := filled(kept.Bytes, mib, 200); err != nil {
		t.Errorf("a view that was kept: %v", err)
	}
	if s := r.Status(); s.Used+s.Pooled > 5*mib {
		t.Errorf("not recycled: %+v", s)
	}
	c.mu.Lock()
	if len(c.segments) > 4 {
		t.Errorf("%d segments are mapped", len(c.segments))
	}
	c.mu.Unlock()
	kept.Close()
}

func TestGivingUpSegments(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget = 4 * mib })
	c, reader := r.client(1), r.client(2)
	id := put(t, c, 3*mib+slack, 1)
	open(t, reader, id)[0].Close()
	if err := c.Free(id); err != nil {
		t.Fatal(err)
	}
	r.until("it to be pooled", func(s *wire.StoreStatus) bool { return s.Pooled == 3*mib+slack })
	small := put(t, c, mib+mib/4+slack, 2) // does not fit beside it
	s := r.Status()
	if s.Pooled != 0 || s.Used != mib+mib/4+slack {
		t.Errorf("%+v", s)
	}
	if c.mu.Lock(); len(c.segments) != 1 {
		t.Errorf("the maker has %d segments mapped, one is stale", len(c.segments))
	}
	c.mu.Unlock()
	open(t, reader, small)[0].Close()
	if reader.mu.Lock(); len(reader.segments) != 1 {
		t.Errorf("the reader has %d segments mapped, one is stale", len(reader.segments))
	}
	reader.mu.Unlock()
}

func TestSpilling(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget = 4 * mib })
	c, reader := r.client(1), r.client(2)
	var ids []uint64
	for i := range 8 {
		ids = append(ids, put(t, c, mib, byte(i+1)))
	}
	if s := r.Status(); s.Used+s.Pooled > 4*mib || s.Spilled != 4*mib || len(s.Objects) != 8 {
		t.Errorf("%+v", s)
	}
	views := open(t, reader, ids...)
	for i, v := range views {
		if err := filled(v.Bytes, mib, byte(i+1)); err != nil {
			t.Error(i, err)
		}
		v.Bytes[7] = 77
	}
	again := open(t, c, ids...)
	for i, v := range again {
		if err := filled(v.Bytes, mib, byte(i+1)); err != nil {
			t.Error(i, err)
		}
		v.Close()
	}
	for _, v := range views {
		v.Close()
	}
	r.hold(ids...)
	r.drop(ids...)
	r.until("all to be gone", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Spilled == 0 && s.Used == 0 })
	put(t, c, mib, 9)
	put(t, reader, mib, 9)
	for _, c := range []*Client{c, reader} {
		c.mu.Lock()
		for id := range c.segments {
			if r.ledger.segments[id] == nil {
				t.Errorf("segment %d is gone, and still mapped", id)
			}
		}
		c.mu.Unlock()
	}
}

// What the head has told somebody the place of is not spilled; it is asked first,
// and what it lent in the meantime counts.
func TestLentIsNotSpilled(t *testing.T) {
	asked := make(chan uint64, 8)
	r := newRig(t, func(o *Options) {
		o.Budget = 4 * mib
		o.Moving = func(id uint64) { asked <- id }
	})
	c := r.client(1)
	var ids []uint64
	for i := range 4 {
		ids = append(ids, put(t, c, mib, byte(i+1)))
	}
	r.hold(ids...)
	r.Objects(&wire.Objects{Lent: []wire.Lent{{Object: ids[0], Holder: 42, Count: 1}}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, want := range []uint64{ids[1], ids[2]} {
			id := <-asked
			if id != want {
				t.Errorf("object %x was about to be spilled instead of %x", id, want)
			}
			answer := wire.Objects{Moved: []uint64{id}}
			if i == 0 { // this one was just lent
				answer.Lent = []wire.Lent{{Object: id, Holder: 43, Count: 1}}
			}
			r.Objects(&answer)
		}
	}()
	put(t, c, mib, 5)
	<-done
	for _, o := range r.Status().Objects {
		if !slices.Contains(ids, o.Object) {
			continue // the new one, which may not be sealed yet
		}
		want := "sealed"
		if o.Object == ids[2] {
			want = "spilled"
		}
		if o.State != want {
			t.Errorf("object %x is %s", o.Object, o.State)
		}
		if lent := o.Object == ids[0] || o.Object == ids[1]; lent != (len(o.Views) == 1) {
			t.Errorf("object %x is read by %+v", o.Object, o.Views)
		}
	}
	for i, holder := range []uint64{42, 43} {
		r.Objects(&wire.Objects{Lent: []wire.Lent{{Object: ids[i], Holder: holder, Count: -1}}, Drop: ids[i : i+1]})
	}
	r.drop(ids[2:]...)
	r.until("those to be gone", func(s *wire.StoreStatus) bool { return len(s.Objects) == 1 })
}

// An object of no bytes, and one that is sealed shorter than it was asked for.
func TestSizes(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget = mib })
	c := r.client(1)
	empty := put(t, c, 0, 0)
	d, err := c.Alloc(500 * kib)
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Bytes, "short")
	cut := d.Object
	if err := d.Seal(5, ""); err != nil {
		t.Fatal(err)
	}
	wantError(t, d.Seal(5, ""), spec.CodeInvalid)
	big := put(t, c, mib, 3) // spills both
	views := open(t, c, empty, cut, big)
	if len(views[0].Bytes) != 0 || string(views[1].Bytes) != "short" || filled(views[2].Bytes, mib, 3) != nil {
		t.Errorf("got %d bytes, %q, %d bytes", len(views[0].Bytes), views[1].Bytes, len(views[2].Bytes))
	}
	for _, v := range views {
		v.Close()
	}
	object, offsets, err := c.Put("two parts", []byte("one"), []byte("two"))
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, c, object)[0]
	if len(v.Bytes) != 67 || string(v.Bytes[offsets[0]:3]) != "one" || string(v.Bytes[offsets[1]:]) != "two" || offsets[1] != 64 {
		t.Errorf("%q at %v", v.Bytes, offsets)
	}
	v.Close()
	_, err = c.Alloc(mib + 1)
	wantError(t, err, spec.CodeStoreFull, "more than its whole budget of 1 MiB", "MUSTER_STORE_BYTES")
	_, err = c.Alloc(1 << 63)
	wantError(t, err, spec.CodeStoreFull)
	d, err = c.Alloc(10)
	if err != nil {
		t.Fatal(err)
	}
	id := d.Object
	if err := d.Seal(11, "too long"); err != nil {
		t.Fatal(err)
	}
	_, err = c.Open(id)
	wantError(t, err, spec.CodeWorkerDied, "too long", "sealed with 11 bytes, and 10 were asked for")
}

func TestFull(t *testing.T) {
	var holders atomic.Pointer[func([]uint64) []wire.Held]
	r := newRig(t, func(o *Options) {
		o.Budget, o.SpillDir, o.SpillOff = 4*mib+slack, "", "MUSTER_SPILL_DIR is off"
		o.Process = func(pid int) string { return "actor-3" }
		o.Holders = func(_ context.Context, objects []uint64) []wire.Held {
			if ask := holders.Load(); ask != nil {
				return (*ask)(objects)
			}
			return nil
		}
	})
	c := r.client(1)
	read, told := put(t, c, 2*mib, 1), put(t, c, mib, 2)
	put(t, c, mib, 3)
	v := open(t, c, read)[0]
	r.hold(told)
	_, err := c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "the store of node-3 has no room for 1 MiB: 4.06 MiB of its budget of 4.06 MiB are in use", "MUSTER_SPILL_DIR is off",
		"2 MiB, a batch of 1, made by actor-3 0.", "read by actor-3 for 0.", "a handle of it", "not sent yet", "MUSTER_STORE_BYTES", "muster store")
	if e := spec.AsError(err); e.Node != "node-3" {
		t.Errorf("the error is of node %q", e.Node)
	}
	ask := func(objects []uint64) []wire.Held {
		if len(objects) != 3 || objects[0] != read || objects[1] != told {
			t.Errorf("asked who has handles of %x", objects)
		}
		var held []wire.Held
		for _, id := range objects[:2] {
			for i := range 5 {
				held = append(held, wire.Held{Object: id, Holder: fmt.Sprintf("keeper-%d", i), Seconds: 42})
			}
		}
		return append(held, wire.Held{Object: told, Holder: "the script", Seconds: 1}, wire.Held{Object: 77, Holder: "nobody"})
	}
	holders.Store(&ask)
	_, err = c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "1 MiB, a batch of 2, made by actor-3", "held by keeper-0 for 42 s, keeper-1 for 42 s, keeper-2 for 42 s, 3 more",
		"Handles of what is in memory: keeper-0 has 3 MiB in 2 of them; keeper-1 has", "; 2 more")
	v.Close()
}

// waiting asks for room that there is not, until that is waited for; the channel
// tells what came of it.
func (r *rig) waiting(c *Client) <-chan error {
	got := make(chan error, 1)
	go func() {
		d, err := c.Alloc(mib)
		if err == nil {
			d.Discard()
		}
		got <- err
	}()
	r.until("somebody to wait for room", func(*wire.StoreStatus) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.roomy != nil
	})
	return got
}

// Room that comes in time is taken.
func TestRoomComesInTime(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget, o.SpillDir = mib, "" })
	r.fullPatience = patience
	c := r.client(1)
	own := put(t, c, mib, 1)
	got := r.waiting(c)
	if err := c.Free(own); err != nil { // over the very connection that waits
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestSpillIsFull(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Budget, o.SpillLimit = 2*mib, mib })
	c := r.client(1)
	for i := range 3 {
		put(t, c, mib, byte(i))
	}
	_, err := c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "1 MiB of at most 1 MiB are spilled to "+r.opts.SpillDir, "MUSTER_SPILL_BYTES")
}

func TestDiskIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs mounts: CAP_SYS_ADMIN, for a disk that is soon full (%v)", err)
	}
	defer unix.Unmount(dir, 0)
	r := newRig(t, func(o *Options) { o.Budget, o.SpillDir = 2*mib, dir })
	c := r.client(1)
	ids := []uint64{put(t, c, mib, 1), put(t, c, mib, 2)}
	_, err := c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "nothing more can be spilled", dir, "no space left")
	for i, v := range open(t, c, ids...) {
		if err := filled(v.Bytes, mib, byte(i+1)); err != nil {
			t.Error(err)
		}
		v.Close()
	}
	if s := r.Status(); s.Spilled != 0 || s.Used != 2*mib {
		t.Errorf("%+v", s)
	}
}

func TestTheMachineIsShortOfMemory(t *testing.T) {
	var free atomic.Uint64
	free.Store(mib)
	r := newRig(t, func(o *Options) {
		o.SpillDir, o.SpillOff, o.Free = "", "off", free.Load
	})
	c := r.client(1)
	put(t, c, mib, 1)
	free.Store(mib / 2)
	_, err := c.Alloc(mib)
	wantError(t, err, spec.CodeStoreFull, "1 MiB of its budget of 64 MiB are in use", "has 512 KiB of memory to spare")
}

// What is kept for later objects is given back where memory gets short, as much as is
// missing, the longest unused first; what somebody has stays.
func TestMemoryIsGivenBackWhereItIsShort(t *testing.T) {
	var free atomic.Uint64
	free.Store(64 * mib)
	r := newRig(t, func(o *Options) { o.Free, o.Low = free.Load, 32*mib })
	c := r.client(1)
	kept := put(t, c, unit, 1)
	r.hold(kept)
	var ids []uint64
	for i := range byte(4) {
		ids = append(ids, put(t, c, unit, i))
	}
	r.hold(ids...)
	r.drop(ids...)
	capacity := capacity(unit)
	r.until("all to be kept", func(s *wire.StoreStatus) bool { return s.Pooled == 4*capacity })
	free.Store(32*mib - 1)
	r.until("one to be given back, and then the rest", func(s *wire.StoreStatus) bool { return s.Pooled == 0 })
	if s := r.Status(); s.Used != capacity {
		t.Errorf("%d bytes are in use, of %d", s.Used, capacity)
	}
	free.Store(64 * mib)
	views := open(t, c, kept)
	if err := filled(views[0].Bytes, unit, 1); err != nil {
		t.Error(err)
	}
	views[0].Close()
	r.drop(kept)
	r.until("it to be kept", func(s *wire.StoreStatus) bool { return s.Pooled == capacity })
}

func TestWhenToLookAgain(t *testing.T) {
	for left, want := range map[uint64]time.Duration{0: easeSoon, 1: easeSoon, easeRate / 2: 500 * time.Millisecond, never: easeLater} {
		if got := easeWait(left); got != want {
			t.Errorf("with %d bytes left: %v, not %v", left, got, want)
		}
	}
}

// Room that was found is taken by others before there is memory: it is looked for
// again, and what is idle goes to disk for it.
func TestOthersAreQuickerToTakeMemory(t *testing.T) {
	var looks atomic.Int64
	var loses atomic.Bool
	r := newRig(t, func(o *Options) {
		o.Free = func() uint64 { // what is seen first is not there a moment later
			if loses.Load() && looks.Add(1) == 2 {
				return 0
			}
			return 64 * mib
		}
	})
	c := r.client(1)
	put(t, c, mib, 1)
	loses.Store(true)
	put(t, c, mib, 2)
	if looks.Load() < 4 {
		t.Errorf("it was looked for %d times", looks.Load())
	}
}

// A head that comes back is told what there is, and asked again what the one
// before it did not answer.
func TestTheNextHeadIsToldAndAsked(t *testing.T) {
	asked := make(chan uint64, 8)
	r := newRig(t, func(o *Options) {
		o.Budget = 2 * mib
		o.Moving = func(id uint64) { asked <- id }
	})
	c := r.client(1)
	held, loose := put(t, c, mib, 1), put(t, c, mib, 2)
	r.hold(held)
	r.until("both are sealed", func(s *wire.StoreStatus) bool {
		return len(s.Objects) == 2 && s.Objects[0].State == "sealed" && s.Objects[1].State == "sealed"
	})
	back := r.Back()
	if len(back) != 2 || back[0].Object != held || back[0].Held != 1 || back[0].Segment == 0 ||
		back[1].Object != loose || back[1].Held != 0 || back[1].Segment == 0 || back[0].Segment == back[1].Segment {
		t.Fatalf("got %+v", back)
	}
	made := make(chan uint64, 1)
	go func() { made <- put(t, c, mib, 3) }()
	id := <-asked // and the head that was asked is gone
	if at := r.Back(); slices.ContainsFunc(at, func(o wire.ObjectAt) bool { return o.Object == id && o.Segment != 0 }) {
		t.Errorf("the next head is told where an object lies that is on its way: %+v", at)
	}
	r.AskAgain()
	if again := <-asked; again != id {
		t.Errorf("asked for %x, then for %x", id, again)
	}
	r.Objects(&wire.Objects{Moved: []uint64{id}})
	<-made
	r.AskAgain() // nothing waits any more
	select {
	case id := <-asked:
		t.Errorf("asked for %x once more", id)
	default:
	}
}

// Who made an object before gets its memory, if that comes back while it may.
func TestMemoryThatIsAboutToComeBackIsTaken(t *testing.T) {
	r := newRig(t, nil)
	r.reusePatience = func(uint64) time.Duration { return patience }
	c, other := r.client(1), r.client(2)
	own := put(t, c, mib, 1) // the first of all: there is nothing to wait for
	r.hold(own)
	put(t, other, mib, 2) // of somebody else: no more is there
	got := r.waiting(c)
	r.drop(own)
	if err := <-got; err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.ledger.segments); n != 2 {
		t.Errorf("%d segments, not the two of before", n)
	}
}

// What does not come back in time is not waited for, and who keeps what it makes
// waits once.
func TestMemoryThatStaysAwayIsNotWaitedFor(t *testing.T) {
	r := newRig(t, nil)
	var wait atomic.Int64
	wait.Store(int64(time.Millisecond))
	r.reusePatience = func(uint64) time.Duration { return time.Duration(wait.Load()) }
	c := r.client(1)
	r.hold(put(t, c, mib, 1))
	r.hold(put(t, c, mib, 2))
	wait.Store(int64(patience))
	last := put(t, c, mib, 3)
	r.drop(last)
	put(t, c, mib, 4) // in the memory of the last one: it does not keep all
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.ledger.segments); n != 3 {
		t.Errorf("%d segments, not three", n)
	}
	for p := range r.ledger.peers {
		if p.keeps {
			t.Error("it gave memory back, and is taken for one that keeps all")
		}
	}
}

func TestReusePatience(t *testing.T) {
	for size, want := range map[uint64]time.Duration{
		mib:            0,
		64 * mib:       2097152,
		256 * mib:      8388608,
		64 << 30:       50 * time.Millisecond,
		math.MaxUint64: 50 * time.Millisecond,
	} {
		if got := reusePatience(size); got != want {
			t.Errorf("%d bytes: %v, want %v", size, got, want)
		}
	}
}
