package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/agent"
)

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON, for programs")
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// shown makes a word from outside safe to print: not even colours stay.
func shown(word string) string {
	return agent.Escape([]byte(strings.ReplaceAll(word, "\x1b", `\x1b`)))
}

// terminal says whether w is one: there, nothing may steer it.
func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// table lays rows out in columns, each line behind an indent.
func table(indent string, rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, indent+strings.Join(row, "\t"))
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ") // a last cell that is empty
	}
	return strings.Join(lines, "\n")
}

// count is "1 node", "4 nodes".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// listed names the first of many.
func listed(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// span is a time for people.
func span(seconds float64) string {
	whole := int(math.Round(seconds))
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1f s", max(0, seconds))
	case whole < 120:
		return fmt.Sprintf("%d s", whole)
	case whole < 2*3600:
		return fmt.Sprintf("%d min %02d s", whole/60, whole%60)
	case whole < 48*3600:
		return fmt.Sprintf("%d h %02d min", whole/3600, whole/60%60)
	}
	return fmt.Sprintf("%d days %d h", whole/86400, whole/3600%24)
}

// size is a number of bytes for people.
func size(bytes uint64) string {
	const unit = 1 << 10
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, units := float64(bytes)/unit, "KMGTPE"
	for value >= 1000 && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	if value >= 100 {
		return fmt.Sprintf("%.0f %ciB", value, units[0])
	}
	return fmt.Sprintf("%.1f %ciB", value, units[0])
}
