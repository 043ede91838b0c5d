package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Run runs a script to its end. It returns the rule that was broken; nil: none.
func Run(s *Script) *Broken { return run(s, nil) }

// Trace is what happens in a run, for people.
func Trace(s *Script) string {
	var b strings.Builder
	if broken := run(s, &b); broken != nil {
		fmt.Fprintln(&b, broken)
	}
	return b.String()
}

// Shrink leaves out of a script that breaks a rule what is not needed for it to
// break that rule, with at most so many runs.
func Shrink(s *Script, rule string, runs int) *Script {
	breaks := func(try *Script) bool {
		runs--
		broken := Run(try)
		return broken != nil && broken.Rule == rule
	}
	small := *s
	for size := len(small.Inputs) / 2; size > 0; {
		shorter := false
		for at := 0; at+size <= len(small.Inputs) && runs > 0; {
			try := small
			try.Inputs = slices.Delete(slices.Clone(small.Inputs), at, at+size)
			if breaks(&try) {
				small, shorter = try, true
			} else {
				at += size
			}
		}
		if !shorter || size > 1 {
			size /= 2
		}
		if runs <= 0 {
			break
		}
	}
	return &small
}

// Report is a broken rule as people want to see it: the script made small, and
// what its last head was told.
func Report(s *Script) string {
	broken := Run(s)
	if broken == nil {
		return ""
	}
	small := Shrink(s, broken.Rule, 2000)
	again := Run(small)
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v\n\n%s", s.Seed, again, small)
	fmt.Fprintf(&b, "\nwhat its last head was told, as in call/testdata:\n")
	for _, line := range again.Head {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}
