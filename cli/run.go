package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/spec"
)

type runOptions struct {
	virtual string
	python  string
	module  bool
}

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [FLAGS] SCRIPT [ARGUMENT …]",
		Short: "Run a Python script with Muster",
		Long: `Run a Python script with Muster. It is the same as python SCRIPT, with the
options below; all that follows the script's name is the script's own. The exit
code is the script's, and so are signals and the terminal.`,
		Example: `  muster run pipeline.py
  muster run --virtual 4x8 pipeline.py --steps 10
  muster run -m package.pipeline --steps 10`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("run needs a script: muster run [--virtual 4x8] SCRIPT [ARGUMENT …]")
			}
			return nil
		},
		ValidArgsFunction: completeFiles("py"),
		RunE:              func(_ *cobra.Command, args []string) error { return runScript(o, args) },
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&o.virtual, "virtual", "", "stand-ins instead of real GPUs: NODESxGPUS, as 4x8; +relay sends calls through the agents, +net has nodes join over TCP")
	cmd.Flags().StringVar(&o.python, "python", "", "the interpreter (default: $MUSTER_PYTHON, the active virtual environment's, python3)")
	cmd.Flags().BoolVarP(&o.module, "module", "m", false, "SCRIPT is the name of a module, as after python -m")
	return cmd
}

// runScript becomes the interpreter: signals, terminal and exit code are then
// the script's own, with nothing in between.
func runScript(o runOptions, args []string) error {
	if o.virtual != "" {
		if _, err := spec.ParseVirtual(o.virtual); err != nil {
			return &exitError{exitUsage, err}
		}
		if err := os.Setenv("MUSTER_VIRTUAL", o.virtual); err != nil {
			return err
		}
	}
	if o.module {
		args = append([]string{"-m"}, args...)
	} else if err := checkScript(args[0]); err != nil {
		return err
	}
	python, err := interpreter(o.python)
	if err != nil {
		return err
	}
	if err := checkPackage(python, args[0]); err != nil {
		return err
	}
	if os.Getenv("MUSTER_BINARY") == "" {
		if self, err := os.Executable(); err == nil {
			_ = os.Setenv("MUSTER_BINARY", self) // the script gets this very release
		}
	}
	err = syscall.Exec(python, append([]string{python}, args...), os.Environ())
	return fmt.Errorf("cannot start %s: %w", shown(python), err)
}

// checkScript says what is wrong with a name before Python does.
func checkScript(name string) error {
	if name == "-" {
		return nil // Python reads its standard input
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		if _, err := os.Stat(filepath.Join(name, "__main__.py")); err != nil {
			return usage("%s is a folder without a __main__.py; name a script in it", shown(name))
		}
		return nil
	case err == nil && !info.Mode().IsRegular() && info.Mode()&os.ModeNamedPipe == 0:
		return usage("%s is no file that can be run", shown(name))
	case err == nil:
		return nil
	case os.IsPermission(err):
		return usage("%s cannot be read: permission denied", shown(name))
	}
	var near []string
	entries, _ := os.ReadDir(filepath.Dir(name))
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".py") {
			near = append(near, e.Name())
		}
	}
	if match := spec.NearestName(filepath.Base(name), near); match != "" {
		return usage("there is no script %s; did you mean %s?", shown(name), shown(filepath.Join(filepath.Dir(name), match)))
	}
	return usage("there is no script %s", shown(name))
}

// checkPackage looks whether the interpreter has the package that scripts
// import, where that is a guess: Python would only say ModuleNotFoundError, and
// not which interpreter it is or how to name another.
func checkPackage(python, script string) error {
	if os.Getenv("MUSTER_PYTHON") != "" {
		return nil // set by the command that came with the package
	}
	const look = "import importlib.util, sys\nsys.path.insert(0, sys.argv[1])\nsys.exit(0 if importlib.util.find_spec('muster') else 83)"
	cmd := exec.Command(python, "-c", look, filepath.Dir(script))
	if err := cmd.Run(); err == nil || cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 83 {
		return nil // whatever else is wrong, Python tells
	}
	return fmt.Errorf("%s has no package muster: install it there, activate the virtual environment that has it, or name an interpreter by --python; muster doctor tells more", shown(python))
}
