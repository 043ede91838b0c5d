package wire

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// ringLoop is a loop with a ring, also under the race detector.
func ringLoop(t testing.TB) *Loop {
	t.Helper()
	l := newLoop(t)
	if l.joint.ring == nil {
		l.joint.ring = newRing()
	}
	l.joint.from = 2
	if l.joint.ring == nil {
		t.Skip("needs iouring: this kernel, or its container, has none to be had")
	}
	return l
}

// attendedPairs are connections of the loop's, and their other ends.
func attendedPairs(t testing.TB, l *Loop, count int) (ours, theirs []*Conn) {
	t.Helper()
	for range count {
		c, b := pair(t)
		over := make(chan error, 1)
		if !c.Attend(l, func() {
			if err := c.Fetch(); err != nil {
				c.Leave()
				over <- err
			}
		}) {
			t.Fatal("the loop does not take it")
		}
		t.Cleanup(func() {
			_ = b.Close()
			<-over
			_ = c.Close()
		})
		ours, theirs = append(ours, c), append(theirs, b)
	}
	return ours, theirs
}

// expect reads frames with these bodies.
func expect(t testing.TB, from *Conn, bodies ...string) {
	t.Helper()
	for _, want := range bodies {
		f, err := from.Read()
		if err != nil {
			t.Fatal(err)
		}
		if string(f.Body) != want {
			t.Fatalf("read %.20q, expected %.20q", f.Body, want)
		}
	}
}

func queue(c *Conn, bodies ...string) {
	for i, body := range bodies {
		c.Queue(Header{Kind: KindLeg, ID: uint64(i)}, nil, []byte(body), nil) //nolint:gosec // small
	}
}

// More connections than one call takes, one of them named twice: every frame
// arrives once, in order.
func TestFlushAll(t *testing.T) {
	l := ringLoop(t)
	ours, theirs := attendedPairs(t, l, 2*ringSize+3)
	for range 3 {
		for i, c := range ours {
			queue(c, fmt.Sprint("first ", i), fmt.Sprint("second ", i))
		}
		l.FlushAll(append([]*Conn{ours[5]}, ours...))
		for i, c := range ours {
			if c.Pending() != 0 {
				t.Errorf("%d bytes of connection %d are not written", c.Pending(), i)
			}
		}
	}
	for i, b := range theirs {
		one, two := fmt.Sprint("first ", i), fmt.Sprint("second ", i)
		expect(t, b, one, two, one, two, one, two)
	}
	if l.joint.ring == nil {
		t.Error("the ring was given up")
	}
}

// What does not go by the ring goes as before: large frames, a socket that is
// full, connections that are over or have no loop, nothing at all.
func TestFlushAllOfAllKinds(t *testing.T) {
	l := ringLoop(t)
	ours, theirs := attendedPairs(t, l, 5)
	large := string(bytes.Repeat([]byte("x"), sendMost+1))
	full := string(bytes.Repeat([]byte("y"), sendMost/2))
	var many []string
	for range 200 { // more than a socket takes
		many = append(many, full)
		queue(ours[1], full)
		l.FlushAll(ours[1:3])
	}
	if ours[1].Pending() == 0 {
		t.Error("a socket took more than it was thought to")
	}
	queue(ours[0], large)
	_ = theirs[3].Close() // the other end is gone
	queue(ours[3], "to nobody")
	alone, b := pair(t)
	queue(alone, "no loop")
	queue(ours[4], "small")
	l.FlushAll(append(ours, alone))
	expect(t, theirs[0], large)
	expect(t, theirs[1], many...)
	expect(t, theirs[4], "small")
	expect(t, b, "no loop")
	if ours[3].Err() == nil {
		t.Error("nothing was said of a connection whose other end is gone")
	}
	if ours[2].Err() != nil || ours[2].Pending() != 0 {
		t.Errorf("one with nothing to write: %v", ours[2].Err())
	}
}

// A ring that does not work any more is given up, and nothing is lost.
func TestFlushAllWithoutRing(t *testing.T) {
	l := ringLoop(t)
	ours, theirs := attendedPairs(t, l, 3)
	good := l.joint.ring.fd
	l.joint.ring.fd = -1
	for _, c := range ours {
		queue(c, "one")
	}
	l.FlushAll(ours)
	if l.joint.ring != nil {
		t.Error("the ring was kept")
	}
	if err := unix.Close(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range ours {
		queue(c, "two")
	}
	l.FlushAll(ours)
	for _, b := range theirs {
		expect(t, b, "one", "two")
	}
	var none *Loop
	queue(ours[0], "three")
	none.FlushAll(ours)
	expect(t, theirs[0], "three")
}

func BenchmarkFlushAll(b *testing.B) {
	for _, how := range []string{"together", "one by one"} {
		b.Run(how, func(b *testing.B) {
			l := ringLoop(b)
			if how != "together" {
				l.joint.close()
			}
			ours, theirs := attendedPairs(b, l, 8)
			body := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				for _, c := range ours {
					c.Queue(Header{Kind: KindLeg}, nil, body, nil)
				}
				l.FlushAll(ours)
				for _, to := range theirs {
					if _, err := to.Read(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
