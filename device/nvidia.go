package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// gpu is an NVIDIA GPU as any source tells of it.
type gpu struct {
	Index     int        `json:"index"` // NVML's, which goes by the bus
	UUID      string     `json:"uuid"`
	Name      string     `json:"name"`
	Memory    uint64     `json:"memory"`
	MIG       bool       `json:"mig"` // it is in MIG mode: only its instances can be used
	Instances []instance `json:"instances"`
	Refused   string     `json:"refused"` // why it cannot be used, all else being unknown
}

// instance is a part of a GPU in MIG mode that computes as a GPU of its own.
type instance struct {
	UUID    string `json:"uuid"`
	Name    string `json:"name"`
	Memory  uint64 `json:"memory"`
	GPU     int    `json:"gpu_instance"`
	Compute int    `json:"compute_instance"`
}

// cudaVisible is how CUDA reads CUDA_VISIBLE_DEVICES; TestAsCUDADoes has what
// it was seen to do. Of a UUID the start will do, its hexadecimals in either
// case, and what follows a whole one is ignored.
var cudaVisible = rule{
	number: leadingNumber,
	fits: func(name, entry string) bool {
		return isUUID(entry) && (startsWith(name, entry) || startsWith(entry, name))
	},
	sort:     uuidPrefix,
	repeated: repeatedEmpties,
}

func startsWith(text, start string) bool {
	return len(start) <= len(text) && strings.EqualFold(text[:len(start)], start)
}

// uuidPrefix is "GPU-" or "MIG-", "" for what is neither.
func uuidPrefix(entry string) string {
	for _, prefix := range []string{"GPU-", "MIG-"} {
		if strings.HasPrefix(entry, prefix) {
			return prefix
		}
	}
	return ""
}

func isUUID(entry string) bool {
	return uuidPrefix(entry) != "" && len(entry) > len(uuidPrefix(entry))
}

// driverFiles are there where an NVIDIA driver is: Linux's, WSL's, Tegra's.
var driverFiles = []string{"proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg", "dev/nvhost-ctrl-gpu", "dev/nvgpu"}

// NVIDIA finds GPUs, and the instances of those in MIG mode. Numbers are
// NVML's, also where CUDA_VISIBLE_DEVICES of this process allows only some. A
// device is made visible by its UUID where its number would not do: in MIG
// mode, where the list from outside has UUIDs, where not all GPUs answer, and
// where CUDA was told to count otherwise than by the bus.
func NVIDIA(ctx context.Context, m Machine) ([]spec.Device, error) {
	if !exists(m.Files, driverFiles...) {
		return nil, nil
	}
	list, restricted := m.Env("CUDA_VISIBLE_DEVICES")
	if first, _, _ := strings.Cut(list, ","); restricted && !namesSomething(first) {
		return nil, nil // none is wanted: do not wake the driver
	}
	gpus, err := askNVIDIA(ctx, m)
	if err != nil {
		return nil, err
	}
	all, byUUID, trouble := numberNVIDIA(gpus)
	byUUID = byUUID || countsOtherwise(m, gpus)
	if restricted {
		picked, named := cudaVisible.pick(all, list)
		all, byUUID = picked, byUUID || named
	}
	devices := devicesOf(all)
	slices.SortFunc(devices, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	for i := range devices {
		if byUUID {
			devices[i].Visible = devices[i].ID
		}
	}
	return devices, trouble
}

func namesSomething(entry string) bool {
	_, isNumber := leadingNumber(entry)
	return isNumber || isUUID(entry)
}

// numberNVIDIA makes devices of GPUs. With instances among them the devices are
// counted anew, so byUUID tells that their numbers are not CUDA's; nor are they
// where CUDA skips a GPU that NVML counts.
func numberNVIDIA(gpus []gpu) (all []candidate, byUUID bool, trouble error) {
	var wrong []string
	cut, number := false, -1
	for _, g := range gpus {
		if g.Refused == "" {
			number++ // CUDA counts what answers
		}
		switch {
		case g.Refused != "":
			wrong = append(wrong, fmt.Sprintf("GPU %d cannot be used: %s", g.Index, g.Refused))
		case g.MIG && len(g.Instances) == 0:
			cut = true
			wrong = append(wrong, fmt.Sprintf("GPU %d is in MIG mode and has no instances: make some (nvidia-smi mig -cgi …), or turn the mode off (nvidia-smi -i %d -mig 0)", g.Index, g.Index))
		case g.MIG:
			cut = true
			for _, part := range g.Instances {
				all = append(all, candidate{
					Device: spec.Device{ID: part.UUID, Kind: "nvidia", Name: part.Name, Memory: part.Memory},
					number: number, whole: g.UUID,
					names: []string{part.UUID, fmt.Sprintf("MIG-%s/%d/%d", g.UUID, part.GPU, part.Compute)},
				})
			}
		default:
			all = append(all, candidate{
				Device: spec.Device{Index: g.Index, ID: g.UUID, Kind: "nvidia", Name: g.Name, Memory: g.Memory},
				number: number, names: []string{g.UUID},
			})
		}
	}
	if cut {
		for i := range all {
			all[i].Index = i
		}
	}
	if len(wrong) > 0 {
		trouble = spec.Errorf(spec.CodeResources, "%s", strings.Join(wrong, "; "))
	}
	return all, cut || len(wrong) > 0, trouble
}

// countsOtherwise tells whether CUDA was told to count the fastest GPU first
// and there are different ones. Without being told it would too, but workers
// get CUDA_DEVICE_ORDER=PCI_BUS_ID unless the environment says something.
func countsOtherwise(m Machine, gpus []gpu) bool {
	order, set := m.Env("CUDA_DEVICE_ORDER")
	return set && order != "PCI_BUS_ID" &&
		slices.ContainsFunc(gpus, func(g gpu) bool { return g.Name != gpus[0].Name })
}

// errNotAsked means that a source is missing, so another may know; any other
// error of a source is the driver's own word.
var errNotAsked = errors.New("not asked")

// askNVIDIA goes through the sources until one answers. A driver that hangs is
// not asked again: whoever asked would hang as well.
func askNVIDIA(ctx context.Context, m Machine) ([]gpu, error) {
	gpus, err := askNVML(ctx, m)
	source := "NVML"
	if errors.Is(err, errNotAsked) && ctx.Err() == nil {
		gpus, err = askSMI(ctx, m)
		source = "nvidia-smi"
	}
	switch {
	case err == nil:
		return gpus, nil
	case ctx.Err() != nil:
		return nil, spec.Errorf(spec.CodeResources,
			"the NVIDIA driver hangs: %s did not answer in time, so its GPUs cannot be used (see nvidia-smi and dmesg)", source)
	case !errors.Is(err, errNotAsked):
		return nil, spec.Errorf(spec.CodeResources, "the NVIDIA driver does not work: %v", err)
	}
	return nvidiaFromProc(m.Files)
}
