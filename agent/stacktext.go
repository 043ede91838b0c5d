package agent

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

const loopWaits = "it is idle: its event loop waits\n"

// readable turns what faulthandler dumps into what a person wants to see: the
// main thread first, without frames of Muster's runtime below the user's method,
// and without threads of Muster that only wait. What it does not understand it
// leaves as it is. frames are those of the thread that runs a call. looping says
// that the main thread's event loop waits, so that the stacks of threads do not
// tell what the coroutines do.
func readable(dump string) (text string, frames []spec.Frame, looping bool) {
	threads := parseThreads(dump)
	if len(threads) == 0 {
		return dump, goFrames(dump), false
	}
	main := mainThread(threads)
	var parts []string
	for i, t := range threads {
		t.trim()
		switch {
		case i == main && t.loops():
			looping = true
		case i == main && t.waits():
		case i == main:
			parts = slices.Insert(parts, 0, t.text("main thread"))
			frames = framesOf(t.shown())
		case t.ours && !t.calls():
		case t.ours:
			parts = append(parts, t.text("a thread that runs calls"))
			if frames == nil {
				frames = framesOf(t.shown())
			}
		case t.name != "":
			parts = append(parts, t.text(fmt.Sprintf("thread %q", t.name)))
		default:
			parts = append(parts, t.text("another thread"))
		}
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "\n"), frames, looping
	case looping:
		return loopWaits, nil, true
	}
	return "it is idle: it waits for a call\n", nil, false
}

// thread is one of a dump.
type thread struct {
	name   string   // where the interpreter tells it
	frames []string // most recent first
	before []string // lines that are no frames, above them
	after  []string // and below
	ours   bool     // it was started by Muster, or it is the main thread below our code
	inLoop bool     // Muster's event loop is below its frames
	top    string   // our own frame nearest to the user's code
}

var (
	threadLine = regexp.MustCompile(`^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):$`)
	frameLine  = regexp.MustCompile(`^ *File "(.*)", line (\d+|\?\?\?) in (.*)$`)
	ownFile    = regexp.MustCompile(`/muster/(?:_runtime/[a-z_]+|_[a-z]+)\.py$`)
)

func parseThreads(dump string) []*thread {
	var threads []*thread
	for line := range strings.Lines(dump) {
		line = strings.TrimRight(line, "\n")
		if m := threadLine.FindStringSubmatch(line); m != nil {
			threads = append(threads, &thread{name: m[1]})
			continue
		}
		switch {
		case line == "":
		case len(threads) == 0:
			return nil
		case frameLine.MatchString(line):
			last := threads[len(threads)-1]
			last.frames = append(last.frames, line)
		default:
			last := threads[len(threads)-1]
			if len(last.frames) == 0 {
				last.before = append(last.before, line)
			} else {
				last.after = append(last.after, line)
			}
		}
	}
	return threads
}

// mainThread is the one that the interpreter's own start is below. Dumps have it
// last; -1 if there were too many threads to tell all.
func mainThread(threads []*thread) int {
	i := slices.IndexFunc(threads, func(t *thread) bool {
		if len(t.frames) == 0 {
			return false
		}
		file, name := frame(t.frames[len(t.frames)-1])
		return file == "<string>" && name == "<module>"
	})
	if last := len(threads) - 1; i < 0 && !slices.Contains(threads[last].after, "...") {
		return last
	}
	return i
}

func frame(line string) (file, name string) {
	m := frameLine.FindStringSubmatch(line)
	return m[1], m[3]
}

// framesOf reads lines of a dump that are frames.
func framesOf(lines []string) []spec.Frame {
	var frames []spec.Frame
	for _, line := range lines {
		if m := frameLine.FindStringSubmatch(line); m != nil {
			number, _ := strconv.Atoi(m[2]) // ???: 0
			frames = append(frames, spec.Frame{Function: m[3], File: m[1], Line: number})
		}
	}
	return frames
}

var goPlace = regexp.MustCompile(`^\t(\S.*):(\d+)(?: \+0x[0-9a-f]+)?$`)

// goFrames reads those of the first goroutine of a worker in Go, which dumps the
// ones that run methods first.
func goFrames(dump string) []spec.Frame {
	if !strings.HasPrefix(dump, "goroutine ") {
		return nil
	}
	var frames []spec.Frame
	function := ""
	for line := range strings.Lines(dump) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			break
		}
		if m := goPlace.FindStringSubmatch(line); m != nil && function != "" {
			number, _ := strconv.Atoi(m[2])
			frames = append(frames, spec.Frame{Function: function, File: m[1], Line: number})
			function = ""
			continue
		}
		function = line[strings.LastIndex(line, "/")+1:]
		if end := strings.LastIndex(function, "("); end > 0 {
			function = function[:end]
		}
	}
	return frames
}

// trim takes off what is below the user's code, and the machinery of imports.
func (t *thread) trim() {
	t.frames = slices.DeleteFunc(t.frames, func(line string) bool {
		file, _ := frame(line)
		return strings.HasPrefix(file, "<frozen importlib.")
	})
	for len(t.frames) > 0 {
		last := t.frames[len(t.frames)-1]
		file, name := frame(last)
		switch {
		case ownFile.MatchString(file):
			t.ours, t.top = true, last
			t.inLoop = t.inLoop || strings.HasSuffix(file, "/_runtime/loop.py")
		case file == "<string>" && name == "<module>" && !t.ours:
		case strings.HasSuffix(file, "/threading.py") && (name == "run" || strings.HasPrefix(name, "_bootstrap")):
		case t.inLoop && strings.Contains(file, "/asyncio/"):
		case t.inLoop && strings.HasSuffix(file, "/selectors.py"):
		default:
			return
		}
		t.frames = t.frames[:len(t.frames)-1]
	}
}

// loops says that the event loop waits; a method that runs in it would be above.
func (t *thread) loops() bool {
	if len(t.frames) > 0 || !t.inLoop {
		return false
	}
	_, name := frame(t.top)
	return name == "run"
}

// waits says that one of our threads has nothing to do: it reads a connection.
func (t *thread) waits() bool {
	if len(t.frames) > 0 || t.top == "" {
		return false
	}
	file, _ := frame(t.top)
	return strings.HasSuffix(file, "/_wire.py")
}

// calls says that one of our threads runs a method, be it one in C.
func (t *thread) calls() bool {
	if len(t.frames) > 0 || t.top == "" {
		return len(t.frames) > 0
	}
	_, name := frame(t.top)
	return name == "_one"
}

// shown is the frames that people are told.
func (t *thread) shown() []string {
	if len(t.frames) == 0 && t.top != "" {
		return []string{t.top} // a method that is C code has no frame of its own
	}
	return t.frames
}

func (t *thread) text(title string) string {
	return title + " (most recent call first):\n" + strings.Join(slices.Concat(t.before, t.shown(), t.after), "\n") + "\n"
}
