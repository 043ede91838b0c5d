package process

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// clearing is one run of Clear that several callers may wait for.
type clearing struct {
	done chan struct{}
	err  error
}

// Clear ends every child that was neither started nor adopted, and all below
// it, again and again until there is none. It waits while someone holds. Calls
// at the same time share one run, but never one that began before them: it may
// have looked already. When ctx ends first, the error names what is left.
func (r *Reaper) Clear(ctx context.Context) error {
	r.mu.Lock()
	mine := r.waiting
	if mine != nil { // someone else will run it
		r.mu.Unlock()
		select {
		case <-mine.done:
			return mine.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	mine = &clearing{done: make(chan struct{})}
	before := r.running
	r.waiting = mine
	r.mu.Unlock()
	if before != nil {
		<-before.done
	}
	r.mu.Lock()
	r.waiting, r.running = nil, mine
	r.mu.Unlock()

	mine.err = r.clear(ctx)
	r.mu.Lock()
	if r.running == mine {
		r.running = nil
	}
	r.mu.Unlock()
	close(mine.done)
	return mine.err
}

// A kill needs a moment to take effect; between two looks we wait for the next
// end, or this long.
const clearPause = 5 * time.Millisecond

func (r *Reaper) clear(ctx context.Context) error {
	for {
		r.mu.Lock()
		held, orphans, changed := r.holds > 0, r.orphans, r.changed
		r.mu.Unlock()
		var left []Entry
		if !held {
			entries, err := Scan()
			if err == nil {
				left = r.unknown(entries)
				killAll(left, Kill)
			}
			r.mu.Lock()
			// Clean only if nothing unknown ended while we looked: its children
			// would have been below it then, and would be ours now.
			clean := err == nil && len(left) == 0 && r.orphans == orphans && r.holds == 0
			changed = r.changed
			r.mu.Unlock()
			if clean {
				return nil
			}
		}
		if err := pause(ctx, changed, held); err != nil {
			return leftError(left, err)
		}
	}
}

// killAll kills what Below found, what is deepest first: one in between may be
// there to end all below it when those above it are gone, and we may be killed
// before we are through.
func killAll(found []Entry, kill func(Entry) error) {
	for _, e := range slices.Backward(found) {
		_ = kill(e) // gone is as good; anything else shows in the next look
	}
}

// pause waits for a change; unless held, also for clearPause.
func pause(ctx context.Context, changed <-chan struct{}, held bool) error {
	var after <-chan time.Time
	if !held {
		timer := time.NewTimer(clearPause)
		defer timer.Stop()
		after = timer.C
	}
	select {
	case <-changed:
	case <-after:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// unknown picks the children of ours that nobody knows, and all below them. A
// zombie counts until it is reaped: its first thread may have ended before the
// others, which then still have its children, and these fall to us only later.
func (r *Reaper) unknown(entries []Entry) []Entry {
	self := os.Getpid()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds > 0 {
		return nil // one that is being forked might be among them
	}
	return Below(entries, func(e Entry) bool {
		return e.Parent == self && r.known[e.Pid] == nil
	})
}

func leftError(left []Entry, err error) error {
	if len(left) == 0 {
		return err
	}
	var names []string
	for _, e := range left {
		names = append(names, fmt.Sprintf("%d (%s, state %c)", e.Pid, e.Name, e.State))
	}
	return fmt.Errorf("%d processes did not end although they were killed: %s: %w", len(left), strings.Join(names, ", "), err)
}
