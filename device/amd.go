package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

const kfdNodes = "sys/class/kfd/kfd/topology/nodes"

// rocrVisible is how ROCm's runtime reads ROCR_VISIBLE_DEVICES.
var rocrVisible = rule{
	number: anyBaseNumber,
	fits: func(name, entry string) bool {
		entry = strings.ToUpper(strings.TrimSpace(entry))
		return len(entry) > len("GPU-") && strings.HasPrefix(strings.ToUpper(name), entry)
	},
	repeated: repeatedEnds,
}

// hipVisible is how HIP reads its own list, among what ROCR leaves.
var hipVisible = rule{number: leadingNumber, fits: rocrVisible.fits, repeated: repeatedSkipped}

// AMD finds GPUs by what the kernel's compute driver tells in /sys, as ROCm's
// runtime does, so numbers are those of ROCR_VISIBLE_DEVICES: GPUs that this
// process may not use do not count. No program is run.
func AMD(_ context.Context, m Machine) ([]spec.Device, error) {
	if !exists(m.Files, "dev/kfd") {
		return nil, nil
	}
	all, err := kfdGPUs(m.Files)
	if err != nil {
		return nil, err
	}
	byName := false
	if list, ok := m.Env("ROCR_VISIBLE_DEVICES"); ok {
		all, byName = rocrVisible.pick(all, list)
	}
	// HIP takes CUDA's list for its own where it has none; an empty one is none.
	hip, _ := m.Env("HIP_VISIBLE_DEVICES")
	if hip == "" {
		hip, _ = m.Env("CUDA_VISIBLE_DEVICES")
	}
	if hip != "" {
		for i := range all {
			all[i].number = i
		}
		all, _ = hipVisible.pick(all, hip)
	}
	devices := devicesOf(all)
	slices.SortFunc(devices, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	for i := range devices {
		if byName {
			devices[i].Visible = devices[i].ID
		}
	}
	return devices, nil
}

// kfdGPUs reads the topology: a node for each CPU and each GPU.
func kfdGPUs(files fs.FS) ([]candidate, error) {
	entries, err := fs.ReadDir(files, kfdNodes)
	if err != nil {
		return nil, spec.Errorf(spec.CodeResources, "there is an AMD GPU driver (/dev/kfd), but its GPUs cannot be listed: %v", err)
	}
	numbers := make([]int, 0, len(entries))
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers) // 10 after 9, as the runtime counts
	var all []candidate
	for _, n := range numbers {
		node := path.Join(kfdNodes, strconv.Itoa(n))
		text, err := fs.ReadFile(files, path.Join(node, "properties"))
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			continue // the kernel's way to hide what a container was not given
		}
		if err != nil {
			return nil, spec.Errorf(spec.CodeResources, "the AMD GPU driver does not answer for its node %d: %v", n, err)
		}
		properties := parseProperties(string(text))
		render := fmt.Sprintf("renderD%d", properties["drm_render_minor"])
		if properties["simd_count"] == 0 || !exists(files, "dev/dri/"+render) {
			continue
		}
		card := "sys/class/drm/" + render + "/device/"
		device := spec.Device{
			Index: len(all), Kind: "amd", ID: amdID(files, card, properties["unique_id"]),
			Name:   cmp.Or(readLine(files, card+"product_name"), "AMD "+gfxName(properties["gfx_target_version"])),
			Memory: amdMemory(files, card, node),
		}
		c := candidate{Device: device, number: len(all)}
		if device.ID != "" {
			c.names = []string{device.ID}
		}
		all = append(all, c)
	}
	return all, nil
}

// amdID is the name that ROCR_VISIBLE_DEVICES takes; consumers' cards have none.
func amdID(files fs.FS, card string, unique uint64) string {
	if unique == 0 {
		unique, _ = strconv.ParseUint(readLine(files, card+"unique_id"), 16, 64)
	}
	if unique == 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%016x", unique)
}

// amdMemory is the card's, or, where it is cut in partitions, this part's.
func amdMemory(files fs.FS, card, node string) uint64 {
	const public, private = 1, 2 // heap types of a GPU's own memory
	total := uint64(0)
	banks, _ := fs.Glob(files, node+"/mem_banks/*/properties")
	for _, bank := range banks {
		properties := parseProperties(readLine(files, bank))
		if heap := properties["heap_type"]; heap == public || heap == private {
			total += properties["size_in_bytes"]
		}
	}
	if total == 0 {
		total, _ = strconv.ParseUint(readLine(files, card+"mem_info_vram_total"), 10, 64)
	}
	return total
}

// parseProperties reads lines of "name number".
func parseProperties(text string) map[string]uint64 {
	properties := map[string]uint64{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				properties[name] = n
			}
		}
	}
	return properties
}

// gfxName writes 90402 as gfx942: the last digit of a version is a hexadecimal.
func gfxName(version uint64) string {
	if version == 0 {
		return "GPU"
	}
	return fmt.Sprintf("gfx%d%d%x", version/10000, version/100%100, version%100)
}
