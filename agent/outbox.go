package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/muster-rl/muster/wire"
)

const (
	outboxLimit  = 4 << 20   // text that waits for the head; beyond it lines are dropped
	noticeLimit  = 256 << 10 // text in one notice
	headIsBehind = 1 << 20   // bytes that the connection may have queued before we wait
	behindPause  = 5 * time.Millisecond
	lineOverhead = 64
)

// outbox gathers the lines of all workers and sends them to the head, many in
// one notice. It never holds up a worker: while the head is slow or away, lines
// beyond the limit are counted and dropped, and the count is told in their place.
type outbox struct {
	head *uplink
	bell chan struct{}

	sending sync.Mutex // held from taking lines to queueing them: keeps the order

	mu      sync.Mutex
	lines   []wire.LogLine
	size    int
	dropped map[uint32]*drop
}

type drop struct {
	count      int
	name, path string
}

func newOutbox(head *uplink) *outbox {
	return &outbox{head: head, bell: make(chan struct{}, 1), dropped: map[uint32]*drop{}}
}

// add puts a line in; ring has it sent.
func (o *outbox) add(number uint32, name, path, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.size+len(text)+lineOverhead > outboxLimit {
		d := o.dropped[number]
		if d == nil {
			d = &drop{name: name, path: path}
			o.dropped[number] = d
		}
		d.count++
		return
	}
	o.tellDropped(number)
	o.put(number, name, text)
}

func (o *outbox) put(number uint32, name, text string) {
	o.lines = append(o.lines, wire.LogLine{Number: number, Worker: name, Text: text})
	o.size += len(text) + lineOverhead
}

func (o *outbox) tellDropped(number uint32) {
	if d := o.dropped[number]; d != nil {
		delete(o.dropped, number)
		o.put(number, d.name, fmt.Sprintf("muster: %d lines dropped here; %s has them", d.count, d.path))
	}
}

// ring says that lines wait. It does not block.
func (o *outbox) ring() {
	select {
	case o.bell <- struct{}{}:
	default:
	}
}

// run sends lines until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for {
		select {
		case <-o.bell:
		case <-ctx.Done():
			return
		}
		for conn := o.head.current(); conn != nil && conn.Pending() > headIsBehind && conn.Err() == nil; {
			select {
			case <-time.After(behindPause):
			case <-ctx.Done():
				return
			}
		}
		o.flush(nil)
	}
}

// flush sends every line that was added before, then calls after, with nothing
// in between. Without a head, lines stay.
func (o *outbox) flush(after func()) {
	o.sending.Lock()
	defer o.sending.Unlock()
	if after != nil {
		defer after()
	}
	conn := o.head.current()
	if conn == nil {
		return
	}
	o.mu.Lock()
	lines := o.lines
	o.lines, o.size = nil, 0
	for number := range o.dropped { // there is room again
		o.tellDropped(number)
	}
	lines = append(lines, o.lines...)
	o.lines, o.size = nil, 0
	o.mu.Unlock()
	for len(lines) > 0 {
		n, size := 0, 0
		for n < len(lines) && (n == 0 || size+len(lines[n].Text)+lineOverhead <= noticeLimit) {
			size += len(lines[n].Text) + lineOverhead
			n++
		}
		_ = wire.Notify(conn, "log", &wire.Log{Lines: lines[:n]})
		lines = lines[n:]
	}
}
