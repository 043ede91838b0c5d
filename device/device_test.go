package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/muster-rl/muster/spec"
)

// says is what programs print, by their name and arguments (for Python without
// the script); a program that is not in it is not there.
type says map[string]string

// fails is the beginning of what a program prints that fails.
const fails = "fails: "

// machine makes one up from files, "" for those without content, the
// environment and the programs it has.
func machine(files map[string]string, env map[string]string, programs says) Machine {
	root := fstest.MapFS{}
	for name, content := range files {
		root[name] = &fstest.MapFile{Data: []byte(content)}
		if strings.HasSuffix(name, "/") {
			delete(root, name)
			root[strings.TrimSuffix(name, "/")] = &fstest.MapFile{Mode: fs.ModeDir}
		}
	}
	return Machine{
		Files: root,
		Run: func(ctx context.Context, name string, args ...string) ([]byte, error) {
			if len(args) > 0 && args[len(args)-1] == nvmlScript {
				args = nil
			}
			text, ok := programs[strings.Join(append([]string{name}, args...), " ")]
			if !ok {
				return nil, &exec.Error{Name: name, Err: exec.ErrNotFound}
			}
			if why, ok := strings.CutPrefix(text, fails); ok {
				return nil, errors.New(why)
			}
			return []byte(text), ctx.Err()
		},
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}
}

func indexes(devices []spec.Device) []int {
	var list []int
	for _, d := range devices {
		list = append(list, d.Index)
	}
	return list
}

func visible(devices []spec.Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.Visible)
	}
	return strings.Join(list, ",")
}

func wantDevices(t *testing.T, m Machine, want []spec.Device) {
	t.Helper()
	devices, err := Find(t.Context(), m)
	if err != nil || !reflect.DeepEqual(devices, want) {
		t.Errorf("got  %+v, %v\nwant %+v", devices, err, want)
	}
}

// wantTrouble wants an error that has all these words.
func wantTrouble(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, &spec.Error{Code: spec.CodeResources}) {
		t.Fatalf("got error %v", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not in the error: %v", word, err)
		}
	}
}

func TestNoDeviceIsNoError(t *testing.T) {
	asked := says{"python3": fails + "asked in vain", "nvidia-smi": fails + "asked in vain"}
	for name, m := range map[string]Machine{
		"nothing at all":            machine(nil, nil, asked),
		"WSL without a GPU":         machine(map[string]string{"dev/dxg": ""}, nil, nil),
		"a driver seen from inside": machine(map[string]string{"proc/driver/nvidia/version": "580", "proc/driver/nvidia/gpus/": ""}, nil, nil),
		"a library and no GPU":      machine(driver, nil, says{"python3": `{"gpus": []}`}),
		"a compute driver, no GPU":  machine(map[string]string{"dev/kfd": "", kfdNodes + "/0/properties": "cpu_cores_count 8\nsimd_count 0\n"}, nil, nil),
		"a manager, no NPU":         machine(map[string]string{"dev/davinci_manager": ""}, nil, nil),
	} {
		if devices, err := Find(t.Context(), m); err != nil || devices == nil || len(devices) != 0 {
			t.Errorf("%s: %v, %v", name, devices, err)
		}
	}
}

// A hanging driver holds the reader of its files for good; whoever waits for
// devices goes on.
func TestADriverThatHangsHoldsNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	defer close(release)
	m := machine(nil, nil, nil)
	m.Files = stuck{release}
	devices, err := Find(ctx, m)
	wantTrouble(t, err, "hangs")
	if devices == nil || len(devices) != 0 {
		t.Error(devices)
	}
}

type stuck struct{ release <-chan struct{} }

func (s stuck) Open(string) (fs.File, error) {
	<-s.release
	return nil, fs.ErrNotExist
}

// TestToolsEndWithTheContext runs a tool that starts another, which holds its
// output open and would never end.
func TestToolsEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	done := make(chan error, 1)
	go func() {
		_, err := run(ctx, "sh", "-c", fmt.Sprintf("echo up > /proc/%d/fd/%d; sleep 1000 & wait", os.Getpid(), writer.Fd()))
		done <- err
	}()
	if _, err := reader.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("ended by itself")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("waited 20 s in vain")
	}
	writer.Close()
}

func TestAFailedToolIsQuoted(t *testing.T) {
	for script, want := range map[string]string{
		"echo broken >&2; exit 3":             "exit status 3: broken",
		"echo Driver; echo mismatch; exit 18": "exit status 18: Driver mismatch",
	} {
		if _, err := run(t.Context(), "sh", "-c", script); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
	if _, err := run(t.Context(), "no-such-tool"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v", err)
	}
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

// TestHere shows what this machine has; docs/devices.md has its output on a
// machine with a GPU.
func TestHere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	start := time.Now()
	devices, err := Find(ctx, Here())
	t.Logf("%d devices in %v, error %v", len(devices), time.Since(start).Round(time.Millisecond), err)
	for _, d := range devices {
		t.Logf("%d: %s %s %s, %d MiB, visible=%q", d.Index, d.Kind, d.Name, d.ID, d.Memory>>20, d.Visible)
	}
}
