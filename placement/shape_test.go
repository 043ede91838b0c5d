package placement

import (
	"strings"
	"testing"
)

func TestShape(t *testing.T) {
	for _, c := range []struct{ workers, each, perNode, want, nodes int }{
		{2, 0, 8, 0, 1},
		{4, 1, 8, 4, 1},
		{8, 1, 8, 8, 1},
		{12, 1, 8, 6, 2}, // of each node what its workers take
		{9, 1, 8, 5, 2},
		{3, 4, 8, 8, 2},
		{5, 2, 4, 4, 3},
		{1, 16, 8, 8, 2}, // whole nodes
		{2, 12, 8, 8, 3},
		{6, 2, 0, 12, 1},
	} {
		got, err := Shape(c.workers, c.each, c.perNode)
		if err != nil || got.PerNode != c.want || got.Nodes != c.nodes {
			t.Errorf("%d workers of %d on nodes of %d: %+v, %v; want %d on each of %d", c.workers, c.each, c.perNode, got, err, c.want, c.nodes)
		}
	}
}

// Whatever is asked for has room, on no more nodes than it takes, and no worker of
// less than a node lies on two.
func TestShapesHoldTheirWorkers(t *testing.T) {
	for perNode := 1; perNode <= 8; perNode++ {
		for each := 1; each <= 2*perNode; each++ {
			for workers := 1; workers <= 3*perNode; workers++ {
				got, err := Shape(workers, each, perNode)
				total := workers * each
				if err != nil {
					if each > perNode || perNode%each == 0 || total <= perNode {
						t.Fatalf("%d workers of %d on nodes of %d: %v", workers, each, perNode, err)
					}
					continue
				}
				if got.PerNode > perNode || got.PerNode*got.Nodes < total || perNode*(got.Nodes-1) >= total {
					t.Fatalf("%d workers of %d on nodes of %d: %+v", workers, each, perNode, got)
				}
				if each <= perNode && got.Nodes > 1 && got.PerNode%each != 0 {
					t.Fatalf("%d workers of %d on nodes of %d: %+v, and one lies on two nodes", workers, each, perNode, got)
				}
			}
		}
	}
}

func TestShapesThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		workers, each, perNode int
		want                   string
	}{
		{0, 1, 8, "1 worker or more"},
		{1, -1, 8, "0 GPUs or more"},
		{3, 3, 8, "workers of 3 GPUs do not fill nodes of 8"},
	} {
		if _, err := Shape(c.workers, c.each, c.perNode); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
