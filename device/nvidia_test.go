package device

import (
	"context"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// What machines with NVIDIA GPUs say.
const (
	oneH200 = `{"gpus": [{"uuid": "GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27", "name": "NVIDIA H200", "memory": 150754820096, "index": 0, "mig": false}]}`
	smiLine = "0, GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27, NVIDIA H200, 143771, Disabled\n"

	information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27\n" +
		"Video BIOS: \t 96.00.a5.00.1a\nBus Type: \t PCIe\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 0\nGPU Excluded:\t No\n"

	fourGPUs = `{"gpus": [
		{"index": 0, "uuid": "GPU-aa000000-0000-0000-0000-000000000000", "name": "NVIDIA H100", "memory": 85520809984},
		{"index": 1, "uuid": "GPU-ab000000-0000-0000-0000-000000000000", "name": "NVIDIA H100", "memory": 85520809984},
		{"index": 2, "uuid": "GPU-cc000000-0000-0000-0000-000000000000", "name": "NVIDIA H100", "memory": 85520809984},
		{"index": 3, "uuid": "GPU-dd000000-0000-0000-0000-000000000000", "name": "NVIDIA GB10", "memory": 0}]}`

	// The second is cut in two, the third lost, the fourth in MIG mode and not cut.
	someCut = `{"gpus": [
		{"index": 0, "uuid": "GPU-aa", "name": "NVIDIA A100", "memory": 80},
		{"index": 1, "uuid": "GPU-bb", "name": "NVIDIA A100", "memory": 80, "mig": true, "instances": [
			{"uuid": "MIG-1111", "name": "NVIDIA A100 MIG 1g.10gb", "memory": 10, "gpu_instance": 7, "compute_instance": 0},
			{"uuid": "MIG-2222", "name": "NVIDIA A100 MIG 3g.40gb", "memory": 40, "gpu_instance": 2, "compute_instance": 1}]},
		{"index": 2, "refused": "GPU is lost (nvmlDeviceGetHandleByIndex_v2: error 15)"},
		{"index": 3, "uuid": "GPU-dd", "name": "NVIDIA A100", "memory": 80, "mig": true, "instances": []}]}`
)

var driver = map[string]string{"proc/driver/nvidia/version": "NVRM version: 580.159", "dev/nvidiactl": "", "dev/nvidia0": ""}

// nvidia is a machine whose library says this.
func nvidia(library string, env map[string]string) Machine {
	return machine(driver, env, says{"python3": library})
}

func cuda(list string) map[string]string { return map[string]string{"CUDA_VISIBLE_DEVICES": list} }

func TestNVIDIAByNVML(t *testing.T) {
	want := []spec.Device{{Index: 0, ID: "GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27", Kind: "nvidia", Name: "NVIDIA H200", Memory: 143771 << 20}}
	wantDevices(t, nvidia(oneH200, nil), want)

	m := machine(driver, nil, says{"/opt/venv/bin/python": oneH200})
	m.Python = "/opt/venv/bin/python"
	wantDevices(t, m, want)
	m = machine(driver, nil, says{"/opt/venv/bin/python": fails + "no module named ctypes", "python3": oneH200})
	m.Python = "/opt/venv/bin/python"
	wantDevices(t, m, want)
}

func TestNVIDIABySMI(t *testing.T) {
	want := []spec.Device{{Index: 0, ID: "GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27", Kind: "nvidia", Name: "NVIDIA H200", Memory: 143771 << 20}}
	query := "nvidia-smi --query-gpu=index,uuid,name,memory.total,mig.mode.current --format=csv,noheader,nounits"
	for name, programs := range map[string]says{
		"no Python":                      {},
		"a Python without ctypes":        {"python3": fails + "no module named _ctypes", "python": "rubbish"},
		"a library that cannot be found": {"python3": `{"missing": "libnvidia-ml.so.1: cannot open shared object file"}`},
	} {
		t.Run(name, func(t *testing.T) {
			programs[query] = smiLine
			wantDevices(t, machine(driver, nil, programs), want)
			programs[query] = "No devices were found\n"
			wantDevices(t, machine(driver, nil, programs), []spec.Device{})
			programs[query] = "Failed to initialize NVML\n"
			_, err := Find(t.Context(), machine(driver, nil, programs))
			wantTrouble(t, err, "nvidia-smi answered: Failed to initialize NVML")
		})
	}
	t.Run("MIG", func(t *testing.T) {
		programs := says{
			query: "0, GPU-aa, NVIDIA A100, 81920, Disabled\n1, GPU-bb, NVIDIA A100, 81920, Enabled\n",
			"nvidia-smi -L": "GPU 0: NVIDIA A100 (UUID: GPU-aa)\nGPU 1: NVIDIA A100 (UUID: GPU-bb)\n" +
				"  MIG 1g.10gb     Device  0: (UUID: MIG-1111)\n  MIG 3g.40gb     Device  1: (UUID: MIG-GPU-bb/2/1)\n",
		}
		wantDevices(t, machine(driver, nil, programs), []spec.Device{
			{Index: 0, ID: "GPU-aa", Visible: "GPU-aa", Kind: "nvidia", Name: "NVIDIA A100", Memory: 81920 << 20},
			{Index: 1, ID: "MIG-1111", Visible: "MIG-1111", Kind: "nvidia", Name: "NVIDIA A100 MIG 1g.10gb"},
			{Index: 2, ID: "MIG-GPU-bb/2/1", Visible: "MIG-GPU-bb/2/1", Kind: "nvidia", Name: "NVIDIA A100 MIG 3g.40gb"},
		})
	})
}

func TestNVIDIAByProc(t *testing.T) {
	files := map[string]string{
		"proc/driver/nvidia/version":                       "580",
		"proc/driver/nvidia/gpus/0000:00:06.0/information": information,
		"proc/driver/nvidia/gpus/0000:00:07.0/information": strings.NewReplacer("Minor: \t 0", "Minor: \t 1", "GPU-8a", "GPU-99").Replace(information),
		"proc/driver/nvidia/gpus/0000:00:08.0/information": strings.NewReplacer("Minor: \t 0", "Minor: \t 2", "GPU-8a", "GPU-77").Replace(information),
		"dev/nvidia0": "", "dev/nvidia2": "", // the second was not given to this container
	}
	want := []spec.Device{
		{Index: 0, ID: "GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27", Kind: "nvidia", Name: "NVIDIA H200"},
		{Index: 1, ID: "GPU-77ab9e11-4513-5ffc-4b50-001cfd85df27", Kind: "nvidia", Name: "NVIDIA H200"},
	}
	wantDevices(t, machine(files, nil, nil), want)

	cut := maps.Clone(files)
	cut["proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"] = ""
	devices, err := Find(t.Context(), machine(cut, nil, nil))
	wantTrouble(t, err, "GPU 0", "MIG")
	if len(devices) != 1 || devices[0].Visible != want[1].ID {
		t.Errorf("%+v", devices)
	}

	_, err = Find(t.Context(), machine(driver, nil, nil))
	wantTrouble(t, err, "libnvidia-ml.so.1", "nvidia-smi", "NVIDIA_DRIVER_CAPABILITIES")
}

func TestVisibleToCUDA(t *testing.T) {
	for list, want := range map[string]struct {
		numbers []int
		visible string
	}{
		"2,3":        {[]int{2, 3}, ","},
		"3, 1":       {[]int{1, 3}, ","},
		"0":          {[]int{0}, ""},
		"+1,-0":      {[]int{0, 1}, ","},
		"1gpu,2nd":   {[]int{1, 2}, ","},
		"":           {},
		" ":          {},
		"-1":         {},
		"NoDevFiles": {},
		"4":          {},
		",1":         {},
		"1,9,2":      {[]int{1}, ""},
		"1,-1,2":     {[]int{1}, ""},
		"1,,2":       {[]int{1}, ""},
		"1,1":        {},
		"0,2,3,2":    {},
		"GPU-cc":     {[]int{2}, "GPU-cc000000-0000-0000-0000-000000000000"},
		"GPU-":       {},
		"GPU-a":      {}, // two begin so
		" GPU-cc":    {},
		"gpu-cc":     {},
		"GPU-zz":     {},
		"GPU-ab,GPU-DD000000-0000-0000-0000-000000000000 ": {[]int{1, 3}, "GPU-ab000000-0000-0000-0000-000000000000,GPU-dd000000-0000-0000-0000-000000000000"},
		"GPU-ab,GPU-ab0": {},
		"GPU-ab,2":       {[]int{1}, "GPU-ab000000-0000-0000-0000-000000000000"},
		"2,GPU-ab":       {[]int{2}, ""},
		"GPU-ab,GPU-ff":  {[]int{1}, "GPU-ab000000-0000-0000-0000-000000000000"},
		"MIG-cc":         {},
	} {
		devices, err := Find(t.Context(), nvidia(fourGPUs, cuda(list)))
		if got := indexes(devices); err != nil || !reflect.DeepEqual(got, want.numbers) || visible(devices) != want.visible {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %v by %q, %v; want %+v", list, got, visible(devices), err, want)
		}
	}
}

// TestAsCUDADoes has what cuDeviceGetCount said under these lists on machines
// with an H200, driver 580.159, CUDA 13.0; ID stands for the GPU's UUID.
func TestAsCUDADoes(t *testing.T) {
	const id = "GPU-8aab9e11-4513-5ffc-4b50-001cfd85df27"
	for count, lists := range [][]string{
		0: {
			"", " ", "-1", "--0", "+-0", "0,0", "0,00", "1,0", ",0", "NoDevFiles", "none",
			"GPU-", strings.ToLower(id), " ID", "ID,ID", id[:12] + ",ID", id[:12] + " ,ID", "GPU-zz,ID",
			id[:12] + "x", id[:12] + "/", "MIG-ID", "MIG-ID/0/0",
		},
		1: {
			"0", " 0", "0 ", "00", "+0", "-0", "0x0", "0gpu", "0;1", "0.5", "0,1", "0,-1", "0,,0", "0,ID",
			"ID", id[:5], id[:8], id[:12], id[:12] + "-", strings.ToUpper(id),
			"ID ", "IDx", "ID0", "ID/0/0", "ID,0", "ID,x", "ID, 1", "ID,GPU-zz",
		},
	} {
		for _, list := range lists {
			devices, err := Find(t.Context(), nvidia(oneH200, cuda(strings.ReplaceAll(list, "ID", id))))
			if err != nil || len(devices) != count {
				t.Errorf("%q: %v, %v; CUDA sees %d", list, devices, err, count)
			}
		}
	}
}

func TestInstancesAreDevices(t *testing.T) {
	for list, want := range map[string]string{
		"(unset)":        "0:GPU-aa 1:MIG-1111 2:MIG-2222",
		"MIG-2222":       "2:MIG-2222",
		"MIG-2":          "2:MIG-2222",
		"MIG-GPU-bb/7/0": "1:MIG-1111",
		"MIG-GPU-bb/7/1": "",
		"MIG-2222,MIG-1": "1:MIG-1111 2:MIG-2222",
		"GPU-bb":         "1:MIG-1111 2:MIG-2222",
		"1":              "1:MIG-1111 2:MIG-2222",
		"0":              "0:GPU-aa",
		"2":              "", // the lost GPU does not count, and that which does has no instances
		"MIG-3333":       "",
	} {
		env := cuda(list)
		if list == "(unset)" {
			env = nil
		}
		devices, err := Find(t.Context(), nvidia(someCut, env))
		wantTrouble(t, err, "GPU 2 cannot be used: GPU is lost", "GPU 3 is in MIG mode and has no instances")
		var got []string
		for _, d := range devices {
			got = append(got, string(rune('0'+d.Index))+":"+d.ID)
			if d.Visible != d.ID || d.Memory == 0 || d.Kind != "nvidia" {
				t.Errorf("%+v", d)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %v, want %s", list, got, want)
		}
	}
}

func TestALostGPUCostsTheOthersTheirNumbers(t *testing.T) {
	library := strings.Replace(fourGPUs, `{"index": 1, "uuid": "GPU-ab000000-0000-0000-0000-000000000000", "name": "NVIDIA H100", "memory": 85520809984}`,
		`{"index": 1, "refused": "GPU is lost"}`, 1)
	// CUDA counts the three that answer.
	devices, err := Find(t.Context(), nvidia(library, cuda("1,2")))
	wantTrouble(t, err, "GPU 1 cannot be used: GPU is lost")
	if got := indexes(devices); !reflect.DeepEqual(got, []int{2, 3}) || devices[0].Visible != devices[0].ID {
		t.Errorf("%+v", devices)
	}
}

func TestAnotherOrderThanTheBus(t *testing.T) {
	for order, want := range map[string]bool{"FASTEST_FIRST": true, "PCI_BUS_ID": false} {
		devices, err := Find(t.Context(), nvidia(fourGPUs, map[string]string{"CUDA_DEVICE_ORDER": order}))
		if err != nil || len(devices) != 4 || (devices[0].Visible != "") != want {
			t.Errorf("%s: %+v, %v", order, devices, err)
		}
	}
	devices, err := Find(t.Context(), nvidia(oneH200, map[string]string{"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}))
	if err != nil || visible(devices) != "" {
		t.Errorf("one GPU has one order: %+v, %v", devices, err)
	}
}

func TestNoneWantedWakesNoDriver(t *testing.T) {
	for _, list := range []string{"", "-1", "none", ",0", "GPU-"} {
		m := nvidia(oneH200, cuda(list))
		m.Run = func(_ context.Context, name string, _ ...string) ([]byte, error) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q ran %s", list, name)
			return nil, nil
		}
		wantDevices(t, m, []spec.Device{})
	}
}

func TestADriverThatRefusesIsQuoted(t *testing.T) {
	m := machine(driver, nil, says{
		"python3":    `{"refused": "Driver/library version mismatch (nvmlInit_v2: error 18)"}`,
		"nvidia-smi": fails + "asked in vain",
	})
	devices, err := Find(t.Context(), m)
	wantTrouble(t, err, "NVIDIA driver does not work: NVML: Driver/library version mismatch")
	if devices == nil || len(devices) != 0 {
		t.Error(devices)
	}
}

// The tool that hangs is given up, and no other asks the same driver.
func TestAnNVIDIADriverThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := nvidia("", nil)
	asked := 0
	m.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
		asked++
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	devices, err := Find(ctx, m)
	wantTrouble(t, err, "NVIDIA driver hangs: NVML did not answer")
	if len(devices) != 0 || asked != 1 {
		t.Errorf("%v, asked %d times", devices, asked)
	}
}

func FuzzParseSMI(f *testing.F) {
	f.Add(smiLine)
	f.Add("3, GPU-1, A, B, [N/A], Enabled")
	f.Fuzz(func(t *testing.T, line string) {
		if g, ok := parseSMI(line); ok && g.Index < 0 {
			t.Fatalf("%q: %+v", line, g)
		}
		addInstances([]gpu{{UUID: "GPU-1"}}, line)
	})
}

func FuzzVisibleToCUDA(f *testing.F) {
	for _, list := range []string{"0,1", "GPU-aa,MIG-1", "MIG-GPU-bb/7/0", "-0,+1, 2x"} {
		f.Add(list)
	}
	all, _, _ := numberNVIDIA([]gpu{{UUID: "GPU-aa"}, {Index: 1, UUID: "GPU-bb", MIG: true, Instances: []instance{{UUID: "MIG-11"}, {UUID: "MIG-22"}}}})
	f.Fuzz(func(t *testing.T, list string) {
		picked, _ := cudaVisible.pick(all, list)
		seen := map[string]bool{}
		for _, c := range picked {
			if seen[c.ID] {
				t.Fatalf("%q: %s twice", list, c.ID)
			}
			seen[c.ID] = true
		}
		if first, _, _ := strings.Cut(list, ","); len(picked) > 0 && !namesSomething(first) {
			t.Fatalf("%q shows %v, and was taken for none", list, picked)
		}
	})
}
