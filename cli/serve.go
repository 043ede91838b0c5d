package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-rl/muster/agent"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
)

// ownerFd is where an embedded head finds the connection to its owner.
const ownerFd = 3

func headCommand() *cobra.Command {
	var embedded bool
	var virtual string
	var which naming
	var from provider
	cmd := &cobra.Command{
		Use:   "head",
		Short: "Run a head that scripts attach to by muster.init(address=…)",
		Long: `Run a head by itself, until it is interrupted. Scripts that do not ask for one
start a head of their own and need none of this.

One that was killed can be followed by another within the grace (30 s, or
MUSTER_HEAD_GRACE), which finds its nodes, workers and scripts again: by --resume
with the session's name, or by the same --name, as a service manager starts it.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runHead(embedded, virtual, which, from) },
	}
	cmd.Flags().BoolVar(&embedded, "embedded", false, "serve the parent process over descriptor 3 and end with it")
	cmd.Flags().StringVar(&virtual, "virtual", "", "stand-ins instead of real GPUs: NODESxGPUS, as 4x8")
	cmd.Flags().StringVar(&which.resume, "resume", "", "take over the session of this name, whose head was killed")
	cmd.Flags().StringVar(&which.name, "name", "", "call the session so; one of this name whose head was killed is taken over")
	from.flags(cmd)
	cmd.MarkFlagsMutuallyExclusive("resume", "virtual")
	cmd.MarkFlagsMutuallyExclusive("resume", "name")
	_ = cmd.Flags().MarkHidden("embedded")
	return cmd
}

// naming says which session a head has; neither: a new one.
type naming struct{ resume, name string }

func runHead(embedded bool, virtual string, which naming, from provider) error {
	if err := from.check(); err != nil {
		return &exitError{exitUsage, err}
	}
	// The head makes little garbage and much of it at once: collect less often.
	debug.SetGCPercent(400)
	if os.Getenv("GOMAXPROCS") == "" {
		// The script and the workers need the cores more. Two at least: while one
		// waits for connections (wire.Loop), the other is there for all else.
		runtime.GOMAXPROCS(max(2, runtime.NumCPU()/2))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)

	if err := head.CheckFiles(); err != nil {
		return err
	}
	if path := os.Getenv("MUSTER_PROFILE"); path != "" {
		stopProfile, err := profile(path)
		if err != nil {
			return err
		}
		defer stopProfile()
	}
	var owner net.Conn
	ownerPid := 0
	if embedded {
		ownerPid = os.Getppid()
		file := os.NewFile(ownerFd, "owner")
		conn, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("an embedded head is started by the SDK, which gives it a socket on descriptor %d: %w", ownerFd, err)
		}
		owner = conn
	}
	v := spec.Virtual{}
	if virtual != "" {
		parsed, err := spec.ParseVirtual(virtual)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		v = parsed
	}
	watchAfter, err := watchAfter(os.Getenv("MUSTER_WATCHDOG"))
	if err != nil {
		return &exitError{exitUsage, err}
	}
	cancelGrace, err := cancelGrace(os.Getenv("MUSTER_CANCEL_GRACE"))
	if err != nil {
		return &exitError{exitUsage, err}
	}
	network, err := networkOptions(os.Getenv)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	reaper, err := process.NewReaper()
	if err != nil {
		return err
	}
	defer reaper.Close()
	level := slog.LevelWarn
	if os.Getenv("MUSTER_DEBUG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	var running atomic.Pointer[head.Head]
	place, kept, before, err := takePlace(which, ownerPid, func(err error) {
		log.Error(err.Error())
		if h := running.Load(); h != nil {
			go h.Warn(err.Error()) // whoever writes may hold the head's lock
		}
	})
	if err != nil {
		return err
	}
	defer place.Close()
	go session.ClearRemains(ctx, session.HeadGrace(), func(what string) { log.Warn(what) })
	fault, err := headFault(os.Getenv("MUSTER_FAULT_HEAD"), kept.Epoch())
	if err != nil {
		return &exitError{exitUsage, err}
	}
	nodes := &nodes{provider: from, reaper: reaper, place: place, owner: ownerPid, warn: func(text string) {
		if h := running.Load(); h != nil {
			h.Warn(text)
		}
	}}
	h, err := head.New(head.Options{
		Dir: place.Dir, LogDir: place.LogDir, Session: place.Name, WatchAfter: watchAfter, CancelGrace: cancelGrace,
		Log: log, Journal: kept, Resume: before, Grace: graceOf(session.HeadGrace()), Fault: fault,
		Host: network.host, Transport: network.transport, NodeGrace: network.grace,
		Backend: nodes.give, Apart: from.backend == "ray",
	})
	if err != nil {
		if before == nil {
			_ = os.RemoveAll(place.Dir)
		}
		return err
	}
	running.Store(h)
	if !embedded {
		fmt.Printf("head of session %s\nattach by: muster.init(address=%q)\n", place.Name, h.Address())
		if before == nil {
			h.StartNodes(v, virtual != "")
		}
	}
	err = h.Run(ctx, owner)
	nodes.close()
	return errors.Join(err, kept.Close(), reaper.Clear(context.Background()))
}

// takePlace makes the session's folders and its journal, or takes over those of
// a head that was killed, with what it has written. A head can do without a
// journal, and tell hears of it; one that is to follow another cannot.
func takePlace(which naming, owner int, tell func(error)) (session.Session, *journal.Journal, *journal.State, error) {
	var place session.Session
	var resumed bool
	var err error
	switch {
	case which.resume != "":
		resumed = true
		place, err = session.Resume(which.resume, owner)
	case which.name != "":
		place, resumed, err = session.Named(which.name, owner)
	default:
		place, err = session.New(owner)
	}
	if err != nil {
		return place, nil, nil, err
	}
	if resumed {
		kept, before, err := journal.Open(place.Dir, tell)
		if err != nil {
			place.Close()
			return place, nil, nil, err
		}
		return place, kept, &before, nil
	}
	kept, err := journal.Create(place.Dir, tell)
	if err != nil {
		tell(fmt.Errorf("%w: all goes on, but if this head ends, no other can take its place", err))
	}
	return place, kept, nil, nil
}

// graceOf is a grace as the head's options have it, where 0 is the default.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// watchAfter reads MUSTER_WATCHDOG; 0 is the head's own default.
func watchAfter(text string) (time.Duration, error) {
	switch text {
	case "":
		return 0, nil
	case "off":
		return -1, nil
	}
	after, err := time.ParseDuration(text)
	if err != nil || after <= 0 {
		return 0, fmt.Errorf("MUSTER_WATCHDOG is %q; it is off, or the least time after which a collective call can be warned of, as 30s or 2m", text)
	}
	return after, nil
}

// cancelGrace reads MUSTER_CANCEL_GRACE, in seconds; 0 is the head's own default.
func cancelGrace(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= 1e6) {
		return 0, fmt.Errorf("MUSTER_CANCEL_GRACE is %q; it is how many seconds a call that is cancelled may take to end", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// profile writes a CPU profile of the head to path until it is stopped; see
// docs/benchmarks.md.
func profile(path string) (stop func(), err error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("cannot write the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, fmt.Errorf("cannot profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}

func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "The agent of one node; started by a head", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return coded(agent.Main()) },
	}
}

func wardenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "warden", Short: "What keeps an agent in hand; started by a head", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return coded(agent.Warden()) },
	}
}

// coded makes an error of an exit code whose cause was told already.
func coded(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}
