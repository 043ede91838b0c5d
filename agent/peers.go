package agent

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/store"
	"github.com/muster-rl/muster/wire"
)

// How long another store may take to ask, and for how long it may not.
const (
	askBound  = 10 * time.Second
	idleBound = 2 * time.Minute
)

// serving is this node's store as those of other nodes reach it.
type serving struct {
	server  *http.Server
	address string // "host:port"; without a host it is that of the head's machine
	done    chan struct{}
}

// meetStores opens the node's store to those of other nodes, and those to it, if
// the head says that they are apart. The caller closes what it returns, if
// anything, before the store.
func (a *agent) meetStores(welcome wire.Welcome, conn *wire.Conn) (*serving, error) {
	if !welcome.StoreApart {
		return nil, nil
	}
	a.store.Join(store.Peers{
		Token: welcome.PeerToken, TLS: a.identity.client, Host: secure.NodeName,
		Ask:  func(m *wire.Fetch) { a.head.notify("fetch", m) },
		Tell: func(m *wire.Copied) { a.head.notify("copied", m) },
	})
	host, shown := conn.LocalHost(), ""
	if host != "" {
		shown = a.node.Address
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("node %s cannot listen for the stores of other nodes: %w", a.join.Name, err)
	}
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	s := &serving{
		address: net.JoinHostPort(shown, port), done: make(chan struct{}),
		server: &http.Server{
			Handler: a.store.Handler(welcome.PeerToken), ReadHeaderTimeout: askBound, IdleTimeout: idleBound,
			ConnContext: store.ConnContext,
			ErrorLog:    log.New(os.Stderr, fmt.Sprintf("muster agent: the store of node %s: ", a.join.Name), 0),
		},
	}
	if a.identity.server != nil {
		listener = store.Secure(listener, a.identity.server)
	}
	go func() {
		defer close(s.done)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(os.Stderr, "muster agent: the store of node %s is not to be reached by other nodes any more: %v\n", a.join.Name, err)
		}
	}()
	return s, nil
}

// close ends all that is being sent.
func (s *serving) close() {
	if s != nil {
		_ = s.server.Close()
		<-s.done
	}
}

// tellServing tells the head where the store is to be reached, before anything of
// its workers goes over the connection.
func (a *agent) tellServing(conn *wire.Conn) {
	if a.serving != nil {
		_ = wire.Notify(conn, "serving", &wire.Serving{Address: a.serving.address, Dir: a.join.Dir}) // texts can be encoded
	}
}

// tellCopies tells a head that is back what there is of other nodes' objects.
func (a *agent) tellCopies() {
	if a.serving == nil {
		return
	}
	for _, c := range a.store.Copies() {
		a.head.notify("copied", &c)
	}
}
