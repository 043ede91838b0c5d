package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

const (
	// spyBound is how long py-spy may take; of large libraries it reads the symbols.
	spyBound = 3 * time.Second
	// spyGroups is how many workers py-spy looks at, one for each place that
	// workers of this node are at: it costs seconds, and holds the worker up.
	spyGroups = 4
	spyLimit  = 8 << 20
)

// addNative adds frames of C code, as py-spy tells them, to one stack of each
// place that workers are at. Where there is no py-spy it does nothing.
func (a *agent) addNative(numbers []uint32, stacks []spec.Stack) {
	byRank := map[int]int{}
	for i := range stacks {
		byRank[stacks[i].Rank] = i
	}
	var all sync.WaitGroup
	looked := 0
	for _, g := range spec.GroupStacks(stacks, nil) {
		s := &stacks[byRank[g.Ranks[0]]]
		w := a.worker(numbers[byRank[g.Ranks[0]]])
		if w == nil || w.python == "" || len(s.Frames) == 0 {
			continue
		}
		spy, child := findSpy(w.python), w.process()
		if spy == "" || child == nil {
			continue
		}
		if looked++; looked > spyGroups {
			break
		}
		all.Go(func() {
			text, err := a.spy(spy, child)
			switch {
			case err != nil:
				s.Text += fmt.Sprintf("\nframes of C code are not known: %v\n", err)
			case text != "":
				s.Text += "\n" + text
				s.Native = true
			}
		})
	}
	all.Wait()
}

// findSpy is py-spy of the interpreter's environment, or on PATH; "": none.
func findSpy(python string) string {
	beside := filepath.Join(filepath.Dir(python), "py-spy")
	if path, err := exec.LookPath(beside); err == nil && filepath.IsAbs(beside) {
		return path
	}
	path, err := exec.LookPath("py-spy")
	if err != nil {
		return ""
	}
	return path
}

// spy has py-spy look at a worker, which holds the worker up meanwhile: it cannot
// unwind C code that runs.
func (a *agent) spy(path string, child *process.Child) (string, error) {
	output, err := os.CreateTemp("", "muster-spy-") // it says more than a pipe holds
	if err != nil {
		return "", err
	}
	defer output.Close()
	_ = os.Remove(output.Name())
	spy, err := a.reaper.Start(process.Command{
		Path: path, Args: []string{"py-spy", "dump", "--native", "--json", "--pid", fmt.Sprint(child.Pid())},
		Env: os.Environ(), Files: []*os.File{nil, output, output},
	})
	if err != nil {
		return "", fmt.Errorf("py-spy cannot be started: %w", err)
	}
	timer := time.NewTimer(spyBound)
	defer timer.Stop()
	select {
	case <-spy.Done():
	case <-timer.C:
		spy.Signal(syscall.SIGKILL)
		<-spy.Done()
		// Killed between attaching and waiting, it leaves what it looked at stopped.
		if entry, _ := process.Read(child.Pid()); entry.State == 'T' {
			child.Signal(syscall.SIGCONT)
		}
		return "", fmt.Errorf("py-spy did not tell them within %v", spyBound)
	}
	said, err := io.ReadAll(io.NewSectionReader(output, 0, spyLimit))
	if err != nil {
		return "", err
	}
	if exit := spy.Exit(); exit.Code != 0 || exit.Signal != "" {
		return "", fmt.Errorf("py-spy: %s", lastLine(string(said)))
	}
	return nativeText(said, child.Pid())
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "\n")+1:]
}

// spied is one thread as py-spy tells it.
type spied struct {
	Name   string       `json:"thread_name"`
	Thread int          `json:"os_thread_id"`
	Frames []spiedFrame `json:"frames"`
}

type spiedFrame struct {
	Name   string `json:"name"`
	File   string `json:"filename"`
	Short  string `json:"short_filename"`
	Module string `json:"module"` // the library; "" of Python code
	Line   int    `json:"line"`
}

var unnamed = regexp.MustCompile(`^0x[0-9a-f]+$`)

// nativeText is what py-spy told, for people: threads that run calls, down to
// Muster's own code. "" if none runs one.
func nativeText(dump []byte, pid int) (string, error) {
	var threads []spied
	if err := json.Unmarshal(dump, &threads); err != nil {
		return "", errors.New("py-spy told something else than expected: " + err.Error())
	}
	var b strings.Builder
	for _, t := range threads {
		title := ""
		switch {
		case t.Thread == pid:
			title = "main thread"
		case strings.HasPrefix(t.Name, "muster-call-"):
			title = "a thread that runs calls"
		}
		lines := t.lines()
		if title == "" || len(lines) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s, with C code (most recent call first):\n  %s\n", title, strings.Join(lines, "\n  "))
	}
	return b.String(), nil
}

// lines are the frames above Muster's own; none where a thread waits for a call.
func (t *spied) lines() []string {
	var lines []string
	for _, f := range t.Frames {
		if ownFile.MatchString(f.File) {
			if strings.HasSuffix(f.File, "/_wire.py") {
				return nil
			}
			break
		}
		switch {
		case f.Module == "" && f.Line > 0:
			lines = append(lines, fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line))
		case unnamed.MatchString(f.Name):
			lines = append(lines, fmt.Sprintf("? (%s)", f.Short)) // an address tells nothing
		default:
			lines = append(lines, fmt.Sprintf("%s (%s)", f.Name, f.Short))
		}
	}
	return lines
}
