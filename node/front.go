package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/process"
)

// lifelineFd is where a keeper finds its Config, and then the end of its front.
const lifelineFd = 3

// maxConfig bounds a Config; a command line is at most 2 MiB.
const maxConfig = 8 << 20

var stopSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// Front is the process that the user has started: it starts the keeper, passes
// signals on, and ends what is left when the keeper is gone, however it went.
// It returns the exit code; the reason was said.
func Front(c Config, voice *Voice) int {
	fail := func(err error) int {
		voice.End(1, err.Error())
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, stopSignals...)
	signal.Ignore(syscall.SIGPIPE)
	reaper, err := process.NewReaper()
	if err != nil {
		return fail(err)
	}
	keeper, lifeline, err := startKeeper(reaper, c)
	if err != nil {
		return fail(err)
	}
	defer lifeline.Close()
	for ended := false; !ended; {
		select {
		case sig := <-signals:
			if !fromTerminal(sig.(syscall.Signal)) {
				keeper.Signal(sig.(syscall.Signal))
			}
		case <-keeper.Done():
			ended = true
		}
	}
	exit := keeper.Exit()
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := reaper.Clear(ctx); err != nil {
		voice.Say("warning", err.Error(), nil)
	}
	if exit.Signal != "" { // else it has told by itself
		voice.End(exit.Shell(), "the process that kept this replica was "+exit.String()+"; Ray and the command were ended")
	}
	return exit.Shell()
}

// startKeeper runs this program as the keeper. It lives on without us, to clear
// what is below it: that is what the lifeline is for.
func startKeeper(reaper *process.Reaper, c Config) (*process.Child, *os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer reader.Close()
	keeper, err := reaper.Start(process.Command{
		Path: "/proc/self/exe", Args: []string{"muster", "keeper"}, Env: os.Environ(), Orphan: true,
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, reader},
	})
	if err != nil {
		_ = writer.Close()
		return nil, nil, fmt.Errorf("cannot start the keeper: %w", err)
	}
	text, err := json.Marshal(c)
	if err == nil {
		_, err = writer.Write(append(text, '\n'))
	}
	if err != nil {
		keeper.Signal(syscall.SIGKILL)
		_ = writer.Close()
		return nil, nil, fmt.Errorf("cannot tell the keeper what to do: %w", err)
	}
	return keeper, writer, nil
}

// Keeper is the program `muster keeper`, which a front starts; it returns the
// exit code.
func Keeper() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, stopSignals...)
	signal.Ignore(syscall.SIGPIPE)
	syscall.CloseOnExec(lifelineFd)
	lifeline := os.NewFile(lifelineFd, "lifeline")
	in := bufio.NewReader(io.LimitReader(lifeline, maxConfig))
	text, err := in.ReadBytes('\n')
	var c Config
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "muster: keeper is started by muster node, which tells it what to do on descriptor %d: %v\n", lifelineFd, err)
		return 1
	}
	voice := NewVoice(os.Stderr, c.JSON, c.Place.Rank)
	reaper, err := process.NewReaper()
	if err != nil {
		voice.End(1, err.Error())
		return 1
	}
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(orphaned)
	}()
	code, reason := newKeeper(c, reaper, voice).run(signals, orphaned)
	voice.End(code, reason)
	return code
}

// fromTerminal says that a signal came from the terminal's keyboard, so that
// all processes in its foreground have got it.
func fromTerminal(sig syscall.Signal) bool {
	if sig != syscall.SIGINT {
		return false
	}
	group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
