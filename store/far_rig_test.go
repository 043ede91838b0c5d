package store

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-rl/muster/lease"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const peerToken = "among stores"

// farRig is stores of several nodes that reach each other by HTTP, and a head
// that only knows who has what.
type farRig struct {
	testing.TB
	hosts []*farHost

	mu     sync.Mutex
	copies lease.Copies
	known  map[uint64]bool
	lost   map[int]bool
	asked  []wire.Fetch
	silent bool // it hears, and does not answer
}

// farHost is one node.
type farHost struct {
	*Store
	node    int
	dir     string
	address string
	server  *http.Server
	sent    atomic.Int64 // bytes of bodies
	gets    atomic.Int64
	// spoil may take the place of the handler, and says whether it did.
	spoil atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

type farOptions struct {
	nodes     int
	tls       bool
	change    func(o *Options)
	peers     func(node int, p *Peers)
	authority func(node int) *secure.Authority // whose certificate a node has
}

func newFarRig(t testing.TB, opts farOptions) *farRig {
	t.Helper()
	leakCheck(t)
	f := &farRig{TB: t, known: map[uint64]bool{}, lost: map[int]bool{}}
	var authority *secure.Authority
	if opts.tls {
		var err error
		if authority, err = secure.NewAuthority(); err != nil {
			t.Fatal(err)
		}
	}
	for node := range opts.nodes {
		signer := authority
		if opts.authority != nil {
			signer = opts.authority(node)
		}
		f.hosts = append(f.hosts, f.start(node, signer, &opts))
	}
	return f
}

func (f *farRig) start(node int, authority *secure.Authority, opts *farOptions) *farHost {
	f.Helper()
	dir, err := os.MkdirTemp("", "mf")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	o := Options{Node: node, Name: fmt.Sprintf("node-%d", node), Token: token, Budget: 256 * mib}
	if opts.change != nil {
		opts.change(&o)
	}
	h := &farHost{Store: New(o), node: node, dir: dir}
	h.spillPatience, h.fullPatience, h.farPatience = time.Millisecond, 10*time.Millisecond, patience
	peers := Peers{Token: peerToken, Host: secure.NodeName, Ask: func(m *wire.Fetch) { f.ask(h, m) }, Tell: func(m *wire.Copied) { f.tell(h, m) }}
	var server *tls.Config
	if authority != nil {
		server, peers.TLS = certify(f, authority, node)
	}
	if opts.peers != nil {
		opts.peers(node, &peers)
	}
	h.Join(peers)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	h.address = tcp.Addr().String()
	handler := h.Handler(peerToken)
	h.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.gets.Add(1)
		if spoil := h.spoil.Load(); spoil != nil && (*spoil)(w, r) {
			return
		}
		handler.ServeHTTP(&counting{ResponseWriter: w, n: &h.sent}, r)
	}), ErrorLog: log.New(io.Discard, "", 0), ConnContext: ConnContext}
	if server != nil {
		tcp = Secure(tcp, server)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = h.server.Serve(tcp) })
	unix, err := net.Listen("unix", filepath.Join(dir, fmt.Sprintf("agent-%d.sock", node)))
	if err != nil {
		f.Fatal(err)
	}
	serving.Go(func() {
		for {
			nc, err := unix.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				conn := wire.NewConn(nc)
				if hello, err := wire.ReadHello(conn); err == nil {
					h.Serve(conn, hello)
				}
			})
		}
	})
	f.Cleanup(func() {
		_ = h.server.Close()
		unix.Close()
		h.Close()
		serving.Wait()
	})
	return h
}

// certify gives a node a certificate.
func certify(t testing.TB, authority *secure.Authority, node int) (server, client *tls.Config) {
	t.Helper()
	key, err := secure.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := secure.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := authority.Sign(request, fmt.Sprintf("node-%d", node), node)
	if err != nil {
		t.Fatal(err)
	}
	server, client, err = secure.Mutual(authority.CA(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// counting counts what is sent, and still has the kernel send it.
type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func (c *counting) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.ResponseWriter.(io.ReaderFrom).ReadFrom(r)
	c.n.Add(n)
	return n, err
}

// ask is the head, which is asked for sources.
func (f *farRig) ask(h *farHost, m *wire.Fetch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, *m)
	if f.silent {
		return
	}
	answer := f.answerLocked(h, m)
	go h.Sources(answer)
}

func (f *farRig) answerLocked(h *farHost, m *wire.Fetch) *wire.Sources {
	answer := &wire.Sources{ID: m.ID}
	o := lease.Object(m.Object)
	if !f.known[m.Object] {
		answer.Error = wire.AppendError(nil, spec.Errorf(spec.CodeNotFound, "object %x is not known any more", m.Object))
		return answer
	}
	var runs []lease.Run
	for _, r := range m.Runs {
		runs = append(runs, lease.Run{From: r.From, To: r.To})
	}
	sources, missing := f.copies.Want(o, h.node, runs, m.Avoid, func(node int) bool { return !f.lost[node] })
	if len(missing) > 0 {
		answer.Error = wire.AppendError(nil, spec.Errorf(spec.CodeNodeLost, "node-%d is lost", o.Node()))
		return answer
	}
	for _, s := range sources {
		answer.Sources = append(answer.Sources, wire.Source{From: s.From, To: s.To, Node: s.Node, Name: fmt.Sprintf("node-%d", s.Node), Address: f.hosts[s.Node].address})
	}
	return answer
}

// tell is the head, which is told what has arrived.
func (f *farRig) tell(h *farHost, m *wire.Copied) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.Gone {
		f.copies.Gone(lease.Object(m.Object), h.node)
		return
	}
	var runs []lease.Run
	for _, r := range m.Runs {
		runs = append(runs, lease.Run{From: r.From, To: r.To})
	}
	f.copies.Got(lease.Object(m.Object), h.node, runs)
}

// waitAsked waits until the head was asked so many times.
func (f *farRig) waitAsked(n int) {
	f.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		asked := len(f.asked)
		f.mu.Unlock()
		if asked >= n {
			return
		}
		if time.Now().After(deadline) {
			f.Fatalf("the head was asked %d times, not %d", asked, n)
		}
	}
}

// lose says that a node is gone.
func (f *farRig) lose(node int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost[node] = true
	f.copies.Lost(node)
}

// drop is the word of the head that nobody knows of an object any more.
func (f *farRig) drop(id uint64) {
	f.mu.Lock()
	delete(f.known, id)
	at := append(f.copies.At(lease.Object(id)), int(id>>48))
	f.copies.Free(lease.Object(id))
	f.mu.Unlock()
	for _, node := range at {
		f.hosts[node].Objects(&wire.Objects{Drop: []uint64{id}})
	}
}

// client is a connection to the store of a node.
func (f *farRig) client(node int, holder uint64) *Client {
	f.Helper()
	c, err := Dial(f.hosts[node].dir, node, token, holder)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	return c
}

// put makes an object of random bytes on a node, which the head knows of.
func (f *farRig) put(node, size int) (uint64, []byte) {
	f.Helper()
	content := noise(size)
	id, _, err := f.client(node, 100).Put("a batch of noise", content)
	if err != nil {
		f.Fatal(err)
	}
	f.hosts[node].Objects(&wire.Objects{Hold: []uint64{id}})
	f.mu.Lock()
	f.known[id] = true
	f.mu.Unlock()
	return id, content
}

func noise(size int) []byte {
	content := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = r.Read(content)
	return content
}

// same opens an object at a node and holds it against what it should be.
func (f *farRig) same(c *Client, id uint64, content []byte) {
	f.Helper()
	views, err := c.Open(id)
	if err != nil {
		f.Fatal(err)
	}
	defer views[0].Close()
	if !bytes.Equal(views[0].Bytes, content) {
		f.Fatalf("object %x is another one", id)
	}
}

// empty waits until no store has anything.
func (f *farRig) empty() {
	f.Helper()
	deadline := time.Now().Add(patience)
	for {
		n := 0
		for _, h := range f.hosts {
			n += len(h.Status().Objects)
		}
		f.mu.Lock()
		left := f.copies.Len()
		f.mu.Unlock()
		if n == 0 && left == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, h := range f.hosts {
				f.Logf("%s: %+v", h.opts.Name, h.Status())
			}
			f.Fatalf("%d objects and %d spreads are left", n, left)
		}
		time.Sleep(time.Millisecond)
	}
}

// hasSent waits until a node has sent so many bytes, and says that it is no more.
func (h *farHost) hasSent(t testing.TB, n int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); h.sent.Load() < n && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // it counts what is sent when that has arrived
	}
	if got := h.sent.Load(); got != n {
		t.Errorf("%s has sent %d bytes instead of %d", h.opts.Name, got, n)
	}
}

// haveSent waits until all nodes together have sent so many bytes, and says that
// it is no more, and of none more than most.
func (f *farRig) haveSent(n, most int64) {
	f.Helper()
	total := func() (all int64) {
		for _, h := range f.hosts {
			all += h.sent.Load()
		}
		return all
	}
	for deadline := time.Now().Add(patience); total() < n && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if got := total(); got != n {
		f.Errorf("%d bytes travelled instead of %d", got, n)
	}
	for _, h := range f.hosts {
		if got := h.sent.Load(); got > most {
			f.Errorf("%s has sent %d bytes, more than %d", h.opts.Name, got, most)
		}
	}
}

// spoiled has a node's server do something else, as long as fn says so.
func (h *farHost) spoiled(fn func(w http.ResponseWriter, r *http.Request) bool) { h.spoil.Store(&fn) }
