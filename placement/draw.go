package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// What a picture shows of large pools; the rest is counted, not drawn.
const (
	drawNodes   = 8
	drawColumns = 16
	drawCPU     = 24
)

// Draw shows who sits where: a line for each cluster, then for each node a
// table of its devices with a row for each cluster there and the rank that has
// the device. What stands in one column shares that device.
//
//	pool 1: 2 nodes x 4 GPUs
//	  actor_train  8 workers x 1 GPU, dp=4 tp=2
//	  reward-math  3 workers, CPU
//	node-0 GPU     0 1 2 3
//	  actor_train  0 1 2 3
//	  reward-math  cpu: 0 2
func Draw(pool spec.Pool, plans []Plan) string {
	d := drawing{pool: pool, ids: idsOf(pool), plans: plans, label: 6}
	for _, p := range plans {
		d.label = max(d.label, len(p.Cluster.Name))
	}
	shown, elided := edges(len(pool.Nodes), drawNodes)
	for _, n := range shown {
		d.label = max(d.label, len(pool.Nodes[n].Name)+2)
		for _, device := range pool.Nodes[n].Devices {
			d.cell = max(d.cell, len(strconv.Itoa(device.Index)))
		}
	}
	d.seat(shown)
	d.head()
	for i, n := range shown {
		if i > 0 && n != shown[i-1]+1 {
			fmt.Fprintf(&d.out, "… %s\n", plural(elided, "more node"))
		}
		d.node(n)
	}
	d.foot()
	return d.out.String()
}

type drawing struct {
	pool  spec.Pool
	ids   deviceIDs
	plans []Plan
	label int // width of the first column
	cell  int // width of a device's column
	out   strings.Builder

	users  []int           // by global id: how many clusters use the device
	ranks  []map[int][]int // by plan: global id -> ranks, on drawn nodes
	onNode []map[int][]int // by plan: node -> ranks of CPU workers, on drawn nodes
}

// seat turns plans into what the drawn nodes need, in one pass over workers.
func (d *drawing) seat(shown []int) {
	drawn := make([]bool, len(d.pool.Nodes))
	for _, n := range shown {
		drawn[n] = true
	}
	d.users = make([]int, d.ids.size())
	last := make([]int, len(d.users)) // plan + 1 that counted the device
	for i, p := range d.plans {
		ranks, cpu := map[int][]int{}, map[int][]int{}
		for _, w := range p.Workers {
			if len(w.Devices) == 0 && drawn[w.Node] {
				cpu[w.Node] = append(cpu[w.Node], w.Rank)
			}
			for _, at := range w.Devices {
				if last[at.Global] != i+1 {
					last[at.Global] = i + 1
					d.users[at.Global]++
				}
				if drawn[at.Node] {
					ranks[at.Global] = append(ranks[at.Global], w.Rank)
				}
			}
		}
		for _, sharing := range ranks {
			d.cell = max(d.cell, len(cell(sharing)))
		}
		d.ranks, d.onNode = append(d.ranks, ranks), append(d.onNode, cpu)
	}
}

func (d *drawing) head() {
	what := plural(len(d.pool.Nodes), "node")
	kind := "GPU"
	if d.pool.Nodes[0].Virtual {
		kind = "virtual GPU"
	}
	switch {
	case d.pool.PerNode > 0:
		what += " x " + plural(d.pool.PerNode, kind)
	case d.ids.size() > 0:
		what += " of " + d.ids.perNode(d.pool) + " " + kind + "s"
	default:
		what += ", CPU only"
	}
	if d.pool.ID > 0 {
		what = fmt.Sprintf("pool %d: %s", d.pool.ID, what)
	} else {
		what = "pool: " + what
	}
	d.out.WriteString(what + "\n")
	for _, p := range d.plans {
		c := p.Cluster
		line := plural(c.World, "worker")
		if c.HasMapping {
			line += " x " + plural(c.DevicesPerWorker, "GPU")
		} else {
			line += ", CPU"
		}
		line += ", dp=" + strconv.Itoa(c.Shape.DP)
		for _, size := range []struct {
			name string
			n    int
		}{{"tp", c.Shape.TP}, {"pp", c.Shape.PP}, {"cp", c.Shape.CP}, {"ep", c.Shape.EP}} {
			if size.n > 1 {
				line += " " + size.name + "=" + strconv.Itoa(size.n)
			}
		}
		d.line("  "+c.Name, line)
	}
}

func (d *drawing) line(label, rest string) {
	d.out.WriteString(strings.TrimRight(fmt.Sprintf("%-*s  %s", d.label+2, label, rest), " ") + "\n")
}

// node draws one node's table, and its CPU workers below.
func (d *drawing) node(n int) {
	node := d.pool.Nodes[n]
	slots := len(node.Devices)
	if slots == 0 {
		d.line(node.Name, "")
	} else {
		d.row(node.Name+" GPU", slots, func(slot int) string { return strconv.Itoa(node.Devices[slot].Index) })
	}
	first := d.ids[n]
	for i, p := range d.plans {
		used := false
		for slot := range slots {
			used = used || len(d.ranks[i][first+slot]) > 0
		}
		if used {
			d.row("  "+p.Cluster.Name, slots, func(slot int) string { return cell(d.ranks[i][first+slot]) })
		}
	}
	for i, p := range d.plans {
		if ranks := d.onNode[i][n]; len(ranks) > 0 {
			d.line("  "+p.Cluster.Name, "cpu: "+cpuRanks(ranks))
		}
	}
}

// row writes one cell for each device that is shown.
func (d *drawing) row(label string, slots int, text func(slot int) string) {
	columns, elided := edges(slots, drawColumns)
	var line strings.Builder
	for c, slot := range columns {
		if c > 0 {
			line.WriteByte(' ')
			if slot != columns[c-1]+1 {
				fmt.Fprintf(&line, "… %d more … ", elided)
			}
		}
		fmt.Fprintf(&line, "%*s", d.cell, text(slot))
	}
	d.line(label, line.String())
}

// foot sums up what a picture of thousands cannot show.
func (d *drawing) foot() {
	if len(d.users) == 0 {
		return
	}
	shared, idle := 0, []int(nil)
	for id, users := range d.users {
		switch {
		case users == 0:
			idle = append(idle, id)
		case users > 1:
			shared++
		}
	}
	d.line("", fmt.Sprintf("of %s %d shared by clusters, %d idle%s", plural(len(d.users), "GPU"), shared, len(idle), idList(idle)))
}

func idList(ids []int) string {
	text := spec.Spans(ids)
	if text == "" || len(text) > 60 {
		return ""
	}
	return " (ids " + text + ")"
}

// cell shows one device of one cluster.
func cell(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "."
	case 1:
		return strconv.Itoa(ranks[0])
	case 2:
		return strconv.Itoa(ranks[0]) + "," + strconv.Itoa(ranks[1])
	}
	return fmt.Sprintf("%d,+%d", ranks[0], len(ranks)-1)
}

func cpuRanks(ranks []int) string {
	shown, elided := edges(len(ranks), drawCPU)
	texts := make([]string, 0, len(shown)+1)
	for i, at := range shown {
		if i > 0 && at != shown[i-1]+1 {
			texts = append(texts, fmt.Sprintf("… %d more …", elided))
		}
		texts = append(texts, strconv.Itoa(ranks[at]))
	}
	return strings.Join(texts, " ")
}

// edges picks at most `most` of n things in order: the first ones and the last.
func edges(n, most int) (shown []int, elided int) {
	for i := range min(n, most) {
		shown = append(shown, i)
	}
	if n > most {
		shown[most-1] = n - 1
		elided = n - most
	}
	return slices.Clip(shown), elided
}
