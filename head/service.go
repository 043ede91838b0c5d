package head

import (
	"bytes"
	"context"
	"slices"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// A service is a cluster of one worker that is found by its name: who asks for one
// gets the living one, or makes it. Who comes first is decided where names are
// given out, under the lock; the others wait for what becomes of that one.

func (cl *cluster) service() bool { return cl.spec.Kind == spec.KindService }

// title is what it is called in messages.
func (cl *cluster) title() string { return cl.spec.Kind + " " + cl.Name }

// livesLocked says that it can be called, now or when a rank is restarted.
func (cl *cluster) livesLocked() bool { return cl.up && !cl.stopping && !cl.endedLocked() }

func (cl *cluster) upNow(h *Head) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cl.up
}

// startingLocked says that it may yet live.
func (cl *cluster) startingLocked() bool {
	select {
	case <-cl.started:
		return false
	default:
		return !cl.up && !cl.stopping && cl.failed == nil
	}
}

// register has a cluster registered, or finds the living service of its name where
// that will do.
func (h *Head) register(ctx context.Context, owner *caller, origin uint64, req *wire.ClusterCreate, given *setup) (*cluster, *wire.ClusterInfo, error) {
	seat, stop := h.seatFor(ctx, owner, origin, req)
	defer stop()
	for {
		changed := h.changing()
		made, taken, err := h.registerOnAny(ctx, owner, origin, &seat.req, given)
		if taken == nil && err != nil && seat.again(changed, &err) {
			continue
		}
		if taken == nil {
			return made, nil, err
		}
		if owner.worker != nil && owner.worker.cluster == taken && !taken.upNow(h) {
			return nil, nil, spec.Errorf(spec.CodeDeadlock, "service %s asks for itself while it is made, and would wait for that for ever: ask later, in a method", taken.Name)
		}
		living, err := h.yields(ctx, taken, req)
		if living != nil || err != nil {
			return nil, living, err
		}
	}
}

// registerOnAny has a cluster registered on the first of its pools that has what it
// takes. Where none has, the error is that of one that will have it when it is free.
func (h *Head) registerOnAny(ctx context.Context, owner *caller, origin uint64, req *wire.ClusterCreate, given *setup) (made, taken *cluster, err error) {
	made, taken, err = h.registerCluster(ctx, owner, origin, req, given)
	small := func(err error) bool { return spec.AsError(err).Code == spec.CodePlacement }
	for _, pool := range req.Others {
		if err == nil || !small(err) && spec.AsError(err).Code != spec.CodeResources {
			break
		}
		other := *req
		other.Pool = pool
		m, t, e := h.registerCluster(ctx, owner, origin, &other, given)
		if e == nil || small(err) && !small(e) {
			made, taken, err = m, t, e
		}
	}
	return made, taken, err
}

// yields says what comes of a name that a service has: that service where it lives
// and will do, an error where it will not, or nothing, and the name is free again.
func (h *Head) yields(ctx context.Context, other *cluster, req *wire.ClusterCreate) (*wire.ClusterInfo, error) {
	given := func() error {
		return spec.Errorf(spec.CodeCancelled, "service %s: its start was given up: %v", req.Spec.Name, context.Cause(ctx))
	}
	if req.Reuse {
		select {
		case <-other.started:
		case <-other.ended:
		case <-ctx.Done():
			return nil, given()
		}
	}
	h.mu.Lock()
	lives := other.livesLocked() || other.startingLocked()
	switch {
	case lives && req.Reuse:
		defer h.mu.Unlock()
		return other.infoLocked(), nil
	case lives:
		defer h.mu.Unlock()
		return nil, spec.Errorf(spec.CodeTaken, "there is a living service named %q already: shut it down first, use another name, or take it (get_or_create=True)", other.Name)
	}
	ended := other.up && !other.stopping // its process has, and nobody has cleared it up
	h.mu.Unlock()
	if ended {
		stopping, cancel := context.WithTimeout(context.Background(), other.grace()+h.opts.StopWait)
		err := h.stopCluster(stopping, other, "its process had ended, and its name was wanted")
		cancel()
		if err != nil {
			return nil, err
		}
	}
	select {
	case <-other.ended:
	case <-ctx.Done():
		return nil, given()
	}
	return nil, nil
}

// scriptLocked is the script that a caller belongs to, which what all of it may ask
// for by name goes with.
func (c *caller) scriptLocked(name string) (*caller, error) {
	for c.worker != nil && c.worker.cluster.owner != nil {
		c = c.worker.cluster.owner
	}
	if c.left {
		return nil, spec.Errorf(spec.CodeCancelled, "service %s: the script that it would belong to is gone", name)
	}
	return c, nil
}

// services are those that live.
func (h *Head) services() *wire.Names {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := &wire.Names{Names: []string{}}
	for name, cl := range h.names {
		if cl.service() && cl.livesLocked() {
			found.Names = append(found.Names, name)
		}
	}
	slices.Sort(found.Names)
	return found
}

// mostEngineMethods bounds what a cluster keeps of methods that callers made up.
const mostEngineMethods = 1000

// engineMethod is "engine/method" as a method. What there is, its worker knows.
func (cl *cluster) engineMethod(name []byte) *method {
	if m := cl.engines[string(name)]; m != nil {
		return m
	}
	at := bytes.LastIndexByte(name, '/')
	if at < 1 || at == len(name)-1 {
		return nil
	}
	text := string(name)
	m := &method{title: cl.Name + "." + text, Method: spec.Method{
		Name: text, Params: []spec.Param{{Name: "args", Kind: 2}, {Name: "kwargs", Kind: 4}},
	}}
	if cl.engines == nil || len(cl.engines) >= mostEngineMethods {
		cl.engines = map[string]*method{}
	}
	cl.engines[text] = m
	return m
}
