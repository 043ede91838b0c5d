package muster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// How a head is looked for again: often, for it is to be found within a second.
const (
	dialFirst = 20 * time.Millisecond
	dialMost  = 200 * time.Millisecond

	maxRestarts   = 10 // of an embedded head within restartWindow
	restartWindow = time.Minute
)

// errGone says that a head has left in order, so that nobody need look for it.
var errGone = errors.New("it has left")

// back finds the session's head again, within the grace, after its connection
// was cut: it starts an embedded one anew that was killed, and dials others. It
// returns why that was not to be.
func (s *Session) back(cut error) *spec.Error {
	if s.hello.Back == 0 || s.conn.leaving.Err() != nil {
		return s.lost(cut, "")
	}
	grace := session.HeadGrace()
	ctx, cancel := context.WithTimeout(s.conn.leaving, grace)
	defer cancel()
	var err error
	if s.head != nil && s.headProcess().wait(exitNotice) {
		err = s.restart(ctx)
	} else {
		err = s.dialAgain(ctx)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errGone), s.conn.leaving.Err() != nil:
		return s.lost(cut, "")
	case ctx.Err() != nil:
		return s.lost(cut, fmt.Sprintf("No head was there again within the grace of %v (MUSTER_HEAD_GRACE): %v", grace, err))
	}
	return s.lost(cut, err.Error())
}

// lost words the end of the connection, and what was tried against it.
func (s *Session) lost(cut error, tried string) *spec.Error {
	text := fmt.Sprintf("the head at %s ended or hung up (%v). Is it still running?", s.address, cut)
	if s.head != nil {
		text = s.headProcess().howEnded()
	}
	if tried != "" {
		text += "\n\n" + tried
	}
	return spec.Errorf(CodeHeadLost, "%s", text)
}

// headProcess is the embedded head of now.
func (s *Session) headProcess() *headProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head
}

// restart starts the embedded head anew, which reads what the old one wrote down
// and waits for all that the old one knew.
func (s *Session) restart(ctx context.Context) error {
	for {
		head := s.headProcess()
		if head.orderly() {
			return errGone
		}
		now := time.Now()
		for len(s.restarts) > 0 && now.Sub(s.restarts[0]) > restartWindow {
			s.restarts = s.restarts[1:]
		}
		if len(s.restarts) >= maxRestarts {
			return fmt.Errorf("it was started anew %d times within %v, and ended each time", maxRestarts, restartWindow)
		}
		s.restarts = append(s.restarts, now)
		next, nc, err := startHead(s.binary, append(s.options.bridge(), "--resume", s.name)...)
		if err != nil {
			return err
		}
		if err = s.rejoin(ctx, nc, s.hello); err != nil {
			_ = nc.Close()
			if next.end(exitNotice); refused(err) || ctx.Err() != nil {
				next.forget()
				return fmt.Errorf("a head that was started anew did not take this process back: %w", err)
			}
		}
		s.mu.Lock()
		s.head = next
		s.mu.Unlock()
		head.forget()
		if err == nil {
			return nil
		}
	}
}

// dialAgain dials until the head is there.
func (s *Session) dialAgain(ctx context.Context) error {
	hello := s.hello
	hello.Role = wire.RoleController // only a pair of sockets makes an owner
	wait := time.NewTimer(0)
	defer wait.Stop()
	var last error
	for pause := dialFirst; ; pause = min(2*pause, dialMost) {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return errors.Join(last, ctx.Err())
		}
		var d net.Dialer
		nc, err := d.DialContext(ctx, "unix", s.address)
		if err == nil {
			if err = s.rejoin(ctx, nc, hello); err == nil {
				return nil
			}
			_ = nc.Close()
			if refused(err) {
				return fmt.Errorf("it did not take this process back: %w", err)
			}
		} else if _, gone := os.Stat(filepath.Dir(s.address)); errors.Is(gone, os.ErrNotExist) {
			return errGone // with its folder
		}
		if ctx.Err() == nil {
			last = err
		}
		wait.Reset(pause)
	}
}

// rejoin says hello on a new connection, and goes on over it.
func (s *Session) rejoin(ctx context.Context, nc net.Conn, hello wire.Hello) error {
	hello.Runtime = ownRuntime()
	w := wire.NewConn(nc)
	if _, err := join(ctx, w, hello); err != nil {
		return err
	}
	if !s.conn.resume(w) {
		return context.Cause(s.conn.leaving)
	}
	return nil
}

// refused says that a head is there and will not have us, now or later.
func refused(err error) bool {
	var told *spec.Error
	return errors.As(err, &told) && told.Code != CodeLimit
}
