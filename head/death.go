package head

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// endError words how a worker's process ended.
func (w *worker) endError(e *wire.Exited) *spec.Error {
	how := e.Why // the agent tells it in words
	if how == "" {
		how = "exit code " + strconv.Itoa(e.Code)
	}
	verb := "died: "
	if w.state == "starting" {
		verb = "ended before it was ready: "
	}
	where := w.Name + " on " + w.Node
	if device := w.device(); device != "" {
		where += " (" + device + ")"
	}
	msg := where + " " + verb + how
	if w.pid != 0 {
		msg += fmt.Sprintf(", process %d", w.pid)
	}
	err := spec.Errorf(spec.CodeWorkerDied, "%s", msg)
	if len(e.Logs) == 0 {
		err.Message += "; it had printed nothing"
	}
	err.Message = strings.TrimSpace(err.Message)
	err.Logs, err.ExitCode, err.Signal = e.Logs, e.Code, e.Signal
	err.Traceback = lastTraceback(e.Logs)
	return err
}

// device names the worker's devices by their numbers on its node.
func (w *worker) device() string {
	if len(w.place.Devices) == 0 {
		return ""
	}
	var numbers []int
	for _, d := range w.place.Devices {
		numbers = append(numbers, d.Device)
	}
	return "GPU " + spec.Spans(numbers)
}

// lastTraceback is the last Python traceback among printed lines, as it was printed.
func lastTraceback(lines []string) string {
	var last []string
	for i := 0; i < len(lines); {
		switch {
		case strings.HasPrefix(lines[i], "Fatal Python error:"):
			return strings.Join(lines[i:], "\n") // nothing is printed after what faulthandler says
		case strings.HasPrefix(lines[i], tracebackLine):
			end := tracebackEnd(lines, i)
			last = lines[i:end]
			i = end
		default:
			i++
		}
	}
	return strings.Join(last, "\n")
}

const tracebackLine = "Traceback (most recent call last):"

// tracebackEnd is where the traceback that begins at a line ends, with those of
// exceptions that it led to.
func tracebackEnd(lines []string, from int) int {
	end := from + 1
	for end < len(lines) && (lines[end] == "" || strings.HasPrefix(lines[end], " ")) {
		end++
	}
	end = min(end+1, len(lines)) // the exception itself
	next := skipBlank(lines, end)
	if next < len(lines) && (strings.HasPrefix(lines[next], "During handling of the above") || strings.HasPrefix(lines[next], "The above exception was")) {
		if next = skipBlank(lines, next+1); next < len(lines) && strings.HasPrefix(lines[next], tracebackLine) {
			return tracebackEnd(lines, next)
		}
	}
	return end
}

func skipBlank(lines []string, i int) int {
	for i < len(lines) && lines[i] == "" {
		i++
	}
	return i
}

// othersLocked says what the other ranks of a cluster were doing when one died:
// told once, of the first of several that die together.
func (cl *cluster) othersLocked(dead *worker, now time.Time) []string {
	if cl.toldOthers || !cl.up || len(cl.workers) < 2 {
		return nil
	}
	cl.toldOthers = true
	ranks := map[string][]int{}
	var order []string
	for _, w := range cl.workers {
		if w == dead {
			continue
		}
		doing := w.doing(dead.Oldest(), now)
		if ranks[doing] == nil {
			order = append(order, doing)
		}
		ranks[doing] = append(ranks[doing], w.Rank)
	}
	if len(order) > mostDoing {
		order = order[:mostDoing]
	}
	lines := make([]string, len(order))
	for i, doing := range order {
		lines[i] = ranksText(ranks[doing]) + ": " + doing
	}
	return lines
}

// mostDoing bounds how many different things an error tells of.
const mostDoing = 16

// doing is what a rank is doing, in words; lost is the call that the rank was in
// that died, if it was.
func (w *worker) doing(lost *call.Call, now time.Time) string {
	oldest, count := w.Oldest(), w.Load()
	switch {
	case w.state == "dead":
		return "dead before"
	case w.state != "ready":
		return w.state
	case oldest == nil && lost != nil && lost.LegOf(&w.Worker) >= 0:
		return "had answered " + lost.Title()
	case oldest == nil:
		return "idle"
	}
	since := fmt.Sprintf("%s, called %.1f s ago", oldest.Title(), now.Sub(oldest.Data.(*pending).begun).Seconds())
	switch {
	case count == 1:
		return "in " + since
	case w.Serial:
		return fmt.Sprintf("in %s, with %d more queued", since, count-1)
	}
	return fmt.Sprintf("%d calls under way, the oldest %s", count, since)
}
