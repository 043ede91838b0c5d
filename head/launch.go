package head

import (
	"context"
	"errors"
	"strconv"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/spec"
)

// launcher is what it takes to launch agents; set once, before the nodes are known.
type launcher struct {
	backend  backend.Backend
	reserver backend.Reserver // the same; nil where all nodes are this session's
	common   backend.Join     // what all agents are told alike
}

func newLauncher(b backend.Backend, common backend.Join) launcher {
	r, _ := b.(backend.Reserver)
	return launcher{backend: b, reserver: r, common: common}
}

// joinOf is what the agent of n is told.
func (h *Head) joinOf(n *node) backend.Join {
	join := h.launcher.common
	join.Node, join.Name, join.Token = n.index, n.name, h.tokenFor("agent "+strconv.Itoa(n.index))
	join.Far = h.farJoin()
	return join
}

// whereLocked is the address by which other nodes reach n: the backend knows best.
func (n *node) whereLocked() string {
	if n.address != "" {
		return n.address
	}
	return n.info.Address
}

// launch starts the agent of a node, or takes over the one that an earlier head
// has left there. It returns when that is under way, not when it has joined.
func (h *Head) launch(ctx context.Context, n *node) {
	h.mu.Lock()
	lost := n.lost != nil
	h.mu.Unlock()
	if lost {
		return // it was never there
	}
	var agent backend.Agent
	var err error
	if n.handle != nil {
		agent, err = h.launcher.backend.Adopt(ctx, h.joinOf(n), *n.handle)
	} else {
		agent, err = h.launcher.backend.Launch(ctx, h.joinOf(n))
	}
	switch {
	case errors.Is(err, backend.ErrGone):
		n.lose(spec.Errorf(spec.CodeNodeLost, "the agent of %s ended while there was no head. Its workers went with it", n.name))
		return
	case err != nil:
		n.lose(spec.Errorf(spec.CodeNodeLost, "the agent of %s could not be started: %v", n.name, err))
		return
	}
	h.mu.Lock()
	n.agent = agent
	h.noteNodeLocked(n, 0)
	h.mu.Unlock()
	go n.watch(agent)
}
