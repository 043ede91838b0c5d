package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
)

// joinFd is where a warden and an agent find what they are told.
const joinFd = 3

// readJoin reads what this process was told at its start: the bytes, to hand
// on, and what they say.
func readJoin(who string) ([]byte, backend.Join, error) {
	var join backend.Join
	file := os.NewFile(joinFd, "join")
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &join)
	}
	if err != nil {
		return nil, join, fmt.Errorf("%s is started by a head, which tells it where to join on descriptor %d: %w", who, joinFd, err)
	}
	return text, join, nil
}

// Main is the program `muster agent`; it returns the exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	_, join, err := readJoin("muster agent")
	if err == nil {
		err = Run(ctx, join)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "muster agent:", err)
		return 1
	}
	return 0
}

// Warden is the program `muster warden`: it starts the agent, waits, and ends
// everything that is left below when the agent is gone, however it went. It
// returns the agent's exit code.
func Warden() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "muster warden:", err)
		return 1
	}
	parent := os.Getppid()
	head, headErr := process.NewWatch(parent)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	text, join, err := readJoin("muster warden")
	if err != nil {
		return fail(err)
	}
	reaper, err := process.NewReaper()
	if err != nil {
		return fail(err)
	}
	agent, err := startAgent(reaper, text)
	if err != nil {
		return fail(err)
	}
	for ended := false; !ended; {
		select {
		case sig := <-signals:
			agent.Signal(sig.(syscall.Signal))
		case <-agent.Done():
			ended = true
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clearBound)
	defer cancel()
	if err := reaper.Clear(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "muster warden:", err)
	}
	// An agent that was killed removed nothing. The folder is the head's while
	// there is one; a head that was killed with its agent may take a moment to go.
	_ = os.Remove(socketPath(join))
	exit := agent.Exit()
	if headErr == nil && exit.Signal != "" {
		select {
		case <-head.Done():
		case <-time.After(headBound):
		}
	}
	if os.Getppid() != parent || gone(head, headErr) {
		removeDir(join)
	}
	if exit.Signal != "" { // else it has told by itself
		fmt.Fprintf(os.Stderr, "muster warden: the agent of node %s ended: %v\n", join.Name, exit)
	}
	return exit.Shell()
}

// headBound is how long a head may take to be gone that is killed together with
// its agent.
const headBound = 250 * time.Millisecond

// gone says that the head ended, although it may not be reaped yet.
func gone(head *process.Watch, err error) bool {
	if err != nil {
		return false
	}
	select {
	case <-head.Done():
		return true
	default:
		return false
	}
}

// startAgent runs this program as the agent, told the same that we were.
func startAgent(reaper *process.Reaper, text []byte) (*process.Child, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	defer writer.Close()
	agent, err := reaper.Start(process.Command{
		Path: "/proc/self/exe", Args: []string{"muster", "agent"}, Env: os.Environ(),
		Files: []*os.File{nil, os.Stdout, os.Stderr, reader},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start the agent: %w", err)
	}
	if _, err := writer.Write(text); err != nil {
		agent.Signal(syscall.SIGKILL)
		return nil, fmt.Errorf("cannot tell the agent where to join: %w", err)
	}
	return agent, nil
}
