package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/spec"
)

// newLoop is a loop that must have no connections left at the test's end, nor
// descriptors: pairs are made after it.
func newLoop(t testing.TB) *Loop {
	t.Helper()
	before := descriptors(t)
	l, err := NewLoop(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		if n := l.Len(); n > 0 {
			t.Errorf("%d connections were left in the loop", n)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
	return l
}

func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// attended reads a connection as the head does: in the loop what is small, by
// itself what is not.
type attended struct {
	c    *Conn
	loop *Loop
	calm int // frames read by itself before it goes back
	take func(f *Frame)
	over chan error
}

func attend(c *Conn, l *Loop, calm int, take func(f *Frame)) *attended {
	a := &attended{c: c, loop: l, calm: calm, take: take, over: make(chan error, 1)}
	if !c.Attend(l, a.readable) {
		go a.read()
	}
	return a
}

func (a *attended) readable() {
	err := a.c.Fetch()
	for err == nil && a.c.Buffered() && !a.c.Large() {
		var f Frame
		if f, err = a.c.Read(); err == nil {
			a.take(&f)
		}
	}
	switch {
	case err != nil:
		a.c.Leave()
		a.over <- err
	case a.c.Buffered():
		a.c.Leave()
		go a.read()
	}
}

func (a *attended) read() {
	for n := 1; ; n++ {
		f, err := a.c.Read()
		if err != nil {
			a.over <- err
			return
		}
		a.take(&f)
		if n >= a.calm && !a.c.Buffered() && a.c.Attend(a.loop, a.readable) {
			return
		}
	}
}

// Frames of any size come whole and in order, whoever reads them, and so do the
// answers that a slow reader leaves in the socket.
func TestLoopEchoes(t *testing.T) {
	l := newLoop(t)
	const conns, frames = 8, 60
	sizes := []int{0, 1, 100, 3000, readBuffer - headerSize, readBuffer, shareFrom, 300 << 10, 1 << 20}
	var all sync.WaitGroup
	for i := range conns {
		x, y := pair(t)
		echo := attend(y, l, 1+i%3, func(f *Frame) {
			f.Keep()
			y.Queue(f.Header, nil, f.Body, f.Bufs)
			if !y.Buffered() {
				y.Flush()
			}
		})
		all.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			sent := make([][]byte, frames)
			for k := range sent {
				sent[k] = bytes.Repeat([]byte{byte(k)}, sizes[rng.IntN(len(sizes))])
			}
			go func() {
				for k, body := range sent {
					x.Queue(Header{Kind: KindCall, ID: uint64(k)}, nil, body, nil)
					if rng.IntN(2) == 0 || k == frames-1 {
						x.Flush()
					}
				}
			}()
			for k := range sent {
				f, err := x.Read()
				if err != nil || f.ID != uint64(k) || !bytes.Equal(f.Body, sent[k]) {
					t.Errorf("connection %d: frame %d of %d bytes came as %d of %d, %v", i, k, len(sent[k]), f.ID, len(f.Body), err)
					break
				}
			}
			_ = x.Close()
			if err := <-echo.over; !errors.Is(err, io.EOF) {
				t.Errorf("connection %d ended with %v", i, err)
			}
			_ = y.CloseWhenFlushed()
		})
	}
	all.Wait()
}

// Whoever reads learns of an end: the other's, in or between frames, and its own.
func TestEndsInTheLoop(t *testing.T) {
	whole := AppendFrame(nil, Header{Kind: KindCall}, []byte("body"), nil)
	protocol := &spec.Error{Code: spec.CodeProtocol}
	cases := []struct {
		name   string
		bytes  []byte
		closer func(x, y *Conn)
		want   error
	}{
		{"between frames", whole, func(x, _ *Conn) { _ = x.Close() }, io.EOF},
		{"in a header", whole[:5], func(x, _ *Conn) { _ = x.Close() }, ErrCut},
		{"in a body", whole[:len(whole)-1], func(x, _ *Conn) { _ = x.Close() }, ErrCut},
		{"in a large frame", AppendHeader(nil, Header{Kind: KindCall}, 1<<20, nil), func(x, _ *Conn) { _ = x.Close() }, ErrCut},
		{"no frame", bytes.Repeat([]byte{0xff}, headerSize), func(_, _ *Conn) {}, protocol},
		{"here", whole, func(_, y *Conn) { _ = y.Close() }, net.ErrClosed},
		{"here, in a large frame", AppendHeader(nil, Header{Kind: KindCall}, 1<<20, nil), func(_, y *Conn) { _ = y.Close() }, net.ErrClosed},
	}
	for _, tc := range cases {
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s, %s it is attended to", tc.name, when), func(t *testing.T) {
				l := newLoop(t)
				x, y := pair(t)
				if _, err := x.NetConn().Write(tc.bytes); err != nil {
					t.Fatal(err)
				}
				if when == "before" {
					tc.closer(x, y)
				}
				a := attend(y, l, 1, func(*Frame) {})
				if when == "after" {
					tc.closer(x, y)
				}
				if err := <-a.over; !errors.Is(err, tc.want) {
					t.Errorf("%v, expected %v", err, tc.want)
				}
				_, _ = x.Close(), y.Close()
			})
		}
	}
}

// Closing while the other end takes nothing gives up in the end, and frees what
// waits for it.
func TestCloseOfAStuckConnection(t *testing.T) {
	l := newLoop(t)
	x, y := pair(t)
	a := attend(y, l, 1, func(*Frame) {})
	for range 8 {
		y.Send(Header{Kind: KindLeg}, make([]byte, 1<<20), nil)
	}
	waited := make(chan struct{})
	go func() {
		y.WaitBelow(0)
		close(waited)
	}()
	_ = y.CloseWhenFlushed()
	<-waited
	if err := <-a.over; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if y.Pending() != 0 {
		t.Errorf("%d bytes pending on a closed connection", y.Pending())
	}
	_ = x.Close()
}

// Many close at once, from both sides, while frames come and go.
func TestEndsUnderLoad(t *testing.T) {
	l := newLoop(t)
	var all sync.WaitGroup
	for i := range 32 {
		x, y := pair(t)
		a := attend(y, l, 1, func(f *Frame) {
			f.Keep()
			y.Send(f.Header, f.Body, nil)
		})
		all.Go(func() {
			go func() {
				for range 32 {
					x.Send(Header{Kind: KindCall}, make([]byte, i*4000), nil)
				}
			}()
			for range i {
				if _, err := x.Read(); err != nil {
					break
				}
			}
			ends := []*Conn{x, y}
			_ = ends[i%2].Close()
			<-a.over
			_, _ = y.CloseWhenFlushed(), x.Close()
		})
	}
	all.Wait()
}

func BenchmarkLoopEcho(b *testing.B) {
	l := newLoop(b)
	x, y := pair(b)
	a := attend(y, l, 1, func(f *Frame) { y.Send(f.Header, f.Body, nil) })
	body := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		x.Send(Header{Kind: KindCall}, body, nil)
		if _, err := x.Read(); err != nil {
			b.Fatal(err)
		}
	}
	_ = x.Close()
	<-a.over
	_ = y.Close()
}

// What is to come later comes in its turn, whether or not something is read meanwhile.
func TestLoopLater(t *testing.T) {
	l := newLoop(t)
	here, there := pair(t)
	done := make(chan int, 4)
	attend(here, l, 0, func(*Frame) {
		l.Later(300*time.Millisecond, func() { // longer than anything between these lines takes
			done <- 2
			l.Later(time.Millisecond, func() { done <- 3 })
		})
		l.Later(time.Millisecond, func() { done <- 1 })
		done <- 0
	})
	there.Send(Header{Kind: KindNotice}, []byte{0xc0}, nil)
	for want := range 4 {
		if got := <-done; got != want {
			t.Fatalf("%d came in the place of %d", got, want)
		}
	}
}
