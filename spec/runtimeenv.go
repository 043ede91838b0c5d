package spec

import (
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Ray's runtime_env says what surrounds a process of Ray's. Workers are Muster's
// processes: variables, folders and modules they get from Muster, wherever they
// run; what has to be installed is set up by Ray, and workers are started with what
// came of it. What would change the start of a process itself cannot be passed on.

// byRay are the keys that Ray sets up on each node.
func byRay() []string { return []string{"pip", "uv", "conda", "py_executable", "config"} }

// byMuster are the keys that Muster does itself; of those, addresses are Ray's.
func byMuster() []string { return []string{"env_vars", "working_dir", "py_modules"} }

// byNobody are Ray's other keys, and why workers cannot have them.
func byNobody() map[string]string {
	const wraps = "it changes how Ray starts its own processes, and workers are Muster's"
	return map[string]string{
		"container": wraps, "image_uri": wraps, "nsight": wraps, "_nsight": wraps, "rocprof_sys": wraps, "_rocprof_sys": wraps, "mpi": wraps,
		"worker_process_setup_hook": "it is run by Ray's own processes, and workers are Muster's: call it in the constructor, or list its module in preload",
		"java_jars":                 "workers are Python, or programs of their own",
		"excludes":                  "folders are shipped as they are, without caches and .git, and only where a node lacks them: give a smaller working_dir",
	}
}

// variable is a reference in the value of a variable, as Ray has it.
var variable = regexp.MustCompile(`\$\{([A-Za-z0-9_]+)\}`)

// checkRuntimeEnv takes what Muster does out of runtime_env.
func (c *Cluster) checkRuntimeEnv() *Error {
	rt := &c.Runtime
	if rt.RuntimeEnv == "" {
		return nil
	}
	given := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(rt.RuntimeEnv), &given); err != nil {
		return Errorf(CodeInvalid, "runtime_env cannot be read: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if err := checkRuntimeKey(key); err != nil {
			return err
		}
	}
	for key, take := range map[string]func(json.RawMessage) (json.RawMessage, *Error){
		"env_vars": c.takeEnvVars, "working_dir": rt.takeWorkingDir, "py_modules": rt.takePyModules,
	} {
		if given[key] == nil {
			continue
		}
		rest, err := take(given[key])
		if err != nil {
			return err
		}
		if given[key] = rest; rest == nil {
			delete(given, key)
		}
	}
	if len(given) == 1 && given["config"] != nil {
		delete(given, "config") // of what Ray sets up, which is nothing
	}
	rt.RuntimeEnv = ""
	if len(given) > 0 {
		text, err := json.Marshal(given) // sorted by key
		if err != nil {
			return Errorf(CodeInvalid, "runtime_env cannot be passed on: %v", err)
		}
		rt.RuntimeEnv = string(text)
	}
	return nil
}

func checkRuntimeKey(key string) *Error {
	known := append(byMuster(), byRay()...)
	if slices.Contains(known, key) {
		return nil
	}
	if why := byNobody()[key]; why != "" {
		return Errorf(CodeInvalid, "runtime_env[%q] cannot be had by workers: %s", key, why)
	}
	if near := NearestName(key, known); near != "" {
		return Errorf(CodeInvalid, "runtime_env has no %q; did you mean %q?", key, near)
	}
	return Errorf(CodeInvalid, "runtime_env has no %q; it has %s", key, strings.Join(known, ", "))
}

// RuntimeKeys are the keys of a runtime_env, sorted.
func (r *Runtime) RuntimeKeys() []string {
	given := map[string]json.RawMessage{}
	_ = json.Unmarshal([]byte(r.RuntimeEnv), &given) // "" has none
	return slices.Sorted(maps.Keys(given))
}

// takeEnvVars makes variables the cluster's own. References are to what workers
// have without it: the controller's environment.
func (c *Cluster) takeEnvVars(text json.RawMessage) (json.RawMessage, *Error) {
	var vars map[string]string
	if err := json.Unmarshal(text, &vars); err != nil {
		return nil, Errorf(CodeInvalid, "runtime_env[\"env_vars\"] is %s; it is a dict of text to text", text)
	}
	env := maps.Clone(c.Env)
	if env == nil {
		env = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		value := variable.ReplaceAllStringFunc(vars[name], func(ref string) string {
			return c.Runtime.Env[ref[2:len(ref)-1]]
		})
		if before, there := env[name]; there && before != value {
			return nil, Errorf(CodeInvalid, "env says %s=%q, runtime_env[\"env_vars\"] says %q; give one of them", name, before, value)
		}
		env[name] = value
	}
	c.Env = env
	return nil, nil
}

// takeWorkingDir makes a folder the workers' own, and importable, as Ray does.
func (r *Runtime) takeWorkingDir(text json.RawMessage) (json.RawMessage, *Error) {
	var folder string
	if err := json.Unmarshal(text, &folder); err != nil || folder == "" {
		return nil, Errorf(CodeInvalid, "runtime_env[\"working_dir\"] is %s; it is a folder, or the address of a zip", text)
	}
	switch {
	case isAddress(folder):
		return text, nil
	case !path.IsAbs(folder) || slices.Contains([]string{".zip", ".jar", ".whl"}, path.Ext(folder)):
		return nil, Errorf(CodeInvalid, "runtime_env[\"working_dir\"] is %q; it is the path of a folder, or the address of a zip", folder)
	}
	r.Dir = path.Clean(folder)
	r.SysPath = append([]string{r.Dir}, r.SysPath...)
	return nil, nil
}

// takePyModules takes modules that lie in files, and leaves addresses to Ray.
func (r *Runtime) takePyModules(text json.RawMessage) (json.RawMessage, *Error) {
	var modules, rest []string
	if err := json.Unmarshal(text, &modules); err != nil {
		return nil, Errorf(CodeInvalid, "runtime_env[\"py_modules\"] is %s; it is a list of paths and addresses", text)
	}
	own := slices.Clone(r.Modules)
	for _, module := range modules {
		switch {
		case isAddress(module):
			rest = append(rest, module)
		case slices.Contains([]string{".whl", ".zip"}, path.Ext(module)):
			return nil, Errorf(CodeInvalid, "runtime_env[\"py_modules\"] has %q; of this machine's files it takes folders and .py files. Install a wheel by runtime_env={\"pip\": [...]}", module)
		case !path.IsAbs(module):
			return nil, Errorf(CodeInvalid, "runtime_env[\"py_modules\"] has %q; it takes paths and addresses", module)
		default:
			own = append(own, path.Clean(module))
		}
	}
	r.Modules = own
	if rest == nil {
		return nil, nil
	}
	left, err := json.Marshal(rest)
	if err != nil {
		return nil, Errorf(CodeInvalid, "runtime_env[\"py_modules\"] cannot be passed on: %v", err)
	}
	return left, nil
}

func isAddress(text string) bool { return strings.Contains(text, "://") }
