package head

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/call"
	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Options say how a head runs. The zero value of a duration means its default.
type Options struct {
	// Dir is for sockets; the head makes it and removes it at its end.
	Dir string
	// LogDir is for workers' logs, which stay.
	LogDir  string
	Session string
	// Backend gives the nodes for a virtual shape ("" for real devices). It is
	// asked once, when the owner (or the start of a standalone head) says which.
	Backend func(spec.Virtual, bool) (backend.Backend, error)
	Log     *slog.Logger
	// Journal is where the head writes down what the one after it needs; nil:
	// nowhere. Resume is what the one before it has written; nil: there was none.
	Journal *journal.Journal
	// Fault, where not nil, is told of every step, for tests that end the head at one.
	Fault  func(step string)
	Resume *journal.State

	CancelGrace time.Duration // cancel to "still in C"; 5 s
	ExitWait    time.Duration // a worker's connection ended, its exit is not told; 5 s
	Grace       time.Duration // for who is cut off to come back, and for a head that is gone; 30 s, below 0: none
	StopWait    time.Duration // on top of the workers' grace; 10 s
	TellEvery   time.Duration // how often a wait without news is told again; 2 s
	WatchAfter  time.Duration // when a collective call can look as if it hangs; 10 s, below 0: never

	// Of nodes on other machines: see liveness.go.
	PingEvery    time.Duration // 1 s
	SuspectAfter time.Duration // 3 s
	NodeGrace    time.Duration // 60 s
	// Host is the address, or address:port, to listen on for their agents; "":
	// what the backend says. Transport is backend.TLS (also "") or backend.Plain.
	Host      string
	Transport string
	// Apart says that the backend will have such nodes, before any is known.
	Apart bool
}

func (o *Options) defaults() {
	if o.CancelGrace == 0 {
		o.CancelGrace = 5 * time.Second
	}
	if o.ExitWait == 0 {
		o.ExitWait = 5 * time.Second
	}
	switch {
	case o.Grace == 0:
		o.Grace = 30 * time.Second
	case o.Grace < 0:
		o.Grace = 0
	}
	if o.StopWait == 0 {
		o.StopWait = 10 * time.Second
	}
	if o.TellEvery == 0 {
		o.TellEvery = 2 * time.Second
	}
	if o.WatchAfter == 0 {
		o.WatchAfter = 10 * time.Second
	}
	if o.PingEvery == 0 {
		o.PingEvery = time.Second
	}
	if o.SuspectAfter == 0 {
		o.SuspectAfter = 3 * time.Second
	}
	if o.NodeGrace == 0 {
		o.NodeGrace = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Head is a running head.
type Head struct {
	opts     Options
	epoch    uint32
	address  string
	token    string
	secret   []byte
	listener net.Listener
	far      *far // nil: all nodes are here
	launcher launcher

	mu         sync.Mutex
	table      *call.Table
	todo       []call.Op // orders that are being carried out
	ordering   bool
	leases     lease.Table
	objects    []lease.Object // of the frame at hand
	touched    []*node        // whose stores are to be told something
	lending    bool           // they will be told of loans
	nodes      []*node
	nodesKnown bool
	backendErr error
	pools      map[int]*pool
	nextPool   int
	clusters   map[uint32]*cluster
	names      map[string]*cluster
	gone       map[uint32]string // names of clusters that are no more, for people
	nextNumber uint32            // of clusters, workers and callers alike
	workers    map[uint32]*worker
	callers    map[uint32]*caller
	changed    chan struct{} // closed and made anew when a node's state changed
	events     events
	parts      []wire.Value // for joining results
	watchdog   watchdog
	resuming   *resuming // while those are waited for who knew the head before this one
	uncounted  *resuming // after that, while callers may still come that have objects
	throttled  int       // callers that wait for calls in flight to end
	free       *sync.Cond

	owner    *caller
	ownerPid int
	virtual  spec.Virtual
	sharing  sharing

	virtualText string // as the owner said it, for the journal

	begun    time.Time
	isOver   bool
	over     chan struct{} // closed when the head should end
	overWhy  string
	serving  sync.WaitGroup
	launches sync.WaitGroup // startNodes under way
	connsMu  sync.Mutex
	conns    map[*wire.Conn]bool
	crashed  atomic.Bool
	crash    chan struct{}
	running  chan struct{} // closed by Run
	lanes    []*lane
}

// New makes a head that listens in opts.Dir.
func New(opts Options) (*Head, error) {
	opts.defaults()
	epoch := opts.Journal.Epoch()
	h := &Head{
		opts: opts, epoch: epoch, table: call.NewTable(epoch), begun: time.Now(), crash: make(chan struct{}), running: make(chan struct{}), watchdog: watchdog{after: opts.WatchAfter},
		pools: map[int]*pool{}, clusters: map[uint32]*cluster{}, names: map[string]*cluster{}, gone: map[uint32]string{},
		workers: map[uint32]*worker{}, callers: map[uint32]*caller{},
		conns: map[*wire.Conn]bool{}, changed: make(chan struct{}), over: make(chan struct{}),
	}
	h.free = sync.NewCond(&h.mu)
	h.leases.Clock = sinceThen()
	h.secret = make([]byte, 32)
	if opts.Resume != nil {
		h.secret = opts.Resume.Meta.Secret
		if err := h.restore(opts.Resume); err != nil {
			return nil, fmt.Errorf("the journal of session %s cannot be gone on from: %w", opts.Session, err)
		}
	} else if _, err := rand.Read(h.secret); err != nil {
		return nil, fmt.Errorf("no randomness for tokens: %w", err)
	}
	h.token = h.tokenFor("session")
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the folder for sockets: %w", err)
	}
	h.address = filepath.Join(opts.Dir, "head.sock")
	if opts.Resume != nil {
		_ = os.Remove(h.address) // the one before this could not
	}
	if opts.Resume != nil {
		if err := h.restoreFar(&opts.Resume.Meta); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", h.address)
	if err != nil {
		h.far.close()
		return nil, fmt.Errorf("cannot listen on %s: %w", h.address, err)
	}
	h.listener = listener
	if err := errors.Join(
		os.Chmod(h.address, 0o600),
		os.WriteFile(filepath.Join(opts.Dir, "token"), []byte(h.token), 0o600),
	); err != nil {
		_ = listener.Close()
		h.far.close()
		return nil, fmt.Errorf("cannot set up the folder for sockets: %w", err)
	}
	return h, nil
}

// Address is the unix socket that the head listens on.
func (h *Head) Address() string { return h.address }

// Token is what controllers of this session prove themselves with.
func (h *Head) Token() string { return h.token }

// tokenFor derives the token of one role or worker from the head's secret, so
// that none needs to be stored and each opens only its own door.
func (h *Head) tokenFor(who string) string {
	mac := hmac.New(sha256.New, h.secret)
	mac.Write([]byte(who))
	return hex.EncodeToString(mac.Sum(nil))
}

// Run serves until ctx ends, the owner is gone or someone asks for the end, and
// then takes everything down. owner, where not nil, is the connection of the
// process that all this is for. Run returns nil after an orderly end.
func (h *Head) Run(ctx context.Context, owner net.Conn) error {
	h.openLanes()
	close(h.running)
	h.serving.Add(1)
	go h.accept()
	h.serving.Go(h.watchCalls)
	if h.opts.Resume != nil && h.far != nil {
		h.startFar()
	}
	if h.opts.Resume != nil {
		h.resume(h.opts.Resume)
	}
	if owner != nil {
		h.serve(wire.NewConn(owner), true)
	}
	select {
	case <-h.crash:
		return h.fall()
	case <-ctx.Done():
		h.end(context.Cause(ctx).Error())
	case <-h.over:
	}
	h.opts.Log.Info("ending", "why", h.overWhy)
	err := h.takeDown()
	_ = h.listener.Close()
	h.far.close()
	h.connsMu.Lock()
	open := make([]*wire.Conn, 0, len(h.conns))
	for c := range h.conns {
		open = append(open, c)
	}
	h.connsMu.Unlock()
	for _, c := range open { // side by side: some may not read any more
		h.serving.Go(func() { _ = c.CloseWhenFlushed() })
	}
	h.serving.Wait()
	h.closeLanes()
	return errors.Join(err, os.RemoveAll(h.opts.Dir))
}

// end asks for the end of the head, once.
func (h *Head) end(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isOver {
		h.isOver, h.overWhy = true, why
		close(h.over)
	}
}

// takeDown stops clusters, then agents.
func (h *Head) takeDown() error {
	h.launches.Wait() // an agent that is being launched must not be missed
	h.mu.Lock()
	grace := time.Duration(0)
	for _, cl := range h.clusters {
		grace = max(grace, cl.grace())
		h.goneLocked(cl, "the head is ending: "+h.overWhy)
	}
	if h.ownerLostLocked() {
		grace = min(grace, 2*time.Second) // nobody waits for a polite end
	}
	nodes := append([]*node(nil), h.nodes...)
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), grace+h.opts.StopWait)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		all.Go(func() { errs[i] = n.stop(ctx, grace, h.overWhy) })
	}
	all.Wait()
	h.mu.Lock()
	h.events.closeLocked()
	h.mu.Unlock()
	return errors.Join(errs...)
}

// ownerLostLocked says that the end came from the owner's end, not its wish.
func (h *Head) ownerLostLocked() bool { return h.owner != nil && h.owner.dead }

// announceLocked wakes whoever waits for nodes to change, or for devices.
func (h *Head) announceLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Head) numberLocked() uint32 {
	h.nextNumber++
	return h.nextNumber
}
