package agent

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/wire"
)

// BenchmarkCallToANode is a call to the eight workers of a node on another machine:
// one message there, and their results back. Segments tell how many writes that
// took each way.
func BenchmarkCallToANode(b *testing.B) {
	for name, secret := range map[string]bool{"tls": true, "plain": false} {
		b.Run(name, func(b *testing.B) { benchmarkCall(b, secret, 8) })
	}
}

func benchmarkCall(b *testing.B, secret bool, workers int) {
	head, up := farPair(b, secret)
	uplink := newUplink()
	uplink.set(up)
	r := newRelay(uplink)
	a := &agent{relay: r}
	go func() { _ = a.serveHead(context.Background(), up) }()
	for range workers {
		go echoing(b, r)
	}
	var fanout []byte
	fanout = binary.BigEndian.AppendUint32(append(fanout, 0xdd), uint32(workers)) //nolint:gosec // eight
	for opened := 0; opened < workers; opened++ {
		f := read1(b, head)
		if f.Kind != wire.KindOpen {
			b.Fatalf("a frame of kind %d", f.Kind)
		}
		body, err := (&wire.Welcome{Version: wire.Version}).MarshalMsg(nil)
		if err != nil {
			b.Fatal(err)
		}
		head.Send(wire.Header{Kind: wire.KindWelcome, Peer: f.Peer}, body, nil)
		fanout = binary.BigEndian.AppendUint32(append(fanout, 0xce), f.Peer)
	}
	leg := wire.AppendFrame(nil, wire.Header{Kind: wire.KindLeg, ID: 7}, []byte{0xc0}, nil)
	sent, got := segments(b, head)
	for b.Loop() {
		head.Send(wire.Header{Kind: wire.KindFanout}, fanout, wire.Bytes(leg))
		for range workers {
			if f := read1(b, head); f.Kind != wire.KindResult {
				b.Fatalf("a frame of kind %d", f.Kind)
			}
		}
	}
	sentNow, gotNow := segments(b, head)
	b.ReportMetric(float64(sentNow-sent)/float64(b.N), "segments-there/op")
	b.ReportMetric(float64(gotNow-got)/float64(b.N), "segments-back/op")
	r.close()
	uplink.end()
}

func read1(b *testing.B, c *wire.Conn) wire.Frame {
	f, err := c.Read()
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// echoing is a worker that answers at once.
func echoing(b *testing.B, r *relay) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Error(err)
		return
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(file); err != nil {
			b.Error(err)
		}
		_ = file.Close()
	}
	go r.serve(wire.NewConn(ends[0]), wire.Hello{Magic: "muster", Version: wire.Version, Role: wire.RoleWorker})
	c := wire.NewConn(ends[1])
	defer c.Close()
	for {
		f, err := c.Read()
		switch {
		case err != nil:
			return
		case f.Kind == wire.KindLeg:
			c.Send(wire.Header{Kind: wire.KindResult, ID: f.ID}, []byte{0xc0}, nil)
		}
	}
}

// farPair is a connection over TCP: the head's end and the agent's.
func farPair(b *testing.B, secret bool) (head, agent *wire.Conn) {
	b.Helper()
	var server, client *tls.Config
	if secret {
		authority, err := secure.NewAuthority()
		if err != nil {
			b.Fatal(err)
		}
		server = authority.ServerConfig()
		if client, err = secure.Pinned(authority.Pin()); err != nil {
			b.Fatal(err)
		}
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan *wire.Conn, 1)
	go func() {
		defer close(accepted)
		nc, err := listener.AcceptTCP()
		if err != nil {
			return
		}
		if c, err := wire.Over(nc, server, false); err == nil {
			accepted <- c
		}
	}()
	if agent, err = wire.DialFar(context.Background(), []string{listener.Addr().String()}, client, patience); err != nil {
		b.Fatal(err)
	}
	if head = <-accepted; head == nil {
		b.Fatal("no connection came")
	}
	head.SetLimit(wire.MaxFrame)
	agent.SetLimit(wire.MaxFrame)
	return head, agent
}

// segments are those with data that a connection has sent and got.
func segments(b *testing.B, c *wire.Conn) (sent, got uint32) {
	b.Helper()
	nc := c.NetConn()
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			b.Error(err)
			return
		}
		sent, got = info.Data_segs_out, info.Data_segs_in
	}); err != nil {
		b.Fatal(err)
	}
	return sent, got
}
