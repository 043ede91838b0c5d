package lease

import (
	"cmp"
	"maps"
	"slices"
)

// Fanout is how many nodes one node sends a part of an object to.
const Fanout = 2

// Run is chunks From to (not included) To of an object.
type Run struct{ From, To uint32 }

// Source says where chunks of an object are to be had.
type Source struct {
	Run
	Node int
}

// Copies has which nodes have, or are getting, which chunks of objects that lie
// on another node, and tells who asks for some whom to ask. The zero Copies is
// empty and ready.
//
// Who gets a chunk may pass it on as soon as it has it, so nodes that want the
// same chunk form a tree: a node comes below one that has the chunk, or is itself
// below such a one, and has fewer than Fanout below it. Only where copies went
// since, and nodes failed, may it be more.
type Copies struct {
	objects map[Object]*spread
	sent    map[Object]map[int]uint64 // chunks, by who was named as their source
}

// spread is one object's copies, by node.
type spread map[int][]part

// part is chunks that a node has, or is getting from another.
type part struct {
	Run
	from int  // who was named as their source; -1: nobody that is known
	here bool // they have arrived
}

// Want says where a node gets chunks that it lacks, and takes note that it does:
// what it was getting of them before, it is not any more. Nodes that are not up
// are out of the question, and those to avoid come last. What nobody has is
// missing.
func (c *Copies) Want(o Object, node int, runs []Run, avoid []int, up func(node int) bool) (sources []Source, missing []Run) {
	s := c.of(o)
	for _, run := range runs {
		s.cut(node, run)
	}
	for _, run := range runs {
		for _, piece := range s.pieces(run) {
			from, ok := c.choose(o, *s, node, piece, avoid, up)
			if !ok {
				missing = append(missing, piece)
				continue
			}
			c.sent[o][from] += uint64(piece.To - piece.From)
			s.add(node, part{Run: piece, from: from})
			if last := len(sources) - 1; last >= 0 && sources[last].Node == from && sources[last].To == piece.From {
				sources[last].To = piece.To
			} else {
				sources = append(sources, Source{piece, from})
			}
		}
	}
	if len(*s) == 0 {
		c.Free(o)
	}
	return sources, missing
}

// of is an object's copies, or room for them.
func (c *Copies) of(o Object) *spread {
	if c.objects == nil {
		c.objects, c.sent = map[Object]*spread{}, map[Object]map[int]uint64{}
	}
	s := c.objects[o]
	if s == nil {
		s = &spread{}
		c.objects[o], c.sent[o] = s, map[int]uint64{}
	}
	return s
}

// choose finds who is to send chunks that are alike for everybody.
func (c *Copies) choose(o Object, s spread, node int, piece Run, avoid []int, up func(node int) bool) (int, bool) {
	type candidate struct {
		node    int
		avoided bool
		busy    bool
		full    bool
		depth   int
		sent    uint64
	}
	var all []candidate
	look := func(at int) {
		depth, ok := s.depth(o, at, node, piece.From)
		if at == node || !ok || !up(at) {
			return
		}
		coming, ever := s.below(at, piece.From)
		all = append(all, candidate{at, slices.Contains(avoid, at), coming >= Fanout, ever >= Fanout, depth, c.sent[o][at]})
	}
	look(o.Node())
	for at := range s {
		if at != o.Node() {
			look(at)
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	best := slices.MinFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(flag(a.avoided), flag(b.avoided)), cmp.Compare(flag(a.busy), flag(b.busy)), cmp.Compare(flag(a.full), flag(b.full)),
			cmp.Compare(a.depth, b.depth), cmp.Compare(a.sent, b.sent), cmp.Compare(a.node, b.node))
	})
	return best.node, true
}

// depth is how many nodes a chunk passes through until it is at one: 0 where it
// lies. It is false where it is not and will not be there, or would have to come
// through not.
func (s spread) depth(o Object, at, not int, chunk uint32) (int, bool) {
	for depth := 0; ; depth++ {
		if at == o.Node() {
			return depth, true
		}
		p := s.at(at, chunk)
		switch {
		case p == nil || at == not:
			return 0, false
		case p.here:
			return depth, true
		}
		at = p.from
	}
}

// below is how many are getting a chunk from a node, and how many are or have.
func (s spread) below(from int, chunk uint32) (getting, all int) {
	for at := range s {
		p := s.at(at, chunk)
		if p == nil || p.from != from {
			continue
		}
		all++
		if !p.here {
			getting++
		}
	}
	return getting, all
}

// at is what a node has of a chunk; nil for nothing.
func (s spread) at(node int, chunk uint32) *part {
	parts := s[node]
	i, found := slices.BinarySearchFunc(parts, chunk, func(p part, chunk uint32) int {
		switch {
		case p.To <= chunk:
			return -1
		case p.From > chunk:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &parts[i]
}

// pieces cuts a run so that in each piece all nodes have the same for all chunks.
func (s spread) pieces(run Run) []Run {
	if run.From >= run.To {
		return nil
	}
	cuts := []uint32{run.From, run.To}
	for _, parts := range s {
		for _, p := range parts {
			for _, at := range [...]uint32{p.From, p.To} {
				if run.From < at && at < run.To {
					cuts = append(cuts, at)
				}
			}
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	pieces := make([]Run, 0, len(cuts)-1)
	for i := 1; i < len(cuts); i++ {
		pieces = append(pieces, Run{cuts[i-1], cuts[i]})
	}
	return pieces
}

// cut takes chunks off what a node has.
func (s *spread) cut(node int, run Run) {
	var kept []part
	for _, p := range (*s)[node] {
		if p.To <= run.From || run.To <= p.From {
			kept = append(kept, p)
			continue
		}
		if before := p; p.From < run.From {
			before.To = run.From
			kept = append(kept, before)
		}
		if after := p; run.To < p.To {
			after.From = run.To
			kept = append(kept, after)
		}
	}
	if (*s)[node] = kept; len(kept) == 0 {
		delete(*s, node)
	}
}

// add gives a node chunks that it has nothing of.
func (s *spread) add(node int, p part) {
	if p.From >= p.To {
		return
	}
	parts := append((*s)[node], p)
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.From, b.From) })
	joined := parts[:1]
	for _, p := range parts[1:] {
		if last := &joined[len(joined)-1]; last.To == p.From && last.here == p.here && last.from == p.from {
			last.To = p.To
		} else {
			joined = append(joined, p)
		}
	}
	(*s)[node] = joined
}

// Got says that chunks have arrived at a node, or are there, as it told.
func (c *Copies) Got(o Object, node int, runs []Run) {
	if node == o.Node() {
		return
	}
	s := c.of(o)
	for _, run := range runs {
		for _, piece := range s.pieces(run) {
			from := -1
			if p := s.at(node, piece.From); p != nil {
				from = p.from
			}
			s.cut(node, piece)
			s.add(node, part{Run: piece, from: from, here: true})
		}
	}
	if len(*s) == 0 {
		c.Free(o)
	}
}

// Gone says that a node has nothing of an object any more, and gets nothing.
// Who was getting something from it will be told by it, and ask again.
func (c *Copies) Gone(o Object, node int) {
	s := c.objects[o]
	if s == nil {
		return
	}
	delete(*s, node)
	if len(*s) == 0 {
		c.Free(o)
	}
}

// Lost says that a node and all that it had is gone.
func (c *Copies) Lost(node int) {
	for o := range c.objects {
		c.Gone(o, node)
	}
}

// At lists the nodes that have something of an object, or are getting it.
func (c *Copies) At(o Object) []int {
	s := c.objects[o]
	if s == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(*s))
}

// Free forgets an object.
func (c *Copies) Free(o Object) {
	delete(c.objects, o)
	delete(c.sent, o)
}

// Len is how many objects have copies.
func (c *Copies) Len() int { return len(c.objects) }
