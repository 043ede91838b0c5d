package node

import (
	"context"
	"crypto/hmac"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/muster-rl/muster/node/course"
)

// miss is a look that failed, and how.
type miss struct {
	how course.Miss
	why string
}

func (m *miss) Error() string { return m.why }

// watcher looks at the leader's board, again and again.
type watcher struct {
	address string // host:port
	token   string
	hello   hello

	looked func(course.Notice, net.Conn)
	missed func(*miss)

	mu     sync.Mutex
	report report
	news   chan struct{} // the report has changed
}

const (
	dialWithin = 3 * time.Second
	firstPause = 200 * time.Millisecond
	longPause  = time.Second
)

// tell changes what the leader is told, at once if there is a connection.
func (w *watcher) tell(r report) {
	w.mu.Lock()
	w.report = r
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *watcher) telling() report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// run looks until ctx ends. One connection is used for as long as it is good.
func (w *watcher) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		l, err := w.join(ctx)
		if err == nil {
			pause = firstPause
			err = w.converse(ctx, l)
			_ = l.Close()
		}
		if ctx.Err() != nil {
			return
		}
		w.missed(err)
		timer := time.NewTimer(pause)
		pause = min(2*pause, longPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// join dials and shows that both sides know the token.
func (w *watcher) join(ctx context.Context) (*line, *miss) {
	dialer := net.Dialer{Timeout: dialWithin, KeepAlive: beat}
	c, err := dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, missOf(err)
	}
	l := newLine(c)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if m := w.greet(l); m != nil {
		_ = l.Close()
		return nil, m
	}
	return l, nil
}

func (w *watcher) greet(l *line) *miss {
	var g greeting
	if err := l.receive(&g, greetWithin); err != nil {
		return missOf(err)
	}
	if g.Muster != boardName || len(g.Nonce) != 64 {
		return &miss{course.Unspeakable, "what listens there is not muster node, or one of another release"}
	}
	h := w.hello
	h.Nonce = newNonce()
	h.Proof = proof(w.token, "replica", g.Nonce, h.Nonce)
	if err := l.send(h); err != nil {
		return missOf(err)
	}
	var answer welcome
	if err := l.receive(&answer, greetWithin); err != nil {
		return missOf(err)
	}
	switch {
	case answer.Token:
		return &miss{course.BadToken, "the token is not the leader's"}
	case answer.Error != "":
		return &miss{course.NotWelcome, answer.Error}
	case !hmac.Equal([]byte(answer.Proof), []byte(proof(w.token, "leader", g.Nonce, h.Nonce))):
		return &miss{course.BadToken, "the leader does not know the token"}
	}
	return nil
}

// converse tells and hears until the connection fails.
func (w *watcher) converse(ctx context.Context, l *line) *miss {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for {
			if l.send(w.telling()) != nil {
				_ = l.Close()
				return
			}
			select {
			case <-tick.C:
			case <-w.news:
			case <-done:
				return
			}
		}
	}()
	for {
		var n course.Notice
		if err := l.receive(&n, patience); err != nil {
			return missOf(err)
		}
		w.looked(n, l)
	}
}

// missOf says how a dial or a read failed.
func missOf(err error) *miss {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return &miss{course.NoName, "its name cannot be looked up: " + dns.Err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &miss{course.NoListener, "connection refused"}
	case errors.Is(err, errSpeech):
		return &miss{course.Unspeakable, "something else listens there: " + err.Error()}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &miss{course.NoAnswer, "no answer"}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return &miss{course.NoAnswer, op.Err.Error()}
	}
	return &miss{course.NoAnswer, "the connection ended"}
}
