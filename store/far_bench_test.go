package store

import (
	"hash/crc32"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

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
				source := f.hosts[0].Store
				source.mu.Lock()
				source.ledger.objects[id].sums = nil // as those of an object that was never sent
				source.mu.Unlock()
				views, err := c.Open(id)
				if err != nil {
					b.Fatal(err)
				}
				views[0].Close()
				s := f.hosts[1].Store
				s.Objects(&wire.Objects{Drop: []uint64{id}})
				for len(s.Status().Objects) > 0 {
					runtime.Gosched() // until the view is closed
				}
				s.mu.Lock()
				for mode.fresh && s.ledger.pool.Len() > 0 {
					s.ledger.giveUpOldest()
				}
				s.unlock()
			}
			get()
			var before, after unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			for b.Loop() {
				get()
			}
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(cpu)/1e9/float64(b.N)/size*(1<<30), "cpu-s/GiB")
			if sent := f.hosts[0].sent.Load(); sent < int64(b.N+1)*size {
				b.Errorf("%d bytes travelled for %d copies", sent, b.N+1)
			}
		})
	}
}

// What sums cost: of bytes that nobody has looked at for long, as those that are
// sent, and of those that have just been received.
func BenchmarkSum(b *testing.B) {
	content := make([]byte, 256*mib)
	for i := range content {
		content[i] = byte(i * 7)
	}
	for _, kind := range []struct {
		name  string
		piece int
		all   []byte
	}{{"sent", ChunkSize, content}, {"received", readPiece, content[:readPiece]}} {
		b.Run(kind.name, func(b *testing.B) {
			b.SetBytes(int64(kind.piece))
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				crc32.Checksum(kind.all[at:at+kind.piece], sumTable)
				at = (at + kind.piece) % len(kind.all)
			}
		})
	}
}
