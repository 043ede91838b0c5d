package object

import (
	"runtime"
	"sync"
)

// How many bytes may be held before anyone thinks of the collector: little where
// it finds something, more and more where it never does.
const (
	calmFirst = 64 << 20
	calmMost  = 4 << 30
)

// pressure counts bytes that this process holds in stores. The collector knows
// of the few words that hold them, not of the bytes, so it is made to run when
// they have doubled since the least that there was after it last ran.
type pressure struct {
	mu    sync.Mutex
	now   uint64
	least uint64
	calm  uint64
	found bool // since it was last made to run, it gave something back
}

func (p *pressure) add(bytes uint64) {
	p.mu.Lock()
	p.now += bytes
	run := p.now > max(p.calm, calmFirst, 2*p.least)
	if run {
		p.least = p.now // what is given back now lowers it
		p.calm = min(2*max(p.calm, calmFirst), calmMost)
		if p.found {
			p.calm = calmFirst
		}
		p.found = false
	}
	p.mu.Unlock()
	if run {
		go runtime.GC()
	}
}

func (p *pressure) remove(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now -= bytes
	p.least = min(p.least, p.now)
}

// garbage says that something is about to be given back because the collector
// found it, not because its user was done with it.
func (p *pressure) garbage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = true
}
