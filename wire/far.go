package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
)

const (
	// unansweredBound is how long the kernel sends again what the other machine
	// does not acknowledge, before it gives the connection up.
	unansweredBound = 30 * time.Second
	keepAliveEvery  = 10 * time.Second
	keepAlives      = 3
)

// tune sets up a TCP connection between machines: one that is dead ends, and
// writes to it with it.
func tune(nc *net.TCPConn) {
	_ = nc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveEvery, Interval: keepAliveEvery, Count: keepAlives})
	if raw, err := nc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unansweredBound.Milliseconds()))
		})
	}
}

// Over makes a connection of a TCP stream: with TLS, whose handshake it sees to,
// or, where secure is nil, as it is. The deadlines are the caller's.
func Over(nc *net.TCPConn, secure *tls.Config, client bool) (*Conn, error) {
	tune(nc)
	if secure == nil {
		return NewConn(nc), nil
	}
	s, err := newSeal(nc)
	if err != nil {
		return nil, err
	}
	stream := tls.Server(s, secure)
	if client {
		stream = tls.Client(s, secure)
	}
	if err := stream.Handshake(); err != nil {
		return nil, err
	}
	c := NewConn(stream)
	c.seal = s
	return c, nil
}

// stagger is how much later the next address is tried, while the one before has
// not answered.
const stagger = 250 * time.Millisecond

// DialFar connects to one of several addresses, host:port each: the first that
// answers as it should, within bound. They are tried in order, the next one as
// well where one takes long.
func DialFar(ctx context.Context, hosts []string, secure *tls.Config, bound time.Duration) (*Conn, error) {
	if len(hosts) == 0 {
		return nil, spec.Errorf(spec.CodeInvalid, "no address of the head is known")
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	type result struct {
		host string
		conn *Conn
		err  error
	}
	results := make(chan result)
	var errs []error
	tried, open := 0, 0
	next := time.NewTimer(0)
	defer next.Stop()
	for open > 0 || tried < len(hosts) {
		select {
		case <-next.C:
			if tried == len(hosts) {
				continue
			}
			host := hosts[tried]
			tried, open = tried+1, open+1
			go func() {
				conn, err := dialFar(ctx, host, secure)
				select {
				case results <- result{host, conn, err}:
				case <-ctx.Done(): // another was faster
					if err == nil {
						_ = conn.Close()
					}
				}
			}()
			next.Reset(stagger)
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			open--
			errs = append(errs, fmt.Errorf("cannot reach the head at %s: %w", r.host, r.err))
			next.Reset(0)
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("cannot reach the head at %s: %w", strings.Join(hosts, ", "), context.Cause(ctx)))
			return nil, errors.Join(errs...)
		}
	}
	return nil, errors.Join(errs...)
}

func dialFar(ctx context.Context, host string, secure *tls.Config) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // also in the handshake
	c, err := Over(nc.(*net.TCPConn), secure, true)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return c, nil
}

// LocalHost is the address of this machine that a TCP connection goes out by; ""
// for others.
func (c *Conn) LocalHost() string {
	if a, ok := c.nc.LocalAddr().(*net.TCPAddr); ok {
		return a.IP.String()
	}
	return ""
}

// Quiet is what the kernel knows of a TCP connection.
type Quiet struct {
	Data time.Duration // since bytes came
	Ack  time.Duration // since the other machine acknowledged anything
	Trip time.Duration // how long that takes
	Deaf bool          // what was sent has been sent again and again, and is not acknowledged
}

// deafAfter is how many times the same bytes are sent again before that means
// something.
const deafAfter = 2

// Quiet says how long nothing has come; false where there is no telling.
// It counts what lies unread, too.
func (c *Conn) Quiet() (Quiet, bool) {
	var info *unix.TCPInfo
	err := errors.ErrUnsupported
	look := func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }
	c.mu.Lock()
	switch {
	case c.loop != nil:
		if c.fd >= 0 {
			look(uintptr(c.fd))
		}
	case c.seal != nil:
		_ = c.seal.raw.Control(look)
	case c.raw != nil:
		_ = c.raw.Control(look)
	}
	c.mu.Unlock()
	if err != nil {
		return Quiet{}, false
	}
	return Quiet{
		Data: time.Duration(info.Last_data_recv) * time.Millisecond, Ack: time.Duration(info.Last_ack_recv) * time.Millisecond,
		Trip: time.Duration(info.Rtt) * time.Microsecond, Deaf: info.Retransmits >= deafAfter,
	}, true
}
