package device

import (
	"context"
	"os/exec"
	"reflect"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// scripted runs nvml.py on the library of testdata/fake_nvml.py.
func scripted(t *testing.T, initCode string) Machine {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python: there is no python3 to run nvml.py")
	}
	m := machine(driver, nil, nil)
	m.Run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
		if name != "python3" {
			return nil, &exec.Error{Name: name, Err: exec.ErrNotFound}
		}
		if want := []string{"-I", "-S", "-c", nvmlScript}; !reflect.DeepEqual(args, want) {
			t.Errorf("python3 was run with %q", args)
		}
		return run(ctx, python, "-I", "-S", "testdata/fake_nvml.py", "nvml.py", initCode)
	}
	return m
}

func TestTheScriptPassesOnWhatTheLibrarySays(t *testing.T) {
	devices, err := Find(t.Context(), scripted(t, "0"))
	wantTrouble(t, err, "GPU 2 cannot be used: GPU is lost (nvmlDeviceGetHandleByIndex_v2: error 15)")
	want := []spec.Device{
		{Index: 0, ID: "UUID-1", Visible: "UUID-1", Kind: "nvidia", Name: "Whole", Memory: 1 << 30},
		{Index: 1, ID: "UUID-21", Visible: "UUID-21", Kind: "nvidia", Name: "Cut MIG 1g", Memory: 21 << 30},
		{Index: 2, ID: "UUID-23", Visible: "UUID-23", Kind: "nvidia", Name: "Cut MIG 2g", Memory: 23 << 30},
		{Index: 3, ID: "UUID-4", Visible: "UUID-4", Kind: "nvidia", Name: "Shared"},
	}
	if !reflect.DeepEqual(devices, want) {
		t.Errorf("got  %+v\nwant %+v", devices, want)
	}
	gpus, err := askNVML(t.Context(), scripted(t, "0"))
	if err != nil || len(gpus) != 4 || gpus[1].Instances[1].GPU != 9 {
		t.Errorf("%+v, %v", gpus, err)
	}
}

func TestTheScriptPassesOnRefusals(t *testing.T) {
	_, err := Find(t.Context(), scripted(t, "9"))
	wantTrouble(t, err, "NVML: Driver Not Loaded (nvmlInit_v2: error 9)")
	_, err = Find(t.Context(), scripted(t, "absent")) // and nvidia-smi is not there either
	wantTrouble(t, err, "neither NVML (libnvidia-ml.so.1) nor nvidia-smi")
}
