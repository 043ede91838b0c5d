package lease

import (
	"math/rand/v2"
	"slices"
	"testing"
)

const home = 3

var shared = Object(home<<48 | 7)

func always(int) bool { return true }

// covers checks that sources name each wanted chunk once, and returns who.
func covers(t *testing.T, sources []Source, runs []Run) map[uint32]int {
	t.Helper()
	from := map[uint32]int{}
	for _, s := range sources {
		for chunk := s.From; chunk < s.To; chunk++ {
			if _, twice := from[chunk]; twice {
				t.Fatalf("chunk %d is named twice: %v", chunk, sources)
			}
			from[chunk] = s.Node
		}
	}
	n := 0
	for _, run := range runs {
		for chunk := run.From; chunk < run.To; chunk++ {
			if _, ok := from[chunk]; !ok {
				t.Fatalf("chunk %d has no source: %v", chunk, sources)
			}
			n++
		}
	}
	if n != len(from) {
		t.Fatalf("%d chunks have sources, %d were wanted", len(from), n)
	}
	return from
}

// A broadcast goes along a tree: nobody sends more than Fanout copies, and no
// chunk passes through more nodes than it has to.
func TestBroadcast(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 16, 100} {
		var c Copies
		all := []Run{{0, 256}}
		sends := map[int]int{}
		for node := 10; node < 10+nodes; node++ {
			sources, missing := c.Want(shared, node, all, nil, always)
			if len(missing) > 0 || len(sources) != 1 {
				t.Fatalf("%d nodes: %v, %v", nodes, sources, missing)
			}
			sends[sources[0].Node]++
		}
		for node, n := range sends {
			if n > Fanout {
				t.Errorf("%d nodes: node %d sends %d copies", nodes, node, n)
			}
		}
		deepest := 0
		for node := 10; node < 10+nodes; node++ {
			depth, ok := c.objects[shared].depth(shared, node, -1, 0)
			if !ok {
				t.Errorf("nothing comes to node %d", node)
			}
			deepest = max(deepest, depth)
		}
		within, reached := 0, 0
		for level := Fanout; reached < nodes; level *= Fanout {
			reached += level
			within++
		}
		if deepest > within {
			t.Errorf("%d nodes: %d deep instead of %d", nodes, deepest, within)
		}
	}
}

// Those who come one after the other do not all ask the same.
func TestOneAfterAnother(t *testing.T) {
	var c Copies
	sends := map[int]int{}
	for node := 10; node < 20; node++ {
		sources, _ := c.Want(shared, node, []Run{{0, 8}}, nil, always)
		for _, s := range sources {
			sends[s.Node] += int(s.To - s.From)
		}
		c.Got(shared, node, []Run{{0, 8}})
	}
	for node, chunks := range sends {
		if chunks > Fanout*8 {
			t.Errorf("node %d sent %d chunks of an object of 8", node, chunks)
		}
	}
}

// A copy that came in parts is as good as one.
func TestPartsOfACopy(t *testing.T) {
	var c Copies
	c.Want(shared, 10, []Run{{0, 1}}, nil, always)
	c.Got(shared, 10, []Run{{0, 1}})
	c.Want(shared, 10, []Run{{1, 7}}, nil, always)
	c.Got(shared, 10, []Run{{1, 7}})
	for chunk := range uint32(7) {
		if sources, _ := c.Want(shared, 11, []Run{{chunk, chunk + 1}}, nil, always); sources[0].Node != 10 {
			t.Errorf("chunk %d is to come from %d", chunk, sources[0].Node)
		}
	}
}

// What only one node needs comes from where it lies, and not by way of others.
func TestScatter(t *testing.T) {
	var c Copies
	for node := range uint32(8) {
		sources, _ := c.Want(shared, int(10+node), []Run{{4 * node, 4*node + 4}}, nil, always)
		if !slices.Equal(sources, []Source{{Run{4 * node, 4*node + 4}, home}}) {
			t.Errorf("node %d: %v", node, sources)
		}
	}
}

func TestLostAndFreed(t *testing.T) {
	var c Copies
	up := func(node int) bool { return node != home }
	if sources, missing := c.Want(shared, 1, []Run{{0, 4}}, nil, up); len(sources) > 0 || !slices.Equal(missing, []Run{{0, 4}}) || c.Len() != 0 {
		t.Errorf("%v, %v", sources, missing)
	}
	c.Got(shared, 1, []Run{{0, 2}})
	c.Got(shared, home, []Run{{0, 2}})
	sources, missing := c.Want(shared, 2, []Run{{0, 4}}, nil, up)
	if !slices.Equal(sources, []Source{{Run{0, 2}, 1}}) || !slices.Equal(missing, []Run{{2, 4}}) {
		t.Errorf("%v, %v", sources, missing)
	}
	// It is better to ask one that failed than nobody.
	if sources, _ = c.Want(shared, 2, []Run{{0, 2}}, []int{1}, up); len(sources) != 1 || sources[0].Node != 1 {
		t.Errorf("%v", sources)
	}
	if sources, _ = c.Want(shared, 2, []Run{{0, 2}}, []int{1}, always); len(sources) != 1 || sources[0].Node != home {
		t.Errorf("%v", sources)
	}
	if at := c.At(shared); !slices.Equal(at, []int{1, 2}) {
		t.Errorf("%v", at)
	}
	c.Lost(1)
	c.Gone(shared, 2)
	c.Gone(shared, 2)
	if c.Len() != 0 || c.At(shared) != nil {
		t.Error("something is left")
	}
	c.Got(shared, 1, []Run{{5, 5}})
	if c.Len() != 0 {
		t.Error("a copy of nothing")
	}
	c.Got(shared, 1, []Run{{0, 2}, {2, 4}, {1, 3}})
	if parts := (*c.objects[shared])[1]; len(parts) != 1 || parts[0].Run != (Run{0, 4}) {
		t.Errorf("%+v", parts)
	}
	c.Free(shared)
	if c.Len() != 0 {
		t.Error("something is left")
	}
}

// TestCopiesAgainstModel: whatever comes in whatever order, each chunk that is
// wanted has one source that has it or gets it by a way that ends where it lies,
// and nobody sends a chunk to more than Fanout at a time.
func TestCopiesAgainstModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		var c Copies
		const nodes, chunks = 7, 12
		down := map[int]bool{}
		up := func(node int) bool { return !down[node] }
		has := map[int]map[uint32]bool{}
		gets := map[int]map[uint32]int{} // from whom
		for node := range nodes {
			has[node], gets[node] = map[uint32]bool{}, map[uint32]int{}
		}
		forget := func(node int) {
			clear(has[node])
			clear(gets[node])
		}
		avoiding := false
		for range 200 {
			node := r.IntN(nodes)
			if node == home || down[node] {
				continue
			}
			from := uint32(r.IntN(chunks))
			run := Run{from, from + 1 + uint32(r.IntN(chunks-int(from)))}
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				var lacks []Run
				for chunk := run.From; chunk < run.To; chunk++ {
					if !has[node][chunk] {
						lacks = append(lacks, Run{chunk, chunk + 1})
					}
				}
				var avoid []int
				if r.IntN(5) == 0 {
					avoid, avoiding = []int{r.IntN(nodes)}, true
				}
				sources, missing := c.Want(shared, node, lacks, avoid, up)
				if len(missing) > 0 && up(home) {
					t.Fatalf("seed %d: %v are missing", seed, missing)
				}
				for chunk, from := range covers(t, append(sources, sourcesOf(missing)...), lacks) {
					if from < 0 {
						delete(gets[node], chunk)
						continue
					}
					gets[node][chunk] = from
				}
			case 4, 5:
				var got []Run
				for chunk := range gets[node] {
					if from := gets[node][chunk]; from == home || has[from][chunk] {
						got = append(got, Run{chunk, chunk + 1})
						has[node][chunk] = true
					}
				}
				for _, g := range got {
					delete(gets[node], g.From)
				}
				c.Got(shared, node, got)
			case 6:
				c.Gone(shared, node)
				forget(node)
			case 7:
				if r.IntN(10) == 0 {
					down[node] = true
					c.Lost(node)
					forget(node)
				}
			}
			for chunk := range uint32(chunks) {
				below := map[int]int{}
				for node := range nodes {
					from, ok := gets[node][chunk]
					if !ok {
						continue
					}
					below[from]++
					at := node
					for steps := 0; ; steps++ {
						if steps > nodes {
							t.Fatalf("seed %d: chunk %d goes in a circle through node %d", seed, chunk, node)
						}
						next, ok := gets[at][chunk]
						if !ok {
							break
						}
						at = next
					}
				}
				for from, n := range below {
					if n > Fanout && !avoiding && len(down) == 0 {
						t.Fatalf("seed %d: node %d sends chunk %d to %d", seed, from, chunk, n)
					}
				}
			}
		}
		for node := range nodes {
			c.Lost(node)
		}
		if c.Len() != 0 {
			t.Fatalf("seed %d: something is left", seed)
		}
	}
}

func sourcesOf(missing []Run) []Source {
	var all []Source
	for _, run := range missing {
		all = append(all, Source{run, -1})
	}
	return all
}
