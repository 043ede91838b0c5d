package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
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
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	text, join, err := readJoin("muster warden")
	if err != nil {
		return fail(err)
	}
	release, err := session.HoldNode(join.Dir, join.Node)
	if errors.Is(err, session.ErrHeld) { // two heads, one killed, had the same thought
		return fail(err)
	}
	if err != nil { // who looks for what is left over may take it for that
		fmt.Fprintln(os.Stderr, "muster warden:", err)
	}
	if join.Leash != 0 {
		session.ClearBeside(join.Dir)
	}
	reaper, err := process.NewReaper()
	if err != nil {
		return fail(err)
	}
	onLeash(join, signals)
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
	_ = os.Remove(socketPath(join)) // an agent that was killed removed nothing
	exit := agent.Exit()
	if (exit.Signal != "" || exit.Code > 1) && join.Leash == 0 { // 0 and 1 are its own words
		awaitHead(join)
	}
	release()
	if !session.HeadAlive(join.Dir) {
		removeDir(join)
	}
	if exit.Signal != "" { // else it has told by itself
		fmt.Fprintf(os.Stderr, "muster warden: its agent was %v\n", exit)
	}
	return exit.Shell()
}

// headBound is how long a head may take to be gone that is killed together with
// its agent. One that lives hears of the agent's end only after it.
const headBound = 20 * time.Millisecond

// awaitHead returns when the session's folder is somebody else's to remove, or
// nobody's. An agent that ended by itself has waited for a head before. One that
// was killed has not, and a head may come back for the other nodes, and to say
// that this one is lost.
func awaitHead(join backend.Join) {
	dying, grace := headBound, seconds(join.Grace)
	var owner <-chan struct{}
	if join.Owner != 0 {
		watch, err := process.NewWatch(join.Owner)
		if err == nil {
			defer watch.Close()
			owner = watch.Done()
		} else { // all is over, so the head is on its way out, if it is there
			dying, grace = clearBound, 0
		}
	}
	tick := time.NewTicker(firstPause / 4)
	defer tick.Stop()
	there := true
	for late := time.Now().Add(dying); there && time.Now().Before(late); <-tick.C {
		there = session.HeadAlive(join.Dir)
	}
	if there {
		return
	}
	over := time.NewTimer(grace)
	defer over.Stop()
	for !session.HeadAlive(join.Dir) {
		select {
		case <-tick.C:
		case <-owner:
			return
		case <-over.C:
			return
		}
	}
}

// removeDir removes the session's folder if nobody else needs it, unless it
// could hold what must stay.
func removeDir(join backend.Join) {
	dir := filepath.Clean(join.Dir)
	if !filepath.IsAbs(dir) || filepath.Dir(dir) == dir || strings.HasPrefix(filepath.Clean(join.LogDir)+"/", dir+"/") {
		return
	}
	_ = session.RemoveLast(dir)
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
