package store

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// gatherSize is how much is written at a time. TLS by itself writes each record of
// 16 KiB, and wakes who reads with each.
const gatherSize = 256 << 10

// Secure has connections of a listener speak TLS, in a way that is quick for chunks.
// The server that has it needs ConnContext.
func Secure(l net.Listener, config *tls.Config) net.Listener {
	config = config.Clone()
	config.DynamicRecordSizingDisabled = true // chunks are large from their first byte on
	return &secured{l, config}
}

type secured struct {
	net.Listener
	config *tls.Config
}

func (l *secured) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(&gathering{Conn: nc}, l.config), nil
}

type gatheringKey struct{}

// ConnContext lets handlers find what lies below TLS; see http.Server.
func ConnContext(ctx context.Context, nc net.Conn) context.Context {
	if secure, ok := nc.(*tls.Conn); ok {
		if g, ok := secure.NetConn().(*gathering); ok {
			return context.WithValue(ctx, gatheringKey{}, g)
		}
	}
	return ctx
}

// gatheringOf is what lies below TLS; nil where nothing of ours does.
func gatheringOf(r *http.Request) *gathering {
	g, _ := r.Context().Value(gatheringKey{}).(*gathering)
	return g
}

// gathering is a connection whose writes are put together, from begin to end.
type gathering struct {
	net.Conn

	mu   sync.Mutex // TLS may write while it reads
	on   bool
	kept []byte
	err  error
}

func (g *gathering) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on {
		return g.Conn.Write(b)
	}
	if g.kept == nil {
		g.kept = make([]byte, 0, gatherSize+len(b))
	}
	g.kept = append(g.kept, b...)
	if len(g.kept) >= gatherSize {
		g.writeLocked()
	}
	return len(b), g.err
}

func (g *gathering) writeLocked() {
	if g.err == nil && len(g.kept) > 0 {
		_, g.err = g.Conn.Write(g.kept)
	}
	g.kept = g.kept[:0]
}

// begin begins to put writes together.
func (g *gathering) begin() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.on = true
}

// end writes what was put together last. Those of one that is nil went out by
// themselves.
func (g *gathering) end() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writeLocked()
	g.on = false
	return g.err
}
