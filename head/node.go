package head

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// node is one agent, from its launch to its end.
type node struct {
	h      *Head
	index  int
	name   string
	info   spec.Node
	agent  backend.Agent
	handle *backend.Handle // of the agent that the head before this one had
	pid    int             // of the agent
	line
	asker *wire.Asker  // nil while it is away
	cast  [2][]uint32  // links that a call goes to, those that are muted second; empty between calls
	told  wire.Objects // for its store, while that is put together; empty between
	owed  wire.Objects // what its store is yet to hear of, as it was away
	ready bool
	lost  *spec.Error     // why it is no use any more
	leave string          // why its agent is about to end, by its own word; "": it is not
	said  <-chan struct{} // closed when all is read that its agent has said

	wanted  int    // by pools that are being made
	idle    bool   // no pool has it, and it stays for what lies in its store
	address string // where others reach it, if its backend says so

	moved map[string]string // what was shipped there, see backend.Fitted

	launched time.Time // when its agent was

	far     bool // its agent came over the network
	silence silence
	load    wire.Load

	serving  string // where the stores of other nodes reach its own; "": not known
	storeDir string // where its processes find it; "": as those of the head
}

func newNode(h *Head, index int, name string) *node {
	return &node{h: h, index: index, name: name, info: spec.Node{Index: index}}
}

// nodeConn is one connection of an agent.
type nodeConn struct {
	*node
	lineEnd
	asker *wire.Asker
	said  chan struct{} // closed when all of it is read
	links []peer        // relayed connections, by link; its reader's alone
}

// StartNodes has the agents launched of all nodes that the backend has. A head that
// follows this one knows of which kind they are when it returns.
func (h *Head) StartNodes(v spec.Virtual, virtual bool) {
	text := ""
	if virtual {
		text = v.String()
	}
	h.mu.Lock()
	h.noteMetaLocked(text)
	h.mu.Unlock()
	go h.startNodes(v, virtual, 0, spec.Runtime{})
}

// startNodes returns when the agents are launched, not when they have joined.
func (h *Head) startNodes(v spec.Virtual, virtual bool, owner int, warm spec.Runtime) {
	h.mu.Lock()
	if h.isOver {
		h.mu.Unlock()
		return
	}
	h.virtual = v
	h.launches.Add(1)
	h.mu.Unlock()
	defer h.launches.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-h.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	devices := -1
	if virtual {
		devices = v.Devices
	}
	b, err := h.opts.Backend(v, virtual)
	var names []string
	if err == nil {
		err = h.openFar(b, v)
	}
	if err == nil {
		names, err = b.Nodes(ctx)
	}
	if r, ok := b.(backend.Reserver); ok && err == nil {
		err = h.reconcile(ctx, r)
	}
	h.mu.Lock()
	h.launcher = newLauncher(b, backend.Join{
		Head: h.address, Dir: h.opts.Dir, LogDir: h.opts.LogDir, Owner: owner, Virtual: devices, Relay: v.Relay,
		Python: warm.Python, Grace: h.opts.Grace.Seconds(),
	})
	if h.launcher.reserver != nil && len(names) > 1 {
		names = names[:1] // this machine; pools have the others launched
	}
	h.virtual, h.nodesKnown = v, true
	if err != nil {
		h.backendErr = fmt.Errorf("cannot find nodes: %w", err)
	}
	for i, name := range names {
		if i >= len(h.nodes) { // else the head before this one had it
			h.nodes = append(h.nodes, newNode(h, i, name))
		}
	}
	nodes := append([]*node(nil), h.nodes...)
	h.announceLocked()
	h.mu.Unlock()
	for _, n := range nodes {
		if ctx.Err() != nil {
			return
		}
		h.launch(ctx, n)
	}
}

// watch waits for the agent's end, however it comes.
func (n *node) watch(agent backend.Agent) {
	n.h.mu.Lock()
	n.launched = time.Now()
	n.h.mu.Unlock()
	<-agent.Done()
	err := agent.Err()
	if err == nil {
		n.hearOut()
	}
	n.h.mu.Lock()
	why, conn, far := n.leave, n.conn, n.far
	n.h.mu.Unlock()
	switch {
	case err != nil:
		why = err.Error()
	case why == "":
		why = "it ended"
	}
	n.loseAgent(why)
	if far && conn != nil {
		// A backend may take a node for dead whose agent is there all the same. It
		// dials again, and hears that nobody waits for it.
		time.AfterFunc(n.h.opts.SuspectAfter, conn.Cut)
	}
}

// hearWait is how long the last words of an agent may take.
const hearWait = time.Second

// hearOut waits until all is read that an agent has said before its end, as why it
// leaves. That its process has ended may be known before.
func (n *node) hearOut() {
	n.h.mu.Lock()
	said := n.said
	n.h.mu.Unlock()
	if said == nil {
		return
	}
	late := time.NewTimer(hearWait)
	defer late.Stop()
	select {
	case <-said:
	case <-late.C:
	case <-n.h.over:
	case <-n.h.crash:
	}
}

func (n *node) loseAgent(why string) {
	n.lose(spec.Errorf(spec.CodeNodeLost, "the agent of %s is gone: %s. Its workers went with it", n.name, why))
}

// leaveWait is how long the backend may take to say more of an agent that leaves
// than it knows itself.
const leaveWait = 5 * time.Second

// leaving: the agent of n says that it is about to end. What it tells of its
// workers' ends from now on is part of that.
func (n *node) leaving(why string) {
	h := n.h
	h.mu.Lock()
	n.leave = why
	agent := n.agent
	h.mu.Unlock()
	if agent == nil {
		n.loseAgent(why)
		return
	}
	go func() {
		late := time.NewTimer(leaveWait)
		defer late.Stop()
		select {
		case <-agent.Done(): // watch tells
		case <-late.C:
			n.loseAgent(why)
			agent.Kill()
		case <-h.over:
		case <-h.crash:
		}
	}()
}

// admitAgent lets the agent of a node in.
func (h *Head) admitAgent(hello wire.Hello, conn *wire.Conn, w wire.Welcome) (peer, wire.Welcome, error) {
	if hello.Node == nil || conn == nil {
		return nil, w, spec.Errorf(spec.CodeProtocol, "an agent must say which node it is, on a connection of its own")
	}
	i := hello.Node.Index
	if i < 0 || i >= len(h.nodes) || !wire.SameToken(hello.Token, h.tokenFor("agent "+strconv.Itoa(i))) {
		return nil, w, spec.Errorf(spec.CodeAuth, "the token is not that of the agent of node %d", i)
	}
	n := h.nodes[i]
	switch replaced := n.replacedLocked(hello); {
	case n.lost != nil:
		return nil, w, spec.Errorf(spec.CodeNodeLost, "the agent of %s is not waited for any more: %s", n.name, n.lost.Message)
	case replaced != nil:
		return nil, w, replaced
	case n.conn != nil && hello.Back == 0 && !n.triesAgainLocked(hello): // else an earlier head had launched one and not written it down
		return nil, w, spec.Errorf(spec.CodeInvalid, "the agent of %s has joined already", n.name)
	}
	if err := h.signLocked(hello, n, &w); err != nil {
		return nil, w, err
	}
	n.info = *hello.Node
	n.heardLocked(conn)
	h.storesOf(&w, 0, n.index)
	w.PeerToken = h.tokenFor("peers")
	nc := &nodeConn{node: n, lineEnd: n.beginLocked(conn, conn, hello.Back != 0), asker: wire.NewAsker(conn), said: make(chan struct{})}
	n.asker, n.said = nil, nc.said
	if hello.Back == 0 {
		n.asker = nc.asker
		h.noteNodeLocked(n, hello.Pid)
	}
	return nc, w, nil
}

// signLocked gives an agent the certificate that it asks for.
func (h *Head) signLocked(hello wire.Hello, n *node, w *wire.Welcome) error {
	if len(hello.Request) == 0 || h.far == nil {
		return nil
	}
	cert, err := h.far.authority.Sign(hello.Request, n.name, n.index)
	w.Cert, w.CA = cert, h.far.authority.CA()
	return err
}

func (n *nodeConn) start() {
	if n.lineEnd.back {
		return
	}
	n.h.mu.Lock()
	n.ready = true
	if n.h.resuming != nil { // its head was killed before it had joined
		n.h.nodeBackLocked(n.node, &wire.AgentBack{})
	}
	var warm *spec.Runtime
	if o := n.h.owner; o != nil && o.runtime.Python != "" {
		warm = &o.runtime
	}
	n.h.announceLocked()
	n.h.mu.Unlock()
	if warm != nil {
		go func() { // a zygote that is up before it is asked for; its failure shows at its use
			_ = n.asker.Ask(context.Background(), "warm", &wire.Warm{Runtime: *warm}, &wire.Empty{})
		}()
	}
}

func (n *nodeConn) handle(f *wire.Frame, b *batch) error {
	switch {
	case f.Kind == wire.KindOpen:
		n.open(f)
		return nil
	case f.Peer != 0:
		n.relayed(f, b)
		return nil
	case n.asker.Deliver(*f):
		return nil
	case f.Kind != wire.KindNotice:
		return spec.Errorf(spec.CodeProtocol, "an agent sent a frame of kind %d", f.Kind)
	}
	verb, rest, err := wire.ReadVerb(f.Body)
	if err != nil {
		return err
	}
	switch verb {
	case "back":
		return n.returned(rest, b)
	case "resent":
	case "ping":
		return wire.Notify(n.lineEnd.conn, "pong", &wire.Empty{})
	case "pong":
		n.h.mu.Lock()
		n.answeredLocked()
		n.h.mu.Unlock()
	case "load":
		var load wire.Load
		if _, err := load.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "a notice of a load that cannot be read: %v", err)
		}
		n.h.mu.Lock()
		n.load = load
		n.h.mu.Unlock()
	case "log":
		f.Keep()
		n.h.mu.Lock()
		n.h.events.noticeLocked(f.Body)
		n.h.mu.Unlock()
	case "leaving":
		var l wire.Leaving
		if _, err := l.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "a notice of an agent's leaving that cannot be read: %v", err)
		}
		n.leaving(l.Why)
	case "exited":
		var e wire.Exited
		if _, err := e.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "a notice of an exit that cannot be read: %v", err)
		}
		n.h.exited(n.node, e)
	case "moving":
		var m wire.Moving
		if _, err := m.UnmarshalMsg(rest); err != nil {
			return spec.Errorf(spec.CodeProtocol, "a notice of an object that moves that cannot be read: %v", err)
		}
		n.h.mu.Lock()
		n.movingLocked(lease.Object(m.Object), b)
		n.h.mu.Unlock()
	default:
		if known, err := n.storeNotice(verb, rest, b); known {
			return err
		}
		n.h.opts.Log.Warn("unknown notice", "node", n.name, "verb", verb)
	}
	return nil
}

// maxLinkGap bounds what one link's number can make the list of links grow by.
const maxLinkGap = 1 << 12

// open takes a connection that the agent relays.
func (n *nodeConn) open(f *wire.Frame) {
	p := &link{conn: n.lineEnd.conn, peer: f.Peer, node: n.node}
	hello, err := wire.ParseHello(f.Body)
	if int(f.Peer) > len(n.links)+maxLinkGap {
		err = spec.Errorf(spec.CodeProtocol, "link %d: links are numbered from 1 on, and the last was %d", f.Peer, len(n.links)-1)
	}
	var who peer
	if err == nil {
		who, err = n.h.admit(hello, p, nil, false)
	}
	if err != nil {
		p.Queue(wire.Header{Kind: wire.KindWelcome, Flags: wire.FlagError}, nil, wire.AppendError(nil, spec.AsError(err)), nil)
		_ = p.Close()
		return
	}
	for int(f.Peer) >= len(n.links) {
		n.links = append(n.links, nil)
	}
	n.links[f.Peer] = who
	p.Flush()
	if s, ok := who.(starter); ok {
		s.start()
	}
}

// relayed hands a link's frame to its peer. An error ends the link alone.
func (n *nodeConn) relayed(f *wire.Frame, b *batch) {
	if int(f.Peer) >= len(n.links) || n.links[f.Peer] == nil {
		return
	}
	who := n.links[f.Peer]
	var err error
	if f.Kind != wire.KindClose {
		if err = who.handle(f, b); err == nil {
			return
		}
		b.unlock(n.h)
		_ = (&link{conn: n.lineEnd.conn, peer: f.Peer}).Close()
	}
	n.links[f.Peer] = nil
	who.gone(err)
}

func (n *nodeConn) gone(err error) {
	h := n.h
	close(n.said)
	h.mu.Lock()
	last := n.endedLocked(&n.lineEnd)
	if last {
		n.node.asker = nil
	}
	agent, grace := n.agent, n.graceLocked()
	h.mu.Unlock()
	late := func() {
		n.lose(spec.Errorf(spec.CodeNodeLost, "the connection to the agent of %s ended (%v), and it did not come back within %v", n.name, err, grace))
		agent.Kill()
	}
	if last && agent != nil && hungUp(err) {
		late() // before it sees that its connection ends, and comes back
	}
	n.asker.Fail(errAway)
	links := n.links
	n.links = nil
	h.serving.Go(func() { _ = n.lineEnd.conn.CloseWhenFlushed() })
	for _, who := range links {
		if who == nil {
			continue
		}
		// Not wrapped: whatever it was is no fault of theirs.
		who.gone(fmt.Errorf("the connection to the agent of %s ended: %v", n.name, err)) //nolint:errorlint // see above
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// Its workers may still answer, and it may come back; its process tells of its
	// end by itself.
	if last && n.lineEnd.gen == n.line.gen && agent != nil && !hungUp(err) {
		n.awayLocked(h, grace, late)
	}
}

// errAway says that an agent may come back.
var errAway = errors.New("the connection to the agent is cut")

// lose takes a node out of use and ends its workers' part in calls.
func (n *node) lose(why *spec.Error) {
	h := n.h
	if h.crashed.Load() {
		return
	}
	var b batch
	h.mu.Lock()
	if n.lost == nil {
		n.lost, n.ready = why, false
		n.hereLocked()
		why.Node = n.name
		for _, number := range slices.Sorted(maps.Keys(h.workers)) { // so that the first rank is told
			if w := h.workers[number]; w != nil && w.node == n {
				h.lostLocked(w, why, &b)
			}
		}
		h.lostCopiesLocked(n, &b)
		h.settleSoonLocked() // it is not waited for, nor are workers that went before it
		h.announceLocked()
	}
	h.mu.Unlock()
	b.flush()
}

// stop has the agent end everything and then itself.
func (n *node) stop(ctx context.Context, grace time.Duration, why string) error {
	n.h.mu.Lock()
	agent, asker, conn, far, trouble := n.agent, n.asker, n.conn, n.far, n.troubleLocked()
	n.h.mu.Unlock()
	if agent == nil {
		return nil
	}
	if asker != nil && trouble == "" {
		// Its answer means that all output is here. Without an answer the agent
		// still ends when its connection does.
		err := asker.Ask(ctx, "stop", &wire.Stop{Workers: []uint32{}, All: true, GraceSeconds: grace.Seconds(), Why: why}, &wire.Empty{})
		_ = conn.CloseWhenFlushed()
		if far && errors.Is(err, errAway) { // it may be cut off, and not know that all is over
			var late context.CancelFunc
			ctx, late = context.WithTimeout(ctx, n.h.opts.SuspectAfter)
			defer late()
		}
	} else {
		agent.Kill()
	}
	select {
	case <-agent.Done():
		return nil
	case <-ctx.Done():
		agent.Kill()
		<-agent.Done()
		return fmt.Errorf("the agent of %s did not end by itself", n.name)
	}
}

// tellLocked queues a request whose answer nobody waits for.
func (n *node) tellLocked(verb string, req marshaler, b *batch) {
	if n.conn == nil || n.lost != nil {
		return
	}
	body, err := wire.AppendVerb(b.body[:0], verb, req)
	if err != nil { // a number and a flag can be encoded
		return
	}
	b.body = body
	b.queue(n.conn, wire.Header{Kind: wire.KindRequest, ID: unasked}, nil, body, nil)
}

// unasked is an id that no Asker comes to: an answer to it is dropped.
const unasked = 1 << 63

// ask sends a request to the agent of n, if there is one. While it is away it is
// waited for, and asked again: what is asked of agents can be asked twice.
func (n *node) ask(ctx context.Context, verb string, req marshaler, resp unmarshaler) error {
	for {
		n.h.mu.Lock()
		asker, lost, joined, changed := n.asker, n.lost, n.gen > 0 || n.h.resuming != nil, n.h.changed
		n.h.mu.Unlock()
		switch {
		case lost != nil:
			return lost
		case !joined:
			return spec.Errorf(spec.CodeNodeLost, "the agent of %s has not joined", n.name)
		case asker != nil:
			if err := asker.Ask(ctx, verb, req, resp); !errors.Is(err, errAway) {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-n.h.crash:
			return errCrashed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
