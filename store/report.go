package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// status is all that the ledger knows, largest objects first.
func (l *ledger) status() *wire.StoreStatus {
	s := &wire.StoreStatus{
		Node: int(l.ids >> 48), Budget: l.budget, Used: l.used, Pooled: l.pooled, Spilled: l.spilled, SpillLimit: l.spillLimit,
		Objects: make([]wire.StoreObject, 0, len(l.objects)),
	}
	views := map[uint64][]wire.StoreView{}
	for p := range l.peers {
		for id, v := range p.views {
			views[id] = append(views[id], wire.StoreView{Holder: p.holder, Count: v.count, Since: v.since})
		}
	}
	for id, o := range l.objects {
		for holder, since := range o.lent {
			if !slices.ContainsFunc(views[id], func(v wire.StoreView) bool { return v.Holder == holder }) {
				views[id] = append(views[id], wire.StoreView{Holder: holder, Count: 1, Since: since})
			}
		}
		info := wire.StoreObject{
			Object: id, Bytes: o.size, Here: o.size, State: o.state.String(), What: o.what, Maker: o.maker.holder,
			Held: o.held, Since: o.since, Views: views[id],
		}
		if o.copy != nil {
			info.State, info.Maker, info.Here = "copy", 0, o.copy.bytes(o.size)
		}
		if info.Views == nil {
			info.Views = []wire.StoreView{}
		}
		slices.SortFunc(info.Views, func(a, b wire.StoreView) int {
			return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Holder, b.Holder))
		})
		s.Objects = append(s.Objects, info)
	}
	slices.SortFunc(s.Objects, func(a, b wire.StoreObject) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Object, b.Object))
	})
	return s
}

const (
	// told is how many objects the error of a full store names, and how many who have
	// handles.
	told = 4
	// mostAsked is of how many objects the error of a full store asks who has handles.
	mostAsked = 10_000
)

// place is what the error of a full store needs to know of where it is.
type place struct {
	node     string
	spillDir string
	spillOff string // why nothing is spilled, where nothing is
	name     func(pid int) string
}

// fullError says who has the room that is wanted. free is what the machine can
// spare; cause is what went wrong beyond all that: a disk, the kernel; held is who
// has handles, as far as that is known.
func (l *ledger) fullError(at place, size, free uint64, cause error, held []wire.Held, now float64) error {
	var b strings.Builder
	fmt.Fprintf(&b, "the store of %s has no room for %s", at.node, bytesText(size))
	switch {
	case size > l.budget:
		fmt.Fprintf(&b, ": that is more than its whole budget of %s", bytesText(l.budget))
	case len(l.segments) >= l.maxSegments:
		fmt.Fprintf(&b, ": it has %d segments, and no descriptors for more", len(l.segments))
	default:
		fmt.Fprintf(&b, ": %s of its budget of %s are in use", bytesText(l.used), bytesText(l.budget))
	}
	if free < l.fits(size) {
		fmt.Fprintf(&b, ", and the machine or the cgroup has %s of memory to spare", bytesText(free))
	}
	switch {
	case cause != nil:
		fmt.Fprintf(&b, "; %v", cause)
	case at.spillDir == "":
		fmt.Fprintf(&b, "; nothing is spilled to disk (%s)", at.spillOff)
	case size <= l.budget:
		fmt.Fprintf(&b, "; %s of at most %s are spilled to %s, and what is being read or written stays in memory", bytesText(l.spilled), bytesText(l.spillLimit), at.spillDir)
	}
	if largest := l.largest(at, held, now); len(largest) > 0 {
		b.WriteString(". The largest in memory: " + strings.Join(largest, "; "))
	}
	if holders := l.holders(held); len(holders) > 0 {
		b.WriteString(". Handles of what is in memory: " + strings.Join(holders, "; "))
	}
	b.WriteString(". Let go of batches and arrays that are not needed (del, release()), send less at once, or give it more: MUSTER_STORE_BYTES")
	if at.spillDir == "" {
		b.WriteString(", MUSTER_SPILL_DIR")
	} else {
		b.WriteString(", MUSTER_SPILL_BYTES")
	}
	b.WriteString(". muster store shows all of it")
	e := spec.Errorf(spec.CodeStoreFull, "%s", b.String())
	e.Node = at.node
	return e
}

// largest words the largest objects in memory: what they are, who made them and
// who keeps them, since when.
func (l *ledger) largest(at place, held []wire.Held, now float64) []string {
	all := l.inMemory()
	var lines []string
	for _, o := range all[:min(told, len(all))] {
		what := o.what
		if what == "" {
			what = "an object"
		}
		line := fmt.Sprintf("%s, %s, made by %s %s ago", bytesText(o.size), what, at.name(o.maker.pid), secondsText(now-o.since))
		if o.copy != nil {
			line = fmt.Sprintf("%s, %s, a copy from node %d made %s ago", bytesText(o.size), what, o.id>>48, secondsText(now-o.since))
		}
		var readers []string
		for p := range l.peers {
			if v := p.views[o.id]; v != nil {
				readers = append(readers, fmt.Sprintf("%s for %s", at.name(p.pid), secondsText(now-v.since)))
			}
		}
		for holder, since := range o.lent {
			if pid := l.pidOf(holder); pid != 0 && l.viewOf(holder, o.id) == nil {
				readers = append(readers, fmt.Sprintf("%s for %s", at.name(pid), secondsText(now-since)))
			}
		}
		slices.Sort(readers)
		switch {
		case len(readers) > 3:
			line += fmt.Sprintf(", read by %s and %d more", strings.Join(readers[:3], ", "), len(readers)-3)
		case len(readers) > 0:
			line += ", read by " + strings.Join(readers, ", ")
		case o.state == writing:
			line += ", being written"
		case o.state == broken:
			line += ", never finished"
		case o.copy != nil && o.views > 0:
			line += ", being fetched or passed on"
		case o.held || o.copy != nil:
			line += ", " + handlesText(o.id, held)
		default:
			line += ", not sent yet"
		}
		lines = append(lines, line)
	}
	if more := len(all) - told; more > 0 {
		lines = append(lines, fmt.Sprintf("%d more", more))
	}
	return lines
}

// inMemory are the objects in memory, the largest first.
func (l *ledger) inMemory() []*object {
	var all []*object
	for _, o := range l.objects {
		if o.segment != nil && !o.segment.file {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *object) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.id, b.id)) })
	return all
}

// handlesText says who has handles of an object.
func handlesText(id uint64, held []wire.Held) string {
	var names []string
	for _, h := range held {
		if h.Object == id {
			names = append(names, fmt.Sprintf("%s for %s", h.Holder, secondsText(h.Seconds)))
		}
	}
	switch {
	case len(names) == 0:
		return "somebody has a handle of it"
	case len(names) > 3:
		names = append(names[:3], fmt.Sprintf("%d more", len(names)-3))
	}
	return "held by " + strings.Join(names, ", ")
}

// holders words who has the most in handles of what is in memory.
func (l *ledger) holders(held []wire.Held) []string {
	type total struct {
		name    string
		bytes   uint64
		objects int
	}
	by := map[string]*total{}
	var all []*total
	for _, h := range held {
		o := l.objects[h.Object]
		if o == nil {
			continue // gone meanwhile
		}
		t := by[h.Holder]
		if t == nil {
			t = &total{name: h.Holder}
			by[h.Holder] = t
			all = append(all, t)
		}
		t.bytes += o.size
		t.objects++
	}
	slices.SortFunc(all, func(a, b *total) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	var lines []string
	for _, t := range all[:min(told, len(all))] {
		lines = append(lines, fmt.Sprintf("%s has %s in %d of them", t.name, bytesText(t.bytes), t.objects))
	}
	if more := len(all) - told; more > 0 {
		lines = append(lines, fmt.Sprintf("%d more", more))
	}
	return lines
}

// pidOf is a holder's process, 0 if it never connected.
func (l *ledger) pidOf(holder uint64) int {
	for p := range l.peers {
		if p.holder == holder {
			return p.pid
		}
	}
	return 0
}

// viewOf is what a holder has leased of an object here.
func (l *ledger) viewOf(holder, id uint64) *view {
	for p := range l.peers {
		if v := p.views[id]; p.holder == holder && v != nil {
			return v
		}
	}
	return nil
}

func bytesText(n uint64) string {
	value, units := float64(n), []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= 1000 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	if units[0] == "bytes" {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.3g %s", value, units[0])
}

func secondsText(s float64) string {
	if s < 10 {
		return fmt.Sprintf("%.1f s", max(0, s))
	}
	if s < 120 {
		return fmt.Sprintf("%.0f s", s)
	}
	return fmt.Sprintf("%.0f min", s/60)
}

// Back is what a head that comes back is told of the store: what there is, where
// it lies (0: on disk, or not written to its end), and what is held.
func (s *Store) Back() []wire.ObjectAt {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]wire.ObjectAt, 0, len(s.ledger.objects))
	for id, o := range s.ledger.objects {
		if o.copy != nil || o.maker == s.self {
			continue // Copies tells of those
		}
		at := wire.ObjectAt{Object: id, Maker: o.maker.holder}
		if o.state == sealed && o.segment != nil && !o.copying {
			at.Segment = uint32(o.segment.id) //nolint:gosec // numbered from 1, as references have them
		}
		if o.held {
			at.Held = 1
		}
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b wire.ObjectAt) int { return cmp.Compare(a.Object, b.Object) })
	return all
}

// Copies is what the store has of objects of other nodes, for a head that comes
// back.
func (s *Store) Copies() []wire.Copied {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []wire.Copied{}
	for id, o := range s.ledger.objects {
		if o.copy != nil {
			all = append(all, wire.Copied{Object: id, Runs: o.copy.has()})
		}
	}
	slices.SortFunc(all, func(a, b wire.Copied) int { return cmp.Compare(a.Object, b.Object) })
	return all
}

// AskAgain tells a head that has come back which objects are about to be spilled,
// and what is waited for from other nodes: the one before may not have heard it.
func (s *Store) AskAgain() {
	s.mu.Lock()
	ids := slices.Sorted(maps.Keys(s.moved))
	s.mu.Unlock()
	for _, id := range ids {
		s.opts.Moving(id)
	}
	s.peering.askAgain()
}
