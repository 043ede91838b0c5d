package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/spec"
)

func planCommand() *cobra.Command {
	var asJSON bool
	var from provider
	cmd := &cobra.Command{
		Use:   "plan FILE.yaml",
		Short: "Draw who would sit where, without starting anything",
		Long: `Draw nodes, devices and the clusters on them, as a file describes them; nothing
starts, and no GPUs are needed. What would be an error at the start is the same
error here. The file (- reads it from the standard input):

  nodes: 2
  gpus_per_node: 8
  clusters:
    actor_train: {device_mapping: "0-15", tp: 2}
    actor_infer: {device_mapping: "0-15", num_gpus_per_worker: 4}
    reward:      {world_size: 4}

A cluster takes the fields of WorkerConfig. The pool may have strategy,
cpus_per_node, labels and accelerator_type beside nodes and gpus_per_node, as a
ResourceManager takes them.

With --backend it is also looked at whether the pool could be had now, on this
machine (local) or in a Ray cluster (ray), and if not, what is lacking and who
holds it. The exit code is 1 if a script would be refused.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("plan takes one file: muster plan FILE.yaml (muster plan --help shows one)")
			}
			return nil
		},
		ValidArgsFunction: completeFiles("yaml", "yml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readPlan(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return showPlan(cmd.Context(), cmd.OutOrStdout(), args[0], text, &from, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	from.flags(cmd)
	cmd.Flags().Lookup("backend").DefValue = ""
	from.backend = "" // looked at where it is asked for
	return cmd
}

// mostPlan bounds a file: a plan is written by hand.
const mostPlan = 4 << 20

func readPlan(name string, stdin io.Reader) ([]byte, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, cannotRead(name, err)
		}
		defer file.Close()
		stdin = file
	}
	text, err := io.ReadAll(io.LimitReader(stdin, mostPlan+1))
	if err != nil {
		return nil, cannotRead(name, err)
	}
	if len(text) > mostPlan {
		return nil, usage("%s is larger than %s: that is no plan", shown(name), size(mostPlan))
	}
	return text, nil
}

func cannotRead(name string, err error) error {
	var bare *os.PathError
	if errors.As(err, &bare) {
		err = bare.Err
	}
	return usage("cannot read %s: %v", shown(name), err)
}

func showPlan(ctx context.Context, out io.Writer, name string, text []byte, from *provider, asJSON bool) error {
	file, wrong := parsePlan(text)
	var clusters []spec.Cluster
	if len(wrong) == 0 {
		pool, err := file.pool()
		if err != nil {
			wrong = append(wrong, complaint{file.line, err.Error()})
		} else {
			for _, cl := range file.clusters {
				// One at a time, so that all that is wrong is told at once.
				if _, err := head.Plan(pool, []spec.Cluster{cl.Cluster}); err != nil {
					wrong = append(wrong, complaint{cl.line, err.Error()})
				}
				clusters = append(clusters, cl.Cluster)
			}
		}
	}
	if len(wrong) > 0 {
		lines := make([]string, len(wrong))
		for i, c := range wrong {
			lines[i] = fmt.Sprintf("%s:%d: %s", shown(name), c.line, c.text)
		}
		return errors.New(strings.Join(lines, "\nmuster: "))
	}
	pool, err := file.pool()
	if err != nil {
		return err
	}
	plan, err := head.Plan(pool, clusters)
	if err != nil {
		return err
	}
	var outlook *backend.Outlook
	if from.backend != "" {
		if outlook, err = from.look(ctx, &file.PoolCreate); err != nil {
			return err
		}
	}
	if asJSON {
		err = printJSON(out, struct {
			Nodes    int              `json:"nodes"`
			PerNode  int              `json:"gpus_per_node"`
			Clusters []clusterView    `json:"clusters"`
			Outlook  *backend.Outlook `json:"outlook,omitempty"`
		}{len(pool.Nodes), pool.PerNode, clusterViews(plan.Clusters), outlook})
	} else {
		fmt.Fprint(out, plan.Text)
	}
	if err != nil || outlook == nil {
		return err
	}
	switch {
	case !outlook.Now && !outlook.Waits:
		return errors.New(outlook.Text)
	case !asJSON:
		fmt.Fprintln(out, outlook.Text)
	}
	return nil
}
