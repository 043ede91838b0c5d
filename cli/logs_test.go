package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logFolder has the logs of two clusters, and of Muster's own processes.
func logFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"actor/actor-10-G2", "actor/actor-0-G0", "actor/actor-2-G2", "reward-math/reward-math-0", "zygote-node-0", "agent-0"} {
		write(t, filepath.Join(dir, name+".log"), "first of "+name+"\nsecond\nthird\n")
	}
	write(t, filepath.Join(dir, "actor/notes.txt"), "not a log")
	return dir
}

func TestFindingLogs(t *testing.T) {
	dir := logFolder(t)
	var told []string
	for _, args := range []string{
		"", "actor", "reward-math", "actor/2", "actor/0-2,10", "actor-10-G2", "reward-math actor/0", "agent-0", "actor/5", "actr", "actor-0-G1", "critic", "zygote-node-1",
	} {
		var targets []target
		for _, arg := range strings.Fields(args) {
			parsed, err := parseTarget(arg)
			if err != nil {
				t.Fatal(err)
			}
			targets = append(targets, parsed)
		}
		found, err := findLogs(dir, targets)
		var names []string
		for _, f := range found {
			names = append(names, f.worker)
		}
		line := fmt.Sprintf("%q: %s", args, strings.Join(names, " "))
		if err != nil {
			line = fmt.Sprintf("%q: exit code %d, %v", args, exitOf(err).code, err)
		}
		told = append(told, line+"\n")
	}
	golden(t, "findlogs.txt", strings.Join(told, ""))
}

func TestLastLines(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 3*readBlock) + "\n"
	for name, text := range map[string]string{
		"empty": "", "one": "a\n", "open": "a\nb", "three": "a\nb\nc\n", "blank": "a\n\n\n", "long": long + "b\n" + long,
	} {
		path := filepath.Join(dir, name)
		write(t, path, text)
		lines := strings.SplitAfter(text, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		for n := range len(lines) + 2 {
			offset, err := lastLines(path, n)
			want := strings.Join(lines[max(0, len(lines)-n):], "")
			if err != nil || text[offset:] != want {
				t.Errorf("the last %d lines of %s are %.40q, %v; want %.40q", n, name, text[offset:], err, want)
			}
		}
	}
	if offset, err := lastLines(filepath.Join(dir, "gone"), 3); offset != 0 || err != nil {
		t.Error(offset, err)
	}
}

func shownLogs(t *testing.T, dir string, lines int, asJSON, safe bool) string {
	t.Helper()
	var out bytes.Buffer
	tail := &tailer{dir: dir, show: lineWriter(&out, asJSON, safe), flush: func() error { return nil }, open: map[string]*tail{}}
	files, err := findLogs(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tail.start(files, lines); err != nil {
		t.Fatal(err)
	}
	tail.finish()
	return out.String()
}

// Rubbish reaches a terminal escaped, a pipe as it is, and JSON as JSON can.
func TestRubbishInLogs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a", "a-0.log"), "\x1b[31mred\x1b[0m \x1b]0;title\x07 \xff\n 10%\r 90%\r\nno end")
	golden(t, "rubbish.txt", "terminal:\n"+shownLogs(t, dir, -1, false, true)+"pipe:\n"+fmt.Sprintf("%q\n", shownLogs(t, dir, -1, false, false))+
		"json:\n"+shownLogs(t, dir, 2, true, false))
}

func TestLineWithoutEndIsShownInPieces(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a", "a-0.log"), strings.Repeat("x", 2*longestRest+5))
	if got := shownLogs(t, dir, -1, false, false); strings.Count(got, "\n") != 3 || strings.Count(got, "x") != 2*longestRest+5 {
		t.Errorf("%d lines, %d letters", strings.Count(got, "\n"), strings.Count(got, "x"))
	}
}

// A reader that goes away ends it.
func TestNobodyReads(t *testing.T) {
	dir := logFolder(t)
	gone := errors.New("gone")
	shown := 0
	tail := &tailer{dir: dir, flush: func() error { return nil }, open: map[string]*tail{}, show: func(logFile, []byte) error {
		shown++
		return gone
	}}
	files, _ := findLogs(dir, nil)
	if err := tail.start(files, -1); !errors.Is(err, gone) || shown != 1 {
		t.Error(err, shown)
	}
}

// What ended is found by its name, or as the last.
func TestLogsOfEndedSessions(t *testing.T) {
	base := t.TempDir()
	t.Setenv("MUSTER_DIR", base)
	t.Setenv("MUSTER_LOG_DIR", "")
	logs := filepath.Join(base, fmt.Sprintf("muster-%d", os.Getuid()), "logs")
	write(t, filepath.Join(logs, "20260101-120000-99999998-aaaaaaaaaaaa", "old", "old-0.log"), "older\n")
	write(t, filepath.Join(logs, "20260102-120000-99999999-bbbbbbbbbbbb", "new", "new-0.log"), "newer\n")
	var all []string
	for _, line := range []string{"logs", "logs --last", "logs --last -f", "logs --session 99999998-aaaaaaaaaaaa", "logs --last nw", "logs --session 3"} {
		all = append(all, typed(strings.Fields(line)...))
	}
	text := strings.ReplaceAll(strings.Join(all, "\n"), filepath.Dir(logs), "DIR")
	golden(t, "ended.txt", text)
}
