package muster

import (
	"cmp"
	"context"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Strategies of a pool, by Ray's names.
const (
	StrictSpread = "STRICT_SPREAD" // each of its nodes is a node of its own
	Spread       = "SPREAD"        // the same, as far as there are so many
	Pack         = "PACK"          // on as few as can be, of which each then counts as several
	StrictPack   = "STRICT_PACK"   // all on one
)

// PoolConfig is what is asked of a pool. One of four things says how large it is:
// nodes that are alike, workers, bundles, or devices by their numbers.
type PoolConfig struct {
	// Nodes (0: one), with GPUsPerNode each; 0 GPUs make a pool for CPU workers.
	Nodes, GPUsPerNode int
	// Workers, with GPUsPerWorker each, are what the pool is for: it has as few nodes
	// as can be, where a node has GPUsPerNode, and of each no more than its workers
	// take. One with more GPUs than a node gets whole nodes (ClusterConfig.SpanNodes).
	Workers, GPUsPerWorker int
	// Bundles may differ; bundle i is node i of the pool.
	Bundles []Bundle
	// Devices are the GPUs themselves, of one node, by the numbers that they have
	// there. Not on Ray's nodes.
	Devices []int

	// Strategy says which nodes may be one in truth. Default: StrictSpread; of
	// Bundles: Pack.
	Strategy string
	// Node names the one node that will do.
	Node string
	// On Ray's nodes: CPUs that are held beside the GPUs, and which nodes will do.
	CPUsPerNode float64
	Labels      map[string]string
	Accelerator string // as "H100"
	// Wait: what others hold is waited for. Else it is an error that names them.
	Wait bool
}

// Bundle is what one node of a pool has. CPUs are counted on Ray's nodes alone.
type Bundle = spec.Bundle

// request is the configuration as the head takes it.
func (c PoolConfig) request() (*wire.PoolCreate, error) {
	ways := 0
	for _, given := range []bool{c.Workers != 0 || c.GPUsPerWorker != 0, c.Bundles != nil, c.Devices != nil} {
		if given {
			ways++
		}
	}
	switch {
	case ways > 1:
		return nil, spec.Errorf(CodeInvalid, "a pool is asked for by Workers, by Bundles or by Devices: give one of them")
	case ways > 0 && c.Nodes != 0:
		return nil, spec.Errorf(CodeInvalid, "Nodes is %d, and how many nodes the pool has follows from its Workers, Bundles or Devices: leave it out", c.Nodes)
	case (c.Bundles != nil || c.Devices != nil) && c.GPUsPerNode != 0:
		return nil, spec.Errorf(CodeInvalid, "GPUsPerNode is %d, and what the pool has of a node is said by its Bundles or Devices: leave it out", c.GPUsPerNode)
	case c.GPUsPerWorker != 0 && c.Workers == 0:
		return nil, spec.Errorf(CodeInvalid, "a pool for workers of %d GPUs: Workers says how many of them", c.GPUsPerWorker)
	case c.Bundles != nil && len(c.Bundles) == 0:
		return nil, spec.Errorf(CodeInvalid, "Bundles is empty: a pool has one bundle at least")
	case c.Devices != nil && len(c.Devices) == 0:
		return nil, spec.Errorf(CodeInvalid, "Devices is empty: name one GPU at least, by its number on its node")
	case !(c.CPUsPerNode >= 0): // which refuses NaN, too
		return nil, spec.Errorf(CodeInvalid, "CPUsPerNode is %v; it is 0 or more", c.CPUsPerNode)
	}
	req := &wire.PoolCreate{
		PerNode: c.GPUsPerNode, Nodes: cmp.Or(c.Nodes, 1), CPUs: c.CPUsPerNode, Strategy: c.Strategy, Labels: c.Labels, Accelerator: c.Accelerator,
		Node: c.Node, Wait: c.Wait, Workers: c.Workers, PerWorker: c.GPUsPerWorker, Devices: c.Devices, Bundles: c.Bundles,
	}
	if len(c.Bundles) > 0 {
		req.Strategy = cmp.Or(c.Strategy, Pack)
	}
	return req, nil
}

// Pool is a reservation of nodes and devices.
type Pool struct {
	session *Session
	pool    spec.Pool
}

// Pool reserves GPUs on nodes, all of them or none; 0 GPUs make a pool for CPU
// workers. Where ctx has no deadline it waits 30 s for nodes to join.
func (s *Session) Pool(ctx context.Context, nodes, gpusPerNode int) (*Pool, error) {
	return s.reserve(ctx, &wire.PoolCreate{PerNode: gpusPerNode, Nodes: nodes})
}

// PoolOf is Pool for all that a pool can be.
func (s *Session) PoolOf(ctx context.Context, config PoolConfig) (*Pool, error) {
	req, err := config.request()
	if err != nil {
		return nil, err
	}
	return s.reserve(ctx, req)
}

func (s *Session) reserve(ctx context.Context, req *wire.PoolCreate) (*Pool, error) {
	req.Timeout = secondsLeft(ctx)
	p := &Pool{session: s}
	if err := s.conn.ask(ctx, "pool.create", req, &p.pool); err != nil {
		return nil, err
	}
	return p, nil
}

// secondsLeft is how long the head may take; 0: as long as it does by itself.
func secondsLeft(ctx context.Context) float64 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(deadline).Seconds(), 0.001)
}

// Outlook is what would come of asking for a pool: whether all of it is free Now,
// whether nodes may be added, so that PoolOf Waits for them, and, as Text, what
// there is, or what is missing and who holds it.
type Outlook = wire.PoolOutlook

// Outlook says whether such a pool could be had. Nothing is reserved, so another may
// be quicker.
func (s *Session) Outlook(ctx context.Context, config PoolConfig) (Outlook, error) {
	var outlook Outlook
	req, err := config.request()
	if err != nil {
		return outlook, err
	}
	req.Timeout = secondsLeft(ctx)
	err = s.conn.ask(ctx, "pool.look", req, &outlook)
	return outlook, err
}

// Nodes are the pool's, with the devices that it has of each.
func (p *Pool) Nodes() []Node { return p.pool.Nodes }

// DeviceIDs are the ids of the GPUs that one of its nodes has, by the node's place
// in Nodes: what ClusterConfig.DeviceIDs takes.
func (p *Pool) DeviceIDs(node int) []int {
	ids, first := []int{}, 0
	for i := range p.pool.Nodes {
		n := len(p.pool.Nodes[i].Devices)
		for id := first; i == node && id < first+n; id++ {
			ids = append(ids, id)
		}
		first += n
	}
	return ids
}

// Release gives the pool back, once no cluster uses it any more.
func (p *Pool) Release(ctx context.Context) error {
	return p.session.conn.ask(ctx, "pool.release", &wire.PoolRelease{Pool: p.pool.ID}, &wire.Empty{})
}

// End stops all that runs on the pool, whoever made it, and gives it back. It may be
// called again.
func (p *Pool) End(ctx context.Context) error {
	return p.session.conn.ask(ctx, "pool.end", &wire.PoolRelease{Pool: p.pool.ID}, &wire.Empty{})
}

// Plan draws where the workers of clusters would be, and starts nothing. What it
// refuses, Cluster would refuse too.
func (p *Pool) Plan(ctx context.Context, clusters ...ClusterConfig) (string, error) {
	req := wire.PlanRequest{Pool: p.pool.ID}
	for _, c := range clusters {
		if err := c.check(); err != nil {
			return "", err
		}
		req.Clusters = append(req.Clusters, c.spec())
	}
	var answer wire.PlanAnswer
	err := p.session.conn.ask(ctx, "plan", &req, &answer)
	return answer.Text, err
}
