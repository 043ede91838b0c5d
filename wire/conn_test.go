package wire

import (
	"bytes"
	"errors"
	"io"
	"net"

	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/muster-rl/muster/spec"
)

// pair is two connected unix stream sockets, as processes have them.
func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		nc, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- nc
	}()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, b := NewConn(nc), NewConn(<-accepted)
	a.SetLimit(MaxFrame)
	b.SetLimit(MaxFrame)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestFramesOfAllSizes(t *testing.T) {
	a, b := pair(t)
	sizes := []int{0, 1, 100, readBuffer - headerSize - 1, readBuffer - headerSize, readBuffer, shareFrom, 1 << 20, 5<<20 + 3}
	go func() {
		for i, n := range sizes {
			body := bytes.Repeat([]byte{byte(i)}, n)
			a.Queue(Header{Kind: KindCall, Flags: FlagCast, ID: uint64(i), Peer: 7, Ack: 9}, body[:n/2], body[n/2:], Bytes([]byte{1, 2, 3}, body, []byte{}))
			a.Flush()
		}
	}()
	for i, n := range sizes {
		f, err := b.Read()
		if err != nil {
			t.Fatal(err)
		}
		if f.Kind != KindCall || f.Flags != FlagCast || f.ID != uint64(i) || f.Peer != 7 || f.Ack != 9 {
			t.Fatalf("header %+v", f.Header)
		}
		want := bytes.Repeat([]byte{byte(i)}, n)
		f.Keep()
		if !bytes.Equal(f.Body, want) || len(f.Bufs) != 3 || !bytes.Equal(f.Bufs[1].Data, want) || len(f.Bufs[2].Data) != 0 {
			t.Fatalf("frame %d of %d bytes came different", i, n)
		}
	}
}

// A peer that does not read must not stop who sends to it.
func TestFlushDoesNotBlock(t *testing.T) {
	a, b := pair(t)
	body := bytes.Repeat([]byte{1}, 1<<20)
	for i := range 64 {
		a.Send(Header{Kind: KindLeg, ID: uint64(i)}, body, nil)
	}
	if a.Pending() == 0 {
		t.Fatal("64 MiB went into a socket nobody reads")
	}
	for i := range 64 {
		f, err := b.Read()
		if err != nil || f.ID != uint64(i) || len(f.Body) != len(body) {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
	a.WaitBelow(0)
	if a.Pending() != 0 {
		t.Fatalf("%d bytes pending after all were read", a.Pending())
	}
}

func TestManySenders(t *testing.T) {
	a, b := pair(t)
	const senders, each = 8, 500
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				a.Send(Header{Kind: KindCall, ID: uint64(s)<<32 | uint64(i)}, bytes.Repeat([]byte{byte(s)}, i*37), nil)
			}
		})
	}
	next := map[uint64]uint64{}
	for range senders * each {
		f, err := b.Read()
		if err != nil {
			t.Fatal(err)
		}
		s, i := f.ID>>32, f.ID&0xffffffff
		if next[s] != i || len(f.Body) != int(i)*37 || (len(f.Body) > 0 && f.Body[0] != byte(s)) {
			t.Fatalf("sender %d: frame %d of %d bytes, expected frame %d", s, i, len(f.Body), next[s])
		}
		next[s]++
	}
	all.Wait()
}

func TestEndsOfStream(t *testing.T) {
	whole := AppendFrame(nil, Header{Kind: KindCall}, []byte("body"), nil)
	for _, cut := range []int{0, 5, headerSize, len(whole) - 1} {
		a, b := pair(t)
		if _, err := a.NetConn().Write(whole[:cut]); err != nil {
			t.Fatal(err)
		}
		a.Close()
		_, err := b.Read()
		switch {
		case cut == 0 && !errors.Is(err, io.EOF):
			t.Errorf("between frames: %v", err)
		case cut > 0 && !errors.Is(err, ErrCut):
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
}

// A header may claim anything: memory is taken only as bytes come.
func TestClaimsAreNotBelieved(t *testing.T) {
	a, b := pair(t)
	head := AppendHeader(nil, Header{Kind: KindCall}, MaxFrame, nil)
	if _, err := a.NetConn().Write(append(head, make([]byte, 1000)...)); err != nil {
		t.Fatal(err)
	}
	a.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := b.Read()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 8<<20 {
		t.Fatalf("a truncated gigabyte: %d bytes were taken for it, %v", took, err)
	}
	a, b = pair(t)
	b.SetLimit(HelloLimit)
	if _, err := a.NetConn().Write(AppendHeader(nil, Header{Kind: KindHello}, HelloLimit+1, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Fatal(err)
	}
}

func TestHello(t *testing.T) {
	cases := []struct {
		name string
		send func(c *Conn)
		want string
	}{
		{"not muster", func(c *Conn) { c.Send(Header{Kind: KindHello}, (&Hello{Magic: "x"}).must(t), nil) }, "does not speak"},
		{"other version", func(c *Conn) {
			c.Send(Header{Kind: KindHello}, (&Hello{Magic: "muster", Version: 99, Release: "9.9"}).must(t), nil)
		}, "version 99"},
		{"no hello", func(c *Conn) { c.Send(Header{Kind: KindCall}, []byte{0xc0}, nil) }, "expected hello"},
		{"rubbish", func(c *Conn) { _, _ = c.NetConn().Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) }, "limit"},
		{"not msgpack", func(c *Conn) { c.Send(Header{Kind: KindHello}, []byte{0xc1}, nil) }, "cannot be read"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t)
			tc.send(a)
			if _, err := ReadHello(b); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
	a, b := pair(t)
	go func() {
		h, err := ReadHello(b)
		if err != nil || h.Role != RoleWorker {
			Refuse(b, spec.Errorf(spec.CodeInternal, "%v", err))
			return
		}
		if h.Worker == 3 {
			Accept(b, Welcome{Session: "s"})
		} else {
			Refuse(b, spec.Errorf(spec.CodeAuth, "wrong token"))
		}
	}()
	w, err := Join(a, Hello{Role: RoleWorker, Worker: 3})
	if err != nil || w.Session != "s" || w.Version != Version {
		t.Fatal(w, err)
	}
}

func (h *Hello) must(t *testing.T) []byte {
	b, err := h.MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzFrame: no bytes make the parser do anything but answer or refuse, and
// what it accepts comes out the same when it is put together again.
func FuzzFrame(f *testing.F) {
	f.Add(AppendFrame(nil, Header{Kind: KindCall, ID: 1}, []byte{0xc0}, nil))
	f.Add(AppendFrame(nil, Header{Kind: KindAnswer, Flags: FlagError}, []byte{0x80}, Bytes([]byte{1}, nil, []byte{2, 3})))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ParseFrame(b)
		if err != nil {
			return
		}
		again := AppendFrame(nil, frame.Header, frame.Body, frame.Bufs)
		if !bytes.Equal(again, b[:len(again)]) {
			t.Fatalf("%x came out as %x", b, again)
		}
	})
}

func BenchmarkSendRead(b *testing.B) {
	x, y := pair(b)
	body := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		x.Send(Header{Kind: KindCall}, body, nil)
		if _, err := y.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
