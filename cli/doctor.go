package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/device"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
)

// doctorBound is for drivers and interpreters that hang.
const doctorBound = 30 * time.Second

// finding is what doctor tells of one thing.
type finding struct {
	What  string `json:"what"`
	State string `json:"state"` // stateOK, stateNote or stateMissing
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // how to get what is missing
}

const (
	stateOK      = "ok"
	stateNote    = "note"    // worth knowing; scripts run without
	stateMissing = "missing" // scripts do not run
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	var python string
	var workers int
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine: what is there, what is missing, how to get it",
		Long: `Look at what Muster needs of this machine: devices, memory, open files, Python
and its packages, the kernel, folders for sockets and logs. The exit code is 1
if something is missing without which scripts do not run.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if workers < 1 {
				return usage("--workers is %d; it is 1 or more", workers)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorBound)
			defer cancel()
			findings := examine(ctx, here(python, workers))
			missing := 0
			for _, f := range findings {
				if f.State == stateMissing {
					missing++
				}
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), findings); err != nil {
					return err
				}
			} else {
				fmt.Fprint(cmd.OutOrStdout(), findingsText(findings))
			}
			if missing > 0 {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&python, "python", "", "the interpreter to look at (default: that of muster run)")
	cmd.Flags().IntVar(&workers, "workers", 64, "how many workers on this machine there should be room for")
	return cmd
}

// patient is the machine that doctor looks at, as far as it does.
type patient struct {
	device.Machine
	find        func(context.Context, device.Machine) ([]spec.Device, error)
	workers     int
	interpreter func() (string, error)
	limit       func(resource int) (soft, hard uint64, err error)
	space       func(path string) (total, free uint64, err error)
	kernel      func() kernel
	base        func() (string, error)
	logs        func(base string) (string, error) // where logs would go; an error if they cannot
}

// here is this machine.
func here(python string, workers int) patient {
	return patient{
		Machine: device.Here(), find: device.Find, workers: workers,
		interpreter: func() (string, error) { return interpreter(python) },
		limit: func(resource int) (uint64, uint64, error) {
			// The parent's: Go has raised our own soft limit of open files.
			var r unix.Rlimit
			err := unix.Prlimit(os.Getppid(), resource, nil, &r)
			if err != nil {
				err = unix.Getrlimit(resource, &r)
			}
			return r.Cur, r.Max, err
		},
		space: func(path string) (uint64, uint64, error) {
			var s unix.Statfs_t
			err := unix.Statfs(path, &s)
			unit := uint64(s.Bsize)
			return s.Blocks * unit, s.Bavail * unit, err
		},
		kernel: thisKernel,
		base:   usableBase,
		logs: func(base string) (string, error) {
			dir := session.LogsOf(base)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return dir, err
			}
			return dir, unix.Access(dir, unix.W_OK|unix.X_OK)
		},
	}
}

// examine looks at one thing after the other.
func examine(ctx context.Context, p patient) []finding {
	findings := []finding{}
	python, pythonFindings := p.python(ctx)
	p.Python = python
	findings = append(findings, p.devices(ctx))
	findings = append(findings, pythonFindings...)
	findings = append(findings, p.memory(), p.files(), p.processes(), p.sharedMemory())
	findings = append(findings, p.kernelFeatures()...)
	return append(findings, p.folders()...)
}

// findingsText tells findings for people, and what it comes to.
func findingsText(findings []finding) string {
	var rows [][]string
	missing, notes := 0, 0
	for _, f := range findings {
		rows = append(rows, []string{f.State, f.What, f.Found})
		if f.Do != "" {
			rows = append(rows, []string{"", "", "-> " + f.Do})
		}
		switch f.State {
		case stateMissing:
			missing++
		case stateNote:
			notes++
		}
	}
	text := table("", rows) + "\n"
	switch {
	case missing == 1:
		return text + "1 thing that scripts need is missing.\n"
	case missing > 1:
		return text + fmt.Sprintf("%d things that scripts need are missing.\n", missing)
	case notes > 0:
		return text + "All that scripts need is there; notes are what some of them may miss.\n"
	}
	return text + "All is there.\n"
}

// usableBase is the folder for sessions, once a socket could be made in it.
func usableBase() (string, error) {
	base, err := session.Base()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, "doctor-")
	if err != nil {
		return base, fmt.Errorf("cannot write to %s: %w", base, err)
	}
	defer os.RemoveAll(dir)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: strings.TrimSuffix(dir, "/") + "/s"})
		_ = unix.Close(fd)
	}
	if err != nil {
		return base, fmt.Errorf("no socket can be made in %s: %w", base, err)
	}
	return base, nil
}
