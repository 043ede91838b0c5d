package cli

import (
	"bytes"
	"context"
	_ "embed" // probe.py
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/muster-rl/muster/wire"
)

// interpreter is the Python that scripts run with.
func interpreter(asked string) (string, error) {
	for _, from := range []struct{ name, program string }{{"--python", asked}, {"MUSTER_PYTHON", os.Getenv("MUSTER_PYTHON")}} {
		if from.program == "" {
			continue
		}
		path, err := exec.LookPath(from.program)
		if err != nil {
			return "", usage("%s names %s, which is no program that can be run", from.name, shown(from.program))
		}
		return path, nil
	}
	var near []string
	if venv := os.Getenv("VIRTUAL_ENV"); venv != "" {
		near = append(near, filepath.Join(venv, "bin", "python"))
	}
	if self, err := os.Executable(); err == nil { // build/muster beside build/venv
		near = append(near, filepath.Join(filepath.Dir(self), "venv", "bin", "python"))
	}
	for _, path := range near {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("python3")
	if err != nil {
		return "", errors.New("there is no python3 in PATH: install Python 3.10 or newer, activate its virtual environment, or name it by --python")
	}
	return path, nil
}

// probe is run by the interpreter that is looked at. It imports no package of
// the user's: torch alone would take seconds.
//
//go:embed probe.py
var probe string

// probed is what probe.py prints.
type probed struct {
	Version  string            `json:"version"`
	Enough   bool              `json:"enough"`
	Packages map[string]string `json:"packages"` // those there; "" where the version is not known
	Folder   string            `json:"folder"`   // of muster
}

// ask runs the probe.
func (p patient) ask(ctx context.Context, python string) (probed, error) {
	var got probed
	out, err := p.Run(ctx, python, "-c", probe)
	if err != nil {
		return got, err
	}
	// What a sitecustomize prints comes before.
	out = bytes.TrimSpace(out)
	out = out[bytes.LastIndexByte(out, '\n')+1:]
	if err := json.Unmarshal(out, &got); err != nil {
		return got, fmt.Errorf("it printed %q", out[:min(len(out), 100)])
	}
	return got, nil
}

// python looks at the interpreter and its packages.
func (p patient) python(ctx context.Context) (string, []finding) {
	const how = "install Python 3.10 or newer (apt install python3 python3-venv, or uv python install), or name one by --python or MUSTER_PYTHON"
	python, err := p.interpreter()
	if err != nil {
		return "", []finding{{What: "Python", State: stateMissing, Found: err.Error(), Do: how}}
	}
	got, err := p.ask(ctx, python)
	if err != nil {
		return "", []finding{{What: "Python", State: stateMissing, Found: fmt.Sprintf("%s does not work: %s", shown(python), shown(err.Error())), Do: how}}
	}
	f := finding{What: "Python", State: stateOK, Found: fmt.Sprintf("%s at %s", got.Version, shown(python))}
	if !got.Enough {
		f.State, f.Found, f.Do = stateMissing, f.Found+"; 3.10 or newer is needed", how
		return python, []finding{f}
	}
	return python, append([]finding{f}, packages(python, got)...)
}

// packages tells which are there, and how to get the others.
func packages(python string, got probed) []finding {
	install := func(what string) string { return fmt.Sprintf("%s -m pip install %s", shown(python), what) }
	_, hasMuster := got.Packages["muster"]
	var findings []finding
	for _, want := range []struct {
		name   string
		needed bool
		why    string
	}{
		{"muster", true, "the package that scripts import"},
		{"msgpack", true, "muster needs it"},
		{"cloudpickle", true, "muster needs it"},
		{"numpy", false, "for arrays in calls"},
		{"torch", false, "for tensors in calls, and for training"},
		{"ray", false, "only for more than one machine"},
	} {
		version, there := got.Packages[want.name]
		f := finding{What: want.name, State: stateOK, Found: shown(version)}
		switch {
		case !there && want.needed && want.name != "muster" && !hasMuster:
			continue // it comes with muster
		case !there && want.needed:
			f.State, f.Found, f.Do = stateMissing, "not there: "+want.why, install(want.name)
			if want.name == "muster" {
				f.Do = install("muster-"+wire.Release+"-….whl") + " (make wheel makes one), or name an interpreter that has it by --python"
			}
		case !there:
			f.State, f.Found, f.Do = stateNote, "not there; "+want.why, install(want.name)
		case want.name == "muster":
			f.Found = fmt.Sprintf("%s in %s", shown(version), shown(got.Folder))
			if version != "" && version != wire.Release {
				f.State = stateMissing
				f.Found += fmt.Sprintf("; this program is %s, and both have to be of one release", wire.Release)
				f.Do = "use the muster command of that Python, or install the package of this release there"
			}
		case version == "":
			f.Found = "there, of an unknown version"
		}
		findings = append(findings, f)
	}
	return findings
}
