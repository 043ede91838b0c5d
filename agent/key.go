package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// Variables that are read once, when something loads. execPrefixes are read by
// the dynamic loader, the C library and the interpreter as the process starts,
// so a fork never sees a later value; importPrefixes by libraries as they are
// imported, which in a zygote happens only where there is a preload list.
var (
	execPrefixes   = []string{"LD_", "PYTHON", "MALLOC_", "GLIBC_"}
	importPrefixes = []string{"OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOTO_", "NUMEXPR_", "HF_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "CUDA_MODULE_", "TF_", "XLA_"}
)

// loadTime says whether a variable's value is fixed in a zygote with such a
// preload list before a worker is forked from it.
func loadTime(name string, preload []string) bool {
	has := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(execPrefixes, has) || (len(preload) > 0 && slices.ContainsFunc(importPrefixes, has))
}

// zygoteEnv is the environment that a zygote starts with: the controller's,
// and what a worker's has beside it, as far as it is read at load time.
func zygoteEnv(rt spec.Runtime, worker map[string]string) map[string]string {
	env := maps.Clone(rt.Env)
	if env == nil {
		env = map[string]string{}
	}
	for name, value := range worker {
		if loadTime(name, rt.Preload) {
			env[name] = value
		}
	}
	return env
}

// zygoteKey tells zygotes apart: workers with equal keys can be forked from one.
func zygoteKey(rt spec.Runtime, worker map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q %q %q %q", rt.Python, rt.Flags, rt.Package, rt.SysPath, rt.Dir, rt.Preload)
	env := zygoteEnv(rt, worker)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if loadTime(name, rt.Preload) {
			fmt.Fprintf(&b, " %q=%q", name, env[name])
		}
	}
	return b.String()
}

// workerEnv is a worker's whole environment.
func workerEnv(rt spec.Runtime, worker map[string]string) map[string]string {
	env := make(map[string]string, len(rt.Env)+len(worker))
	maps.Copy(env, rt.Env)
	maps.Copy(env, worker)
	return env
}

// environ is an environment as exec takes it.
func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
