package device

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

const nvidiaProc = "proc/driver/nvidia/gpus"

// NVIDIA finds GPUs by nvidia-smi, or where that is missing or fails by what
// the driver tells in /proc. Numbers are the machine's own, in the order of the
// bus, also where CUDA_VISIBLE_DEVICES of this process allows only some.
func NVIDIA(ctx context.Context, m Machine) ([]spec.Device, error) {
	devices, err := nvidiaSMI(ctx, m)
	if err != nil {
		listed, procErr := nvidiaFromProc(m.Files)
		if procErr != nil {
			return nil, procErr
		}
		if len(listed) == 0 && ctx.Err() != nil {
			return nil, spec.Errorf(spec.CodeResources, "nvidia-smi did not answer in time and %s lists no GPU, so it cannot be told what this machine has", "/"+nvidiaProc)
		}
		devices = listed
	}
	slices.SortFunc(devices, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	if allowed, ok := m.Env("CUDA_VISIBLE_DEVICES"); ok {
		devices = restrict(devices, allowed)
	}
	return devices, nil
}

// nvidiaSMI asks the tool that comes with the driver. Its error means only that
// another source is needed: no such tool, no GPU, or a broken driver.
func nvidiaSMI(ctx context.Context, m Machine) ([]spec.Device, error) {
	out, err := m.Run(ctx, "nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	var devices []spec.Device
	for _, line := range strings.Split(string(out), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		d, ok := parseSMI(line)
		if !ok {
			return nil, errors.New("nvidia-smi answered: " + line) // as "No devices were found", with status 0 in some versions
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// parseSMI reads "0, GPU-16f7…, NVIDIA H200, 143771". The memory, in MiB, may
// be "[N/A]" (it is shared with the CPU on some machines).
func parseSMI(line string) (spec.Device, bool) {
	fields := strings.Split(line, ",")
	if len(fields) < 4 {
		return spec.Device{}, false
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	index, err := strconv.Atoi(fields[0])
	if err != nil || index < 0 {
		return spec.Device{}, false
	}
	last := len(fields) - 1
	mebibytes, err := strconv.ParseUint(fields[last], 10, 40)
	if err != nil {
		mebibytes = 0
	}
	return spec.Device{
		Index: index, ID: fields[1], Kind: "nvidia",
		Name: strings.Join(fields[2:last], ", "), Memory: mebibytes << 20,
	}, true
}

// nvidiaFromProc reads the driver's own list. A container may be shown GPUs
// that it was not given: those have no device file.
func nvidiaFromProc(files fs.FS) ([]spec.Device, error) {
	entries, err := fs.ReadDir(files, nvidiaProc)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeResources, "cannot list GPUs in /%s: %v", nvidiaProc, err)
	}
	var devices []spec.Device
	for _, entry := range entries { // sorted by name, which is the place on the bus
		info, err := fs.ReadFile(files, path.Join(nvidiaProc, entry.Name(), "information"))
		if err != nil {
			continue // unplugged meanwhile
		}
		fields := parseInformation(string(info))
		if minor := fields["Device Minor"]; minor != "" {
			if _, err := fs.Stat(files, "dev/nvidia"+minor); err != nil {
				continue
			}
		}
		devices = append(devices, spec.Device{Index: len(devices), ID: fields["GPU UUID"], Kind: "nvidia", Name: fields["Model"]})
	}
	return devices, nil
}

// parseInformation reads lines of "Name: value".
func parseInformation(text string) map[string]string {
	fields := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return fields
}

// restrict keeps what CUDA would show under CUDA_VISIBLE_DEVICES: numbers, or
// UUIDs that may be cut short where one GPU alone begins so; the first entry
// that is neither ends the list, so that "" and "-1" mean none.
func restrict(devices []spec.Device, allowed string) []spec.Device {
	var kept []spec.Device
	for _, entry := range strings.Split(allowed, ",") {
		d, ok := match(devices, strings.TrimSpace(entry))
		if !ok {
			break
		}
		if !slices.ContainsFunc(kept, func(k spec.Device) bool { return k.Index == d.Index }) {
			kept = append(kept, d)
		}
	}
	slices.SortFunc(kept, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	return kept
}

func match(devices []spec.Device, entry string) (spec.Device, bool) {
	if number, err := strconv.Atoi(entry); err == nil {
		for _, d := range devices {
			if d.Index == number {
				return d, true
			}
		}
		return spec.Device{}, false
	}
	var found spec.Device
	hits := 0
	if strings.HasPrefix(entry, "GPU-") {
		for _, d := range devices {
			if strings.HasPrefix(d.ID, entry) {
				found = d
				hits++
			}
		}
	}
	return found, hits == 1
}
