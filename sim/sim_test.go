package sim

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var (
	seeds  = flag.Int("seeds", 150, "how many seeds to run")
	seed   = flag.Uint64("seed", 0, "the first of them")
	script = flag.String("script", "", "a file with a script to run, and to tell how it runs")
)

// Whatever goes wrong, the rules hold.
func TestSeeds(t *testing.T) {
	if *script != "" {
		text, err := os.ReadFile(*script)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + Trace(s))
		if broken := Run(s); broken != nil {
			t.Error(broken)
		}
		return
	}
	for i := range uint64(*seeds) {
		s := Make(*seed + i)
		if broken := Run(s); broken != nil {
			t.Fatalf("%s\nrun it again by: make sim SEED=%d SEEDS=1", Report(s), s.Seed)
		}
	}
}

// What is printed of a script is the same script.
func TestScriptsAreRead(t *testing.T) {
	for i := range uint64(50) {
		s := Make(i)
		read, err := Parse(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if read.String() != s.String() {
			t.Fatalf("%s\n\nis read as\n\n%s", s, read)
		}
		if one, two := Trace(s), Trace(read); one != two {
			t.Fatalf("seed %d runs in two ways", i)
		}
	}
}

// A script that breaks a rule is made as small as it gets, and breaks it still.
func TestScriptsAreMadeSmall(t *testing.T) {
	s := Make(5)
	s.Inputs = append(s.Inputs, Input{At: s.Inputs[len(s.Inputs)-1].At + 1, Do: "call", Call: CallIn{
		Number: 999, By: 1, To: "a", Method: "rows", Rows: 3, Needs: nil, Raises: -1, Hangs: -1, Ranks: []int{0},
	}}) // which no caller can ask for: ranks are picked by the mode
	broken := Run(s)
	if broken == nil {
		t.Fatal("nothing is broken")
	}
	small := Shrink(s, broken.Rule, 500)
	again := Run(small)
	if again == nil || again.Rule != broken.Rule || len(small.Inputs) > 2 {
		t.Errorf("%v\n%s", again, small)
	}
	if text := Report(s); !strings.Contains(text, "call 999 ") || !strings.Contains(text, broken.Rule) {
		t.Error(text)
	}
}
