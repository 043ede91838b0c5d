package agent

import (
	"context"
	"crypto/rand"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/device"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

// report is what the agent tells of its node.
func report(join backend.Join, devices []spec.Device, trouble error, files uint64) *spec.Node {
	node := &spec.Node{
		Index: join.Node, Name: join.Name, Address: "127.0.0.1",
		Cores: runtime.NumCPU(), Memory: memory(os.DirFS("/")), Files: files,
		Virtual: join.Virtual >= 0, Devices: devices, Pid: os.Getpid(), Boot: bootID(os.DirFS("/")), Life: rand.Text(),
	}
	if join.Address != "" {
		node.Address = join.Address
	}
	if trouble != nil {
		node.Trouble = spec.AsError(trouble).Message
	}
	return node
}

// memory is what this node may use, in bytes: the machine's, or its cgroup's
// limit where that is less; 0 if it cannot be told.
func memory(root fs.FS) uint64 {
	total := uint64(0)
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemTotal:" {
			n, _ := strconv.ParseUint(fields[1], 10, 64)
			total = n << 10
		}
	}
	for _, place := range []string{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if text, err := fs.ReadFile(root, place); err == nil {
			if limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 && (total == 0 || limit < total) {
				total = limit
			}
		}
	}
	return total
}

// devicesBound is how long a driver may take to say what there is.
const devicesBound = 30 * time.Second

// findDevices returns virtual devices, or the machine's where none are asked
// for; an error says what is wrong with the list. It gives up with the owner.
func findDevices(ctx context.Context, join backend.Join, owner <-chan struct{}) ([]spec.Device, error) {
	if join.Virtual >= 0 {
		return device.Virtual(join.Virtual), nil
	}
	ctx, cancel := context.WithTimeout(ctx, devicesBound)
	defer cancel()
	go func() {
		select {
		case <-owner: // never, if there is none
			cancel()
		case <-ctx.Done():
		}
	}()
	machine := device.Here()
	machine.Python = join.Python
	return device.Find(ctx, machine)
}

// adoptStuck makes known to the reaper what finding devices left: a tool that
// hangs in a driver cannot be killed, and whoever clears after a worker would
// wait for it in vain.
func adoptStuck(reaper *process.Reaper) {
	release := reaper.Hold()
	defer release()
	entries, _ := process.Scan()
	for _, e := range entries {
		if e.Parent == os.Getpid() && !e.Gone() {
			reaper.Adopt(e.Pid)
		}
	}
}
