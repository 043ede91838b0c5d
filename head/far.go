package head

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// far is how agents on other machines reach the head: over TCP, with TLS unless
// the network is said to be trusted. Nobody else is let in there.
type far struct {
	listener  *net.TCPListener
	address   string // that it listens on, for the next head
	hosts     []string
	authority *secure.Authority
	config    *tls.Config // nil: plain

	mu       sync.Mutex
	greeting []*net.TCPConn // that have not proved who they are, oldest first
}

// maxGreeting is how many connections may be about to prove who they are. One
// more pushes out the oldest: who only sits there does not keep others away.
const maxGreeting = 256

// listenFar begins to listen for agents on other machines, on host or, where
// that is empty, on every address of this one.
func (h *Head) listenFar(host string, plain bool) (*far, error) {
	authority, err := secure.NewAuthority()
	if err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "0")
	}
	return newFar(host, authority, plain)
}

func newFar(address string, authority *secure.Authority, plain bool) (*far, error) {
	where, err := net.ResolveTCPAddr("tcp", address)
	if err == nil {
		var listener *net.TCPListener
		if listener, err = net.ListenTCP("tcp", where); err == nil {
			f := &far{listener: listener, address: listener.Addr().String(), authority: authority}
			if !plain {
				f.config = authority.ServerConfig()
			}
			f.hosts, err = reachable(listener.Addr().(*net.TCPAddr))
			if err == nil {
				return f, nil
			}
			_ = listener.Close()
		}
	}
	return nil, fmt.Errorf("the head cannot listen on %s for the agents of other machines: %w", address, err)
}

// reachable are the addresses that a listener can be dialled at from elsewhere.
func reachable(at *net.TCPAddr) ([]string, error) {
	port := strconv.Itoa(at.Port)
	if !at.IP.IsUnspecified() {
		return []string{net.JoinHostPort(at.IP.String(), port)}, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var hosts, local []string
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		switch {
		case !ok || ip.IP.IsLinkLocalUnicast():
		case ip.IP.IsLoopback():
			local = append(local, net.JoinHostPort(ip.IP.String(), port))
		default:
			hosts = append(hosts, net.JoinHostPort(ip.IP.String(), port))
		}
	}
	if len(hosts) == 0 {
		hosts = local
	}
	return hosts, nil
}

// openFar listens where a backend has nodes on other machines, unless it does
// already.
func (h *Head) openFar(b backend.Backend, v spec.Virtual) error {
	d, ok := b.(backend.Distant)
	if !ok || !d.Far() {
		return nil
	}
	h.mu.Lock()
	there := h.far != nil
	h.mu.Unlock()
	if there {
		return nil // as the head before this one did
	}
	host := h.opts.Host
	if host == "" {
		host = d.Host()
	}
	f, err := h.listenFar(host, v.Plain || h.opts.Transport == backend.Plain)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.connsMu.Lock() // Crash looks at what is open
	defer h.connsMu.Unlock()
	if h.isOver || h.crashed.Load() {
		_ = f.listener.Close()
		return errCrashed // so that no agent is launched that could not join
	}
	h.far = f
	h.noteMetaLocked(h.virtualText)
	h.startFar()
	return nil
}

// startFar takes connections, and keeps watch over those who came by them.
func (h *Head) startFar() {
	h.serving.Go(h.acceptFar)
	h.serving.Go(h.watchNodes)
}

// farJoin is what agents are told of it; nothing where all are here.
func (h *Head) farJoin() backend.Far {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.far == nil {
		return backend.Far{}
	}
	j := backend.Far{
		Hosts: h.far.hosts, Transport: backend.TLS, Pin: h.far.authority.Pin(), NodeGrace: h.opts.NodeGrace.Seconds(),
		Ping: h.opts.PingEvery.Seconds(), Silent: h.opts.SuspectAfter.Seconds(),
	}
	if h.far.config == nil {
		j.Transport = backend.Plain
	}
	return j
}

// unjoinedLocked names a node whose agent has not joined. Where that takes long, a
// network may be why.
func (n *node) unjoinedLocked() string {
	text := "the agent of " + n.name
	if f := n.h.far; f != nil && !n.launched.IsZero() && time.Since(n.launched) >= n.h.opts.TellEvery {
		text += fmt.Sprintf(", which was started and has not reached the head at %s (is a firewall between? MUSTER_HOST names another address of this machine)", strings.Join(f.hosts, ", "))
	}
	return text
}

// acceptFar takes connections from other machines until the listener is closed.
func (h *Head) acceptFar() {
	select {
	case <-h.running:
	case <-h.over:
	case <-h.crash:
	}
	for {
		nc, err := h.far.listener.AcceptTCP()
		switch {
		case err == nil:
			h.serveFar(nc)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			h.opts.Log.Error("cannot accept connections of other machines", "err", err)
			time.Sleep(100 * time.Millisecond) // it will not be better at once
		}
	}
}

// serveFar reads a connection from another machine until it ends. What comes
// before its hello is bounded in time and in size.
func (h *Head) serveFar(nc *net.TCPConn) {
	h.far.push(nc)
	h.serving.Add(1)
	go func() {
		_ = nc.SetDeadline(time.Now().Add(helloBound))
		c, err := wire.Over(nc, h.far.config, false)
		if err != nil {
			h.far.drop(nc)
			h.opts.Log.Debug("a connection that is not of an agent", "from", nc.RemoteAddr().String(), "err", err)
			_ = nc.Close()
			h.serving.Done()
			return
		}
		h.connsMu.Lock()
		h.conns[c] = true
		h.connsMu.Unlock()
		if h.crashed.Load() {
			c.Cut()
		}
		p, err := h.greetFar(c, nc)
		h.far.drop(nc)
		if err != nil {
			h.opts.Log.Warn("refused", "from", nc.RemoteAddr().String(), "why", err)
			h.done(c)
			return
		}
		r := &reader{h: h, c: c, p: p, lane: h.laneFor()}
		if !r.attend() {
			r.run()
		}
	}()
}

// greetFar answers the hello of an agent.
func (h *Head) greetFar(c *wire.Conn, nc *net.TCPConn) (peer, error) {
	hello, err := wire.ReadHello(c)
	if err == nil && hello.Role != wire.RoleAgent {
		err = spec.Errorf(spec.CodeAuth, "the head takes agents alone over the network, and no %.40q: scripts and workers reach it on its own machine, or by the agent of theirs", hello.Role)
	}
	var p peer
	if err == nil {
		err = h.checkCertificate(c, hello)
	}
	if err == nil {
		p, err = h.admit(hello, c, c, false)
	}
	if err != nil {
		var told *spec.Error
		if errors.As(err, &told) {
			wire.Refuse(c, told)
		}
		return nil, err
	}
	_ = nc.SetDeadline(time.Time{})
	c.SetLimit(wire.MaxFrame)
	c.Flush()
	p.(*nodeConn).start()
	return p, nil
}

// checkCertificate holds the certificate that an agent shows, if it does, against
// the node that it says it is.
func (h *Head) checkCertificate(c *wire.Conn, hello wire.Hello) error {
	stream, ok := c.NetConn().(*tls.Conn)
	if !ok || hello.Node == nil {
		return nil
	}
	if n, shown := secure.Node(stream.ConnectionState()); shown && n != hello.Node.Index {
		return spec.Errorf(spec.CodeAuth, "the agent says that it is of node %d and shows the certificate of node %d", hello.Node.Index, n)
	}
	return nil
}

// push takes note of one that has yet to prove who it is.
func (f *far) push(nc *net.TCPConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.greeting = append(f.greeting, nc)
	if len(f.greeting) > maxGreeting {
		_ = f.greeting[0].Close()
		f.greeting = f.greeting[1:]
	}
}

func (f *far) drop(nc *net.TCPConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, other := range f.greeting {
		if other == nc {
			f.greeting = append(f.greeting[:i:i], f.greeting[i+1:]...)
			return
		}
	}
}

// close ends listening, and who has not proved who it is.
func (f *far) close() {
	if f == nil {
		return
	}
	_ = f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range f.greeting {
		_ = nc.Close()
	}
}

// restoreFar listens again where the head before this one did, as the same
// authority: its agents know no other.
func (h *Head) restoreFar(kept *journal.Meta) error {
	if kept.Listen == "" {
		return nil
	}
	authority, err := secure.Load(kept.Authority)
	if err != nil {
		return err
	}
	if h.far, err = newFar(kept.Listen, authority, kept.Plain); err == nil {
		return nil
	}
	// Those who know that address do not find this head; others can still come.
	h.opts.Log.Error("agents of other machines that have joined cannot come back", "err", err)
	where, _, _ := net.SplitHostPort(kept.Listen)
	h.far, err = newFar(net.JoinHostPort(where, "0"), authority, kept.Plain)
	return err
}
