package device

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// askSMI asks the tool that comes with the driver, which asks NVML.
func askSMI(ctx context.Context, m Machine) ([]gpu, error) {
	out, err := m.Run(ctx, "nvidia-smi", "--query-gpu=index,uuid,name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", errNotAsked, err)
	}
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	var gpus []gpu
	cut := false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if line == "" || line == "No devices were found" { // with status 0 in some versions
			continue
		}
		g, ok := parseSMI(line)
		if !ok {
			return nil, fmt.Errorf("nvidia-smi answered: %s", line)
		}
		gpus = append(gpus, g)
		cut = cut || g.MIG
	}
	if !cut {
		return gpus, nil
	}
	if out, err = m.Run(ctx, "nvidia-smi", "-L"); err != nil {
		return nil, fmt.Errorf("nvidia-smi -L: %w", err)
	}
	addInstances(gpus, string(out))
	return gpus, nil
}

// parseSMI reads "0, GPU-16f7…, NVIDIA H200, 143771, Disabled". The memory, in
// MiB, may be "[N/A]" (it is shared with the CPU on some machines).
func parseSMI(line string) (gpu, bool) {
	fields := strings.Split(line, ",")
	if len(fields) < 5 {
		return gpu{}, false
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	index, err := strconv.ParseUint(fields[0], 10, 31)
	if err != nil {
		return gpu{}, false
	}
	last := len(fields) - 1
	mebibytes, err := strconv.ParseUint(fields[last-1], 10, 40)
	if err != nil {
		mebibytes = 0
	}
	return gpu{
		Index: int(index), UUID: fields[1], Name: strings.Join(fields[2:last-1], ", "), Memory: mebibytes << 20,
		MIG: fields[last] == "Enabled",
	}, true
}

// addInstances reads the list of nvidia-smi -L, where instances follow their
// GPU; how much memory they have it does not tell:
//
//	GPU 0: NVIDIA A100 (UUID: GPU-5d5b…)
//	  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4…)
func addInstances(gpus []gpu, list string) {
	var whole *gpu
	for line := range strings.Lines(list) {
		before, after, ok := strings.Cut(line, "(UUID: ")
		uuid, _, closed := strings.Cut(after, ")")
		if !ok || !closed {
			continue
		}
		profile, isInstance := strings.CutPrefix(strings.TrimSpace(before), "MIG ")
		if !isInstance {
			whole = nil
			for i := range gpus {
				if gpus[i].UUID == uuid {
					whole = &gpus[i]
				}
			}
			continue
		}
		if whole == nil {
			continue
		}
		part := instance{UUID: uuid, Name: whole.Name + " MIG " + strings.Fields(profile + " ?")[0], GPU: -1, Compute: -1}
		// Older drivers' names say where the instance lies: MIG-GPU-…/1/0.
		if _, place, ok := strings.Cut(uuid, "/"); ok {
			_, _ = fmt.Sscanf(place, "%d/%d", &part.GPU, &part.Compute)
		}
		whole.Instances = append(whole.Instances, part)
	}
}
