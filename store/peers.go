package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const (
	// stallBound is how long another store may send nothing.
	stallBound = 15 * time.Second
	dialBound  = 10 * time.Second
	idleBound  = 60 * time.Second
	// keptIdle is how many connections to another store are kept.
	keptIdle = 2 * streams
	// readPiece is how much is read, and summed up while it is in the caches.
	readPiece = 256 << 10
	// maxWords is how much of an answer that is no chunk is shown.
	maxWords = 500
)

// The names of headers.
const (
	sumHeader  = "Muster-Crc32"
	sizeHeader = "Muster-Size"
	whatHeader = "Muster-What"
)

// sumTable is of CRC-32 as Ethernet has it. Castagnoli's has an instruction of its
// own, and yet takes half again as long, or more, where registers of 512 bits are there.
var sumTable = crc32.IEEETable

// Peers says how a store reaches those of other nodes, and the head, which knows
// who has what.
type Peers struct {
	Token string      // what stores show each other
	TLS   *tls.Config // for those that are asked; nil: in plain text
	// Host is a node as its certificate names it.
	Host func(node int) string
	// Ask asks the head for sources, which come by Store.Sources.
	Ask func(m *wire.Fetch)
	// Tell tells the head what has arrived, or is gone.
	Tell func(m *wire.Copied)
}

// peering is a store's part among those of other nodes.
type peering struct {
	Peers
	client *http.Client
	stall  time.Duration

	mu        sync.Mutex
	addresses map[string]string // by host
	last      uint64
	asked     map[uint64]*asked
}

// asked is what the head was asked and has not answered.
type asked struct {
	fetch  *wire.Fetch
	answer chan *wire.Sources
}

// Join has the store get objects of other nodes. It is called once, before
// anybody is served.
func (s *Store) Join(peers Peers) {
	p := &peering{Peers: peers, addresses: map[string]string{}, asked: map[uint64]*asked{}, stall: stallBound}
	transport := &http.Transport{
		DialContext: p.dial, TLSClientConfig: peers.TLS, TLSHandshakeTimeout: dialBound,
		MaxIdleConnsPerHost: keptIdle, IdleConnTimeout: idleBound,
		DisableCompression: true, ReadBufferSize: 4 << 10,
	}
	p.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.peering = p
}

func (p *peering) close() {
	if p != nil {
		p.client.CloseIdleConnections()
	}
}

// dial connects to where the head says that a node's store is.
func (p *peering) dial(ctx context.Context, _, host string) (net.Conn, error) {
	host, _, _ = strings.Cut(host, ":")
	p.mu.Lock()
	address := p.addresses[host]
	p.mu.Unlock()
	d := net.Dialer{Timeout: dialBound}
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &patient{Conn: nc, bound: p.stall}, nil
}

// patient is a connection whose reads end when nothing comes for too long.
type patient struct {
	net.Conn
	bound time.Duration
}

func (c *patient) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(c.bound))
	return c.Conn.Read(b)
}

// tell tells the head something, if there is one to be told.
func (p *peering) tell(m *wire.Copied) {
	if p != nil && p.Tell != nil {
		p.Tell(m)
	}
}

// ask asks the head where chunks are to be had.
func (p *peering) ask(ctx context.Context, object uint64, runs []wire.Run, avoid []int) ([]wire.Source, error) {
	p.mu.Lock()
	p.last++
	a := &asked{
		fetch:  &wire.Fetch{ID: p.last, Object: object, Runs: runs, Avoid: append([]int{}, avoid...)},
		answer: make(chan *wire.Sources, 1),
	}
	p.asked[a.fetch.ID] = a
	p.mu.Unlock()
	p.Ask(a.fetch)
	select {
	case m := <-a.answer:
		if len(m.Error) > 0 {
			return nil, wire.ReadError(m.Error)
		}
		return m.Sources, nil
	case <-ctx.Done():
		p.mu.Lock()
		delete(p.asked, a.fetch.ID)
		p.mu.Unlock()
		return nil, ctx.Err()
	}
}

// askAgain asks a head that has come back for what the one before may not have
// heard of, or not answered.
func (p *peering) askAgain() {
	if p == nil {
		return
	}
	p.mu.Lock()
	var all []*wire.Fetch
	for _, a := range p.asked {
		all = append(all, a.fetch)
	}
	p.mu.Unlock()
	for _, f := range all {
		p.Ask(f)
	}
}

// Sources takes the head's answer to what was asked.
func (s *Store) Sources(m *wire.Sources) {
	p := s.peering
	if p == nil {
		return
	}
	p.mu.Lock()
	a := p.asked[m.ID]
	delete(p.asked, m.ID)
	for _, from := range m.Sources {
		p.addresses[p.Host(from.Node)] = from.Address
	}
	p.mu.Unlock()
	if a != nil {
		a.answer <- m
	}
}

// wrongError is an answer that cannot be right, whoever waits how long.
type wrongError struct{ error }

func (e wrongError) Unwrap() error { return e.error }

func isWrong(err error) bool {
	var wrong wrongError
	if errors.As(err, &wrong) {
		return true
	}
	var cert *tls.CertificateVerificationError
	var alert *net.OpError // as TLS tells what the other end has against us
	return errors.As(err, &cert) || errors.As(err, &alert) && alert.Op == "remote error"
}

// reply is a chunk that another store begins to send.
type reply struct {
	from wire.Source
	size uint64 // of the object
	what string
	sum  uint32
	body io.ReadCloser
	end  context.CancelFunc
}

// get asks another store for a chunk.
func (p *peering) get(ctx context.Context, from wire.Source, object uint64, chunk uint32) (*reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	scheme := "http"
	if p.TLS != nil {
		scheme = "https"
	}
	target := fmt.Sprintf("%s://%s/objects/%016x", scheme, p.Host(from.Node), object)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		cancel()
		return nil, err
	}
	first := uint64(chunk) * ChunkSize
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+ChunkSize-1))
	req.Header.Set("Authorization", "Bearer "+p.Token)
	resp, err := p.client.Do(req)
	if err != nil {
		cancel()
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // which repeats the URL
		}
		return nil, err
	}
	r := &reply{from: from, body: resp.Body, end: cancel}
	if err := r.head(resp, first); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// head reads what comes before the chunk.
func (r *reply) head(resp *http.Response, first uint64) error {
	if resp.StatusCode != http.StatusPartialContent {
		words, _ := io.ReadAll(io.LimitReader(resp.Body, maxWords))
		err := fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(words)))
		if resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusBadRequest {
			return wrongError{err}
		}
		return err
	}
	var err error
	if r.size, err = strconv.ParseUint(resp.Header.Get(sizeHeader), 10, 62); err != nil {
		return wrongError{fmt.Errorf("it does not say how large the object is: %w", err)}
	}
	sum, err := strconv.ParseUint(resp.Header.Get(sumHeader), 16, 32)
	if err != nil {
		return wrongError{fmt.Errorf("it gives no sum of the chunk: %w", err)}
	}
	r.sum = uint32(sum)
	r.what, _ = url.QueryUnescape(resp.Header.Get(whatHeader))
	r.what = short([]byte(r.what))
	if want := min(ChunkSize, r.size-min(r.size, first)); resp.ContentLength != int64(want) { //nolint:gosec // a chunk at most
		return wrongError{fmt.Errorf("it sends %d bytes of the chunk at %d instead of %d", resp.ContentLength, first, want)}
	}
	return nil
}

// read reads the chunk to where it belongs, and checks it.
func (r *reply) read(target []byte) (sum uint32, err error) {
	for at := 0; at < len(target); {
		end := min(len(target), at+readPiece)
		n, err := io.ReadFull(r.body, target[at:end])
		if err != nil {
			return 0, fmt.Errorf("the connection ended after %d of %d bytes of a chunk: %w", at+n, len(target), err)
		}
		sum = crc32.Update(sum, sumTable, target[at:end])
		at = end
	}
	if sum != r.sum {
		return 0, wrongError{spec.Errorf(spec.CodeProtocol, "a chunk of %d bytes came corrupt: its sum is %08x, and %08x was sent", len(target), sum, r.sum)}
	}
	return sum, nil
}

// close ends the reply. The connection can be used again if all was read.
func (r *reply) close() {
	var one [1]byte
	_, _ = r.body.Read(one[:]) // the end, which shows that all was read
	_ = r.body.Close()
	r.end()
}
