package cli

import (
	"strings"
	"testing"
)

// What the SDK asks for: ids line by line, or where the text is wrong.
func TestMapping(t *testing.T) {
	if got := typed("mapping", "--", "0-2+8"); !strings.HasSuffix(got, "\n0\n1\n2\n8\nexit code 0\n") {
		t.Error(got)
	}
	if got := typed("mapping", "--", "5-3"); !strings.Contains(got, "the span 5-3 runs backwards") || !strings.HasSuffix(got, "exit code 1\n") {
		t.Error(got)
	}
}
