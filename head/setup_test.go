package head_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// config is a value with two buffers: an object, and bytes.
var config = append(append([]byte{0x92}, array...), array...)

// madeOf posts a request for a cluster whose config names an object.
func (c *returning) madeOf(n uint64, s spec.Cluster, pool int) *outgoing {
	s.Config = config
	body, err := wire.AppendVerb(nil, "cluster.create", &wire.ClusterCreate{Pool: pool, Spec: s})
	must(c.t, err)
	return c.post(wire.Frame{
		Header: wire.Header{Kind: wire.KindRequest}, Body: body,
		Bufs: append([]wire.Buf{object(0, n)}, wire.Bytes([]byte("small"))...),
	}, 1)
}

// created waits for the answer.
func (c *returning) created(o *outgoing) (*wire.ClusterInfo, error) {
	f, err := c.wait(o)
	if err != nil {
		return nil, err
	}
	info := &wire.ClusterInfo{}
	_, err = info.UnmarshalMsg(f.Body)
	return info, err
}

// gets looks at what a worker was told to be made with.
func gets(t *testing.T, w *fake.Worker, n uint64) {
	t.Helper()
	bufs := w.Setup.ConfigBufs
	if string(w.Setup.Config) != string(config) || len(bufs) != 2 || bufs[0].Object != n || string(bufs[1].Data) != "small" || bufs[1].Object != 0 {
		t.Fatalf("%s got % x and %+v", w.Name, w.Setup.Config, bufs)
	}
	ref := wire.Buf{Data: bufs[0].Data, Object: n}
	if r, ok := ref.Ref(); !ok || r.New || r.Object != n {
		t.Fatalf("%s got %+v", w.Name, r)
	}
}

// What a cluster's config names is held for its request before anybody can let it
// go, then for as long as a worker may be made of it, and by workers that have it.
func TestConfigObjects(t *testing.T) {
	shelf := newShelf()
	s := newCrashes(t, "1x1", fake.Script{Answer: echo, Objects: shelf.objects, Stored: shelf.stored})
	c := s.controller()
	var p spec.Pool
	must(t, c.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &p))

	made := c.madeOf(1, clusterSpec("once", 1), p.ID)
	c.release(1)
	once, err := c.created(made)
	must(t, err)
	w := s.fake.Worker("once-0")
	gets(t, w, 1)
	tells(t, shelf.told, "hold 1")
	release(w, 0, 1, 1) // nothing is made of it again
	tells(t, shelf.told, "drop 1")

	// Who is not made keeps nothing, nor a request that is refused.
	c.holds = nil
	_, err = c.created(c.madeOf(2, clusterSpec("once", 1), p.ID))
	wantError(t, err, spec.CodeInvalid, "live cluster")
	tells(t, shelf.told, "hold 2")
	c.release(2)
	tells(t, shelf.told, "drop 2")

	again := clusterSpec("again", 1)
	again.OnFailure = spec.OnFailureCluster
	kept, err := c.created(c.madeOf(3, again, p.ID))
	must(t, err)
	c.release(3)
	first := s.fake.Worker("again-0")
	release(first, 0, 3, 1)
	first.Die(wire.Exited{Signal: "SIGKILL"})
	next := first
	eventually(t, "another process", func() bool { next = s.fake.Worker("again-0"); return next != nil && next != first })
	gets(t, next, 3)
	eventually(t, "its being ready", func() bool { return c.restarts(kept.Number) == 1 })
	tells(t, shelf.told, "hold 3")
	must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: kept.Number}, &wire.Mark{}))
	tells(t, shelf.told, "drop 3")
	must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: once.Number}, &wire.Mark{}))
	must(t, errors.Join(s.end(c)))
}

func (c *returning) restarts(number uint32) int {
	info := &wire.ClusterInfo{}
	must(c.t, c.ask("cluster.describe", &wire.ClusterRef{Number: number}, info))
	if info.Workers[0].State != "ready" {
		return -1
	}
	return info.Restarts
}

// Another head holds it too, or says that it cannot: a store may have lost it.
func TestConfigObjectsOutliveHeads(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %v", lost), func(t *testing.T) {
			shelf := newShelf()
			s := newCrashes(t, "1x1", fake.Script{Answer: echo, Objects: shelf.objects, Stored: shelf.stored})
			c := s.controller()
			var p spec.Pool
			must(t, c.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &p))
			again := clusterSpec("again", 1)
			again.OnFailure = spec.OnFailureCluster
			kept, err := c.created(c.madeOf(3, again, p.ID))
			must(t, err)
			tells(t, shelf.told, "hold 3")
			c.mu.Lock()
			c.holds = []wire.Released{}
			c.mu.Unlock()
			if lost {
				shelf.mu.Lock()
				delete(shelf.held, 3)
				shelf.mu.Unlock()
			}
			s.crashNow()
			must(t, c.ask("cluster.describe", &wire.ClusterRef{Number: kept.Number}, &wire.ClusterInfo{}))
			first := s.fake.Worker("again-0")
			first.Die(wire.Exited{Signal: "SIGKILL"})
			if lost {
				eventually(t, "the end of its restart", func() bool {
					to := callee{cluster: kept.Number, method: "plain", how: 2, ranks: []int{0}}
					_, err := c.wait(c.post(wire.Frame{Header: wire.Header{Kind: wire.KindCall}, Body: append(to.route(), args(1)...)}, 1))
					return err != nil && strings.Contains(err.Error(), "again cannot be restarted: a part of its worker_config lay in the store of node-0")
				})
			} else {
				next := first
				eventually(t, "another process", func() bool { next = s.fake.Worker("again-0"); return next != nil && next != first })
				gets(t, next, 3)
				eventually(t, "its being ready", func() bool { return c.restarts(kept.Number) == 1 })
			}
			must(t, c.ask("cluster.stop", &wire.ClusterRef{Number: kept.Number}, &wire.Mark{}))
			if !lost {
				tells(t, shelf.told, "drop 3")
			}
			must(t, errors.Join(s.end(c)))
		})
	}
}
