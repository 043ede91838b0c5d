package agent

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHeldPorts(t *testing.T) {
	var p ports
	defer p.releaseAll()
	held, err := p.hold(1, 3)
	if err != nil || len(held) != 3 || held[0] == held[1] {
		t.Fatalf("got %v, %v", held, err)
	}
	plain := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
		return err
	}}
	for _, address := range []string{"127.0.0.1", "0.0.0.0"} {
		if l, err := plain.Listen(context.Background(), "tcp4", fmt.Sprintf("%s:%d", address, held[0])); err == nil {
			l.Close()
			t.Errorf("a plain bind to %s took a held port", address)
		}
	}
	// Go listens with SO_REUSEADDR, as rank 0 does.
	for _, network := range []string{"tcp4", "tcp"} {
		l, err := net.Listen(network, fmt.Sprintf(":%d", held[0]))
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		l.Close()
	}
	p.release(1)
	l, err := plain.Listen(context.Background(), "tcp4", fmt.Sprintf("127.0.0.1:%d", held[1]))
	if err != nil {
		t.Fatalf("a released port is still held: %v", err)
	}
	l.Close()
	if _, err := p.hold(1, mostPorts+1); err == nil {
		t.Error("too many were held")
	}
}
