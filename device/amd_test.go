package device

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// instinct has two CPUs and three GPUs, as a machine with MI300X tells of them.
func instinct() map[string]string {
	files := map[string]string{"dev/kfd": ""}
	for node := range 2 {
		files[fmt.Sprintf("%s/%d/properties", kfdNodes, node)] = "cpu_cores_count 96\nsimd_count 0\ndrm_render_minor 0\n"
	}
	for i, node := range []int{2, 9, 10} {
		at := fmt.Sprintf("%s/%d/", kfdNodes, node)
		card := fmt.Sprintf("renderD%d", 128+8*i)
		files[at+"properties"] = fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nvendor_id 4098\ndrm_render_minor %d\nunique_id %d\nnum_xcc 8\n", 128+8*i, 0xa1b2c3d4e5f60000+uint64(i))
		files["dev/dri/"+card] = ""
		files["sys/class/drm/"+card+"/device/mem_info_vram_total"] = "206141652992\n"
		files["sys/class/drm/"+card+"/device/product_name"] = "AMD Instinct MI300X OAM\n"
	}
	return files
}

func TestAMD(t *testing.T) {
	var want []spec.Device
	for i := range 3 {
		want = append(want, spec.Device{
			Index: i, ID: fmt.Sprintf("GPU-a1b2c3d4e5f6000%d", i), Kind: "amd", Name: "AMD Instinct MI300X OAM", Memory: 206141652992,
		})
	}
	wantDevices(t, machine(instinct(), nil, nil), want)
}

func TestAMDWithoutNames(t *testing.T) {
	files := map[string]string{
		"dev/kfd": "", "dev/dri/renderD128": "",
		kfdNodes + "/1/properties":             "simd_count 128\ngfx_target_version 120001\ndrm_render_minor 128\n",
		kfdNodes + "/1/mem_banks/0/properties": "heap_type 2\nsize_in_bytes 34208743424\nflags 0\n",
	}
	wantDevices(t, machine(files, nil, nil), []spec.Device{{Kind: "amd", Name: "AMD gfx1201", Memory: 34208743424}})
}

// In a container the kernel refuses to tell of GPUs that were not given to it,
// or their files are missing; the runtime does not count those.
func TestAMDInAContainer(t *testing.T) {
	files := instinct()
	delete(files, "dev/dri/renderD128")
	devices, err := Find(t.Context(), machine(files, nil, nil))
	if err != nil || !reflect.DeepEqual(indexes(devices), []int{0, 1}) || !strings.HasSuffix(devices[0].ID, "1") {
		t.Errorf("%+v, %v", devices, err)
	}
	m := machine(instinct(), nil, nil)
	m.Files = hiding{m.Files, kfdNodes + "/9/properties"}
	devices, err = Find(t.Context(), m)
	if err != nil || !reflect.DeepEqual(indexes(devices), []int{0, 1}) || !strings.HasSuffix(devices[1].ID, "2") {
		t.Errorf("%+v, %v", devices, err)
	}
	_, err = Find(t.Context(), machine(map[string]string{"dev/kfd": ""}, nil, nil))
	wantTrouble(t, err, "AMD GPU driver (/dev/kfd)")
}

// hiding refuses one file as the kernel does.
type hiding struct {
	fs.FS
	name string
}

func (h hiding) Open(name string) (fs.File, error) {
	if name == h.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return h.FS.Open(name)
}

func TestVisibleToROCm(t *testing.T) {
	for lists, want := range map[string]struct {
		numbers []int
		visible string
	}{
		"ROCR=1,2":                           {[]int{1, 2}, ","},
		"ROCR=2, 0":                          {[]int{0, 2}, ","},
		"ROCR=0x1":                           {[]int{1}, ""},
		"ROCR=":                              {},
		"ROCR=-1":                            {},
		"ROCR=1,1,2":                         {[]int{1}, ""},
		"ROCR=1x,2":                          {},
		"ROCR=gpu-A1B2C3D4E5F60002":          {[]int{2}, "GPU-a1b2c3d4e5f60002"},
		"ROCR=GPU-a1b2":                      {}, // all begin so
		"ROCR=1,GPU-a1b2c3d4e5f60000":        {[]int{0, 1}, "GPU-a1b2c3d4e5f60000,GPU-a1b2c3d4e5f60001"},
		"HIP=2,1":                            {[]int{1, 2}, ","},
		"HIP=2,2,0":                          {[]int{0, 2}, ","},
		"HIP=":                               {[]int{0, 1, 2}, ",,"},
		"HIP=-1":                             {},
		"CUDA=1":                             {[]int{1}, ""},
		"HIP=0 CUDA=1":                       {[]int{0}, ""},
		"ROCR=1,2 HIP=1":                     {[]int{2}, ""},
		"ROCR=2,0 HIP=0":                     {[]int{2}, ""},
		"ROCR=1,2 HIP=2":                     {},
		"ROCR=GPU-a1b2c3d4e5f60001 HIP=0":    {[]int{1}, "GPU-a1b2c3d4e5f60001"},
		"ROCR=0,1 HIP=GPU-a1b2c3d4e5f60001":  {[]int{1}, ""},
		"ROCR=0,1 HIP=GPU-a1b2c3d4e5f60002":  {},
		"ROCR=5 HIP=0":                       {},
		"ROCR=GPU-ffffffffffffffff,0 CUDA=0": {},
	} {
		env := map[string]string{}
		for _, part := range strings.Split(strings.ReplaceAll(lists, ", ", ",_"), " ") {
			name, value, _ := strings.Cut(part, "=")
			env[name+"_VISIBLE_DEVICES"] = strings.ReplaceAll(value, "_", " ")
		}
		devices, err := Find(t.Context(), machine(instinct(), env, nil))
		if got := indexes(devices); err != nil || !reflect.DeepEqual(got, want.numbers) || visible(devices) != want.visible {
			t.Errorf("%s: %v by %q, %v; want %+v", lists, got, visible(devices), err, want)
		}
	}
}
