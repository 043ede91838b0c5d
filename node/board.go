package node

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/muster-rl/muster/node/course"
)

// The board is spoken to in lines of JSON:
//
//	leader   {"muster": "node 1", "nonce": N}
//	replica  {"nonce": M, "proof": HMAC(token, "replica" N M), "rank": …, "world": …, "id": …, "host": …}
//	leader   {"proof": HMAC(token, "leader" N M)}       or {"error": …, "token": true}
//	replica  {"state": "joined"}                        each second, and when it changes
//	leader   {"phase": "running", …}                    each time, and when it changes
//
// Each side has proved by then that it knows the token; the token itself never
// travels.
const (
	boardName   = "node 1"
	maxLine     = 4096
	greetWithin = 5 * time.Second
	beat        = time.Second // how often a replica says how it is
	patience    = 4 * beat    // without an answer, a look has failed
	maxGuests   = 256         // connections that have not proved anything yet
)

type greeting struct {
	Muster string `json:"muster"`
	Nonce  string `json:"nonce"`
}

type hello struct {
	Nonce string `json:"nonce"`
	Proof string `json:"proof"`
	Rank  int    `json:"rank"`
	World int    `json:"world"`
	ID    string `json:"id"`
	Host  string `json:"host"`
}

type welcome struct {
	Proof string `json:"proof,omitempty"`
	Error string `json:"error,omitempty"`
	Token bool   `json:"token,omitempty"` // the error is that of the token
}

type report struct {
	State  course.State `json:"state"`
	Reason string       `json:"reason,omitempty"`
}

// proof is what a side says to show that it knows the token.
func proof(token, side, leaders, replicas string) string {
	mac := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(mac, "muster %s %s %s %s", boardName, side, leaders, replicas)
	return hex.EncodeToString(mac.Sum(nil))
}

func newNonce() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// line is a connection that speaks in lines of JSON.
type line struct {
	net.Conn
	in *bufio.Reader
}

func newLine(c net.Conn) *line { return &line{c, bufio.NewReaderSize(c, maxLine)} }

func (l *line) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = l.SetWriteDeadline(time.Now().Add(greetWithin))
	_, err = l.Write(append(text, '\n'))
	return err
}

func (l *line) receive(v any, within time.Duration) error {
	_ = l.SetReadDeadline(time.Now().Add(within))
	text, err := l.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %.60q", errSpeech, text)
	}
	return nil
}

var errSpeech = errors.New("that is not muster node")

// audience is who a board tells of replicas. Its methods may be called
// concurrently, and return when the event was taken.
type audience interface {
	hello(h hello) error
	heard(h hello, r report)
	cut(h hello)
}

// board serves replicas until it is closed.
type board struct {
	listener net.Listener
	token    string
	audience audience
	guests   chan struct{}

	mu      sync.Mutex
	notice  course.Notice
	changed chan struct{}
	closed  bool
	conns   map[net.Conn]bool
}

func newBoard(listener net.Listener, token string, notice course.Notice, a audience) *board {
	b := &board{
		listener: listener, token: token, audience: a, guests: make(chan struct{}, maxGuests),
		notice: notice, changed: make(chan struct{}), conns: make(map[net.Conn]bool),
	}
	go b.accept()
	return b
}

// post shows another notice.
func (b *board) post(n course.Notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n != b.notice {
		b.notice = n
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

func (b *board) read() (course.Notice, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.notice, b.changed
}

func (b *board) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	_ = b.listener.Close()
	for c := range b.conns {
		_ = c.Close()
	}
}

func (b *board) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		select {
		case b.guests <- struct{}{}:
		default: // someone knocks without end
			_ = c.Close()
			continue
		}
		b.mu.Lock()
		b.conns[c] = true
		closed := b.closed
		b.mu.Unlock()
		if closed {
			_ = c.Close()
		}
		go func() {
			b.serve(newLine(c))
			_ = c.Close()
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		}()
	}
}

// serve speaks with one replica.
func (b *board) serve(l *line) {
	h, err := b.greet(l)
	<-b.guests
	if err != nil {
		return
	}
	defer b.audience.cut(h)
	asked := make(chan struct{}, 1)
	gone := make(chan struct{})
	go func() { // answers, and tells of changes
		for {
			n, changed := b.read()
			if l.send(n) != nil {
				_ = l.Close()
				return
			}
			select {
			case <-changed:
			case <-asked:
			case <-gone:
				return
			}
		}
	}()
	defer close(gone)
	for {
		var r report
		if l.receive(&r, 10*patience) != nil {
			return
		}
		b.audience.heard(h, r)
		select {
		case asked <- struct{}{}:
		default:
		}
	}
}

// greet lets in who knows the token and is one of ours.
func (b *board) greet(l *line) (hello, error) {
	mine := newNonce()
	if err := l.send(greeting{boardName, mine}); err != nil {
		return hello{}, err
	}
	var h hello
	if err := l.receive(&h, greetWithin); err != nil {
		return h, err
	}
	if !hmac.Equal([]byte(h.Proof), []byte(proof(b.token, "replica", mine, h.Nonce))) {
		_ = l.send(welcome{Error: "the tokens differ", Token: true})
		return h, errors.New("wrong token")
	}
	if err := b.audience.hello(h); err != nil {
		_ = l.send(welcome{Error: err.Error()})
		return h, err
	}
	return h, l.send(welcome{Proof: proof(b.token, "leader", mine, h.Nonce)})
}
