package store

import (
	"testing"

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
}
