package device

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/muster-rl/muster/spec"
)

// What an H200 machine says.
const (
	smiLine     = "0, GPU-16f757ee-3b07-1a1e-10e5-ee5dddfe9616, NVIDIA H200, 143771\n"
	information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-16f757ee-3b07-1a1e-10e5-ee5dddfe9616\n" +
		"Video BIOS: \t 96.00.a5.00.1a\nBus Type: \t PCIe\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 0\nGPU Excluded:\t No\n"
)

const fourGPUs = `2, GPU-cc000000-0000-0000-0000-000000000000, NVIDIA H100, 81559
0, GPU-aa000000-0000-0000-0000-000000000000, NVIDIA H100, 81559
1, GPU-ab000000-0000-0000-0000-000000000000, NVIDIA H100, 81559
3, GPU-dd000000-0000-0000-0000-000000000000, NVIDIA GB10, [N/A]
`

// machine makes one up: smi is what nvidia-smi prints, "" that there is none.
func machine(smi string, files fstest.MapFS, env map[string]string) Machine {
	return Machine{
		Files: files,
		Run: func(_ context.Context, name string, _ ...string) ([]byte, error) {
			if smi == "" || name != "nvidia-smi" {
				return nil, &exec.Error{Name: name, Err: exec.ErrNotFound}
			}
			return []byte(smi), nil
		},
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}
}

func TestNoGPUIsNoError(t *testing.T) {
	for name, m := range map[string]Machine{
		"nothing at all":   machine("", fstest.MapFS{}, nil),
		"a tool, no GPU":   machine("No devices were found\n", fstest.MapFS{}, nil),
		"an empty list":    machine("\n", fstest.MapFS{}, nil),
		"a driver, no GPU": machine("", fstest.MapFS{"proc/driver/nvidia/gpus": {Mode: fs.ModeDir}}, nil),
	} {
		if devices, err := Find(t.Context(), m); err != nil || devices == nil || len(devices) != 0 {
			t.Errorf("%s: %v, %v", name, devices, err)
		}
	}
}

func TestNVIDIABySMI(t *testing.T) {
	devices, err := Find(t.Context(), machine(smiLine, nil, nil))
	want := []spec.Device{{Index: 0, ID: "GPU-16f757ee-3b07-1a1e-10e5-ee5dddfe9616", Kind: "nvidia", Name: "NVIDIA H200", Memory: 143771 << 20}}
	if err != nil || !reflect.DeepEqual(devices, want) {
		t.Errorf("%+v, %v", devices, err)
	}
}

func TestNVIDIAByProc(t *testing.T) {
	files := fstest.MapFS{
		"proc/driver/nvidia/gpus/0000:00:06.0/information": {Data: []byte(information)},
		"proc/driver/nvidia/gpus/0000:00:07.0/information": {Data: []byte(strings.NewReplacer("Minor: \t 0", "Minor: \t 1", "GPU-16", "GPU-99").Replace(information))},
		"proc/driver/nvidia/gpus/0000:00:08.0/information": {Data: []byte(strings.NewReplacer("Minor: \t 0", "Minor: \t 2", "GPU-16", "GPU-77").Replace(information))},
		"dev/nvidia0": {}, "dev/nvidia2": {}, // the second was not given to this container
	}
	want := []spec.Device{
		{Index: 0, ID: "GPU-16f757ee-3b07-1a1e-10e5-ee5dddfe9616", Kind: "nvidia", Name: "NVIDIA H200"},
		{Index: 1, ID: "GPU-77f757ee-3b07-1a1e-10e5-ee5dddfe9616", Kind: "nvidia", Name: "NVIDIA H200"},
	}
	for name, smi := range map[string]string{"no tool": "", "a tool that fails": "Failed to initialize NVML\n"} {
		devices, err := Find(t.Context(), machine(smi, files, nil))
		if err != nil || !reflect.DeepEqual(devices, want) {
			t.Errorf("%s: %+v, %v", name, devices, err)
		}
	}
}

func TestRestricted(t *testing.T) {
	for allowed, want := range map[string][]int{
		"2,3":    {2, 3},
		"3, 1":   {1, 3},
		"":       nil,
		"-1":     nil,
		"NoDev":  nil,
		"1,9,2":  {1},
		"1,1":    {1},
		"GPU-cc": {2},
		"GPU-a":  nil, // two begin so
		"GPU-ab,GPU-dd000000-0000-0000-0000-000000000000": {1, 3},
		"MIG-cc": nil,
	} {
		devices, err := Find(t.Context(), machine(fourGPUs, nil, map[string]string{"CUDA_VISIBLE_DEVICES": allowed}))
		var got []int
		for _, d := range devices {
			got = append(got, d.Index)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %v, %v; want %v", allowed, got, err, want)
		}
	}
}

func TestUnrestrictedIsSortedAndMemoryMayBeUnknown(t *testing.T) {
	devices, err := Find(t.Context(), machine(fourGPUs, nil, nil))
	if err != nil || len(devices) != 4 {
		t.Fatal(devices, err)
	}
	for i, d := range devices {
		if d.Index != i {
			t.Errorf("device %d has number %d", i, d.Index)
		}
	}
	if devices[3].Memory != 0 || devices[0].Memory != 81559<<20 {
		t.Errorf("memory %d, %d", devices[3].Memory, devices[0].Memory)
	}
}

func TestAToolThatHangsIsNotNoGPU(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := machine("", fstest.MapFS{}, nil)
	m.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, error) { return nil, ctx.Err() }
	if devices, err := Find(ctx, m); !errors.Is(err, &spec.Error{Code: spec.CodeResources}) {
		t.Errorf("%v, %v", devices, err)
	}
}

func TestHereAnswers(t *testing.T) {
	devices, err := Find(t.Context(), Here())
	if err != nil {
		t.Error(err)
	}
	t.Logf("%+v", devices)
}

func TestVirtual(t *testing.T) {
	devices := Virtual(3)
	if len(devices) != 3 || devices[2].Index != 2 || devices[2].Kind != "virtual" || devices[2].ID == devices[1].ID {
		t.Errorf("%+v", devices)
	}
	if devices := Virtual(0); devices == nil || len(devices) != 0 {
		t.Errorf("%v", devices)
	}
}

func FuzzParseSMI(f *testing.F) {
	f.Add(smiLine)
	f.Add("3, GPU-1, A, B, [N/A]")
	f.Fuzz(func(t *testing.T, line string) {
		if d, ok := parseSMI(line); ok && d.Index < 0 {
			t.Fatalf("%q: %+v", line, d)
		}
	})
}
