// Command floor is the least that a head could be: a relay between unix
// sockets, for bench/ to hold Muster against.
//
// It owns frames of 64 bytes and two ways of passing them on: to the first
// worker and back, and to all workers with one answer when the last one is in.
// There are no calls, errors, tokens or values in it, and there never will be:
// whatever it did more would raise the floor. It imports the standard library
// alone. It ends when its standard input does.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// A frame: kind, three bytes of nothing, the number of the controller that the
// answer goes to (written here), and what the Python ends make of the rest.
const (
	frameSize  = 64
	kindOne    = 0
	kindAll    = 1
	kindWorker = 'w' // first frame of a worker, echoed once it is known
	kindCaller = 'c' // first frame of a controller, echoed as well
	batch      = 1024 * frameSize
)

// caller is one connection of a controller. It has at most one broadcast under
// way, so a count is all that gathering takes.
type caller struct {
	conn net.Conn
	left atomic.Int32
}

// relay knows who is connected. The lists are copied when they change, so that
// passing a frame on takes no lock.
type relay struct {
	change  sync.Mutex
	workers atomic.Pointer[[]net.Conn]
	callers atomic.Pointer[[]*caller]
}

func newRelay() *relay {
	r := &relay{}
	r.workers.Store(&[]net.Conn{})
	r.callers.Store(&[]*caller{})
	return r
}

// serve takes connections until the listener is closed.
func (r *relay) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		go r.welcome(conn)
	}
}

func (r *relay) welcome(conn net.Conn) {
	defer conn.Close()
	hello := make([]byte, frameSize)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return
	}
	switch hello[0] {
	case kindWorker:
		r.join(conn)
		defer r.leave(conn)
		if _, err := conn.Write(hello); err == nil {
			frames(conn, r.back)
		}
	case kindCaller:
		number := r.enter(conn)
		if _, err := conn.Write(hello); err == nil {
			frames(conn, func(run []byte) error { return r.out(number, run) })
		}
	}
}

func (r *relay) join(conn net.Conn) {
	r.change.Lock()
	defer r.change.Unlock()
	workers := append([]net.Conn{}, *r.workers.Load()...)
	workers = append(workers, conn)
	r.workers.Store(&workers)
}

func (r *relay) leave(conn net.Conn) {
	r.change.Lock()
	defer r.change.Unlock()
	var workers []net.Conn
	for _, w := range *r.workers.Load() {
		if w != conn {
			workers = append(workers, w)
		}
	}
	r.workers.Store(&workers)
}

func (r *relay) enter(conn net.Conn) uint32 {
	r.change.Lock()
	defer r.change.Unlock()
	callers := append([]*caller{}, *r.callers.Load()...)
	callers = append(callers, &caller{conn: conn})
	r.callers.Store(&callers)
	return uint32(len(callers) - 1)
}

// frames reads whole frames and hands them over in runs that have the kind and
// the controller in common, so that a run is passed on by one write.
func frames(conn net.Conn, pass func(run []byte) error) {
	buf := make([]byte, batch)
	have := 0
	for {
		n, err := conn.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		whole := have - have%frameSize
		for start := 0; start < whole; {
			end := start + frameSize
			for end < whole && string(buf[end:end+8]) == string(buf[start:start+8]) && buf[start] == kindOne {
				end += frameSize
			}
			if err := pass(buf[start:end]); err != nil {
				return
			}
			start = end
		}
		have = copy(buf, buf[whole:have])
	}
}

// out passes a controller's frames to the first worker, or to all.
func (r *relay) out(number uint32, run []byte) error {
	workers := *r.workers.Load()
	if len(workers) == 0 {
		return errors.New("no worker")
	}
	for i := 0; i < len(run); i += frameSize {
		binary.LittleEndian.PutUint32(run[i+4:], number)
	}
	if run[0] == kindOne {
		_, err := workers[0].Write(run)
		return err
	}
	(*r.callers.Load())[number].left.Store(int32(len(workers)))
	for _, w := range workers {
		if _, err := w.Write(run); err != nil {
			return err
		}
	}
	return nil
}

// back passes a worker's answers to their controller; of a broadcast's, only
// the last.
func (r *relay) back(run []byte) error {
	c := (*r.callers.Load())[binary.LittleEndian.Uint32(run[4:])]
	if run[0] == kindAll && c.left.Add(-1) != 0 {
		return nil
	}
	_, err := c.conn.Write(run)
	return err
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: floor SOCKET   (ends when its standard input does)")
		os.Exit(2)
	}
	l, err := net.Listen("unix", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
	fmt.Println("listening")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		l.Close()
	}()
	if err := newRelay().serve(l); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}
