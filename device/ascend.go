package device

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-rl/muster/spec"
)

// ascendVisible is how CANN reads ASCEND_RT_VISIBLE_DEVICES: a space ends the
// list as well. CANN wants the numbers in order; so do we give them.
var ascendVisible = rule{number: bareNumber, repeated: repeatedEnds}

var davinciFile = regexp.MustCompile(`^v?davinci([0-9]+)$`)

// Ascend finds NPUs by npu-smi, or where that is missing by their device files.
// Numbers are the logic ids that ASCEND_RT_VISIBLE_DEVICES takes: in a
// container they count from 0, whatever the files are called.
func Ascend(ctx context.Context, m Machine) ([]spec.Device, error) {
	count := davinciFiles(m.Files)
	if count == 0 {
		return nil, nil
	}
	list, restricted := m.Env("ASCEND_RT_VISIBLE_DEVICES")
	if first, _, _ := strings.Cut(list, ","); restricted {
		if _, ok := bareNumber(first); !ok {
			return nil, nil
		}
	}
	devices, err := askNPUSMI(ctx, m)
	if ctx.Err() != nil {
		return nil, spec.Errorf(spec.CodeResources, "the Ascend driver hangs: npu-smi did not answer in time, so its %d NPUs cannot be used (see npu-smi info and dmesg)", count)
	}
	var trouble error
	if len(devices) == 0 { // the tool may be missing, or closed to this user
		for i := range count {
			devices = append(devices, spec.Device{Index: i, Kind: "ascend", Name: "Ascend NPU"})
		}
		if !errors.Is(err, exec.ErrNotFound) {
			trouble = spec.Errorf(spec.CodeResources, "npu-smi does not list the NPUs that /dev/davinci* show, so these were counted: %v", err)
		}
	}
	slices.SortFunc(devices, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	if !restricted {
		return devices, trouble
	}
	all := make([]candidate, len(devices))
	for i, d := range devices {
		all[i] = candidate{Device: d, number: d.Index}
	}
	picked, _ := ascendVisible.pick(all, list)
	devices = devicesOf(picked)
	slices.SortFunc(devices, func(a, b spec.Device) int { return cmp.Compare(a.Index, b.Index) })
	return devices, trouble
}

func davinciFiles(files fs.FS) int {
	entries, _ := fs.ReadDir(files, "dev")
	count := 0
	for _, entry := range entries {
		if davinciFile.MatchString(entry.Name()) {
			count++
		}
	}
	return count
}

// chip is where a processor sits: the card and its place on it.
type chip struct{ card, place int }

// askNPUSMI asks for the processors and, at the same time as the tool is slow,
// for the table that tells their memory; that one may fail.
func askNPUSMI(ctx context.Context, m Machine) ([]spec.Device, error) {
	var table []byte
	var both sync.WaitGroup
	both.Go(func() { table, _ = m.Run(ctx, "npu-smi", "info") })
	mapping, err := m.Run(ctx, "npu-smi", "info", "-m")
	both.Wait()
	if err != nil {
		return nil, err
	}
	memory := parseNPUTable(string(table))
	var devices []spec.Device
	for at, d := range parseNPUMapping(string(mapping)) {
		d.Memory = memory[at]
		devices = append(devices, d)
	}
	if len(devices) == 0 {
		return nil, errors.New("its list has no processor: " + complaint(nil, mapping))
	}
	return devices, nil
}

// parseNPUMapping reads the list of npu-smi info -m, whose columns are card,
// chip, logic id, in some versions the physical id, and the name; a chip
// without a logic id is no processor:
//
//	NPU ID   Chip ID   Chip Logic ID   Chip Name
//	0        0         0               Ascend 910B3
//	0        1         -               Mcu
func parseNPUMapping(text string) map[chip]spec.Device {
	devices := map[chip]spec.Device{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		var numbers [3]int
		ok := true
		for i := range numbers {
			n, isNumber := bareNumber(fields[i])
			numbers[i], ok = n, ok && isNumber
		}
		if !ok {
			continue
		}
		name := fields[3:]
		if _, isNumber := bareNumber(name[0]); isNumber {
			name = name[1:]
		}
		devices[chip{numbers[0], numbers[1]}] = spec.Device{Index: numbers[2], Kind: "ascend", Name: strings.Join(name, " ")}
	}
	return devices
}

// usage is "3318 / 65536" at the end of a row, in MiB.
var usage = regexp.MustCompile(`[0-9]+ */ *([0-9]+) *$`)

// parseNPUTable reads how much memory each chip has from the table of npu-smi
// info, where each has two rows of three cells. Rows of other tables have more:
//
//	| 0     910B3    | OK            | 101.8       43                0    / 0     |
//	| 0              | 0000:C1:00.0  | 0           0    / 0          3318 / 65536 |
func parseNPUTable(text string) map[chip]uint64 {
	memory := map[chip]uint64{}
	card := -1
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			continue
		}
		head := strings.Fields(cells[0])
		if len(head) == 0 {
			continue
		}
		number, ok := bareNumber(head[0])
		if !ok {
			card = -1
			continue
		}
		if card < 0 { // the first row: card and name
			card = number
			continue
		}
		if found := usage.FindStringSubmatch(cells[2]); found != nil {
			mebibytes, _ := strconv.ParseUint(found[1], 10, 40)
			memory[chip{card, number}] = mebibytes << 20
		}
		card = -1
	}
	return memory
}
