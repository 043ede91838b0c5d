package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Size is what one number of workers cost.
type Size struct {
	Workers int     `json:"workers"`
	Nodes   int     `json:"nodes"`
	Phases  []Phase `json:"phases"`
	// Memory of the head's process with the cluster up and idle, after a
	// collection, beyond what it had before any node joined.
	Heap uint64 `json:"heap_bytes"`
	RSS  uint64 `json:"rss_bytes"`
}

// Phase is one step: its time, and the head's share of the CPU in it.
type Phase struct {
	Name   string  `json:"name"`
	Time   float64 `json:"seconds"`     // of a round, the median
	CPU    float64 `json:"cpu_seconds"` // of the head, for a round
	Rounds int     `json:"rounds"`
}

// Names of the phases, in order.
const (
	phaseJoin      = "join"
	phasePlan      = "plan"
	phaseCreate    = "start"
	phaseBroadcast = "broadcast"
	phaseCut       = "cut and chain"
	phaseLose      = "lose a worker"
	phaseEnd       = "end its peers"
	phaseStop      = "stop"
)

// measure runs all phases with one number of workers.
func measure(workers, perNode, rounds int, profile string) (*Size, error) {
	nodes := (workers + perNode - 1) / perNode
	if rounds == 0 {
		rounds = min(500, max(100, 200_000/workers))
	}
	w, err := begin(profile)
	if err != nil {
		return nil, err
	}
	defer w.end()
	s := &Size{Workers: workers, Nodes: nodes}
	bare, err := w.cost("heap")
	if err != nil {
		return nil, err
	}
	// A phase of many rounds is measured in batches, of which the median counts:
	// the machine is rarely ours alone.
	phase := func(name string, rounds int, step func() error) error {
		batches := min(rounds, 5)
		var times, cpu []float64
		for range batches {
			before, err := w.cost("cpu")
			if err != nil {
				return err
			}
			for range rounds / batches {
				start := time.Now()
				if err := step(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				times = append(times, time.Since(start).Seconds())
			}
			after, err := w.cost("cpu")
			if err != nil {
				return err
			}
			cpu = append(cpu, (after.CPU-before.CPU)/float64(rounds/batches))
		}
		s.Phases = append(s.Phases, Phase{Name: name, Time: median(times), CPU: median(cpu), Rounds: len(times)})
		return nil
	}

	var pool spec.Pool
	cluster := cluster(workers)
	var info wire.ClusterInfo
	err = errors.Join(
		phase(phaseJoin, 1, func() error {
			if err := w.join(fmt.Sprintf("%dx%d+relay", nodes, perNode)); err != nil {
				return err
			}
			return w.ask("pool.create", &wire.PoolCreate{PerNode: perNode, Nodes: nodes, Timeout: bound.Seconds()}, &pool)
		}),
		phase(phasePlan, 5, func() error {
			return w.ask("plan", &wire.PlanRequest{Pool: pool.ID, Clusters: []spec.Cluster{cluster}}, &wire.PlanAnswer{})
		}),
		phase(phaseCreate, 1, func() error {
			return w.ask("cluster.create", &wire.ClusterCreate{Pool: pool.ID, Spec: cluster}, &info)
		}),
	)
	if err != nil {
		return nil, err
	}
	up, err := w.cost("heap")
	if err != nil {
		return nil, err
	}
	s.Heap, s.RSS = up.Heap-min(bare.Heap, up.Heap), up.RSS

	rows := msgp.AppendArrayHeader([]byte{0x92, 0x91}, uint32(workers)) //nolint:gosec // a number of workers
	for range workers {
		rows = append(rows, 5)
	}
	rows = append(rows, 0x80)
	for _, call := range []struct {
		name, method string
		payload      []byte
	}{
		{phaseBroadcast, "broadcast", []byte{0x92, 0x91, 5, 0x80}},
		{phaseCut, "cut", rows},
	} {
		once := func() error { return w.gather(info.Number, call.method, call.payload, workers) }
		for range 3 { // buffers grow once
			if err := once(); err != nil {
				return nil, err
			}
		}
		if err := phase(call.name, rounds, once); err != nil {
			return nil, err
		}
	}
	// All of it waits in one call when a worker goes. The head tells the caller
	// and has the other legs ended: a call of the other ranks comes after that.
	if err := w.hold(info.Number, workers); err != nil {
		return nil, err
	}
	err = errors.Join(
		phase(phaseLose, 1, func() error { return w.lose(&info) }),
		phase(phaseEnd, 1, func() error { return w.others(&info) }),
		phase(phaseStop, 1, func() error {
			return w.ask("cluster.stop", &wire.ClusterRef{Number: info.Number}, &wire.Mark{})
		}),
	)
	return s, err
}

func cluster(workers int) spec.Cluster {
	s := spec.Cluster{
		Name: "sim", HasMapping: true, MappingText: fmt.Sprintf("0-%d", workers-1), Mapping: []int{},
		Env: map[string]string{}, Config: []byte{0xc0}, StartupSeconds: bound.Seconds(),
		Class: spec.Class{Module: "m", Name: "Puppet", Pickle: []byte{}}, Runtime: runtimeOf(),
	}
	if workers == 1 {
		s.MappingText = "0"
	}
	return s
}

// gather makes a call and counts what comes back.
func (w *world) gather(cluster uint32, method string, payload []byte, workers int) error {
	w.send(cluster, method, payload)
	f, err := w.answer()
	if err != nil {
		return err
	}
	n, _, err := msgp.ReadArrayHeaderBytes(f.Body)
	if err == nil && int(n) != workers {
		err = fmt.Errorf("%d results instead of %d", n, workers)
	}
	return err
}

// hold makes a call that every worker has and none answers.
func (w *world) hold(cluster uint32, workers int) error {
	if err := w.order("hold %d", workers); err != nil {
		return err
	}
	if err := w.puppet("ready"); err != nil {
		return err
	}
	w.send(cluster, "hold", []byte{0x92, 0x90, 0x80})
	return w.puppet("held")
}

// lose kills the middle worker and waits for the call's end.
func (w *world) lose(info *wire.ClusterInfo) error {
	victim := info.Workers[len(info.Workers)/2]
	if err := w.order("kill %s", victim.Name); err != nil {
		return err
	}
	_, err := w.answer()
	var died *spec.Error
	if !errors.As(err, &died) || died.Code != spec.CodeWorkerDied || died.Worker != victim.Name {
		return fmt.Errorf("the call of a lost worker was answered by: %w", err)
	}
	w.send(info.Number, "broadcast", []byte{0x92, 0x90, 0x80})
	if _, err := w.answer(); !errors.As(err, &died) || died.Code != spec.CodeWorkerDied {
		return fmt.Errorf("a later call was answered by: %w", err)
	}
	return nil
}

// others calls every rank but the one that was lost.
func (w *world) others(info *wire.ClusterInfo) error {
	n := len(info.Workers)
	ranks := make([]int, 0, n)
	for rank := range n {
		if rank != n/2 {
			ranks = append(ranks, rank)
		}
	}
	if len(ranks) == 0 {
		return nil
	}
	w.sendTo(info.Number, "broadcast", ranks, []byte{0x92, 0x90, 0x80})
	_, err := w.answer()
	return err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// together makes one of several runs of a size: the median of times, the least
// of CPU, which only ever grows by what else the machine does.
func together(runs []*Size) Size {
	m := *runs[0]
	m.Phases = slices.Clone(m.Phases)
	of := func(pick func(*Size) float64) []float64 {
		var values []float64
		for _, r := range runs {
			values = append(values, pick(r))
		}
		return values
	}
	for i := range m.Phases {
		m.Phases[i].Time = median(of(func(s *Size) float64 { return s.Phases[i].Time }))
		m.Phases[i].CPU = slices.Min(of(func(s *Size) float64 { return s.Phases[i].CPU }))
	}
	m.Heap = uint64(median(of(func(s *Size) float64 { return float64(s.Heap) })))
	m.RSS = uint64(median(of(func(s *Size) float64 { return float64(s.RSS) })))
	return m
}
