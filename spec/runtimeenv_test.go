package spec

import (
	"reflect"
	"strings"
	"testing"
)

func TestRuntimeEnvIsTakenApart(t *testing.T) {
	env := map[string]string{"MINE": "1"}
	c := Cluster{Name: "c", World: 1, Env: env, Runtime: Runtime{
		Python: "/usr/bin/python3", SysPath: []string{"/lib"}, Dir: "/work", Env: map[string]string{"PATH": "/bin"},
		RuntimeEnv: `{"env_vars": {"PATH": "/opt:${PATH}", "NONE": "x${NO_SUCH}"}, "working_dir": "/code/",
			"py_modules": ["/more/pkg", "s3://b/other.zip", "/more/one.py"], "pip": ["six"], "config": {"setup_timeout_seconds": 9}}`,
	}}
	for range 2 { // checking again changes nothing
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"MINE": "1", "PATH": "/opt:/bin", "NONE": "x"}; !reflect.DeepEqual(c.Env, want) {
			t.Errorf("env is %v", c.Env)
		}
		rt := c.Runtime
		if rt.Dir != "/code" || !reflect.DeepEqual(rt.SysPath, []string{"/code", "/lib"}) || !reflect.DeepEqual(rt.Modules, []string{"/more/pkg", "/more/one.py"}) {
			t.Errorf("got %+v", rt)
		}
		if want := `{"config":{"setup_timeout_seconds": 9},"pip":["six"],"py_modules":["s3://b/other.zip"]}`; strings.ReplaceAll(rt.RuntimeEnv, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("left to Ray: %s", rt.RuntimeEnv)
		}
		if keys := rt.RuntimeKeys(); !reflect.DeepEqual(keys, []string{"config", "pip", "py_modules"}) {
			t.Errorf("keys %v", keys)
		}
		if found := rt.InFront(); found.Modules != nil || !reflect.DeepEqual(found.SysPath, []string{"/more", "/code", "/lib"}) {
			t.Errorf("got %+v", found)
		}
	}
	if len(env) != 1 {
		t.Errorf("what was given was changed: %v", env)
	}
}

func TestRuntimeEnvThatRayNeedNotSee(t *testing.T) {
	for _, text := range []string{`{}`, `{"env_vars": {"A": "1"}}`, `{"working_dir": "/code", "config": {"eager_install": true}}`} {
		c := Cluster{Name: "c", World: 1, Runtime: Runtime{RuntimeEnv: text}}
		if err := c.Check(); err != nil || c.Runtime.RuntimeEnv != "" {
			t.Errorf("%s: left %q, %v", text, c.Runtime.RuntimeEnv, err)
		}
	}
}

func TestRuntimeEnvThatCannotBe(t *testing.T) {
	for text, said := range map[string]string{
		`{"env_var": {}}`:                            `did you mean "env_vars"`,
		`{"snapshot": 1}`:                            `has no "snapshot"; it has env_vars`,
		`{"container": {"image": "x"}}`:              `runtime_env["container"] cannot be had`,
		`{"excludes": ["*.pt"]}`:                     "smaller working_dir",
		`{"worker_process_setup_hook": "m.f"}`:       "preload",
		`{"env_vars": ["A"]}`:                        "dict of text to text",
		`{"env_vars": {"A": 1}}`:                     "dict of text to text",
		`{"env_vars": {"RANK": "3"}}`:                "Muster sets for each worker",
		`{"env_vars": {"MINE": "2"}}`:                `env says MINE="1"`,
		`{"working_dir": "code"}`:                    "path of a folder",
		`{"working_dir": "/code.zip"}`:               "address of a zip",
		`{"working_dir": 3}`:                         "is 3",
		`{"py_modules": ["/dist/x-1-py3-none.whl"]}`: `"pip"`,
		`{"py_modules": "pkg"}`:                      "a list of paths",
		`{"py_modules": ["pkg"]}`:                    "paths and addresses",
		`[]`:                                         "cannot be read",
		`{`:                                          "cannot be read",
	} {
		c := Cluster{Name: "c", World: 1, Env: map[string]string{"MINE": "1"}, Runtime: Runtime{RuntimeEnv: text}}
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v, not %s", text, err, said)
		}
	}
}
