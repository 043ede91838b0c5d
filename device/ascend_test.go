package device

import (
	"context"
	"reflect"
	"testing"

	"github.com/muster-rl/muster/spec"
)

const (
	oneChipMapping = `	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	6                              0                              0                              Ascend 910B3
	6                              1                              -                              Mcu
	7                              0                              1                              Ascend 910B3
	7                              1                              -                              Mcu
`
	oneChipTable = `+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                       Version: 24.1.rc2                                       |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 6     910B3               | OK            | 100.8       33                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          59384/ 65536         |
+===========================+===============+====================================================+
| 7     910B3               | OK            | 100.8       33                0    / 0             |
| 0                         | 0000:02:00.0  | 0           0    / 0          3384 / 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 6       0                 | 3277562       | python                   | 56000                   |
+===========================+===============+====================================================+
| No running processes found in NPU 7                                                            |
`
	// Two processors on each card, with a column more.
	twoChipMapping = "NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name\n0 0 0 8 Ascend910\n0 1 1 9 Ascend910\n0 2 - - Mcu\n"
	twoChipTable   = `| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 0     Ascend910           | OK            | 162.8       37                0    / 0             |
| 0     8                   | 0000:9C:00.0  | 0           0    / 0          3133 / 65536         |
| 0     Ascend910           | OK            | -           37                0    / 0             |
| 1     9                   | 0000:9E:00.0  | 0           0    / 0          2876 / 32768         |
`
)

// npus are the files of a container that was given the last two of eight.
var npus = map[string]string{"dev/davinci6": "", "dev/davinci7": "", "dev/davinci_manager": "", "dev/hisi_hdc": ""}

func npuSMI(mapping, table string) says {
	return says{"npu-smi info -m": mapping, "npu-smi info": table}
}

func TestAscend(t *testing.T) {
	wantDevices(t, machine(npus, nil, npuSMI(oneChipMapping, oneChipTable)), []spec.Device{
		{Index: 0, Kind: "ascend", Name: "Ascend 910B3", Memory: 65536 << 20},
		{Index: 1, Kind: "ascend", Name: "Ascend 910B3", Memory: 32768 << 20},
	})
	wantDevices(t, machine(npus, nil, npuSMI(twoChipMapping, twoChipTable)), []spec.Device{
		{Index: 0, Kind: "ascend", Name: "Ascend910", Memory: 65536 << 20},
		{Index: 1, Kind: "ascend", Name: "Ascend910", Memory: 32768 << 20},
	})
	wantDevices(t, machine(npus, nil, npuSMI(twoChipMapping, fails+"no table")), []spec.Device{
		{Index: 0, Kind: "ascend", Name: "Ascend910"},
		{Index: 1, Kind: "ascend", Name: "Ascend910"},
	})
}

func TestAscendByFiles(t *testing.T) {
	want := []spec.Device{{Index: 0, Kind: "ascend", Name: "Ascend NPU"}, {Index: 1, Kind: "ascend", Name: "Ascend NPU"}}
	wantDevices(t, machine(npus, nil, nil), want)
	for _, mapping := range []string{fails + "dcmi module initialize failed", "dcmi module initialize failed\n"} {
		devices, err := Find(t.Context(), machine(npus, nil, npuSMI(mapping, "")))
		wantTrouble(t, err, "npu-smi", "dcmi module initialize failed")
		if !reflect.DeepEqual(devices, want) {
			t.Errorf("%+v", devices)
		}
	}
}

func TestVisibleToAscend(t *testing.T) {
	for list, want := range map[string][]int{
		"0,1": {0, 1}, "1": {1}, "1,0": {0, 1}, "0, 1": {0}, "0,2": {0}, "2": nil, "": nil, "-1": nil, "1,1": {1}, "GPU-1": nil,
	} {
		m := machine(npus, map[string]string{"ASCEND_RT_VISIBLE_DEVICES": list}, npuSMI(oneChipMapping, oneChipTable))
		devices, err := Find(t.Context(), m)
		if got := indexes(devices); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ASCEND_RT_VISIBLE_DEVICES=%q: %v, %v; want %v", list, got, err, want)
		}
	}
}

func TestAnAscendDriverThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := machine(npus, nil, nil)
	m.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	devices, err := Find(ctx, m)
	wantTrouble(t, err, "Ascend driver hangs", "2 NPUs")
	if len(devices) != 0 {
		t.Error(devices)
	}
}

func FuzzNPUSMI(f *testing.F) {
	f.Add(oneChipMapping, oneChipTable)
	f.Add(twoChipMapping, twoChipTable)
	f.Fuzz(func(t *testing.T, mapping, table string) {
		for _, d := range parseNPUMapping(mapping) {
			if d.Index < 0 {
				t.Fatalf("%+v", d)
			}
		}
		parseNPUTable(table)
	})
}
