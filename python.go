package muster

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/muster-rl/muster/spec"
)

// describePython has an interpreter say what workers of its kind need. The
// package does so itself: it knows which of its flags and paths matter.
const describePython = "import json; from muster._environment import describe_runtime; print(json.dumps(describe_runtime()))"

// described is what comes back.
type described struct {
	Python  string   `json:"python"`
	Flags   []string `json:"flags"`
	Package string   `json:"package"`
	SysPath []string `json:"sys_path"`
}

// pythonRuntime is what workers of a Python class are started with.
func (s *Session) pythonRuntime(ctx context.Context, config ClusterConfig) (spec.Runtime, error) {
	rt, err := s.askPython(ctx, s.pythonFor(config))
	if err != nil {
		return rt, err
	}
	var paths []string
	for _, folder := range config.PyModules {
		path, err := filepath.Abs(folder)
		if err != nil {
			return rt, err
		}
		paths = append(paths, path)
	}
	rt.SysPath = append(paths, rt.SysPath...)
	rt.Preload = config.Preload
	return runtimeIn(rt, config.Dir), nil
}

func (s *Session) pythonFor(config ClusterConfig) string {
	for _, named := range []string{config.Python, s.options.Python, os.Getenv("MUSTER_PYTHON")} {
		if named != "" {
			return named
		}
	}
	return "python3"
}

// askPython asks an interpreter once a session.
func (s *Session) askPython(ctx context.Context, python string) (spec.Runtime, error) {
	s.mu.Lock()
	rt, known := s.interpreter[python]
	s.mu.Unlock()
	if known {
		return rt, nil
	}
	cmd := exec.CommandContext(ctx, python, "-c", describePython)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	var d described
	if err == nil {
		err = json.Unmarshal(out, &d)
	}
	if err != nil {
		return rt, spec.Errorf(CodeImport, "the interpreter %s cannot say what workers need (%v): it must have the muster package installed, or PYTHONPATH must lead there. Name another by ClusterConfig.Python, Options.Python or MUSTER_PYTHON\n%s", python, err, bytes.TrimSpace(said.Bytes()))
	}
	rt = ownRuntime()
	rt.Python, rt.Flags, rt.Package, rt.SysPath = d.Python, d.Flags, d.Package, d.SysPath
	s.mu.Lock()
	s.interpreter[python] = rt
	s.mu.Unlock()
	return rt, nil
}

// runtimeIn is a runtime with the folder that its user named.
func runtimeIn(rt spec.Runtime, dir string) spec.Runtime {
	if dir == "" {
		return rt
	}
	if path, err := filepath.Abs(dir); err == nil {
		dir = path
	}
	rt.Dir = dir
	return rt
}
