package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite what testdata expects")

// golden compares what was printed with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("%s has (run with -update to change it):\n%s\ngot:\n%s%v", file, want, got, err)
	}
}

// typed runs a command line and returns all that people see of it.
func typed(args ...string) string {
	var out, errs bytes.Buffer
	code := execute(args, &out, &errs)
	text := "$ muster " + strings.Join(args, " ") + "\n" + out.String() + errs.String()
	return text + fmt.Sprintf("exit code %d\n", code)
}

// Each file of testdata/plan is drawn, or told to be wrong and where.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/plan/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no plans", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) { golden(t, "plan/"+name+".txt", typed("plan", file)) })
	}
}

func TestPlanForPrograms(t *testing.T) {
	golden(t, "plan/small.json.txt", typed("plan", "--json", "testdata/plan/small.yaml"))
}

func FuzzPlans(f *testing.F) {
	files, _ := filepath.Glob("testdata/plan/*.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, wrong := parsePlan(text)
		if len(wrong) == 0 && (file.Nodes == 0 && file.PerNode == 0 && len(file.clusters) == 0) {
			t.Errorf("%q is taken for a plan of nothing", text)
		}
	})
}

// Mistakes of every sort, as a newcomer makes them.
func TestMistakes(t *testing.T) {
	t.Setenv("MUSTER_DIR", t.TempDir())
	t.Setenv("MUSTER_LOG_DIR", "")
	dir := t.TempDir()
	for _, name := range []string{"pipeline.py", "folder/x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	t.Run("typed", func(t *testing.T) {
		t.Chdir(dir)
		for _, line := range []string{
			"stauts", "frobnicate", "pipeline.py", "\x1b[31mred", "status now", "status --jsn", "status -x", "run --virtul 4x8 pipeline.py",
			"run", "run pipelin.py", "run folder", "run nothing-like-it.py", "run --virtual 4by8 pipeline.py",
			"run --python nopython pipeline.py", "run --virtual", "plan", "plan a b", "plan no.yaml", "plan folder",
			"stacks", "stacks /3", "stacks actor one", "stacks actor/1-", "logs actor/", "logs --last", "logs", "status", "status --json",
			"status --session 17", "stacks actor", "logs --last --session 3", "logs -n many", "doctor --workers 0", "version 3",
			"help exit-codes", "help nothing",
		} {
			text := typed(strings.Split(line, " ")...)
			text = strings.ReplaceAll(text, os.Getenv("MUSTER_DIR"), "DIR")
			text = strings.ReplaceAll(text, fmt.Sprintf("muster-%d", os.Getuid()), "muster-UID")
			all = append(all, text)
		}
	})
	golden(t, "mistakes.txt", strings.Join(all, "\n"))
}

// What a machine of virtual GPUs would say to a pool.
func TestPlanLooks(t *testing.T) {
	t.Setenv("MUSTER_VIRTUAL", "2x4")
	text := typed("plan", "--backend", "local", "testdata/plan/small.yaml")
	text += typed("plan", "--backend", "local", "testdata/plan/packed.yaml")
	text += typed("plan", "--backend", "local", "--json", "testdata/plan/packed.yaml")
	text += typed("plan", "--backend", "local", "testdata/plan/labels.yaml")
	text += typed("plan", "--backend", "slurm", "testdata/plan/small.yaml")
	golden(t, "plan/look.txt", text)
}
