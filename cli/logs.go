package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/wire"
)

type logsOptions struct {
	session string
	last    bool
	follow  bool
	lines   int // -1: all
	asJSON  bool
}

func logsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [CLUSTER[/RANK] …]",
		Short: "Show the output of workers, as it was or as it comes",
		Long: `Show what workers of a running script printed, each line behind its worker's
name; of all clusters, of those named, or of single workers (by rank or name).
Output stays after a script has ended: --last shows that of the last one.`,
		Example: `  muster logs actor_train
  muster logs -f actor_train/0 critic/0-3
  muster logs -n 20 actor_train-3-G3
  muster logs --last`,
		ValidArgsFunction: completeClusters(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.follow && !cmd.Flags().Changed("lines") {
				o.lines = 10
			}
			if o.lines < -1 {
				return usage("--lines is %d; it is 0 or more, or -1 for all", o.lines)
			}
			if o.last && o.session != "" {
				return usage("--last and --session name different scripts; give one of them")
			}
			var targets []target
			for _, arg := range args {
				t, err := parseTarget(arg)
				if err != nil {
					return err
				}
				targets = append(targets, t)
			}
			return showLogs(cmd.OutOrStdout(), cmd.ErrOrStderr(), o, targets)
		},
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with new lines until the script ends")
	cmd.Flags().IntVarP(&o.lines, "lines", "n", -1, "only the last lines of each worker (with -f: 10; -1: all)")
	cmd.Flags().BoolVar(&o.last, "last", false, "the script that ended last")
	jsonFlag(cmd, &o.asJSON)
	sessionFlag(cmd, &o.session)
	return cmd
}

// source is a session whose logs are shown; client is nil where it has ended.
type source struct {
	session.Session
	client *client
}

func showLogs(out, errs io.Writer, o logsOptions, targets []target) error {
	from, err := findSource(o, targets)
	if err != nil {
		return err
	}
	// The events come first, so that nothing is missed between reading and waiting.
	if o.follow && from.client == nil && from.Dir != "" {
		if from.client, err = dial(from.Session, wire.RoleEvents, answerBound); err != nil && !errors.Is(err, errEnded) {
			return err
		}
	}
	files, err := findLogs(from.LogDir, targets)
	if err != nil {
		return err
	}
	lines := bufio.NewWriter(out)
	t := &tailer{
		dir: from.LogDir, targets: targets, open: map[string]*tail{},
		show: lineWriter(lines, o.asJSON, terminal(out)), flush: lines.Flush,
	}
	if err := t.start(files, o.lines); err != nil {
		return err
	}
	if from.client == nil {
		t.finish()
		return t.err
	}
	defer from.client.close()
	if err := t.follow(from.client); err != nil {
		return err
	}
	if terminal(errs) {
		fmt.Fprintln(errs, "muster: the script has ended")
	}
	return nil
}

// findSource picks the session that is meant. Of several that run, the one that
// has what is asked for will do.
func findSource(o logsOptions, targets []target) (source, error) {
	ended := session.Ended()
	if o.last {
		if len(ended) == 0 {
			return source{}, nothing("no script of yours has left logs")
		}
		return source{Session: ended[0]}, nil
	}
	all := look(answerBound)
	if i := slices.IndexFunc(ended, func(s session.Session) bool { return s.Name == o.session }); i >= 0 {
		return source{Session: ended[i]}, nil
	}
	if len(all) == 0 && len(ended) > 0 && o.session == "" {
		return source{}, nothing("no script of yours is running; muster logs --last shows the output of the last one, %s", ended[0].Name)
	}
	picked, err := pick(all, o.session)
	if err != nil {
		return source{}, err
	}
	if len(picked) > 1 && len(targets) > 0 {
		with := slices.DeleteFunc(slices.Clone(picked), func(r running) bool {
			_, err := findLogs(r.status.LogDir, targets)
			return r.err != nil || err != nil
		})
		if len(with) > 0 {
			picked = with
		}
	}
	r, err := pickOne(picked, "")
	if err != nil {
		return source{}, err
	}
	r.LogDir = r.status.LogDir
	return source{Session: r.Session}, nil
}
