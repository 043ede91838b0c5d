package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
)

func runCommand() *cobra.Command {
	var virtual, python string
	cmd := &cobra.Command{
		Use:   "run [flags] SCRIPT [ARGUMENT …]",
		Short: "Run a Python script with Muster",
		Long: `Run a Python script with Muster. It is the same as python SCRIPT, with the
options below; all that follows the script's name is the script's own. The exit
code is the script's.`,
		Example: `  muster run pipeline.py
  muster run --virtual 4x8 pipeline.py --steps 10`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &exitError{exitUsage, errors.New("run needs a script: muster run [--virtual 4x8] SCRIPT [ARGUMENT …]")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return runScript(python, virtual, args) },
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&virtual, "virtual", "", "stand-ins instead of real GPUs: NODESxGPUS, as 4x8; +relay sends calls through the agents")
	cmd.Flags().StringVar(&python, "python", "", "the interpreter (default: $MUSTER_PYTHON, the active virtual environment's, python3)")
	return cmd
}

// runScript becomes the interpreter: signals, terminal and exit code are then
// the script's own, with nothing in between.
func runScript(python, virtual string, args []string) error {
	if virtual != "" {
		if _, err := spec.ParseVirtual(virtual); err != nil {
			return &exitError{exitUsage, err}
		}
		if err := os.Setenv("MUSTER_VIRTUAL", virtual); err != nil {
			return err
		}
	}
	if _, err := os.Stat(args[0]); err != nil {
		return &exitError{exitUsage, fmt.Errorf("there is no script %s", args[0])}
	}
	path, err := interpreter(python)
	if err != nil {
		return err
	}
	if os.Getenv("MUSTER_BINARY") == "" {
		if self, err := os.Executable(); err == nil {
			_ = os.Setenv("MUSTER_BINARY", self) // the script gets this very release
		}
	}
	return syscall.Exec(path, append([]string{path}, args...), os.Environ())
}

func interpreter(asked string) (string, error) {
	for _, p := range []string{asked, os.Getenv("MUSTER_PYTHON")} {
		if p != "" {
			path, err := exec.LookPath(p)
			if err != nil {
				return "", fmt.Errorf("no interpreter %s: %w", p, err)
			}
			return path, nil
		}
	}
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		if path, err := exec.LookPath(filepath.Join(venv, "bin", "python")); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		return "", errors.New("no python3 in PATH: install Python 3.10 or newer, or name one by --python")
	}
	return path, nil
}
