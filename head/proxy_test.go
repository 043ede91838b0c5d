package head_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend/fake"
)

// What a proxy does at a frame.
const (
	passOn     = iota
	cutAfter   // the connection ends, once the frame has gone through
	loseFrame  // the connection ends, and takes the frame with it, and what is behind it
	holdBack   // the frame waits for others to pass
	halfOpen   // the connection ends for who dialled; the head does not notice
	twice      // the frame comes twice
	twiceLater // and others are between

	cuts = twice
)

func actionName(a int) string {
	return [...]string{"pass", "cut after", "lose", "hold back", "leave half open", "repeat", "repeat later"}[a]
}

// proxy stands where a head listens, and hands frames on one by one.
type proxy struct {
	real     string
	listener net.Listener
	at, do   int

	mu     sync.Mutex
	frames []string // as they came, of all connections
	conns  map[net.Conn]bool
	passed chan struct{} // closed and made anew with every frame
	over   bool
	served sync.WaitGroup
}

// newProxy takes the place of the socket at path, and does one thing at one frame.
func newProxy(path string, at, do int) (*proxy, error) {
	p := &proxy{real: filepath.Join(filepath.Dir(path), "real.sock"), at: at, do: do, conns: map[net.Conn]bool{}, passed: make(chan struct{})}
	if err := os.Rename(path, p.real); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	p.listener = listener
	p.served.Go(func() {
		for {
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			p.served.Go(func() { p.serve(nc) })
		}
	})
	return p, nil
}

func (p *proxy) serve(near net.Conn) {
	far, err := net.Dial("unix", p.real)
	if err != nil {
		_ = near.Close()
		return
	}
	p.mu.Lock()
	p.conns[near], p.conns[far] = true, true
	if p.over {
		_, _ = near.Close(), far.Close()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.carry(near, far, near, far, "up") })
	both.Go(func() { p.carry(far, near, near, far, "down") })
	both.Wait()
	_, _ = near.Close(), far.Close()
	p.mu.Lock()
	delete(p.conns, near)
	delete(p.conns, far)
	p.mu.Unlock()
}

// carry hands on the frames of one direction.
func (p *proxy) carry(from io.Reader, to io.Writer, near, far net.Conn, way string) {
	var again []byte // a frame that is to come again, after so many
	after := 0
	for {
		frame, err := readFrame(from)
		if err != nil { // the other direction may still have something
			if c, ok := to.(*net.UnixConn); ok {
				_ = c.CloseWrite()
			}
			return
		}
		switch p.action(fmt.Sprintf("%s %d", way, frame[4])) {
		case cutAfter:
			_, _ = to.Write(frame)
			_, _ = near.Close(), far.Close()
			return
		case loseFrame:
			_, _ = near.Close(), far.Close()
			return
		case halfOpen:
			_ = near.Close()
			return
		case holdBack:
			p.hold(3)
		case twice:
			frame = append(frame, frame...)
		case twiceLater:
			again, after = frame, 2
		default:
			if after--; after == 0 {
				frame = append(frame, again...)
			}
		}
		if _, err := to.Write(frame); err != nil {
			_, _ = near.Close(), far.Close()
			return
		}
	}
}

// action counts a frame and says what is to be done with it.
func (p *proxy) action(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frames = append(p.frames, name)
	close(p.passed)
	p.passed = make(chan struct{})
	if len(p.frames)-1 == p.at {
		return p.do
	}
	return passOn
}

// hold waits for so many other frames, if they come.
func (p *proxy) hold(n int) {
	late := time.After(20 * time.Millisecond)
	for range n {
		p.mu.Lock()
		passed := p.passed
		p.mu.Unlock()
		select {
		case <-passed:
		case <-late:
			return
		}
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.over = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.served.Wait()
}

func readFrame(r io.Reader) ([]byte, error) {
	frame := make([]byte, 24)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(frame)
	frame = append(frame, make([]byte, n)...)
	_, err := io.ReadFull(r, frame[24:])
	return frame, err
}

// cutLife is the workload through a proxy.
func cutLife(t testing.TB, virtual string, at, do int) (frames []string, err error) {
	t.Helper()
	var ran legRuns
	s := newCrashes(t, virtual, fake.Script{Answer: func(leg *fake.Leg) {
		ran.note(leg)
		echo(leg)
	}})
	c := s.controller()
	s.joined() // one whose first connection was cut would not join at all
	// Who has dialled already comes by the proxy when it is cut off.
	p, err := newProxy(filepath.Join(s.options.Dir, "head.sock"), at, do)
	must(t, err)
	for node := range 2 {
		s.fake.Agent(node).Cut()
	}
	c.cut()
	err = workload(c)
	p.mu.Lock()
	frames = p.frames
	p.mu.Unlock()
	err = s.ends(c, err, ran.check())
	p.close()
	return frames, err
}

// cut ends its connection as a network would.
func (c *returning) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Cut()
	}
}

// A connection that is cut at any frame, whatever is lost, late or not noticed, is
// made anew: every answer comes, once, and every leg runs once.
func TestCutAtEveryFrame(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		frames, err := cutLife(t, "2x1"+relay, -1, passOn)
		must(t, err)
		t.Logf("%d frames", len(frames))
		for at := range frames {
			for do := cutAfter; do < cuts; do++ {
				if (at+do)%2 != 0 { // the others at the frames beside it
					continue
				}
				if seen, err := cutLife(t, "2x1"+relay, at, do); err != nil {
					t.Errorf("%s frame %d (%s, %q): %v", actionName(do), at, frames[at], last(seen[:min(at+1, len(seen))]), err)
				}
			}
		}
	})
}

// A frame that comes twice, at once or when others have come since, is as good as
// one that comes once, whatever it is: no leg runs twice, no answer, release or
// acknowledgement counts twice.
func TestEveryFrameTwice(t *testing.T) {
	both(t, func(t *testing.T, relay string) {
		frames, err := cutLife(t, "2x1"+relay, -1, passOn)
		must(t, err)
		for at := range frames {
			do := twice + at%2
			if _, err := cutLife(t, "2x1"+relay, at, do); err != nil {
				t.Errorf("%s frame %d (%s): %v", actionName(do), at, frames[at], err)
			}
			do = twice + twiceLater - do
			if at%3 != 0 { // the other way at some
				continue
			}
			if _, err := cutLife(t, "2x1"+relay, at, do); err != nil {
				t.Errorf("%s frame %d (%s): %v", actionName(do), at, frames[at], err)
			}
		}
	})
}

func last(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[len(s)-1]
}
