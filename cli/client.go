package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// answerBound is how long a head may take to answer: people wait for it.
const answerBound = 5 * time.Second

// errEnded means that a session ended while it was looked at.
var errEnded = errors.New("the script has just ended")

// client is a connection to one head, for a few questions.
type client struct {
	session session.Session
	welcome wire.Welcome
	conn    *wire.Conn
	bound   time.Duration
	last    uint64
}

// dial says hello to a session's head.
func dial(s session.Session, role string, bound time.Duration) (*client, error) {
	c := &client{session: s, bound: bound}
	token, err := s.Token()
	if err != nil {
		return nil, c.explain(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "unix", s.Socket())
	if err != nil {
		return nil, c.explain(err)
	}
	_ = nc.SetDeadline(time.Now().Add(bound))
	c.conn = wire.NewConn(nc)
	if c.welcome, err = wire.Join(c.conn, wire.Hello{Role: role, Token: token}); err != nil {
		_ = c.conn.Close()
		return nil, c.explain(err)
	}
	_ = nc.SetDeadline(time.Time{})
	return c, nil
}

func (c *client) close() { _ = c.conn.Close() }

// ask sends one request and waits for its answer.
func (c *client) ask(verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	body, err := wire.AppendVerb(nil, verb, req)
	if err != nil {
		return err
	}
	c.last++
	_ = c.conn.NetConn().SetDeadline(time.Now().Add(c.bound))
	c.conn.Send(wire.Header{Kind: wire.KindRequest, ID: c.last}, body, nil)
	for {
		f, err := c.conn.Read()
		switch {
		case err != nil:
			return c.explain(err)
		case f.Kind != wire.KindResponse || f.ID != c.last:
			continue
		case f.Flags&wire.FlagError != 0:
			return wire.ReadError(f.Body)
		}
		if _, err := resp.UnmarshalMsg(f.Body); err != nil {
			return fmt.Errorf("the answer of session %s cannot be read: %w", c.session.Name, err)
		}
		return nil
	}
}

// explain words why a head does not answer.
func (c *client) explain(err error) error {
	s := c.session
	var told *spec.Error
	switch {
	case errors.As(err, &told) && told.Code == spec.CodeHeadLost:
		return errEnded
	case errors.As(err, &told):
		return fmt.Errorf("session %s: %w", s.Name, told)
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the head of session %s (process %d) did not answer within %v: it may be stopped, or too busy; ps -o stat,etime,args -p %d shows it",
			s.Name, s.Pid, c.bound, s.Pid)
	}
	if _, gone := os.Stat(s.Dir); gone != nil {
		return errEnded // with its folder
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("session %s (process %d) is just starting, or was killed", s.Name, s.Pid)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errEnded
	}
	return fmt.Errorf("session %s: %w", s.Name, err)
}
