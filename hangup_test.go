package muster

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/wire"
)

// A session that is closed while a head takes it back hangs up whichever of the
// two comes first, so that who closes does not wait for ever.
func TestHangingUpWhileAHeadTakesUsBack(t *testing.T) {
	for _, first := range []string{"back", "hung up"} {
		old, next := linked(t), linked(t)
		c := newConn(old)
		c.link = object.NewLink(old, nil)
		c.cut()
		wants := first == "back"
		if !wants {
			c.hangUp()
		}
		if got := c.resume(next); got != wants {
			t.Errorf("%s first: a new connection was taken: %v", first, got)
		}
		if wants {
			c.hangUp()
		}
		if _, err := c.wire.Read(); err == nil {
			t.Errorf("%s first: the connection is open", first)
		}
	}
}

// linked is one end of a connection.
func linked(t *testing.T) *wire.Conn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "end") //nolint:gosec // a descriptor
		ends[i], err = net.FileConn(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return wire.NewConn(ends[0])
}
