package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/wire"
)

func storeCommand() *cobra.Command {
	var asJSON bool
	var name string
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Show the bytes in shared memory: who made them, who reads them, since when",
		Long: `Show what lies in the stores of your running scripts: per node the budget, what
is used of it, kept for the next objects, and spilled to disk; then the objects,
the largest first, with who made each, who has a handle of it for how long, and
who reads it for how long.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			picked, err := pick(look(answerBound), name)
			if err != nil {
				return err
			}
			return showStores(cmd.OutOrStdout(), askStores(picked), time.Now(), asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	sessionFlag(cmd, &name)
	return cmd
}

// stored is a session and what lies in its stores.
type stored struct {
	running
	report wire.StoreReport
}

// askStores asks the heads that answered before, all at once.
func askStores(picked []running) []stored {
	all := make([]stored, len(picked))
	var asked sync.WaitGroup
	for i, r := range picked {
		asked.Go(func() {
			all[i].running = r
			if r.err != nil {
				return
			}
			c, err := dial(r.Session, wire.RoleController, answerBound)
			if err == nil {
				err = c.ask("store", &wire.Empty{}, &all[i].report)
				c.close()
			}
			all[i].err = err
		})
	}
	asked.Wait()
	return slices.DeleteFunc(all, func(s stored) bool { return errors.Is(s.err, errEnded) })
}

func showStores(out io.Writer, all []stored, now time.Time, asJSON bool) error {
	var silent []error
	for _, s := range all {
		if s.err != nil {
			silent = append(silent, s.err)
		}
	}
	if asJSON {
		views := make([]storeView, 0, len(all))
		for _, s := range all {
			views = append(views, storeViewOf(s))
		}
		return errors.Join(append([]error{printJSON(out, views)}, silent...)...)
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprint(out, storeText(s, float64(now.UnixNano())/1e9))
	}
	if len(silent) > 0 {
		return &exitError{code: exitFailed} // told above
	}
	return nil
}

// mostObjects is how many objects people can take in.
const mostObjects = 20

// storeText is the stores of a session for people.
func storeText(s stored, now float64) string {
	if s.err != nil {
		return fmt.Sprintf("session %s\n  %v\n", s.Name, s.err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, up %s, session %s\n\n", s.title(), span(s.status.UpSec), s.Name)
	if len(s.report.Nodes) == 0 {
		b.WriteString("  no nodes yet\n")
		return b.String()
	}
	nodes := [][]string{{"NODE", "BUDGET", "IN USE", "KEPT", "SPILLED"}}
	for _, n := range s.report.Nodes {
		spilled := "off"
		if n.SpillDir != "" {
			spilled = fmt.Sprintf("%s of %s in %s", size(n.Spilled), size(n.SpillLimit), shown(n.SpillDir))
		}
		nodes = append(nodes, []string{s.node(n.Node), size(n.Budget), size(n.Used), size(n.Pooled), spilled})
	}
	b.WriteString(table("  ", nodes))
	b.WriteString(s.objectsText(now))
	return b.String()
}

func (s stored) objectsText(now float64) string {
	type placed struct {
		wire.StoreObject
		node int
	}
	var all []placed
	for _, n := range s.report.Nodes {
		for _, o := range n.Objects {
			all = append(all, placed{o, n.Node})
		}
	}
	if len(all) == 0 {
		return "\n  no objects\n"
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(b.Bytes, a.Bytes) })
	rows := [][]string{{"SIZE", "WHAT", "NODE", "STATE", "AGE", "MADE BY", "HANDLES", "READ BY"}}
	for _, o := range all[:min(len(all), mostObjects)] {
		rows = append(rows, []string{
			size(o.Bytes), cmp.Or(shown(o.What), "-"), s.node(o.node), shown(o.State), span(now - o.Since), s.maker(o.StoreObject), s.handles(o.StoreObject), s.readers(o.Views, now),
		})
	}
	text := "\n" + table("  ", rows)
	if len(all) > mostObjects {
		rest := uint64(0)
		for _, o := range all[mostObjects:] {
			rest += o.Bytes
		}
		text += fmt.Sprintf("  … and %d more, together %s\n", len(all)-mostObjects, size(rest))
	}
	return text
}

// handles is who has a handle of an object.
func (s stored) handles(o wire.StoreObject) string {
	names := make([]string, 0, len(o.Handles))
	for _, h := range o.Handles {
		names = append(names, fmt.Sprintf("%s for %s", s.holder(h.Holder), span(h.Seconds)))
	}
	switch {
	case len(names) > 0:
		return listed(names, 3)
	case o.Held:
		return "yes" // and the head was told so meanwhile
	}
	return "no"
}

// maker is who made an object. That of a copy is known where the store is that it
// is a copy from.
func (s stored) maker(o wire.StoreObject) string {
	if o.Maker == 0 && o.State == "copy" {
		return s.node(int(o.Object >> 48)) //nolint:gosec // 16 bits
	}
	return s.holder(o.Maker)
}

func (s stored) readers(views []wire.StoreView, now float64) string {
	names := make([]string, 0, len(views))
	for _, v := range views {
		names = append(names, fmt.Sprintf("%s for %s", s.holder(v.Holder), span(now-v.Since)))
	}
	return cmp.Or(listed(names, 3), "-")
}

// node is a node's name by its index.
func (s stored) node(index int) string {
	for _, n := range s.status.Nodes {
		if n.Node.Index == index {
			return shown(n.Node.Name)
		}
	}
	return fmt.Sprintf("node %d", index)
}

// holder is a process's name.
func (s stored) holder(number uint64) string {
	for _, h := range s.report.Holders {
		if h.Holder == number {
			return shown(h.Name)
		}
	}
	return "a process that is gone"
}

type storeView struct {
	Session string          `json:"session"`
	Error   string          `json:"error,omitempty"` // it did not answer; the rest is empty
	Nodes   []storeNodeView `json:"nodes"`
}

type storeNodeView struct {
	Node       string       `json:"node"`
	Budget     uint64       `json:"budget_bytes"`
	Used       uint64       `json:"used_bytes"`
	Pooled     uint64       `json:"pooled_bytes"`
	Spilled    uint64       `json:"spilled_bytes"`
	SpillLimit uint64       `json:"spill_limit_bytes"`
	SpillDir   string       `json:"spill_dir"` // "": nothing is spilled
	Objects    []objectView `json:"objects"`
}

type objectView struct {
	Object string       `json:"object"` // hexadecimal: more than a double holds
	Bytes  uint64       `json:"bytes"`
	Here   uint64       `json:"here_bytes"` // fewer of a copy of which a part was needed
	State  string       `json:"state"`
	What   string       `json:"what"`
	Maker  string       `json:"maker"`
	Held   bool         `json:"held"` // somebody has a handle
	Since  float64      `json:"since"`
	Views  []readerView `json:"views"`
	// Handles are who has one, for how long.
	Handles []handleView `json:"handles"`
}

type handleView struct {
	Holder  string  `json:"holder"`
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
}

type readerView struct {
	Reader string  `json:"reader"`
	Count  int     `json:"count"`
	Since  float64 `json:"since"`
}

func storeViewOf(s stored) storeView {
	v := storeView{Session: s.Name, Nodes: []storeNodeView{}}
	if s.err != nil {
		v.Error = s.err.Error()
	}
	for _, n := range s.report.Nodes {
		node := storeNodeView{
			Node: s.node(n.Node), Budget: n.Budget, Used: n.Used, Pooled: n.Pooled, Spilled: n.Spilled,
			SpillLimit: n.SpillLimit, SpillDir: n.SpillDir, Objects: []objectView{},
		}
		for _, o := range n.Objects {
			object := objectView{fmt.Sprintf("%016x", o.Object), o.Bytes, o.Here, o.State, o.What, s.maker(o), o.Held, o.Since, []readerView{}, []handleView{}}
			for _, h := range o.Handles {
				object.Handles = append(object.Handles, handleView{s.holder(h.Holder), h.Count, h.Seconds})
			}
			for _, w := range o.Views {
				object.Views = append(object.Views, readerView{s.holder(w.Holder), w.Count, w.Since})
			}
			node.Objects = append(node.Objects, object)
		}
		v.Nodes = append(v.Nodes, node)
	}
	return v
}
