package store

import (
	"testing"

	"github.com/muster-rl/muster/wire"
)

// Bytes from node to node: into memory that was used before, and into fresh.
func BenchmarkFar(b *testing.B) {
	const size = 256 * mib
	for _, mode := range []struct {
		name       string
		tls, fresh bool
	}{{"plain", false, false}, {"plain/fresh", false, true}, {"tls", true, false}} {
		b.Run(mode.name, func(b *testing.B) {
			f := newFarRig(b, farOptions{nodes: 2, tls: mode.tls, change: func(o *Options) { o.Budget = 2 * size }})
			id, _ := f.put(0, size)
			c := f.client(1, 7)
			b.SetBytes(size)
			b.ReportAllocs()
			get := func() {
				views, err := c.Open(id)
				if err != nil {
					b.Fatal(err)
				}
				views[0].Close()
				s := f.hosts[1].Store
				s.Objects(&wire.Objects{Drop: []uint64{id}})
				if _, err := c.Open(1<<48 | 1); err == nil { // the view is closed then
					b.Fatal("an object that is not")
				}
				s.mu.Lock()
				for mode.fresh && s.ledger.pool.Len() > 0 {
					s.ledger.giveUpOldest()
				}
				s.unlock()
			}
			get()
			for b.Loop() {
				get()
			}
		})
	}
}
