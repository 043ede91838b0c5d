package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// stacksAtOnce is how many a head tells in one answer.
const stacksAtOnce = 64

func stacksCommand() *cobra.Command {
	var asJSON bool
	var name string
	cmd := &cobra.Command{
		Use:   "stacks CLUSTER [RANK …]",
		Short: "Show what the workers of a cluster are doing, line by line",
		Long: `Show where each worker of a running cluster is in its code, also inside C code
and while it hangs; the worker is not disturbed. Workers that are at the same
place are shown together, so the odd one out is easily seen.`,
		Example: `  muster stacks actor_train
  muster stacks actor_train 0 4-7`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("stacks of which cluster? muster stacks CLUSTER [RANK …]; muster status lists clusters")
			}
			return nil
		},
		ValidArgsFunction: completeClusters(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := parseTarget(args[0])
			for _, more := range args[1:] {
				if err == nil {
					err = t.add(more)
				}
			}
			if err != nil {
				return err
			}
			return showStacks(cmd.OutOrStdout(), name, t, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	sessionFlag(cmd, &name)
	return cmd
}

func showStacks(out io.Writer, session string, t target, asJSON bool) error {
	r, info, err := pickCluster(look(answerBound), session, t.name)
	if err != nil {
		return err
	}
	ranks := t.ranks
	if len(ranks) == 0 {
		for _, w := range info.Workers {
			ranks = append(ranks, w.Rank)
		}
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if last := ranks[len(ranks)-1]; last >= len(info.Workers) {
		return nothing("cluster %s has no rank %d; it has %s, 0 to %d", t.name, last, count(len(info.Workers), "rank"), len(info.Workers)-1)
	}
	c, err := dial(r.Session, wire.RoleController, answerBound)
	if err != nil {
		return err
	}
	defer c.close()
	var stacks []spec.Stack
	for part := range slices.Chunk(ranks, stacksAtOnce) {
		var answer wire.StacksAnswer
		if err := c.ask("cluster.stacks", &wire.ClusterStacks{Name: t.name, Ranks: part}, &answer); err != nil {
			return err
		}
		stacks = append(stacks, answer.Stacks...)
	}
	if asJSON {
		return printJSON(out, stackViews(info, stacks))
	}
	fmt.Fprint(out, stacksText(info, stacks))
	return nil
}

type stackView struct {
	Rank   int    `json:"rank"`
	Worker string `json:"worker"`
	Node   string `json:"node"`
	Pid    int    `json:"pid"`
	Text   string `json:"text"`
}

func stackViews(info wire.ClusterInfo, stacks []spec.Stack) []stackView {
	views := make([]stackView, 0, len(stacks))
	for _, s := range stacks {
		views = append(views, stackView{s.Rank, s.Worker, s.Node, info.Workers[s.Rank].Pid, s.Text})
	}
	return views
}

// stacksText tells stacks for people; equal ones are told once.
func stacksText(info wire.ClusterInfo, stacks []spec.Stack) string {
	var order []string
	same := map[string][]spec.Stack{}
	for _, s := range stacks {
		if len(same[s.Text]) == 0 {
			order = append(order, s.Text)
		}
		same[s.Text] = append(same[s.Text], s)
	}
	var b strings.Builder
	for i, text := range order {
		if i > 0 {
			b.WriteByte('\n')
		}
		if group := same[text]; len(group) == 1 {
			s := group[0]
			fmt.Fprintf(&b, "%s on %s, process %d\n", s.Worker, s.Node, info.Workers[s.Rank].Pid)
		} else {
			var names []string
			var ranks []int
			for _, s := range group {
				names, ranks = append(names, s.Worker), append(ranks, s.Rank)
			}
			fmt.Fprintf(&b, "%d of %s, ranks %s: %s\n", len(group), count(len(info.Workers), "worker"), spec.Spans(ranks), listed(names, mostNames))
		}
		for line := range strings.Lines(text) {
			b.WriteString(strings.TrimRight("  "+shown(strings.TrimRight(line, "\n")), " ") + "\n")
		}
	}
	return b.String()
}
