package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

func statusCommand() *cobra.Command {
	var asJSON bool
	var name string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show your running scripts: nodes, clusters, calls under way",
		Long: `Show your running scripts: their nodes, their clusters with the state of the
workers, and the calls under way with their age and who has not answered yet.
Nodes of a Ray cluster that no pool has had are listed as unused.
Heads are found by themselves.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showStatus(cmd.OutOrStdout(), lookFor(answerBound, wire.StatusRequest{Unused: true}), name, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	sessionFlag(cmd, &name)
	return cmd
}

func showStatus(out io.Writer, all []running, name string, asJSON bool) error {
	picked, err := pick(all, name)
	if asJSON {
		views := make([]sessionView, 0, len(picked))
		for _, r := range picked {
			views = append(views, viewOf(r))
		}
		if jsonErr := printJSON(out, views); jsonErr != nil {
			return jsonErr
		}
	}
	if err != nil {
		return err
	}
	var silent []error
	for i, r := range picked {
		if r.err != nil {
			silent = append(silent, r.err)
		}
		if asJSON {
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprint(out, statusText(r))
	}
	if asJSON || len(silent) == 0 {
		return errors.Join(silent...)
	}
	return &exitError{code: exitFailed} // told above
}

// Rows of a table that people can still take in; the rest is counted.
const (
	mostNodes = 16
	mostCalls = 20
	mostNames = 8

	mostEngines = 20
)

// statusText is a session for people.
func statusText(r running) string {
	if r.err != nil {
		return fmt.Sprintf("session %s\n  %v\n", r.Name, r.err)
	}
	s := r.status
	var b strings.Builder
	fmt.Fprintf(&b, "%s, up %s, session %s\n", r.title(), span(s.UpSec), r.Name)
	where := []string{"head " + strconv.Itoa(s.Pid)}
	if s.Owner != 0 {
		where = append([]string{"process " + strconv.Itoa(s.Owner)}, where...)
	}
	if s.Release != wire.Release {
		where = append(where, "release "+shown(s.Release))
	}
	if s.Virtual != "" {
		where = append(where, "virtual "+s.Virtual)
	}
	fmt.Fprintf(&b, "  %s, logs in %s\n\n", strings.Join(where, ", "), shown(s.LogDir))
	b.WriteString(nodesText(s.Nodes))
	if s.Unknown != "" {
		fmt.Fprintf(&b, "  nodes that no pool has had are not known: %s\n", shown(s.Unknown))
	}
	b.WriteString(clustersText(s))
	b.WriteString(servicesText(s))
	b.WriteString(enginesText(s.Clusters))
	b.WriteString(callsText(s.Calls))
	return b.String()
}

func nodesText(nodes []wire.NodeInfo) string {
	if len(nodes) == 0 {
		return "  no nodes yet\n"
	}
	rows := [][]string{{"NODE", "STATE", "GPUS", "CORES", "LOAD", "MEMORY", ""}}
	hidden := map[string]int{}
	for i, n := range nodes {
		if i >= mostNodes-1 && len(nodes) > mostNodes && (n.State == "up" || n.State == "unused") && n.Node.Trouble == "" {
			hidden[n.State]++
			continue
		}
		row := []string{n.Node.Name, n.State, "", "", "", "", ""}
		if n.Node.Cores > 0 { // it has joined once
			row[2], row[3], row[5] = gpusOf(n.Node), strconv.Itoa(n.Node.Cores), size(n.Node.Memory)
		}
		if n.Load.Known {
			row[4] = strconv.FormatFloat(n.Load.Load, 'f', 1, 64)
			row[5] += ", " + size(n.Load.Available) + " free"
		}
		row[6] = shown(strings.Join(slices.DeleteFunc([]string{farText(n), n.Why, n.Node.Trouble}, func(s string) bool { return s == "" }), "; "))
		rows = append(rows, row)
	}
	text := table("  ", rows)
	switch up, unused := hidden["up"], hidden["unused"]; {
	case unused > 0 && up > 0:
		text += fmt.Sprintf("  … and %d more up, %d more unused\n", up, unused)
	case unused > 0:
		text += fmt.Sprintf("  … and %d more, all unused\n", unused)
	case up > 0:
		text += fmt.Sprintf("  … and %d more, all up\n", up)
	}
	return text
}

// farText says by which address a node on another machine is there, and how fast
// it answers.
func farText(n wire.NodeInfo) string {
	if n.State == "unused" && n.Node.Address != n.Node.Name {
		return "at " + n.Node.Address
	}
	if !n.Far || n.State == "lost" {
		return ""
	}
	text := "at " + n.Node.Address
	if n.TripSec > 0 {
		text += fmt.Sprintf(", %.2g ms away", n.TripSec*1e3)
	}
	return text
}

func gpusOf(n spec.Node) string {
	switch {
	case len(n.Devices) == 0:
		return "-"
	case n.Virtual:
		return fmt.Sprintf("%d virtual", len(n.Devices))
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", len(n.Devices), shown(n.Devices[0].Name)))
}

func clustersText(s wire.Status) string {
	rows := [][]string{{"CLUSTER", "WORKERS", "SHAPE", "DEVICES"}}
	for _, cl := range s.Clusters {
		if cl.Kind == spec.KindService {
			continue
		}
		rows = append(rows, []string{cl.Name, workersText(cl.Workers) + restartsText(cl) + drainingText(cl), shapeText(cl.Ranks), devicesText(cl, len(s.Pools) > 1)})
	}
	if len(rows) == 1 {
		return "\n  no clusters\n"
	}
	return "\n" + table("  ", rows)
}

func servicesText(s wire.Status) string {
	rows := [][]string{{"SERVICE", "STATE", "CLASS", "DEVICES"}}
	for _, cl := range s.Clusters {
		if cl.Kind != spec.KindService || len(cl.Workers) == 0 {
			continue
		}
		w := cl.Workers[0]
		rows = append(rows, []string{cl.Name, w.State + " on " + w.NodeName + restartsText(cl), shown(classText(cl.Description.Class)), devicesText(cl, len(s.Pools) > 1)})
	}
	if len(rows) == 1 {
		return ""
	}
	return "\n" + table("  ", rows)
}

// enginesText tells what workers host beside their own object, alike ones together.
func enginesText(clusters []wire.ClusterInfo) string {
	where := map[spec.Engine][]string{}
	var order []spec.Engine
	for _, cl := range clusters {
		for _, w := range cl.Workers {
			for _, e := range w.Engines {
				if where[e] == nil {
					order = append(order, e)
				}
				where[e] = append(where[e], w.Name)
			}
		}
	}
	if len(order) == 0 {
		return ""
	}
	rows := [][]string{{"ENGINE", "CLASS", "IN"}}
	for _, e := range order[:min(len(order), mostEngines)] {
		rows = append(rows, []string{shown(e.Name), shown(classText(e.Class)), listed(where[e], mostNames)})
	}
	text := "\n" + table("  ", rows)
	if more := len(order) - mostEngines; more > 0 {
		text += fmt.Sprintf("  … and %d more\n", more)
	}
	return text
}

// classText is a class as its script knows it.
func classText(class string) string { return strings.TrimPrefix(class, "__muster_main__.") }

// workersText counts workers by state and names those that are not as they
// should be.
func workersText(workers []wire.WorkerInfo) string {
	names := map[string][]string{}
	for _, w := range workers {
		names[w.State] = append(names[w.State], w.Name)
	}
	var parts []string
	for _, state := range []string{"ready", "starting", "stopping", "dead"} {
		if n := len(names[state]); n > 0 {
			part := fmt.Sprintf("%d %s", n, state)
			if state == "dead" || state == "starting" && n < len(workers) {
				part += " (" + listed(names[state], 3) + ")"
			}
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}

// drainingText says that a cluster is about to go.
func drainingText(cl wire.ClusterInfo) string {
	if !cl.Draining {
		return ""
	}
	return ", draining"
}

// restartsText says how often ranks were started again, and which.
func restartsText(cl wire.ClusterInfo) string {
	if cl.Restarts == 0 {
		return ""
	}
	var names []string
	for _, w := range cl.Workers {
		if w.Restarts > 0 {
			names = append(names, w.Name)
		}
	}
	text := ", " + count(cl.Restarts, "restart")
	if n := len(names); n > 0 && n < len(cl.Workers) {
		text += " (" + listed(names, 3) + ")"
	}
	return text
}

func shapeText(ranks []spec.RankInfo) string {
	if len(ranks) == 0 {
		return ""
	}
	r := ranks[0]
	text := "dp=" + strconv.Itoa(r.DPSize)
	for _, axis := range []struct {
		name string
		size int
	}{{"tp", r.TPSize}, {"pp", r.PPSize}, {"cp", r.CPSize}} {
		if axis.size > 1 {
			text += fmt.Sprintf(" %s=%d", axis.name, axis.size)
		}
	}
	return text
}

// devicesText tells a cluster's devices by their ids in the pool.
func devicesText(cl wire.ClusterInfo, tellPool bool) string {
	var ids []int
	for _, w := range cl.Workers {
		for _, d := range w.Devices {
			ids = append(ids, d.Global)
		}
	}
	if len(ids) == 0 {
		return "CPU"
	}
	slices.Sort(ids)
	text := "GPU " + spec.Spans(slices.Compact(ids))
	if tellPool {
		text += fmt.Sprintf(" of pool %d", cl.Pool)
	}
	return text
}

func callsText(calls []wire.CallInfo) string {
	if len(calls) == 0 {
		return "\n  no calls under way\n"
	}
	rows := [][]string{{"CALL", "AGE", "STATE", "NOT ANSWERED", "CALLER"}}
	for _, c := range calls[:min(len(calls), mostCalls)] {
		rows = append(rows, []string{
			c.Cluster + "." + shown(c.Method), span(c.AgeSec), c.State, missingText(c), c.Caller,
		})
	}
	text := "\n" + table("  ", rows)
	if more := len(calls) - mostCalls; more > 0 {
		text += fmt.Sprintf("  … and %d more, younger\n", more)
	}
	for _, c := range calls {
		if c.Warning != "" {
			text += "  ! " + shown(c.Warning) + "\n"
		}
	}
	return text
}

// missingText says which ranks of a call have not answered.
func missingText(c wire.CallInfo) string {
	switch {
	case c.Legs == 0:
		return "not sent yet"
	case len(c.Out) == 0:
		return "-"
	case c.Legs == 1:
		return fmt.Sprintf("rank %d", c.Out[0])
	case len(c.Out) == c.Legs:
		return fmt.Sprintf("all %d ranks", c.Legs)
	}
	out := slices.Sorted(slices.Values(c.Out))
	ranks := spec.Spans(out)
	if len(ranks) > 40 {
		ranks = spec.Spans(out[:mostNames]) + ",…"
	}
	return fmt.Sprintf("%d of %s: %s", len(out), count(c.Legs, "rank"), ranks)
}
