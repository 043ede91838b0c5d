package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/muster-rl/muster/agent"
)

const (
	// followPace is how long lines gather before they are shown together.
	followPace = 50 * time.Millisecond
	// followAnyway is how often files are looked at when nothing is heard: a head
	// rings no bell for a listener that it has only just welcomed.
	followAnyway = time.Second
	// longestRest is how much of a line without an end is kept.
	longestRest = 1 << 20
	readBlock   = 64 << 10
)

// tailer shows files as they grow, whole lines at a time.
type tailer struct {
	dir     string
	targets []target
	show    func(f logFile, line []byte) error
	flush   func() error
	open    map[string]*tail // by path
	err     error            // of showing: nobody reads any more
}

// tail is how far one file has been shown.
type tail struct {
	logFile
	offset int64
	rest   []byte // of a line that has no end yet
}

// start shows the last lines of what is there, all for -1.
func (t *tailer) start(files []logFile, lines int) error {
	for _, f := range files {
		if t.open[f.path] != nil {
			continue // named twice
		}
		one := &tail{logFile: f}
		if lines >= 0 {
			offset, err := lastLines(f.path, lines)
			if err != nil {
				return err
			}
			one.offset = offset
		}
		t.open[f.path] = one
		t.advance(one)
	}
	return t.done()
}

// done has what was shown seen.
func (t *tailer) done() error {
	if err := t.flush(); t.err == nil {
		t.err = err
	}
	return t.err
}

// scan shows what has come since, in files that are new as well.
func (t *tailer) scan() {
	files, _ := findLogs(t.dir, t.targets)
	for _, f := range files {
		if t.open[f.path] == nil {
			t.open[f.path] = &tail{logFile: f}
		}
		t.advance(t.open[f.path])
	}
	_ = t.done()
}

// finish shows what has no newline and will get none.
func (t *tailer) finish() {
	files, _ := findLogs(t.dir, t.targets)
	for _, f := range files {
		if one := t.open[f.path]; one != nil && len(one.rest) > 0 {
			t.put(one.logFile, one.rest)
			one.rest = nil
		}
	}
	_ = t.done()
}

// follow shows lines until the head ends. The head's events ring the bell; the
// lines themselves are read from the files, which have them first.
func (t *tailer) follow(c *client) error {
	_ = c.conn.NetConn().SetDeadline(time.Time{})
	bell := make(chan struct{}, 1)
	go func() {
		defer close(bell)
		for {
			if _, err := c.conn.Read(); err != nil {
				return
			}
			select {
			case bell <- struct{}{}:
			default:
			}
		}
	}()
	pace, anyway := time.NewTicker(followPace), time.NewTicker(followAnyway)
	defer pace.Stop()
	defer anyway.Stop()
	for ringing := true; ringing && t.err == nil; {
		select {
		case _, ringing = <-bell:
			if ringing {
				<-pace.C
			}
		case <-anyway.C:
		}
		t.scan()
	}
	t.finish()
	return t.err
}

// advance shows the whole lines that a file has beyond what was shown.
func (t *tailer) advance(one *tail) {
	file, err := os.Open(one.path)
	if err != nil {
		return // it was pruned
	}
	defer file.Close()
	block := make([]byte, readBlock)
	for t.err == nil {
		n, err := file.ReadAt(block, one.offset)
		one.offset += int64(n)
		t.take(one, block[:n])
		if err != nil {
			return
		}
	}
}

// take cuts bytes into lines.
func (t *tailer) take(one *tail, data []byte) {
	for t.err == nil {
		line, after, whole := bytes.Cut(data, []byte("\n"))
		one.rest = append(one.rest, line...)
		if !whole && len(one.rest) < longestRest {
			return
		}
		t.put(one.logFile, one.rest)
		one.rest = one.rest[:0]
		data = after
		if !whole {
			return
		}
	}
}

func (t *tailer) put(f logFile, line []byte) {
	if t.err == nil {
		t.err = t.show(f, line)
	}
}

// lastLines is the offset of the n-th line from the end of a file.
func lastLines(path string, n int) (int64, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return end, nil
	}
	block := make([]byte, readBlock)
	found := 0
	for at := end; at > 0; {
		from := max(0, at-readBlock)
		part := block[:at-from]
		if _, err := file.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != '\n' || from+int64(i) == end-1 { // the last line's own end
				continue
			}
			if found++; found == n {
				return from + int64(i) + 1, nil
			}
		}
		at = from
	}
	return 0, nil
}

// lineWriter shows lines: for programs as JSON, on a terminal made safe for it,
// elsewhere byte for byte.
func lineWriter(out io.Writer, asJSON, safe bool) func(f logFile, line []byte) error {
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		return func(f logFile, line []byte) error {
			return enc.Encode(struct {
				Cluster string `json:"cluster"`
				Worker  string `json:"worker"`
				Line    string `json:"line"`
			}{f.cluster, f.worker, string(bytes.ToValidUTF8(line, []byte("\uFFFD")))})
		}
	}
	return func(f logFile, line []byte) error {
		if safe {
			line = []byte(agent.Escape(lastDrawn(line)))
		}
		_, err := fmt.Fprintf(out, "[%s] %s\n", f.worker, line)
		return err
	}
}

// lastDrawn is what a terminal would show of a line that draws over itself, as
// progress bars do.
func lastDrawn(line []byte) []byte {
	line = bytes.TrimRight(line, "\r")
	return line[bytes.LastIndexByte(line, '\r')+1:]
}
