package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-rl/muster/wire"
)

const spyDump = `[
 {"thread_name": "MainThread", "os_thread_id": PID, "frames": [
  {"name": "clock_nanosleep", "filename": "/usr/lib/libc.so.6", "short_filename": "libc.so.6", "line": 0},
  {"name": "0x7fa8c984524a", "filename": "/usr/lib/libc.so.6", "short_filename": "libc.so.6", "line": 0},
  {"name": "step", "filename": "/srv/train.py", "short_filename": "train.py", "line": 7},
  {"name": "run", "filename": "/opt/muster/_runtime/serial.py", "short_filename": "serial.py", "line": 60},
  {"name": "main", "filename": "/opt/python", "short_filename": "python", "line": 0}]},
 {"thread_name": "muster-call-1", "os_thread_id": 3, "frames": [
  {"name": "recv", "filename": "/usr/lib/libc.so.6", "short_filename": "libc.so.6", "line": 0},
  {"name": "fill", "filename": "/opt/muster/_wire.py", "short_filename": "_wire.py", "line": 9}]},
 {"thread_name": "prefetch", "os_thread_id": 4, "frames": [
  {"name": "next", "filename": "/srv/data.py", "short_filename": "data.py", "line": 1}]}]
`

const spyText = `main thread, with C code (most recent call first):
  clock_nanosleep (libc.so.6)
  ? (libc.so.6)
  step (/srv/train.py:7)
`

func TestNativeText(t *testing.T) {
	if got, err := nativeText([]byte(strings.Replace(spyDump, "PID", "17", 1)), 17); got != spyText || err != nil {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, spyText)
	}
	if got, err := nativeText([]byte("[]"), 17); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := nativeText([]byte("what?"), 17); err == nil {
		t.Error("rubbish is no dump")
	}
}

// Workers that are at one place are looked at once; where py-spy fails, the
// stacks say so and are there all the same.
func TestStacksWithNativeFrames(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	spy := func(script string) {
		if err := os.WriteFile(filepath.Join(folder, "py-spy"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b := newBench(t, nil)
	b.start(b.workers(3, "stacks control wait"))
	for number := range uint32(3) {
		b.untilSaid(number+1, "up", 1)
	}
	ask := func() (texts []string, native int) {
		t.Helper()
		var got wire.StacksAnswer
		if err := b.ask("stacks", &wire.StacksRequest{Workers: []uint32{1, 2, 3}}, &got); err != nil {
			t.Fatal(err)
		}
		for _, s := range got.Stacks {
			texts = append(texts, s.Text)
			if s.Native {
				native++
			}
		}
		return texts, native
	}
	spy("[ \"$1 $2 $3 $4\" = \"dump --native --json --pid\" ] || exit 9\ncat <<EOF\n" + strings.Replace(spyDump, "PID", "$5", 1) + "EOF\n")
	texts, native := ask()
	if native != 1 || !strings.HasSuffix(texts[0], "in step\n\n"+spyText) || strings.Contains(texts[1], "C code") {
		t.Errorf("got %d native ones:\n%s", native, strings.Join(texts, "\n"))
	}
	spy("echo Error: Permission Denied: try again with sudo >&2; exit 1\n")
	texts, native = ask()
	if native != 0 || !strings.HasSuffix(texts[0], "in step\n\nframes of C code are not known: py-spy: Error: Permission Denied: try again with sudo\n") {
		t.Errorf("got %d native ones:\n%s", native, strings.Join(texts, "\n"))
	}
}
