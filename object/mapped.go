package object

import (
	"runtime"
	"sync/atomic"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
)

// Mapped is the bytes of an object, leased until Close, or until nothing can
// reach the Mapped itself any more: the bytes alone do not keep it. What is
// written to them stays in this process.
type Mapped struct {
	Bytes []byte
	view  *view
}

// view is apart from Mapped, so that it can outlive it.
type view struct {
	*store.View
	stores *Stores
	size   uint64
	closed atomic.Bool
}

func (v *view) close() {
	if v.closed.CompareAndSwap(false, true) {
		v.View.Close()
		v.stores.held.remove(v.size)
	}
}

// collect is close by the collector.
func (v *view) collect() {
	if !v.closed.Load() {
		v.stores.held.garbage()
	}
	v.close()
}

// Close ends the lease; Bytes must not be used any more. It may be called again.
func (m *Mapped) Close() {
	m.view.close()
	runtime.KeepAlive(m)
}

// place is a store that objects are read in.
type place struct {
	stores *Stores
	node   int
}

// Open maps objects, all or none, by one request to each store that they are in.
// The caller has a use of each.
func Open(objects ...*Object) (all []*Mapped, err error) {
	all = make([]*Mapped, len(objects))
	at := map[place][]int{}
	for i, o := range objects {
		p := place{o.stores, o.stores.reach(o)}
		at[p] = append(at[p], i)
	}
	for p, some := range at {
		ids := make([]uint64, len(some))
		for i, which := range some {
			ids[i] = objects[which].ID
		}
		err = p.stores.with(p.node, func(c *store.Client) error {
			views, err := c.Open(ids...)
			for i, v := range views {
				all[some[i]] = p.stores.mapped(v)
			}
			return err
		})
		if err != nil {
			break
		}
	}
	if err == nil {
		return all, nil
	}
	for _, m := range all {
		if m != nil {
			m.Close()
		}
	}
	return nil, err
}

func (s *Stores) mapped(v *store.View) *Mapped {
	m := &Mapped{Bytes: v.Bytes, view: &view{View: v, stores: s, size: uint64(len(v.Bytes))}}
	runtime.AddCleanup(m, (*view).collect, m.view)
	s.held.add(m.view.size)
	return m
}

// Cut is the bytes that a reference of that offset and length stands for.
func (m *Mapped) Cut(offset, length uint64) ([]byte, error) {
	size := uint64(len(m.Bytes))
	if offset > size || length > size-offset {
		return nil, spec.Errorf(spec.CodeProtocol, "a reference to bytes %d to %d of an object of %d", offset, offset+length, size)
	}
	return m.Bytes[offset : offset+length : offset+length], nil
}
