package object_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/object/objecttest"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const mib = 1 << 20

func put(r *objecttest.Rig, fill byte, size int) *object.Object {
	r.Helper()
	o, _, err := r.Link.Stores().Put("a test", bytes.Repeat([]byte{fill}, size))
	if err != nil {
		r.Fatal(err)
	}
	return o
}

func ref(id uint64) wire.Buf { return wire.Ref{Object: id, Length: 1000}.Buf() }

func TestWhatIsMadeIsNewOnce(t *testing.T) {
	r := objecttest.New(t)
	a, b := put(r, 'a', 100), put(r, 'b', 100)
	set := object.NewSet(a, b)
	r.Send(set, ref(a.ID), ref(b.ID), ref(a.ID))
	r.Send(set, ref(b.ID))
	r.Hears("call 1 new true", "call 2 new true", "call 1 new false", "call 2 new false")
	if a.Node() != 1 {
		t.Error("it lies on node", a.Node())
	}
	a.Release()
	b.Release()
	if r.Objects() != 2 {
		t.Error("it is gone while it is in a set")
	}
	set.Release()
	r.Empty()
	set.Release()
	set.Add(a)
	if set.Find(a.ID) != nil {
		t.Error("a released set holds something")
	}
}

// What came by one connection and was last named over another, where nobody
// answers, is given back behind that.
func TestOneWayLinks(t *testing.T) {
	r := objecttest.New(t)
	id, _, err := r.Other().Put("theirs", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	set := r.Arrive(ref(id))
	theirs, mine := set.Find(id), put(r, 'm', 10)
	ours, head := net.Pipe()
	defer ours.Close()
	told := make(chan string, 9)
	go func() {
		defer close(told)
		for conn := wire.NewConn(head); ; {
			f, err := conn.Read()
			if err != nil {
				return
			}
			told <- fmt.Sprint(f.Kind, len(f.Bufs))
		}
	}()
	conn := wire.NewConn(ours)
	l := object.NewOneWayLink(conn, r.Link.Stores())
	both := object.NewSet(theirs, mine)
	bufs := []wire.Buf{ref(id), ref(mine.ID)}
	l.Send(both, bufs, func() { conn.Send(wire.Header{Kind: wire.KindResult}, []byte{0xc0}, bufs) })
	for _, o := range []interface{ Release() }{set, both, theirs, mine} {
		o.Release()
	}
	if first, second := <-told, <-told; first != fmt.Sprint(wire.KindResult, 2) || second != fmt.Sprint(wire.KindNotice, 0) {
		t.Error(first, second)
	}
	r.Hears()
	ours.Close()
	for range told {
	}
}

// A link that was cut tells the next head what is known of, and only that.
func TestLinksComeBack(t *testing.T) {
	r := objecttest.New(t)
	a, b, c := put(r, 'a', 100), put(r, 'b', 100), put(r, 'c', 100)
	set := object.NewSet(a, b, c)
	r.Send(set, ref(a.ID), ref(b.ID))
	r.Link.Away()
	id, _, err := r.Other().Put("theirs", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Link.Send(set, []wire.Buf{ref(c.ID)}, func() {}) // while there is nobody to tell
	both := object.NewSet(a, c)
	for _, o := range []interface{ Release() }{a, b, c, set} {
		o.Release() // of b nobody is told
	}
	arrived, more := r.Link.Arrived([]wire.Buf{ref(id)}), r.Link.Arrived([]wire.Buf{ref(id)})
	r.Link.Back(r.Conn, func(objects []wire.Released) {
		want := []wire.Released{{Object: id, Count: 2}, {Object: a.ID, Count: 1}, {Object: c.ID, Count: 1}}
		if !reflect.DeepEqual(objects, want) {
			t.Error(objects, "; want", want)
		}
		r.Told(objects)
	})
	r.Hears("call 1 new true", "call 2 new true")
	shared := both.Share()
	both.Release()
	arrived.Release()
	more.Release()
	shared.Release()
	r.Empty()
}

func TestWhatWasNeverNamedIsFreed(t *testing.T) {
	r := objecttest.New(t)
	put(r, 'a', mib).Release()
	r.Empty()
	r.Hears()
}

func TestWhatArrivedIsGivenBack(t *testing.T) {
	r := objecttest.New(t)
	other := r.Other()
	var ids []uint64
	for _, fill := range []string{"x", "y"} {
		id, _, err := other.Put("theirs", []byte(strings.Repeat(fill, 1000)))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	set := r.Arrive(ref(ids[0]), ref(ids[1]), wire.Buf{Data: []byte("plain")}, ref(ids[0]))
	again := r.Arrive(ref(ids[0]))
	x, y := set.Find(ids[0]), set.Find(ids[1])
	set.Release()
	mine := put(r, 'm', 10)
	mapped, err := object.Open(x, mine, y)
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
	r.Until("one credit is left", func() bool { return r.Counts() == 1 })
	again.Release()
	r.Until("none is", func() bool { return r.Counts() == 0 })
	for _, m := range mapped {
		if m.Bytes[0] == 0 {
			t.Error("the bytes are gone before their lease")
		}
		m.Close()
		m.Close()
	}
	r.Empty()
}

// The collector gives back what nobody released.
func TestGarbageIsGivenBack(t *testing.T) {
	r := objecttest.New(t)
	for range 20 {
		o := put(r, 'g', mib)
		set := object.NewSet(o)
		r.Send(set, ref(o.ID))
		mapped, err := object.Open(o)
		if err != nil || mapped[0].Bytes[5] != 'g' {
			t.Error(err)
		}
		o.Release()
	}
	r.Collected()
}

// Nobody asks for it: much garbage makes the collector run.
func TestMuchGarbageHasTheCollectorRun(t *testing.T) {
	r := objecttest.New(t)
	for range 40 { // 320 MiB through a store of 256
		o := put(r, 'g', 8*mib)
		r.Send(object.NewSet(o), ref(o.ID))
		if _, err := object.Open(o); err != nil {
			t.Fatal(err)
		}
		o.Release()
	}
	r.Collected()
}

func TestClosedStoresSaySo(t *testing.T) {
	r := objecttest.New(t)
	o := put(r, 'a', 10)
	set := object.NewSet(o)
	r.Send(set, ref(o.ID))
	kept, err := object.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Link.Stores().Close()
	if _, err := object.Open(o); !errors.Is(err, &spec.Error{Code: spec.CodeHeadLost}) || !strings.Contains(err.Error(), "the session is closed") {
		t.Error(err)
	}
	if string(kept[0].Bytes) != "aaaaaaaaaa" {
		t.Error("what was mapped is gone")
	}
	kept[0].Close()
	o.Release()
	set.Release()
	r.Until("it was given back", func() bool { return r.Counts() == 0 })
}

func TestALostStoreIsDialledAgain(t *testing.T) {
	r := objecttest.New(t)
	put(r, 'a', 10).Release()
	r.Stop(1)
	for range 2 {
		if _, _, err := r.Link.Stores().Put("lost", []byte("x")); !errors.Is(err, &spec.Error{Code: spec.CodeNodeLost}) {
			t.Error(err)
		}
	}
	r.Start(1)
	put(r, 'a', 10).Release()
	r.Empty()
}

func TestMissingObjects(t *testing.T) {
	r := objecttest.New(t)
	o := put(r, 'a', 10)
	defer o.Release()
	set := r.Link.Arrived([]wire.Buf{ref(o.ID + 5)})
	gone := set.Find(o.ID + 5)
	if _, err := object.Open(o, gone); !errors.Is(err, &spec.Error{Code: spec.CodeNotFound}) {
		t.Error(err)
	}
	if views := r.Stores[1].Status().Objects[0].Views; len(views) > 0 {
		t.Errorf("it still has views: %+v", views)
	}
	gone.Release()
	set.Release()
}

func TestNothing(t *testing.T) {
	var none *object.Set
	none.Release()
	var no *object.Stores
	no.Close()
	stores := object.NewStores(wire.Welcome{StoreDir: "a"})
	if none.Find(1) != nil || object.NewStores(wire.Welcome{}) != nil || no.Same(stores) || !no.Same(nil) || !stores.Same(object.NewStores(wire.Welcome{StoreDir: "a"})) {
		t.Error("nothing is something")
	}
	l := object.NewLink(nil, stores)
	if l.Arrived(wire.Bytes([]byte("plain"))) != nil {
		t.Error("a set of nothing")
	}
}
