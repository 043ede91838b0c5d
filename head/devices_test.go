package head_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// taker asks for a service that takes GPUs, of a pool or of its own (0).
func taker(c *controller, name string, gpus float64, create wire.ClusterCreate, options ...func(*spec.Cluster)) (*wire.ClusterInfo, error) {
	create.Spec = clusterSpec(name, 0)
	create.Spec.Kind, create.Spec.GPUs = spec.KindService, gpus
	for _, o := range options {
		o(&create.Spec)
	}
	info := &wire.ClusterInfo{}
	err := c.ask("cluster.create", &create, info)
	return info, err
}

// devices are those of a service, by their numbers on their node.
func devices(info *wire.ClusterInfo) []int {
	var found []int
	for _, d := range info.Workers[0].Devices {
		found = append(found, d.Device)
	}
	return found
}

func (r *rig) free() []int {
	r.t.Helper()
	var told wire.Nodes
	must(r.t, r.owner.ask("nodes", &wire.NodesRequest{WaitSec: 10}, &told))
	var free []int
	for _, n := range told.Nodes {
		free = append(free, n.Free)
	}
	return free
}

func TestServicesTakeDevices(t *testing.T) {
	r := newRig(t, setup{virtual: "1x4"})
	first, err := taker(r.owner, "first", 3, wire.ClusterCreate{})
	must(t, err)
	if got := devices(first); len(got) != 3 || !slices.Equal(r.free(), []int{1}) {
		t.Fatalf("devices %v, free %v", got, r.free())
	}
	_, err = taker(r.owner, "second", 2, wire.ClusterCreate{})
	wantError(t, err, spec.CodeResources, "(first) holds 0-2")
	_, err = taker(r.owner, "second", 5, wire.ClusterCreate{Patience: 60}) // which nothing gives
	wantError(t, err, spec.CodeResources, "wanted 1 node with 5 GPUs")
	waits := make(chan error, 1)
	go func() {
		_, err := taker(r.owner, "second", 4, wire.ClusterCreate{Patience: 60})
		waits <- err
	}()
	r.worker("first").Die(wire.Exited{Signal: "SIGKILL"})
	must(t, within(t, waits, "the devices of one that has died"))
	if !slices.Equal(r.free(), []int{0}) {
		t.Fatalf("free: %v", r.free())
	}
	// Its callers are told why it died, all the same.
	to := callee{cluster: first.Number, method: "plain", how: 2, ranks: []int{0}}
	r.owner.fails(r.owner.send(to, args()), spec.CodeWorkerDied, "first", "SIGKILL")
	must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "second"}, &wire.Mark{}))
	eventually(t, "all to be free", func() bool { return slices.Equal(r.free(), []int{4}) })
}

func TestServicesShareDevices(t *testing.T) {
	r := newRig(t, setup{virtual: "1x2"})
	seen := map[int]int{}
	for i := range 4 {
		info, err := taker(r.owner, "half"+string(rune('a'+i)), 0.5, wire.ClusterCreate{})
		must(t, err)
		seen[devices(info)[0]]++
	}
	if seen[0] != 2 || seen[1] != 2 {
		t.Fatalf("by device: %v", seen)
	}
	_, err := taker(r.owner, "more", 0.5, wire.ClusterCreate{})
	wantError(t, err, spec.CodeResources, "holds")
	r.worker("halfa").Die(wire.Exited{Code: 3})
	eventually(t, "room for one more", func() bool {
		_, err := taker(r.owner, "more", 0.5, wire.ClusterCreate{})
		return err == nil
	})
	_, err = taker(r.owner, "odd", 1.5, wire.ClusterCreate{})
	wantError(t, err, spec.CodeInvalid, "gpus is 1.5")
}

func TestServicesTakeDevicesOfAnyOfSeveralPools(t *testing.T) {
	r := newRig(t, setup{virtual: "1x4"})
	one, two := r.pool(1, 1), r.pool(2, 1)
	either := wire.ClusterCreate{Pool: one, Others: []int{two}}
	for _, want := range []int{1, 2, 2} {
		info, err := taker(r.owner, "s"+strconv.Itoa(len(r.services())), 1, either)
		must(t, err)
		if got := map[int]int{one: 1, two: 2}[info.Pool]; got != want {
			t.Fatalf("pool %d, want that of %d", got, want)
		}
	}
	_, err := taker(r.owner, "more", 1, either)
	wantError(t, err, spec.CodeResources, "device 0: s0")
	either.Patience = 60
	waits := make(chan error, 1)
	go func() {
		_, err := taker(r.owner, "more", 1, either)
		waits <- err
	}()
	r.worker("s2").Die(wire.Exited{Code: 3}) // of the other pool
	must(t, <-waits)
	_, err = taker(r.owner, "large", 2, wire.ClusterCreate{Pool: one, Others: []int{two}})
	wantError(t, err, spec.CodeResources, "gpus=2", "device 0: s1")
	_, err = taker(r.owner, "larger", 3, wire.ClusterCreate{Pool: one, Others: []int{two}})
	wantError(t, err, spec.CodePlacement, "gpus=3, and there are 1 GPU for it")
	_, err = taker(r.owner, "gone", 2, wire.ClusterCreate{Pool: one, Others: []int{99}})
	wantError(t, err, spec.CodeNotFound, "pool 99")
}

func TestServicesTakeDevicesOfAPool(t *testing.T) {
	r := newRig(t, setup{virtual: "2x4"})
	pool := r.pool(3, 2)
	among := func(s *spec.Cluster) { s.MappingText = "3-5" }
	one, err := taker(r.owner, "one", 2, wire.ClusterCreate{Pool: pool}, among)
	must(t, err)
	if w := one.Workers[0]; w.Node != 1 || !slices.Equal(devices(one), []int{0, 1}) {
		t.Fatalf("got %+v", w)
	}
	_, err = taker(r.owner, "two", 2, wire.ClusterCreate{Pool: pool}, among)
	wantError(t, err, spec.CodeResources, "gpus=2", "device 3: one")
	_, err = taker(r.owner, "two", 4, wire.ClusterCreate{Pool: pool, Patience: 60})
	wantError(t, err, spec.CodePlacement, "gpus=4, and there are 3 GPUs")
	_, err = taker(r.owner, "two", 1, wire.ClusterCreate{Pool: pool}, func(s *spec.Cluster) { s.MappingText = "6" })
	wantError(t, err, spec.CodePlacement, "id 6")
	waits := make(chan error, 1)
	go func() {
		_, err := taker(r.owner, "two", 3, wire.ClusterCreate{Pool: pool, Patience: 60}, func(s *spec.Cluster) { s.Node = "node-1" })
		waits <- err
	}()
	must(t, r.owner.ask("cluster.stop", &wire.ClusterRef{Name: "one"}, &wire.Mark{}))
	must(t, within(t, waits, "the devices of one that was stopped"))
	_, err = r.create(r.owner, pool, "c", 1, func(s *spec.Cluster) { s.GPUs = 1 })
	wantError(t, err, spec.CodeInvalid, "gpus=1 is for services")
	must(t, r.owner.ask("pool.end", &wire.PoolRelease{Pool: pool}, &wire.Empty{}))
	if got := r.services(); len(got) != 0 || !slices.Equal(r.free(), []int{4, 4}) {
		t.Fatalf("services %v, free %v", got, r.free())
	}
}

// Of several who ask for one name at once, one takes the devices, and all get it.
func TestServiceWithDevicesIsMadeOnce(t *testing.T) {
	r := newRig(t, setup{virtual: "1x4"})
	got := make(chan uint32, 8)
	for range cap(got) {
		c := r.attach()
		go func() {
			info, err := taker(c, "one", 4, wire.ClusterCreate{Reuse: true, Patience: 60})
			if err != nil {
				t.Error(err)
			}
			got <- info.Number
		}()
	}
	first := within(t, got, "the service")
	for range cap(got) - 1 {
		if other := within(t, got, "the service"); other != first {
			t.Errorf("numbers %d and %d", first, other)
		}
	}
}

func TestPoolWaits(t *testing.T) {
	r := newRig(t, setup{virtual: "1x2"})
	held := r.pool(2, 1)
	ask := func(perNode int, timeout float64) error {
		return r.owner.ask("pool.create", &wire.PoolCreate{PerNode: perNode, Nodes: 1, Timeout: timeout, Wait: true}, &spec.Pool{})
	}
	wantError(t, ask(3, 60), spec.CodeResources, "wanted 1 node with 3 GPUs")
	wantError(t, ask(1, 0.01), spec.CodeResources, "holds 0-1")
	named := func(device int, timeout float64) error {
		return r.owner.ask("pool.create", &wire.PoolCreate{Devices: []int{device}, PerNode: 1, Nodes: 1, Timeout: timeout, Wait: true}, &spec.Pool{})
	}
	wantError(t, named(9, 60), spec.CodeResources, "devices=[9]")
	wantError(t, named(1, 0.01), spec.CodeResources, "holds 0-1")
	waits := make(chan error, 1)
	go func() { waits <- ask(1, 60) }()
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: held}, &wire.Empty{}))
	must(t, within(t, waits, "what was held"))
}

// A request for a pool that is given up takes nothing, and gives back what it took.
func TestAPoolIsGivenUp(t *testing.T) {
	r := newRig(t, setup{virtual: "1x2"})
	held := r.pool(2, 1)
	all := &wire.PoolCreate{PerNode: 2, Nodes: 1, Timeout: 60, Wait: true}
	body, err := wire.AppendVerb(nil, "pool.create", all)
	must(t, err)
	send := func(kind wire.Kind, id uint64, body []byte) {
		r.owner.conn.Send(wire.Header{Kind: kind, ID: id}, body, nil)
	}
	now := func() bool {
		var got wire.PoolOutlook
		must(t, r.owner.ask("pool.look", all, &got))
		return got.Now
	}
	const waiting, reserved = 1 << 20, 1<<20 + 1
	send(wire.KindRequest, waiting, body)
	send(wire.KindCancel, waiting, []byte{0xc0})
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: held}, &wire.Empty{}))
	if !now() {
		t.Error("a request that was given up holds something")
	}
	send(wire.KindRequest, reserved, body)
	eventually(t, "the pool", func() bool { return !now() })
	send(wire.KindCancel, reserved, []byte{0xc0})
	if !now() {
		t.Error("what nobody wants any more is held")
	}
}

// A start that is given up, while it waits for devices or for its process, leaves nothing.
func TestAStartIsGivenUp(t *testing.T) {
	r := newRig(t, setup{virtual: "1x2"})
	held := r.pool(2, 1)
	const id = 1 << 20
	create := wire.ClusterCreate{Patience: 60, Spec: clusterSpec("svc", 0)}
	create.Spec.Kind, create.Spec.GPUs = spec.KindService, 2
	body, err := wire.AppendVerb(nil, "cluster.create", &create)
	must(t, err)
	send := func(kind wire.Kind, id uint64, body []byte) {
		r.owner.conn.Send(wire.Header{Kind: kind, ID: id}, body, nil)
	}
	send(wire.KindRequest, id, body)
	send(wire.KindCancel, id, []byte{0xc0})
	must(t, r.owner.ask("pool.release", &wire.PoolRelease{Pool: held}, &wire.Empty{}))
	if _, err := taker(r.owner, "svc", 2, wire.ClusterCreate{}); err != nil {
		t.Error("a start that was given up holds its name or its devices:", err)
	}
}

// So does one that is given up when it is done, and its asker has not heard of it.
func TestAClusterIsGivenUp(t *testing.T) {
	r := newRig(t, setup{})
	pool := r.pool(0, 1)
	const id = 1 << 20
	body, err := wire.AppendVerb(nil, "cluster.create", &wire.ClusterCreate{Pool: pool, Spec: clusterSpec("a", 2)})
	must(t, err)
	r.owner.conn.Send(wire.Header{Kind: wire.KindRequest, ID: id}, body, nil)
	eventually(t, "the cluster", func() bool {
		return r.owner.ask("cluster.describe", &wire.ClusterRef{Name: "a"}, &wire.ClusterInfo{}) == nil
	})
	r.owner.conn.Send(wire.Header{Kind: wire.KindCancel, ID: id}, []byte{0xc0}, nil)
	eventually(t, "its name to be free", func() bool {
		_, err := r.create(r.owner, pool, "a", 1)
		return err == nil
	})
}

// The name of a cluster is free when all its processes have ended, and not before.
func TestNameOfADeadCluster(t *testing.T) {
	r := newRig(t, setup{})
	pool := r.pool(0, 1)
	_, err := r.create(r.owner, pool, "a", 2)
	must(t, err)
	r.worker("a-0").Die(wire.Exited{Signal: "SIGKILL"})
	_, err = r.create(r.owner, pool, "a", 1)
	wantError(t, err, spec.CodeInvalid, `a live cluster named "a" already`)
	r.worker("a-1").Die(wire.Exited{Signal: "SIGKILL"})
	eventually(t, "the name to be free", func() bool {
		_, err := r.create(r.owner, pool, "a", 1)
		return err == nil
	})
}

// Where the backend chooses nodes, what a service had goes back to it when that has ended.
func TestServicesTakeDevicesOfABackend(t *testing.T) {
	r, b := newReserving(t, []string{"node-2"})
	first, err := taker(r.owner, "first", 2, wire.ClusterCreate{Patience: 10})
	must(t, err)
	if w := first.Workers[0]; w.NodeName != "node-2" || !slices.Equal(devices(first), []int{2, 3}) {
		t.Fatalf("got %+v", w)
	}
	_, err = taker(r.owner, "second", 2, wire.ClusterCreate{})
	wantError(t, err, spec.CodeResources, "nothing is left")
	_, err = taker(r.owner, "second", 5, wire.ClusterCreate{Patience: 60}) // which no node has
	wantError(t, err, spec.CodeResources, "nothing is left")
	waits := make(chan error, 1)
	go func() {
		_, err := taker(r.owner, "second", 2, wire.ClusterCreate{Patience: 60})
		waits <- err
	}()
	b.mu.Lock()
	b.next = append(b.next, []string{"node-1"})
	b.mu.Unlock()
	r.worker("first").Die(wire.Exited{Signal: "SIGKILL"})
	must(t, within(t, waits, "what the backend has again"))
	eventually(t, "what the dead one had to be given back", func() bool {
		kept, _ := b.Kept(t.Context())
		return len(kept) == 1
	})
}
