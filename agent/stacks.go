package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	stacksSignal = 10 // SIGRTMIN+10: faulthandler dumps on it, which needs no GIL
	stacksBound  = time.Second
	stacksQuiet  = 30 * time.Millisecond // no more came for this long: the dump is whole
	stacksTick   = 2 * time.Millisecond
	stacksLimit  = 1 << 20
)

// stacks asks every named worker at once what it is doing. Each gets an answer:
// its stacks, or what else can be told of it.
func (a *agent) stacks(req wire.StacksRequest) *wire.StacksAnswer {
	answer := &wire.StacksAnswer{Stacks: make([]spec.Stack, len(req.Workers))}
	var all sync.WaitGroup
	for i, number := range req.Workers {
		w := a.worker(number)
		if w == nil {
			answer.Stacks[i] = spec.Stack{Rank: -1, Worker: fmt.Sprintf("worker %d", number), Node: a.join.Name, Text: "it has ended"}
			continue
		}
		all.Go(func() {
			text, frames := w.stack()
			answer.Stacks[i] = spec.Stack{Rank: w.start.Rank, Worker: w.start.Name, Node: a.join.Name, Text: text, Frames: frames}
		})
	}
	all.Wait()
	a.addNative(req.Workers, answer.Stacks)
	return answer
}

// stack is what the worker does, in words, and the frames of the code that it
// runs for a call.
func (w *worker) stack() (string, []spec.Frame) {
	w.dumping.Lock()
	defer w.dumping.Unlock()
	w.mu.Lock()
	child, control, zygote := w.child, w.control, w.zygote
	w.mu.Unlock()
	switch {
	case child == nil && zygote != nil:
		return "it has no process yet: " + zygote.doing(), nil
	case child == nil:
		return "it has no process yet: it waits for its interpreter", nil
	}
	pid := child.Pid()
	switch entry, _ := process.Read(pid); {
	case entry.State == 'T':
		// Asked for its stacks it would tell them only when it goes on.
		return fmt.Sprintf("it is stopped (SIGSTOP), and goes on with kill -CONT (%s)", describe(pid)), nil
	case entry.State == 't':
		return fmt.Sprintf("it is stopped by a debugger (%s)", describe(pid)), nil
	case control == nil || control.stacksFd <= 0:
		// The signal would kill a process that has no handler for it yet.
		return fmt.Sprintf("it is not up yet, so it has no Python stacks to tell (%s)", describe(pid)), nil
	}
	text, err := dump(child, control.stacksFd)
	switch {
	case err != nil:
		return fmt.Sprintf("its stacks cannot be read: %v (%s)", err, describe(pid)), nil
	case text == "":
		return fmt.Sprintf("it did not tell its stacks within %v (%s)", stacksBound, describe(pid)), nil
	}
	text, frames, looping := readable(text)
	if !looping {
		return text, frames
	}
	if tasks := control.tasks(); tasks != "" {
		if frames == nil {
			first, _, _ := strings.Cut(tasks, "\ntask ")
			frames = framesOf(strings.Split(first, "\n"))
		}
		return strings.TrimSuffix(text, loopWaits) + tasks, frames
	}
	return text, frames
}

// tasks asks a worker whose event loop waits what its coroutines wait for. "" if
// it has none, or does not say.
func (c *control) tasks() string {
	ctx, cancel := context.WithTimeout(context.Background(), stacksBound/2)
	defer cancel()
	var answer spec.Stack
	if c.ask(ctx, "tasks", &wire.Empty{}, &answer) != nil {
		return ""
	}
	return answer.Text
}

// dump has a process write its stacks to the file that it keeps for them, and
// reads it until no more comes. The file is opened through /proc: it has no
// name, so there is nothing to clean up.
func dump(child *process.Child, fd int) (string, error) {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", child.Pid(), fd), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := file.Truncate(0); err != nil {
		return "", err
	}
	child.Signal(process.RealTime(stacksSignal))
	tick := time.NewTicker(stacksTick)
	defer tick.Stop()
	began := time.Now()
	changed, size := began, int64(0)
	for {
		select {
		case <-child.Done():
			return "", fmt.Errorf("it ended: %v", child.Exit())
		case now := <-tick.C:
			info, err := file.Stat()
			if err != nil {
				return "", err
			}
			if info.Size() != size {
				changed, size = now, info.Size()
			}
			if (size > 0 && now.Sub(changed) >= stacksQuiet) || now.Sub(began) >= stacksBound {
				text, err := io.ReadAll(io.NewSectionReader(file, 0, stacksLimit))
				return string(bytes.ToValidUTF8(text, []byte("?"))), err
			}
		}
	}
}

// describe says what the kernel tells of a process.
func describe(pid int) string {
	said := []string{fmt.Sprintf("pid %d", pid)}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		for line := range strings.Lines(string(status)) {
			if state, ok := strings.CutPrefix(line, "State:"); ok {
				said = append(said, "state "+strings.Join(strings.Fields(state), " "))
			}
		}
	}
	if where, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid)); err == nil && len(where) > 1 {
		said = append(said, "in the kernel's "+string(where))
	}
	if call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid)); err == nil {
		if number, _, ok := strings.Cut(strings.TrimSpace(string(call)), " "); ok {
			said = append(said, "system call "+number)
		}
	}
	return strings.Join(said, ", ")
}
