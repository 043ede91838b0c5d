package device

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/muster-rl/muster/spec"
)

const nvidiaProc = "proc/driver/nvidia"

// nvidiaFromProc reads the driver's own list, for containers that were given
// GPUs and neither NVML nor nvidia-smi. A container may be shown GPUs that it
// was not given: those have no device file. Memory is not told here, nor what
// instances a GPU in MIG mode has.
func nvidiaFromProc(files fs.FS) ([]gpu, error) {
	entries, err := fs.ReadDir(files, nvidiaProc+"/gpus")
	if errors.Is(err, fs.ErrNotExist) {
		if !exists(files, "dev/nvidia0", "dev/nvidia1", "dev/nvidia2", "dev/nvidia3") {
			return nil, nil
		}
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeResources,
			"there is an NVIDIA driver, but neither NVML (libnvidia-ml.so.1) nor nvidia-smi to ask for its GPUs, and no list in /%s/gpus: %v; containers get them by NVIDIA_DRIVER_CAPABILITIES=compute,utility", nvidiaProc, err)
	}
	var gpus []gpu
	for _, entry := range entries { // sorted by name, which is the place on the bus
		info, err := fs.ReadFile(files, path.Join(nvidiaProc, "gpus", entry.Name(), "information"))
		if err != nil {
			continue // unplugged meanwhile
		}
		fields := parseInformation(string(info))
		minor := fields["Device Minor"]
		if minor != "" && !exists(files, "dev/nvidia"+minor) {
			continue
		}
		g := gpu{Index: len(gpus), UUID: fields["GPU UUID"], Name: fields["Model"]}
		if parts, _ := fs.Glob(files, nvidiaProc+"/capabilities/gpu"+minor+"/mig/gi*"); len(parts) > 0 {
			g.Refused = "it is in MIG mode, and only NVML or nvidia-smi, which are missing here, can tell its instances"
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// parseInformation reads lines of "Name: value".
func parseInformation(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return fields
}
