package spec

import "strings"

// NearestName returns the candidate that a name was most likely meant to be, or
// "" where none is near. Of equally near ones the first wins.
func NearestName(name string, candidates []string) string {
	const longest = 200 // beyond that it is no name, and the work is quadratic
	if name == "" || len(name) > longest {
		return ""
	}
	lower := strings.ToLower(name)
	// A third of the letters may be wrong; of short names, one.
	best, least := "", max(1, len(name)/3)+1
	for _, c := range candidates {
		if c == "" || len(c) > longest {
			continue
		}
		if d := editDistance(lower, strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func editDistance(a, b string) int {
	before := make([]int, len(b)+1) // two rows up, for swaps
	above := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
