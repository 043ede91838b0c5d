package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/device"
	"github.com/muster-rl/muster/placement"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// lookBound is for drivers that hang and a Ray that does not answer.
const lookBound = time.Minute

// look says whether a pool could be had now. Nothing is reserved, and no head is
// started.
func (s *provider) look(ctx context.Context, ask *wire.PoolCreate) (*backend.Outlook, error) {
	if err := s.check(); err != nil {
		return nil, &exitError{exitUsage, err}
	}
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	if s.backend == "ray" {
		return s.lookAtRay(ctx, ask)
	}
	return lookHere(ctx, ask)
}

// lookHere looks at this machine, or at what MUSTER_VIRTUAL makes of it.
func lookHere(ctx context.Context, ask *wire.PoolCreate) (*backend.Outlook, error) {
	if len(ask.Labels) > 0 || ask.Accelerator != "" {
		return nil, usage("labels and accelerator_type choose among the nodes of a Ray cluster: leave them out, or say --backend ray")
	}
	var nodes []spec.Node
	if text := os.Getenv("MUSTER_VIRTUAL"); text != "" {
		v, err := spec.ParseVirtual(text)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		for i := range v.Nodes {
			nodes = append(nodes, spec.Node{Index: i, Name: "node-" + strconv.Itoa(i), Virtual: true, Devices: device.Virtual(v.Devices)})
		}
	} else {
		found, err := device.Find(ctx, device.Here())
		node := spec.Node{Name: "node-0", Devices: found}
		if err != nil {
			node.Trouble = err.Error()
		}
		nodes = []spec.Node{node}
	}
	pool, err := placement.Reserve(nodes, nil, placement.Ask{PerNode: ask.PerNode, Nodes: ask.Nodes, Strategy: ask.Strategy})
	var e *spec.Error
	if errors.As(err, &e) && e.Code == spec.CodeResources {
		return &backend.Outlook{Text: e.Message}, nil
	}
	if err != nil {
		return nil, err
	}
	return &backend.Outlook{Now: true, Text: "there is room here: " + placement.Describe(pool)}, nil
}

// lookAtRay joins Ray for the time of one question.
func (s *provider) lookAtRay(ctx context.Context, ask *wire.PoolCreate) (*backend.Outlook, error) {
	dir, err := os.MkdirTemp("", "muster-look-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	reaper, err := process.NewReaper()
	if err != nil {
		return nil, err
	}
	defer reaper.Close()
	python := *s
	if python.python, err = interpreter(s.python); err != nil {
		return nil, err
	}
	n := &nodes{provider: python, reaper: reaper, place: session.Session{Name: filepath.Base(dir), Dir: dir, LogDir: dir}, owner: os.Getpid(), warn: func(string) {}}
	if _, err := n.give(spec.Virtual{}, false); err != nil {
		return nil, err
	}
	defer n.close()
	outlook, err := n.ray.Look(ctx, backend.Want{
		Nodes: ask.Nodes, Devices: ask.PerNode, CPUs: ask.CPUs, Strategy: ask.Strategy, Labels: ask.Labels, Accelerator: ask.Accelerator,
	})
	return &outlook, err
}
