package object

import (
	"errors"
	"runtime"
	"sync"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

// Stores are those of one head, as this process reaches them: each by one
// connection, made when it is first needed. Methods may be called concurrently.
type Stores struct {
	dir    string
	token  string
	holder uint64
	node   int  // whose store this process puts into
	apart  bool // by which it also reads what lies in others

	held pressure

	mu      sync.Mutex
	clients map[int]*client
	closed  bool

	counting sync.Mutex
	known    map[uint64]int // how often the head counts this process for an object
}

// client is a connection, or one in the making.
type client struct {
	ready chan struct{}
	*store.Client
	err error
}

// NewStores takes from a head's welcome where its stores are; nil where it says
// nothing of any.
func NewStores(w wire.Welcome) *Stores {
	if w.StoreDir == "" {
		return nil
	}
	return &Stores{dir: w.StoreDir, token: w.StoreToken, holder: w.Holder, node: w.StoreNode, apart: w.StoreApart, clients: map[int]*client{}, known: map[uint64]int{}}
}

// Same says that both are of one head, so that objects of one can be named to
// the other.
func (s *Stores) Same(other *Stores) bool {
	return s == other || s != nil && other != nil && s.dir == other.dir
}

// Close ends the connections. What is mapped stays so until it is closed itself.
func (s *Stores) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	all := s.clients
	s.clients = nil
	s.mu.Unlock()
	for _, c := range all {
		if <-c.ready; c.err == nil {
			c.Close()
		}
	}
}

// far is the connection to our own store by which objects of other nodes are
// asked for: that may take long, and holds up nothing else.
const far = -1

// reach is the connection by which an object is read, as at has it.
func (s *Stores) reach(o *Object) int {
	if node := o.Node(); !s.apart || node == s.node {
		return node
	}
	return far
}

// at is the connection to a node's store.
func (s *Stores) at(node int) (*client, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, spec.Errorf(spec.CodeHeadLost, "the session is closed, and with it the stores that the bytes of its batches lie in: read them before that")
	}
	c := s.clients[node]
	if c == nil {
		c = &client{ready: make(chan struct{})}
		s.clients[node] = c
		s.mu.Unlock()
		dialled := node
		if node == far {
			dialled = s.node
		}
		c.Client, c.err = store.Dial(s.dir, dialled, s.token, s.holder)
		close(c.ready)
	} else {
		s.mu.Unlock()
		<-c.ready
	}
	if c.err != nil {
		s.forget(node, c)
	}
	return c, c.err
}

// forget drops a connection that is of no more use: the next need makes another.
func (s *Stores) forget(node int, c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[node] == c {
		delete(s.clients, node)
	}
}

// with does something over the connection to a node's store.
func (s *Stores) with(node int, do func(c *store.Client) error) error {
	c, err := s.at(node)
	if err != nil {
		return err
	}
	if err = do(c.Client); err != nil && !answered[spec.AsError(err).Code] {
		s.forget(node, c)
		c.Close()
	}
	return err
}

// answered are the codes of errors that a store answers with. After any other
// the connection is of no use.
var answered = map[spec.Code]bool{
	spec.CodeNotFound: true, spec.CodeWorkerDied: true, spec.CodeStoreFull: true, spec.CodeTooLarge: true, spec.CodeInvalid: true,
}

// Put writes parts, each at a multiple of 64 bytes, into one new object of this
// process's own store; what says for people what it is. The object is used once,
// by the caller.
func (s *Stores) Put(what string, parts ...[]byte) (o *Object, offsets []uint64, err error) {
	var id uint64
	put := func(c *store.Client) (err error) {
		id, offsets, err = c.Put(what, parts...)
		return err
	}
	err = s.with(s.node, put)
	if errors.Is(err, &spec.Error{Code: spec.CodeStoreFull}) {
		// It may be our own garbage that fills it. The store waits for room, so
		// that what the collector gives back now can still help.
		runtime.GC()
		err = s.with(s.node, put)
	}
	if err != nil {
		return nil, nil, err
	}
	size := uint64(0)
	for i, part := range parts {
		size = max(size, offsets[i]+uint64(len(part)))
	}
	s.held.add(size)
	return &Object{ID: id, stores: s, uses: 1, made: true, size: size}, offsets, nil
}
