package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/spec"
)

// Machine is what finders look at.
type Machine struct {
	Files fs.FS // the root of the file system
	// Run starts a program, by its path or found in PATH, and returns what it
	// printed; it ends with ctx. That there is no such program is an error like
	// any other.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	Env func(name string) (value string, ok bool)
	// Python is the interpreter that loads NVML; "": python3 in PATH.
	Python string
}

// Here is the machine that this process runs on.
func Here() Machine {
	return Machine{Files: os.DirFS("/"), Run: run, Env: os.LookupEnv}
}

func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	// A tool may be a script that starts the real one: end them together, and
	// do not wait for whoever else holds its output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, complaint(exit.Stderr, out))
	}
	return out, err
}

// complaint is what a failed tool said, on one line; some say it on stdout.
func complaint(stderr, stdout []byte) string {
	text := strings.Fields(string(stderr))
	if len(text) == 0 {
		text = strings.Fields(string(stdout))
	}
	const most = 300
	line := strings.Join(text, " ")
	if len(line) > most {
		line = "…" + line[len(line)-most:]
	}
	return strings.ToValidUTF8(line, "?")
}

// Finder finds the devices of one kind that this process may use, in the order
// of their numbers; none is no error. An error says for people what is wrong
// with the list, which is good as far as it goes: why devices are missing from
// it, or what could not be told of them.
type Finder func(ctx context.Context, m Machine) ([]spec.Device, error)

// Finders returns one for each kind that is known.
func Finders() []Finder {
	return []Finder{NVIDIA, AMD, Ascend}
}

// Find returns the devices of the first kind that the machine has: a node has
// one kind. A machine without any gives an empty list. List and error are those
// of the kind's Finder.
//
// It returns when ctx ends, whatever the drivers do: the answer is then none,
// with an error. Without a deadline in ctx it may wait for a driver for ever.
func Find(ctx context.Context, m Machine) ([]spec.Device, error) {
	var trouble error
	for _, find := range Finders() {
		devices, err := bounded(ctx, m, find)
		if len(devices) > 0 {
			return devices, err
		}
		if trouble == nil {
			trouble = err
		}
	}
	return []spec.Device{}, trouble
}

// spare is how long a finder whose deadline has passed may take to say what it
// was waiting for.
const spare = 500 * time.Millisecond

// bounded stops waiting soon after ctx ends: a driver that hangs holds whoever
// reads its files or waits for its tools, and nothing can be done for those.
func bounded(ctx context.Context, m Machine, find Finder) ([]spec.Device, error) {
	type answer struct {
		devices []spec.Device
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		devices, err := find(ctx, m)
		answers <- answer{devices, err}
	}()
	select {
	case a := <-answers:
		return a.devices, a.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(spare)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.devices, a.err
	case <-timer.C:
		return nil, spec.Errorf(spec.CodeResources, "a device driver hangs: its files or tools did not answer in time, so it cannot be told what GPUs there are; look at dmesg")
	}
}

// Virtual makes n stand-ins, numbered from 0.
func Virtual(n int) []spec.Device {
	devices := make([]spec.Device, n)
	for i := range devices {
		devices[i] = spec.Device{Index: i, ID: "virtual-" + strconv.Itoa(i), Kind: "virtual", Name: "virtual GPU"}
	}
	return devices
}

// exists tells whether there is any of these files.
func exists(files fs.FS, names ...string) bool {
	for _, name := range names {
		if _, err := fs.Stat(files, name); err == nil {
			return true
		}
	}
	return false
}

// readLine is a small file's only line, "" where it cannot be read.
func readLine(files fs.FS, name string) string {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
