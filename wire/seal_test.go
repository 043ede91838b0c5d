package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/muster-rl/muster/wire"
)

// looped has a loop read a connection, and sends on what it got. It copies frames,
// and leaves the loop after every so many, to read one by itself.
func looped(t testing.TB, c *wire.Conn, leaveEvery int) (frames <-chan wire.Frame, ended <-chan error) {
	t.Helper()
	loop, err := wire.NewLoop(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, over := make(chan wire.Frame, 1<<16), make(chan error, 1)
	t.Cleanup(func() {
		_ = c.Close()
		<-over
		loop.Close()
	})
	done := make(chan error, 1)
	count := 0
	next := func() error {
		f, err := c.Read()
		if err == nil {
			f.Keep()
			got <- f
			count++
		}
		return err
	}
	var readable func()
	alone := func() {
		for {
			if err := next(); err != nil {
				done <- err
				return
			}
			if !c.Buffered() && c.Attend(loop, readable) {
				return
			}
		}
	}
	readable = func() {
		err := c.Fetch()
		for err == nil && c.Buffered() {
			err = next()
			if leaveEvery > 0 && count%leaveEvery == 0 {
				c.Leave()
				go alone()
				return
			}
		}
		if err != nil {
			c.Leave()
			done <- err
		}
	}
	if !c.Attend(loop, readable) {
		t.Fatal("the loop does not take it")
	}
	told := make(chan error, 1)
	go func() {
		err := <-done
		told <- err
		close(over)
	}()
	return got, told
}

// What a loop reads and writes over the network is what was sent, however the
// frames lie in records, and whoever reads between.
func TestFramesInALoopOverTheNetwork(t *testing.T) {
	for name, leaveEvery := range map[string]int{"always": 0, "in turns": 7} {
		t.Run(name, func(t *testing.T) {
			bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
				there, thereEnded := looped(t, theirs, leaveEvery)
				back, _ := looped(t, ours, leaveEvery)
				large := bytes.Repeat([]byte("muster"), 1<<20)
				size := func(i int) int { return i * i * 20 }
				const n = 200
				for i := range n {
					ours.Queue(wire.Header{Kind: wire.KindLeg, ID: uint64(i)}, nil, []byte{0xc0}, wire.Bytes(large[:size(i)]))
					if i%3 == 0 {
						ours.Flush()
					}
				}
				ours.Flush()
				for i := range n {
					f := <-there
					if f.ID != uint64(i) || !bytes.Equal(f.Bufs[0].Data, large[:size(i)]) {
						t.Fatalf("frame %d came as %d with %d bytes", i, f.ID, len(f.Bufs[0].Data))
					}
					theirs.Send(wire.Header{Kind: wire.KindResult, ID: f.ID}, []byte{0xc0}, f.Bufs)
				}
				for i := range n {
					if f := <-back; f.ID != uint64(i) || len(f.Bufs[0].Data) != size(i) {
						t.Fatalf("answer %d came as %d with %d bytes", i, f.ID, len(f.Bufs[0].Data))
					}
				}
				if _, ok := theirs.Quiet(); !ok {
					t.Error("the kernel is not asked any more")
				}
				ours.WaitBelow(0)
				_ = ours.CloseWhenFlushed()
				if err := <-thereEnded; !errors.Is(err, io.EOF) {
					t.Errorf("the other end sees %v", err)
				}
			})
		})
	}
}

// A sender in a loop does not wait for an end that reads late.
func TestALoopAndAnEndThatReadsLate(t *testing.T) {
	bothFar(t, func(t *testing.T, ours, theirs *wire.Conn) {
		_, _ = looped(t, ours, 0)
		body := bytes.Repeat([]byte{1}, 2000)
		const frames = 20000
		for i := range frames {
			ours.Send(wire.Header{Kind: wire.KindNotice, ID: uint64(i)}, body, nil)
		}
		for i := range frames {
			f, err := theirs.Read()
			if err != nil || f.ID != uint64(i) || len(f.Body) != len(body) {
				t.Fatalf("frame %d: %d, %v", i, f.ID, err)
			}
		}
		ours.WaitBelow(0)
		if n := ours.Pending(); n != 0 {
			t.Errorf("%d bytes are pending", n)
		}
	})
}

func BenchmarkRoundTripInALoopOverTheNetwork(b *testing.B) {
	for name, secret := range map[string]bool{"tls": true, "plain": false} {
		b.Run(name, func(b *testing.B) {
			ours, theirs := farPair(b, secret)
			loop, err := wire.NewLoop(nil)
			if err != nil {
				b.Fatal(err)
			}
			ended := make(chan struct{})
			if !theirs.Attend(loop, func() {
				err := theirs.Fetch()
				for err == nil && theirs.Buffered() {
					var f wire.Frame
					if f, err = theirs.Read(); err == nil {
						theirs.Send(f.Header, f.Body, nil)
					}
				}
				if err != nil {
					theirs.Leave()
					close(ended)
				}
			}) {
				b.Fatal("the loop does not take it")
			}
			b.ReportAllocs()
			for b.Loop() {
				ours.Send(wire.Header{Kind: wire.KindNotice}, []byte{0xc0}, nil)
				if _, err := ours.Read(); err != nil {
					b.Fatal(err)
				}
			}
			_ = ours.Close()
			<-ended
			_ = theirs.Close()
			loop.Close()
		})
	}
}
