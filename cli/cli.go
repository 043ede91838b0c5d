package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/wire"
)

// Exit codes.
const (
	exitFailed = 1 // it was tried and failed
	exitUsage  = 2 // the command line is wrong
)

// exitError carries an exit code through cobra; a nil err was told already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// Main runs the command and returns its exit code.
func Main(args []string) int {
	root := &cobra.Command{
		Use:           "muster",
		Short:         "Named clusters of GPU workers for RL post-training",
		Version:       wire.Release,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("muster {{.Version}}\n")
	root.AddCommand(runCommand(), versionCommand(), headCommand(), agentCommand(), wardenCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{exitFailed, err}
	}
	if exit.err != nil {
		fmt.Fprintln(os.Stderr, "muster:", exit.err)
	}
	return exit.code
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "muster %s, protocol %d\n", wire.Release, wire.Version)
		},
	}
}
