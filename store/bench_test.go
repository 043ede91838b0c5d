package store

import (
	"fmt"
	"runtime"
	"testing"
)

// One object's life, as a client sees it: two round trips and three notices.
func BenchmarkObject(b *testing.B) {
	r := newRig(b, nil)
	c, reader := r.client(1), r.client(2)
	b.ReportAllocs()
	for b.Loop() {
		d, err := c.Alloc(mib)
		if err != nil {
			b.Fatal(err)
		}
		id := d.Object
		if err := d.Seal(mib, "a batch"); err != nil {
			b.Fatal(err)
		}
		views, err := reader.Open(id)
		if err != nil {
			b.Fatal(err)
		}
		views[0].Close()
		if err := c.Free(id); err != nil {
			b.Fatal(err)
		}
	}
}

// Bytes into an object: pages that are there already against fresh ones.
func BenchmarkPut(b *testing.B) {
	part := make([]byte, 64*mib)
	for _, recycled := range []bool{true, false} {
		b.Run(fmt.Sprintf("recycled=%v", recycled), func(b *testing.B) {
			r := newRig(b, func(o *Options) { o.Budget = 256 * mib })
			c := r.client(1)
			b.SetBytes(int64(len(part)))
			for b.Loop() {
				id, _, err := c.Put("", part)
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Free(id); err != nil {
					b.Fatal(err)
				}
				if !recycled {
					for len(r.Status().Objects) > 0 {
						runtime.Gosched() // until it is free
					}
					r.mu.Lock()
					for r.ledger.pool.Len() > 0 {
						r.ledger.giveUpOldest()
					}
					r.unlock()
				}
			}
		})
	}
}

// The ledger alone.
func BenchmarkLedger(b *testing.B) {
	l := newLedger(0, 1<<30, 0, 100)
	p := l.join(1, 1)
	if next := l.room(p, mib, never, false, 0); next.fresh {
		l.made(next.object, 1)
		l.free(p, next.object.id)
	}
	b.ReportAllocs()
	for b.Loop() {
		o := l.take(p, mib, 0)
		l.seal(p, o.id, mib, "")
		l.hold(o.id)
		l.view(p, o.id, 0)
		l.drop(o.id)
		l.unview(p, o.id, 1)
		l.todo.wake = l.todo.wake[:0]
	}
}
