package head_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// reserving is the fake backend with more nodes than a session uses: it gives the
// named ones, each with the devices from 3 downwards, or with all of 4.
type reserving struct {
	*fake.Backend
	mu    sync.Mutex
	next  [][]string // the nodes of the grants to come
	held  []int
	last  backend.Want
	dirs  []string
	moved map[string]string
	fits  []int
	lacks error
}

func (b *reserving) Reserve(_ context.Context, want backend.Want) (backend.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = want
	if len(b.next) == 0 {
		return backend.Grant{}, spec.Errorf(spec.CodeResources, "nothing is left")
	}
	grant := backend.Grant{Env: map[string]string{"OF_GROUP": strconv.Itoa(want.ID)}}
	for at, name := range b.next[0] {
		count := want.Devices
		if len(want.Bundles) > 0 {
			count = want.Bundles[at].GPUs
		}
		g := backend.Granted{Name: name, Address: "10.0.0." + name[len(name)-1:], All: count == 4}
		for i := range count {
			if g.All {
				break
			}
			g.Devices = append(g.Devices, strconv.Itoa(3-i))
		}
		grant.Nodes = append(grant.Nodes, g)
	}
	b.next = b.next[1:]
	b.held = append(b.held, want.ID)
	return grant, nil
}

func (b *reserving) Look(_ context.Context, want backend.Want) (backend.Outlook, error) {
	return backend.Outlook{Waits: true, Text: "pool 1 (" + want.Users[1] + ") holds all"}, nil
}

func (b *reserving) Census(context.Context) ([]spec.Node, error) {
	all := make([]spec.Node, 3)
	for i := range all {
		all[i] = spec.Node{Name: "node-" + strconv.Itoa(i), Cores: 7, Devices: make([]spec.Device, 4)}
	}
	return all, nil
}

func (b *reserving) Release(_ context.Context, id int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = slices.DeleteFunc(b.held, func(h int) bool { return h == id })
	return nil
}

func (b *reserving) Kept(context.Context) ([]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.held), nil
}

func (b *reserving) Fit(_ context.Context, node int, rt spec.Runtime) (backend.Fitted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fits = append(b.fits, node)
	b.dirs = append(b.dirs, rt.Dir)
	return backend.Fitted{Runtime: rt, Moved: b.moved}, b.lacks
}

func newReserving(t *testing.T, next ...[]string) (*rig, *reserving) {
	t.Helper()
	b := &reserving{Backend: fake.New(3, fake.Script{Class: testClass()}), next: next}
	r := newRig(t, setup{virtual: "3x4", backend: func(spec.Virtual, bool) (backend.Backend, error) { return b, nil }})
	r.fake = b.Backend
	return r, b
}

func (r *rig) nodes() []wire.NodeInfo {
	r.t.Helper()
	var s wire.Status
	must(r.t, r.owner.ask("status", &wire.Empty{}, &s))
	return s.Nodes
}

func TestAgentsAreLaunchedForPoolsAndLetGo(t *testing.T) {
	r, b := newReserving(t, []string{"node-0", "node-2"}, []string{"node-2"}, []string{"node-2"})
	var p, second, third spec.Pool
	ask := func(perNode, nodes int, p *spec.Pool) error {
		return r.owner.ask("pool.create", &wire.PoolCreate{PerNode: perNode, Nodes: nodes, Timeout: 10}, p)
	}
	must(t, ask(2, 2, &p))
	if len(r.nodes()) != 2 || len(p.Nodes) != 2 || p.Nodes[1].Name != "node-2" || p.Nodes[1].Index != 1 || p.Nodes[1].Address != "10.0.0.2" {
		t.Fatalf("got %+v", p)
	}
	if d := p.Nodes[1].Devices; len(d) != 2 || d[0].Index != 2 || d[1].Index != 3 {
		t.Errorf("got devices %+v", d)
	}
	info, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0-3" })
	must(t, err)
	if w := info.Workers[2]; w.NodeName != "node-2" || w.Address != "10.0.0.2" || w.Devices[0].Device != 2 {
		t.Errorf("got %+v", w)
	}
	if info.MasterAddr != "10.0.0.0" {
		t.Errorf("the master is at %s", info.MasterAddr)
	}
	must(t, ask(1, 1, &second)) // on a node that has an agent
	if len(r.nodes()) != 2 {
		t.Errorf("got %+v", r.nodes())
	}
	must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "a"}, &wire.Mark{}))
	for _, id := range []int{p.ID, second.ID} {
		must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: id}, &wire.Empty{}))
	}
	within(t, r.fake.Agent(1).Done(), "the end of an agent whose node no pool has")
	eventually(t, "the reservations to be given back", func() bool {
		kept, _ := b.Kept(context.Background())
		return len(kept) == 0
	})
	must(t, ask(1, 1, &third))
	if n := r.nodes(); len(n) != 3 || n[1].State != "lost" || n[2].State != "up" || third.Nodes[0].Index != 2 {
		t.Errorf("got %+v, %+v", n, third)
	}
	if got := b.fitted(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("runtimes were fitted to nodes %v", got)
	}
}

func (b *reserving) fitted() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(slices.Values(b.fits))
}

func TestAPoolOfWholeNodes(t *testing.T) {
	r, _ := newReserving(t, []string{"node-0", "node-1"})
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 4, Nodes: 2, Timeout: 10}, &p))
	if d := p.Nodes[1].Devices; len(d) != 4 || d[3].Index != 3 {
		t.Errorf("got devices %+v", d)
	}
}

func TestAPoolForWorkersAndOneOfNamedDevices(t *testing.T) {
	r, _ := newReserving(t, []string{"node-0", "node-1"})
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 4, Workers: 6, PerWorker: 1, Timeout: 10}, &p))
	if len(p.Nodes) != 2 || p.PerNode != 3 {
		t.Errorf("got %+v", p)
	}
	err := r.owner.ask("pool.create", &wire.PoolCreate{Devices: []int{1}, Timeout: 10}, &p)
	wantError(t, err, spec.CodeInvalid, "chosen by Ray")
}

func TestAReservationThatIsGoneIsTold(t *testing.T) {
	r, b := newReserving(t, []string{"node-0"})
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &p))
	must(t, b.Release(context.Background(), p.ID)) // behind the head's back
	_, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0" })
	wantError(t, err, spec.CodeResources, "a new ResourceManager")
}

func TestAReservationThatCannotBeUsedIsGivenBack(t *testing.T) {
	r, b := newReserving(t, []string{"node-1"})
	err := r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 5, Nodes: 1, Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, "GPU -1 of node-1 was reserved")
	eventually(t, "the reservation to be given back", func() bool {
		kept, _ := b.Kept(context.Background())
		return len(kept) == 0
	})
	within(t, r.fake.Agent(1).Done(), "the end of its agent")
	err = r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &spec.Pool{})
	wantError(t, err, spec.CodeResources, "nothing is left")
}

func TestWhatANodeLacksFailsTheStartByName(t *testing.T) {
	r, b := newReserving(t, []string{"node-1"})
	var p spec.Pool
	must(t, r.owner.ask("pool.create", &wire.PoolCreate{PerNode: 1, Nodes: 1, Timeout: 10}, &p))
	b.mu.Lock()
	b.lacks = spec.Errorf(spec.CodeStartup, "/opt/python is not there on node-1")
	b.mu.Unlock()
	_, err := r.create(r.owner, p.ID, "a", 0, func(s *spec.Cluster) { s.MappingText = "0" })
	wantError(t, err, spec.CodeStartup, "/opt/python", "node-1")
}
