package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// The bounds that -check holds: from join to stop, a worker at 10,000 may cost
// this much of one at 1,000, and planning 10,000 may take this long. Single
// phases beyond the bound are told and do not fail: that of a broadcast comes
// with the number of connections (with -per-node 80, so with 125 of them for
// 10,000 workers, a worker's share does not grow at all).
const (
	maxGrowth   = 1.5
	maxPlanning = 100 * time.Millisecond
)

// Report is all that a run measured.
type Report struct {
	Machine string             `json:"machine"`
	Sizes   []Size             `json:"sizes"`
	Growth  map[string]float64 `json:"growth,omitempty"` // of a worker's cost from 1,000 to 10,000
	Failed  []string           `json:"failed"`
}

// judge compares costs per worker at 10,000 with those at 1,000.
func (r *Report) judge() {
	r.Failed = []string{}
	small, large := r.at(1000), r.at(10000)
	if large != nil {
		if p := large.phase(phasePlan); p.Time > maxPlanning.Seconds() {
			r.Failed = append(r.Failed, fmt.Sprintf("planning %d workers took %s", large.Workers, seconds(p.Time)))
		}
	}
	if small == nil || large == nil {
		return
	}
	r.Growth = map[string]float64{}
	grow := func(name string, a, b float64) float64 {
		if a <= 0 {
			return 0
		}
		r.Growth[name] = b / float64(large.Workers) / (a / float64(small.Workers))
		return r.Growth[name]
	}
	bounded := func(name string, a, b float64) {
		if growth := grow(name, a, b); growth > maxGrowth {
			r.Failed = append(r.Failed, fmt.Sprintf("%s: %.2f times as much a worker at 10,000 as at 1,000", name, growth))
		}
	}
	var a, b, as, bs float64
	for _, p := range small.Phases {
		q := large.phase(p.Name)
		grow(p.Name+", CPU", p.CPU, q.CPU)
		a, b, as, bs = a+p.CPU, b+q.CPU, as+p.Time, bs+q.Time
	}
	bounded("all phases, CPU", a, b)
	bounded("all phases, time", as, bs)
	bounded("memory", float64(small.Heap), float64(large.Heap))
}

func (r *Report) at(workers int) *Size {
	for i := range r.Sizes {
		if r.Sizes[i].Workers == workers {
			return &r.Sizes[i]
		}
	}
	return nil
}

func (s *Size) phase(name string) Phase {
	for _, p := range s.Phases {
		if p.Name == name {
			return p
		}
	}
	return Phase{Name: name}
}

// print draws the table: time and the head's CPU of each phase, then a worker's
// share of it.
func (r *Report) print(to io.Writer) {
	fmt.Fprintf(to, "The head alone, its nodes and workers simulated (8 a node, relayed). %s.\n", r.Machine)
	fmt.Fprintf(to, "Each cell: time / CPU of the head's process; below, its CPU per worker.\n\n")
	t := tabwriter.NewWriter(to, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "workers\t")
	for _, s := range r.Sizes {
		fmt.Fprintf(t, "%d\t", s.Workers)
	}
	fmt.Fprint(t, "\n")
	for i, first := range r.Sizes[0].Phases {
		fmt.Fprintf(t, "%s\t", first.Name)
		for _, s := range r.Sizes {
			fmt.Fprintf(t, "%s / %s\t", seconds(s.Phases[i].Time), seconds(s.Phases[i].CPU))
		}
		fmt.Fprint(t, "\n\t")
		for _, s := range r.Sizes {
			fmt.Fprintf(t, "%s\t", seconds(s.Phases[i].CPU/float64(s.Workers)))
		}
		fmt.Fprint(t, "\n")
	}
	fmt.Fprint(t, "memory, a worker\t")
	for _, s := range r.Sizes {
		fmt.Fprintf(t, "%.1f MB, %.1f kB\t", float64(s.Heap)/1e6, float64(s.Heap)/1e3/float64(s.Workers))
	}
	fmt.Fprint(t, "\nresident\t")
	for _, s := range r.Sizes {
		fmt.Fprintf(t, "%.1f MB\t", float64(s.RSS)/1e6)
	}
	fmt.Fprint(t, "\n")
	_ = t.Flush()
	for _, name := range sortedKeys(r.Growth) {
		note := ""
		if r.Growth[name] > maxGrowth {
			note = fmt.Sprintf(" (above %.1f)", maxGrowth)
		}
		fmt.Fprintf(to, "a worker at 10,000 over one at 1,000, %s: %.2f%s\n", name, r.Growth[name], note)
	}
	for _, f := range r.Failed {
		fmt.Fprintf(to, "OUT OF BOUNDS: %s\n", f)
	}
}

func seconds(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.2f s", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f us", s*1e6)
}
