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
and while it hangs. Who is where comes first, then the stack of one worker for
each place, so the odd one out is easily seen; --json has those of all. Where
py-spy is installed beside the workers' interpreter, or on PATH, stacks have
frames of C code too; it holds such a worker up for a moment.`,
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
	Rank   int         `json:"rank"`
	Worker string      `json:"worker"`
	Node   string      `json:"node"`
	Pid    int         `json:"pid"`
	Place  string      `json:"place"` // those of one place are of one group
	Group  int         `json:"group"` // by number, the largest is 0
	Frames []frameView `json:"frames"`
	Text   string      `json:"text"`
}

type frameView struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

func stackViews(info wire.ClusterInfo, stacks []spec.Stack) []stackView {
	group := map[int]int{}
	for i, g := range spec.GroupStacks(stacks, nil) {
		for _, rank := range g.Ranks {
			group[rank] = i
		}
	}
	views := make([]stackView, 0, len(stacks))
	for i := range stacks {
		s := &stacks[i]
		v := stackView{s.Rank, s.Worker, s.Node, info.Workers[s.Rank].Pid, s.Place(), group[s.Rank], []frameView{}, s.Text}
		for _, f := range s.Frames {
			v.Frames = append(v.Frames, frameView(f))
		}
		views = append(views, v)
	}
	return views
}

// stacksText tells stacks for people: who is where, then each place once.
func stacksText(info wire.ClusterInfo, stacks []spec.Stack) string {
	groups := spec.GroupStacks(stacks, nil)
	var b strings.Builder
	if len(groups) > 1 {
		for _, line := range spec.GroupLines(groups) {
			b.WriteString(shown(line) + "\n")
		}
		b.WriteByte('\n')
	}
	for i, d := range spec.Details(groups, stacks) {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s on %s, process %d", d.Stack.Worker, d.Stack.Node, info.Workers[d.Stack.Rank].Pid)
		if more := len(d.Group.Ranks) - 1; more > 0 {
			fmt.Fprintf(&b, ", and %d more of %s at this place: ranks %s", more, count(len(info.Workers), "worker"), spec.Spans(d.Group.Ranks))
		}
		b.WriteByte('\n')
		for line := range strings.Lines(d.Stack.Text) {
			b.WriteString(strings.TrimRight("  "+shown(strings.TrimRight(line, "\n")), " ") + "\n")
		}
	}
	return b.String()
}
