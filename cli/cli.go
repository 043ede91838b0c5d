package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Main runs the command and returns its exit code.
func Main(args []string) int { return execute(args, os.Stdout, os.Stderr) }

func execute(args []string, out, errs io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.Execute()
	if err == nil {
		return 0
	}
	exit := exitOf(err)
	if exit.err != nil {
		fmt.Fprintln(errs, "muster:", exit.err)
	}
	return exit.code
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "Named clusters of GPU workers for RL post-training",
		Long: `Named clusters of GPU workers for RL post-training.

Scripts start all they need by themselves: python script.py, or muster run.
The other commands look at what a script would do, or does.`,
		Example: `  muster run --virtual 4x8 pipeline.py
  muster plan layout.yaml
  muster status
  muster stacks actor_train`,
		Version:       wire.Release,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          noCommand,
	}
	root.SetVersionTemplate("muster {{.Version}}\n")
	root.AddCommand(
		runCommand(), nodeCommand(), planCommand(), doctorCommand(), statusCommand(), storeCommand(), logsCommand(), stacksCommand(),
		versionCommand(), headCommand(), agentCommand(), wardenCommand(), keeperCommand(), sweeperCommand(), mappingCommand(), exitCodesTopic(),
	)
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(wrongFlag)
	return root
}

// noCommand is what muster alone does: it helps, or guesses what was meant.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	name := shown(args[0])
	switch near := spec.NearestName(args[0], names); {
	case strings.HasSuffix(args[0], ".py"):
		return usage("there is no command %s; to run a script: muster run %s", name, name)
	case near != "":
		return usage("there is no command %s; did you mean %s?", name, near)
	}
	return usage("there is no command %s; there are %s (muster help)", name, strings.Join(names, ", "))
}

// helpCommand is cobra's, but for names that are not there.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range cmd.Root().Commands() {
				if len(args) == 0 && (c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()) {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			found, rest, err := root.Find(args)
			if err != nil || found == root && len(rest) > 0 {
				return noCommand(root, args)
			}
			found.InitDefaultHelpFlag()
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}

// wrongFlag says what is wrong with a flag, and which may have been meant.
func wrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &invalid):
		kind := map[string]string{"int": "a whole number", "bool": "true or false", "duration": "a time, as 90s or 10m"}[invalid.GetFlag().Value.Type()]
		return usage("--%s is %q; it takes %s", invalid.GetFlag().Name, invalid.GetValue(), kind)
	case !errors.As(err, &unknown):
		return usage("%v (muster %s --help)", err, cmd.Name())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	name := "--" + shown(unknown.GetSpecifiedName())
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		return usage("there is no flag -%s; there are %s", shown(unknown.GetSpecifiedName()), strings.Join(names, ", "))
	}
	if near := spec.NearestName(name, names); near != "" {
		return usage("there is no flag %s; did you mean %s?", name, near)
	}
	return usage("there is no flag %s; there are %s", name, strings.Join(names, ", "))
}

// noArguments refuses what follows a command that takes nothing.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, and here is %s", cmd.Name(), shown(args[0]))
	}
	return nil
}
