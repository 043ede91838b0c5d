package wire_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/wire"
)

// farPair is the two ends of a connection over TCP, with TLS or without.
func farPair(t testing.TB, secret bool) (ours, theirs *wire.Conn) {
	t.Helper()
	var server, client *tls.Config
	if secret {
		authority, err := secure.NewAuthority()
		if err != nil {
			t.Fatal(err)
		}
		server = authority.ServerConfig()
		if client, err = secure.Pinned(authority.Pin()); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan *wire.Conn, 1)
	go func() {
		defer close(accepted)
		nc, err := listener.AcceptTCP()
		if err != nil {
			t.Error(err)
			return
		}
		c, err := wire.Over(nc, server, false)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- c
	}()
	ours, err = wire.DialFar(context.Background(), []string{listener.Addr().String()}, client, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if theirs = <-accepted; theirs == nil {
		t.FailNow()
	}
	for _, c := range []*wire.Conn{ours, theirs} {
		c.SetLimit(wire.MaxFrame)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ours, theirs
}

func bothFar(t *testing.T, test func(t *testing.T, ours, theirs *wire.Conn)) {
	for name, secret := range map[string]bool{"tls": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := farPair(t, secret)
			test(t, ours, theirs)
		})
	}
}

func TestFramesOverTheNetwork(t *testing.T) {
	bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
		large := bytes.Repeat([]byte("muster"), 1<<20)
		go func() {
			for i := range 100 {
				ours.Send(wire.Header{Kind: wire.KindLeg, ID: uint64(i)}, []byte{0xc0}, wire.Bytes(large[:i*1000]))
			}
			ours.Send(wire.Header{Kind: wire.KindLeg, ID: 100}, []byte{0xc0}, wire.Bytes(large))
		}()
		for i := range 101 {
			f, err := theirs.Read()
			if err != nil {
				t.Fatal(err)
			}
			want := large
			if i < 100 {
				want = large[:i*1000]
			}
			if f.ID != uint64(i) || !bytes.Equal(f.Bufs[0].Data, want) {
				t.Fatalf("frame %d came as %d with %d bytes", i, f.ID, len(f.Bufs[0].Data))
			}
		}
		if ours.LocalHost() != "127.0.0.1" {
			t.Errorf("it goes out by %q", ours.LocalHost())
		}
	})
}

// Whoever sends does not wait for an end that does not read, and nothing is lost
// or comes out of order.
func TestAnEndThatReadsLateOverTheNetwork(t *testing.T) {
	bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
		const frames = 20000
		body := bytes.Repeat([]byte{1}, 2000)
		var senders sync.WaitGroup
		for i := range frames {
			ours.Queue(wire.Header{Kind: wire.KindNotice, ID: uint64(i)}, nil, body, nil)
			ours.Flush()
		}
		senders.Go(func() { ours.WaitBelow(0) })
		for i := range frames {
			f, err := theirs.Read()
			if err != nil || f.ID != uint64(i) || len(f.Body) != len(body) {
				t.Fatalf("frame %d: %d, %v", i, f.ID, err)
			}
		}
		senders.Wait()
		if n := ours.Pending(); n != 0 {
			t.Errorf("%d bytes are pending", n)
		}
	})
}

func TestTheEndOverTheNetwork(t *testing.T) {
	for name, end := range map[string]func(*wire.Conn){
		"closed":  func(c *wire.Conn) { _ = c.Close() },
		"flushed": func(c *wire.Conn) { _ = c.CloseWhenFlushed() },
		"cut":     func(c *wire.Conn) { c.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
				ours.Send(wire.Header{Kind: wire.KindNotice, ID: 7}, []byte{0xc0}, nil)
				if f, err := theirs.Read(); err != nil || f.ID != 7 {
					t.Fatal(f, err)
				}
				end(ours)
				if _, err := theirs.Read(); !errors.Is(err, io.EOF) {
					t.Errorf("the other end sees %v", err)
				}
			})
		})
	}
}

func TestTheKernelKnowsHowQuietItIs(t *testing.T) {
	bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
		before, ok := theirs.Quiet()
		if !ok {
			t.Fatal("it does not say")
		}
		deadline := time.Now().Add(10 * time.Second)
		for ; before.Data < 20*time.Millisecond; before, _ = theirs.Quiet() {
			if time.Now().After(deadline) {
				t.Fatalf("nothing comes, and it says %+v", before)
			}
		}
		ours.Send(wire.Header{Kind: wire.KindNotice}, []byte{0xc0}, nil)
		for after := before; after.Data >= before.Data; after, _ = theirs.Quiet() { // also unread
			if time.Now().After(deadline) {
				t.Fatalf("something has come, and it says %+v", after)
			}
		}
	})
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, ok := wire.NewConn(a).Quiet(); ok {
		t.Error("a pipe knows, too")
	}
}

func TestAddressesThatDoNotAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := listener.Addr().String()
	listener.Close()
	_, err = wire.DialFar(context.Background(), []string{gone, "not an address"}, nil, time.Second)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte(gone)) || !bytes.Contains([]byte(err.Error()), []byte("not an address")) {
		t.Errorf("got %v", err)
	}
	if _, err := wire.DialFar(context.Background(), nil, nil, time.Second); err == nil {
		t.Error("no address is no error")
	}
}

// An address that swallows everything does not keep the next one from answering.
func TestAnAddressThatSaysNothing(t *testing.T) {
	var hosts []string
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		hosts = append(hosts, listener.Addr().String())
	}
	authority, err := secure.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	good, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	go func() {
		if nc, err := good.AcceptTCP(); err == nil {
			_, _ = wire.Over(nc, authority.ServerConfig(), false)
		}
	}()
	client, err := secure.Pinned(authority.Pin())
	if err != nil {
		t.Fatal(err)
	}
	c, err := wire.DialFar(context.Background(), append(hosts, good.Addr().String()), client, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := wire.DialFar(ctx, hosts, client, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkRoundTripOverTheNetwork(b *testing.B) {
	for name, secret := range map[string]bool{"tls": true, "plain": false} {
		b.Run(name, func(b *testing.B) {
			ours, theirs := farPair(b, secret)
			go func() {
				for {
					f, err := theirs.Read()
					if err != nil {
						return
					}
					theirs.Send(f.Header, f.Body, nil)
				}
			}()
			b.ReportAllocs()
			for b.Loop() {
				ours.Send(wire.Header{Kind: wire.KindNotice}, []byte{0xc0}, nil)
				if _, err := ours.Read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
