package cli

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/device"
	"github.com/muster-rl/muster/spec"
)

// healthy is a machine where nothing is missing.
func healthy() patient {
	return patient{
		Machine: device.Machine{
			Files: files(map[string]string{
				"proc/meminfo":             "MemTotal: 2113929216 kB\nMemFree: 1 kB\nMemAvailable: 1056964608 kB\n",
				"proc/self/cgroup":         "0::/jobs/42\n",
				"sys/fs/cgroup/memory.max": "max\n",
				"sys/fs/cgroup/pids.max":   "max\n",
			}),
			Env: func(string) (string, bool) { return "", false },
			Run: func(_ context.Context, name string, _ ...string) ([]byte, error) {
				if name != "/opt/venv/bin/python" {
					return nil, errors.New("no such program")
				}
				return []byte("a sitecustomize says hello\n" +
					`{"version": "3.12.4", "enough": true, "folder": "/opt/lib/muster", "packages": {"muster": "0.1.0", "msgpack": "1.1.0", "cloudpickle": "3.1.0", "numpy": "2.1.0", "torch": "2.8.0+cu128", "ray": "2.60.0"}}` + "\n"), nil
			},
		},
		find: func(context.Context, device.Machine) ([]spec.Device, error) {
			h200 := spec.Device{Kind: "nvidia", Name: "NVIDIA H200", Memory: 141 << 30}
			return []spec.Device{h200, h200, {Kind: "nvidia", Name: "NVIDIA L4", Memory: 24 << 30}}, nil
		},
		workers:     64,
		interpreter: func() (string, error) { return "/opt/venv/bin/python", nil },
		limit: func(resource int) (uint64, uint64, error) {
			if resource == unix.RLIMIT_NOFILE {
				return 1024, 1 << 20, nil
			}
			return 1 << 63, 1 << 63, nil
		},
		space: func(string) (uint64, uint64, error) { return 1 << 40, 1 << 39, nil },
		kernel: func() kernel {
			return kernel{"Linux 6.8.0", []feature{{"pidfd", nil, true}, {"memfd", nil, true}, {"subreaper", nil, true}, {"user namespaces", nil, false}}}
		},
		base: func() (string, error) { return "/run/user/1000/muster-1000", nil },
		logs: func(base string) (string, error) { return base + "/logs", nil },
	}
}

func files(texts map[string]string) fstest.MapFS {
	all := fstest.MapFS{}
	for name, text := range texts {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

func answers(line string) func(context.Context, string, ...string) ([]byte, error) {
	return func(context.Context, string, ...string) ([]byte, error) { return []byte(line + "\n"), nil }
}

func TestDoctor(t *testing.T) {
	cases := []struct {
		name   string
		change func(p *patient)
	}{
		{"healthy", func(*patient) {}},
		{"bare container", func(p *patient) {
			p.find = func(context.Context, device.Machine) ([]spec.Device, error) { return nil, nil }
			p.Files = files(map[string]string{
				"proc/meminfo":                         "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
				"proc/self/cgroup":                     "0::/jobs/42\n",
				"sys/fs/cgroup/jobs/42/memory.max":     "2147483648\n",
				"sys/fs/cgroup/jobs/42/memory.current": "1073741824\n",
				"sys/fs/cgroup/jobs/pids.max":          "100\n",
			})
			p.Run = answers(`{"version": "3.11.2", "enough": true, "packages": {}, "folder": ""}`)
			p.limit = func(resource int) (uint64, uint64, error) { return 256, 256, nil }
			p.space = func(path string) (uint64, uint64, error) {
				if path == "/dev/shm" {
					return 64 << 20, 64 << 20, nil
				}
				return 1 << 30, 100 << 20, nil
			}
			p.kernel = func() kernel {
				return kernel{"Linux 4.18.0", []feature{{"pidfd", syscall.ENOSYS, true}, {"memfd", nil, true}, {"subreaper", nil, true}, {"user namespaces", syscall.EPERM, false}}}
			}
		}},
		{"nothing works", func(p *patient) {
			p.Files = files(nil)
			p.interpreter = func() (string, error) { return "", errors.New("there is no python3 in PATH") }
			p.limit = func(int) (uint64, uint64, error) { return 0, 0, syscall.EPERM }
			p.space = func(string) (uint64, uint64, error) { return 0, 0, syscall.ENOENT }
			p.base = func() (string, error) {
				return "", errors.New("no folder for sockets: /very/long is too long to hold sockets, by 12 characters")
			}
		}},
		{"wrong versions", func(p *patient) {
			p.find = func(context.Context, device.Machine) ([]spec.Device, error) {
				return []spec.Device{{Kind: "ascend"}}, errors.New("GPU 1 cannot be used: it is lost")
			}
			p.Run = answers(`{"version": "3.11.2", "enough": true, "packages": {"muster": "0.0.9", "numpy": ""}, "folder": "/old/muster"}`)
			p.Env = func(name string) (string, bool) {
				return map[string]string{"ASCEND_RT_VISIBLE_DEVICES": "1", "MUSTER_VIRTUAL": "4x8"}[name], name == "ASCEND_RT_VISIBLE_DEVICES" || name == "MUSTER_VIRTUAL"
			}
			p.logs = func(string) (string, error) { return "/mnt/logs", syscall.EROFS }
		}},
		{"old Python", func(p *patient) {
			p.Run = answers(`{"version": "3.8.10", "enough": false, "packages": {"muster": "0.1.0"}, "folder": ""}`)
		}},
		{"rubbish for Python", func(p *patient) { p.Run = answers("Segmentation \x1b[31mfault") }},
	}
	var all []string
	for _, c := range cases {
		p := healthy()
		c.change(&p)
		all = append(all, "== "+c.name+"\n"+findingsText(examine(t.Context(), p)))
	}
	golden(t, "doctor.txt", strings.Join(all, "\n"))
}

// The probe runs in whatever Python is here, and says what it is.
func TestProbeRuns(t *testing.T) {
	python, err := interpreter("")
	if err != nil {
		t.Skip("needs python: ", err)
	}
	p := patient{Machine: device.Here()}
	got, err := p.ask(t.Context(), python)
	if err != nil || got.Version == "" || got.Packages == nil {
		t.Errorf("%+v, %v", got, err)
	}
}
