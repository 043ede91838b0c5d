package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
)

// Exit codes; exitCodesText and docs/cli.md say the same.
const (
	exitFailed  = 1 // it was tried and failed
	exitUsage   = 2 // the command line is wrong
	exitNothing = 3 // what was asked for is not there
)

const exitCodesText = `Exit codes of muster's own commands:

  0  it worked
  1  it was tried and failed: a plan that cannot be placed, something needed that
     doctor finds missing, a head that does not answer
  2  the command line is wrong: an unknown command or flag, a file that is not
     there, several running scripts and none chosen
  3  nothing found: no running script, no such cluster, rank or session

muster run passes on the script's own exit code; 2 also means that there is no
such script, and 1 that it could not be started.

muster node passes on the command's, on every replica; 1 also means that the
replicas did not come together or that Ray was lost, and 128 + n a signal.`

// exitCodesTopic is no command but a page of help.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What exit codes mean", Long: exitCodesText}
}

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

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func nothing(format string, args ...any) error {
	return &exitError{exitNothing, fmt.Errorf(format, args...)}
}

// exitOf gives every error a code.
func exitOf(err error) *exitError {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit
	}
	if errors.Is(err, &spec.Error{Code: spec.CodeNotFound}) {
		return &exitError{exitNothing, err}
	}
	return &exitError{exitFailed, err}
}
