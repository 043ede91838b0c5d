package agent

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
)

var update = flag.Bool("update", false, "rewrite what testdata expects")

// What faulthandler dumped is in NAME.dump, what people get in NAME.txt.
func TestReadableStacks(t *testing.T) {
	dumps, err := filepath.Glob("testdata/stacks/*.dump")
	if err != nil || len(dumps) == 0 {
		t.Fatal("no dumps", err)
	}
	for _, dump := range dumps {
		t.Run(strings.TrimSuffix(filepath.Base(dump), ".dump"), func(t *testing.T) {
			raw, err := os.ReadFile(dump)
			if err != nil {
				t.Fatal(err)
			}
			got, frames, looping := readable(string(raw))
			if looping != (filepath.Base(dump) == "loop.dump") {
				t.Errorf("looping is %v", looping)
			}
			if s := (spec.Stack{Frames: frames, Text: got}); len(frames) > 0 {
				got += "place: " + s.Place() + "\n"
			}
			file := strings.TrimSuffix(dump, ".dump") + ".txt"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got != string(want) {
				t.Errorf("%s says (run with -update to change it):\n%s\ngot:\n%s%v", file, want, got, err)
			}
		})
	}
}

// Whatever a process wrote into its file, it is told somehow.
func FuzzReadableStacks(f *testing.F) {
	dumps, _ := filepath.Glob("testdata/stacks/*.dump")
	for _, dump := range dumps {
		raw, err := os.ReadFile(dump)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	f.Fuzz(func(t *testing.T, dump string) {
		if text, _, _ := readable(dump); text == "" && strings.TrimSpace(dump) != "" {
			t.Errorf("%q became nothing", dump)
		}
	})
}
