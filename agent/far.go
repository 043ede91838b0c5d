package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// dialBound is how long one address of the head may take to answer.
	dialBound = 5 * time.Second
	// stuckAfter is how many times the silence is borne where the head's machine
	// acknowledges what it is sent: to dial again would not help a head that is busy.
	stuckAfter = 4
	// loadEvery is how often the head is told how busy the node is.
	loadEvery = 5 * time.Second
)

// identity is what an agent proves itself by to the head, and its node by to
// other nodes. Server and client are for those, and nil before the first join and
// where nothing is encrypted.
type identity struct {
	dial           *tls.Config // to the head; nil: plain
	key            *ecdsa.PrivateKey
	request        []byte
	server, client *tls.Config
}

// newIdentity makes a key where there is an authority to sign for it.
func newIdentity(join backend.Join) (*identity, error) {
	id := &identity{}
	switch {
	case join.Transport == backend.Plain, join.Pin == "" && len(join.Hosts) == 0:
		return id, nil
	case join.Transport != backend.TLS:
		return nil, spec.Errorf(spec.CodeInvalid, "node %s: transport %q is neither %s nor %s", join.Name, join.Transport, backend.TLS, backend.Plain)
	}
	var err error
	if id.dial, err = secure.Pinned(join.Pin); err != nil {
		return nil, err
	}
	if id.key, err = secure.NewKey(); err != nil {
		return nil, err
	}
	id.request, err = secure.Request(id.key)
	return id, err
}

// take takes the certificate that came with a welcome.
func (id *identity) take(w *wire.Welcome) error {
	if id.key == nil || id.server != nil {
		return nil
	}
	var err error
	if id.server, id.client, err = secure.Mutual(w.CA, w.Cert, id.key); err != nil {
		return fmt.Errorf("the head gave no certificate of use: %w", err)
	}
	id.dial.Certificates = id.client.Certificates // from now on it shows who it is
	id.request = nil
	return nil
}

// connect reaches the head: by its socket, or over the network.
func (a *agent) connect(ctx context.Context) (*wire.Conn, error) {
	if len(a.join.Hosts) == 0 {
		return wire.Dial(a.join.Head)
	}
	conn, err := wire.DialFar(ctx, a.join.Hosts, a.identity.dial, dialBound)
	if err == nil && a.join.Address == "" {
		a.node.Address = conn.LocalHost()
	}
	return conn, err
}

// patience is how long a head is dialled that was lost. One on another machine may
// be behind a network that is cut; where somebody says that nothing listens there,
// the grace for a head that is gone counts.
func (a *agent) patience() time.Duration {
	if len(a.join.Hosts) == 0 {
		return seconds(a.join.Grace)
	}
	return max(seconds(a.join.Grace), seconds(a.join.NodeGrace))
}

// lengthen has a worker wait for the head for as long as its agent does.
func (a *agent) lengthen(start *wire.WorkerStart) {
	if len(a.join.Hosts) == 0 {
		return
	}
	env := maps.Clone(start.Env)
	if env == nil {
		env = map[string]string{}
	}
	env["MUSTER_HEAD_GRACE"] = strconv.FormatFloat(a.patience().Seconds(), 'f', -1, 64)
	start.Env = env
}

// refusals notices that there is no head where it was, and for how long.
type refusals struct{ since time.Time }

// tooMany says that the grace for a head that is gone is over.
func (r *refusals) tooMany(err error, grace time.Duration) bool {
	if !refused(err) {
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since) >= grace
}

// refused says that nothing listens at any address of the head. One of several may
// be that of a device which every machine has.
func refused(err error) bool {
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	return !slices.ContainsFunc(all.Unwrap(), func(err error) bool { return !errors.Is(err, syscall.ECONNREFUSED) })
}

// watchHead keeps watch over a connection over the network, until it ends: it asks
// where nothing comes, and ends it where that goes on, so that it is made anew.
func (a *agent) watchHead(ctx context.Context, conn *wire.Conn) {
	if len(a.join.Hosts) == 0 || a.join.Ping <= 0 {
		return
	}
	tick := time.NewTicker(seconds(a.join.Ping) / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		quiet, ok := conn.Quiet()
		switch silent := seconds(a.join.Silent); {
		case !ok || conn.Err() != nil:
			return // its reader has noticed
		case silenced(quiet, silent):
			a.redial(conn, fmt.Sprintf("nothing has come from the head for %.1f s", quiet.Data.Seconds()))
			return
		case quiet.Data >= seconds(a.join.Ping):
			_ = wire.Notify(conn, "ping", &wire.Ping{Silent: quiet.Data.Seconds()}) // a number can be encoded
		}
	}
}

// silenced says that a connection is better made anew.
func silenced(q wire.Quiet, bound time.Duration) bool {
	return q.Data >= bound && (q.Ack >= bound || q.Data >= stuckAfter*bound)
}

// redial ends a connection, which has its reader dial again.
func (a *agent) redial(conn *wire.Conn, why string) {
	fmt.Fprintf(os.Stderr, "muster agent: node %s: %s; it dials again\n", a.join.Name, why)
	conn.Cut()
}

// pinged answers the head. Where it has not heard of this node for long, although
// this node hears of it, the network loses one direction: of this connection at
// least.
func (a *agent) pinged(conn *wire.Conn, body []byte) error {
	var m wire.Ping
	if err := read("ping", body, &m); err != nil {
		return err
	}
	if a.join.Silent > 0 && m.Silent >= stuckAfter*a.join.Silent {
		a.redial(conn, fmt.Sprintf("the head has heard nothing of it for %.1f s", m.Silent))
		return nil
	}
	return wire.Notify(conn, "pong", &wire.Empty{})
}

// tellLoad tells the head how busy the node is, every now and then.
func (a *agent) tellLoad(ctx context.Context) {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	root := os.DirFS("/")
	for {
		a.head.notify("load", loadOf(root))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loadOf is how busy this machine is.
func loadOf(root fs.FS) *wire.Load {
	text, err := fs.ReadFile(root, "proc/loadavg")
	if err != nil {
		return &wire.Load{}
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	return &wire.Load{Load: load, Available: availableMemory(root, memoryGroups(root)), Known: err == nil}
}

// bootID tells this machine from itself after it was started anew.
func bootID(root fs.FS) string {
	text, _ := fs.ReadFile(root, "proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}
