package device

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/muster-rl/muster/spec"
)

// Machine is what finders look at.
type Machine struct {
	Files fs.FS // the root of the file system
	// Run starts a program found in PATH and returns what it printed; it ends
	// with ctx. That there is no such program is an error like any other.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	Env func(name string) (value string, ok bool)
}

// Here is the machine that this process runs on.
func Here() Machine {
	return Machine{
		Files: os.DirFS("/"),
		Run: func(ctx context.Context, name string, args ...string) ([]byte, error) {
			cmd := exec.CommandContext(ctx, name, args...)
			cmd.WaitDelay = time.Second // its output may be held open by what it started
			return cmd.Output()
		},
		Env: os.LookupEnv,
	}
}

// Finder finds the devices of one kind that this process may use, in the order
// of their numbers; none is no error. An error says why it cannot be told.
type Finder func(ctx context.Context, m Machine) ([]spec.Device, error)

// Finders returns one for each kind that is known.
func Finders() []Finder {
	return []Finder{NVIDIA}
}

// Find returns the devices of the first kind that the machine has: a node has
// one kind. A machine without any gives an empty list.
func Find(ctx context.Context, m Machine) ([]spec.Device, error) {
	for _, find := range Finders() {
		devices, err := find(ctx, m)
		if err != nil {
			return nil, err
		}
		if len(devices) > 0 {
			return devices, nil
		}
	}
	return []spec.Device{}, nil
}

// Virtual makes n stand-ins, numbered from 0.
func Virtual(n int) []spec.Device {
	devices := make([]spec.Device, n)
	for i := range devices {
		devices[i] = spec.Device{Index: i, ID: "virtual-" + strconv.Itoa(i), Kind: "virtual", Name: "virtual GPU"}
	}
	return devices
}
