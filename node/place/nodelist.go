package place

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNodes bounds what a list of nodes may stand for; the largest machines have
// some ten thousand.
const maxNodes = 100_000

// Nodelist expands a list of hosts as Slurm writes it, in its order:
// "gpu[01-03,07],login1" is gpu01, gpu02, gpu03, gpu07, login1. A name may have
// several brackets ("rack[0-1]node[0-3]"), of which the last turns fastest.
func Nodelist(text string) ([]string, error) {
	parts, err := splitList(text)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, part := range parts {
		expanded, err := expandName(part)
		if err != nil {
			return nil, err
		}
		if len(names)+len(expanded) > maxNodes {
			return nil, fmt.Errorf("the list stands for more than %d nodes", maxNodes)
		}
		names = append(names, expanded...)
	}
	return names, nil
}

// splitList cuts at the commas outside of brackets.
func splitList(text string) ([]string, error) {
	var parts []string
	open, from := false, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '[' && open:
			return nil, fmt.Errorf("a bracket within a bracket at character %d", i+1)
		case c == ']' && !open:
			return nil, fmt.Errorf("a closing bracket without an opening one at character %d", i+1)
		case c == '[' || c == ']':
			open = !open
		case c == ',' && !open:
			parts = append(parts, text[from:i])
			from = i + 1
		case c <= ' ' || c >= 0x7f:
			return nil, fmt.Errorf("%q at character %d does not belong into a list of nodes", text[i:i+1], i+1)
		}
	}
	if open {
		return nil, fmt.Errorf("a bracket is not closed")
	}
	parts = append(parts, text[from:])
	for _, part := range parts {
		if part == "" {
			return nil, fmt.Errorf("an empty name")
		}
	}
	return parts, nil
}

// expandName expands one name with balanced brackets.
func expandName(name string) ([]string, error) {
	before, rest, more := strings.Cut(name, "[")
	names := []string{before}
	for more {
		inside, after, _ := strings.Cut(rest, "]")
		numbers, err := expandNumbers(inside)
		if err != nil {
			return nil, err
		}
		between, next, again := strings.Cut(after, "[")
		if len(names)*len(numbers) > maxNodes {
			return nil, fmt.Errorf("%s stands for more than %d nodes", name, maxNodes)
		}
		grown := make([]string, 0, len(names)*len(numbers))
		for _, head := range names {
			for _, number := range numbers {
				grown = append(grown, head+number+between)
			}
		}
		names, rest, more = grown, next, again
	}
	return names, nil
}

// expandNumbers expands what stands in brackets: "01-03,07". The first number's
// width is that of its whole range, as Slurm has it.
func expandNumbers(text string) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, to := parseNumber(first), parseNumber(last)
		switch {
		case from < 0 || to < 0:
			return nil, fmt.Errorf("[%s] is no list of numbers and ranges", text)
		case to < from:
			return nil, fmt.Errorf("the range %s runs backwards", part)
		case to-from >= maxNodes || len(numbers)+to-from >= maxNodes:
			return nil, fmt.Errorf("[%s] stands for more than %d nodes", text, maxNodes)
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return numbers, nil
}

// parseNumber reads digits alone; anything else is -1.
func parseNumber(text string) int {
	if text == "" || len(text) > 9 || strings.Trim(text, "0123456789") != "" {
		return -1
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}
