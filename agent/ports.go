package agent

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
)

// ports holds TCP ports for clusters: bound with SO_REUSEADDR and never
// listening, so that a worker that binds with SO_REUSEADDR gets the port while
// nobody else can take it.
type ports struct {
	mu   sync.Mutex
	held map[uint32]*heldPorts // by cluster
}

type heldPorts struct{ numbers, fds []int }

// mostPorts is more than any cluster needs: beyond it someone has miscounted.
const mostPorts = 1024

// hold has count ports of a cluster. Those that it holds already are the first
// of them: whoever asks again gets the same.
func (p *ports) hold(cluster uint32, count int) ([]int, error) {
	if count < 0 || count > mostPorts {
		return nil, spec.Errorf(spec.CodeInvalid, "cannot hold %d ports: 0 to %d at a time", count, mostPorts)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.held[cluster]
	if had == nil {
		had = &heldPorts{}
	}
	numbers, fds := slices.Clone(had.numbers), []int(nil)
	for len(numbers) < count {
		port, bound, err := holdPort()
		if err != nil {
			closeAll(fds)
			return nil, limitError(spec.Errorf(spec.CodeResources, "cannot hold a port, after %d of %d: %v", len(numbers), count, err), err)
		}
		numbers, fds = append(numbers, port), append(fds, bound...)
	}
	if p.held == nil {
		p.held = map[uint32]*heldPorts{}
	}
	p.held[cluster] = &heldPorts{numbers, append(had.fds, fds...)}
	return numbers[:count:count], nil
}

func (p *ports) release(cluster uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.held[cluster]; had != nil {
		closeAll(had.fds)
		delete(p.held, cluster)
	}
}

func (p *ports) releaseAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cluster, had := range p.held {
		closeAll(had.fds)
		delete(p.held, cluster)
	}
}

// holdPort binds a port that the kernel picks, on IPv4 and, where there is
// IPv6, on that too. A port that IPv6 has taken already is passed over.
func holdPort() (port int, fds []int, err error) {
	var refused []int // kept until we have one, or the kernel may offer them again
	defer func() { closeAll(refused) }()
	for range 64 {
		four, port, err := bindPort(unix.AF_INET, 0)
		if err != nil {
			return 0, nil, err
		}
		six, _, err := bindPort(unix.AF_INET6, port)
		switch {
		case err == nil:
			return port, []int{four, six}, nil
		case errors.Is(err, unix.EADDRINUSE):
			refused = append(refused, four)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
			closeAll([]int{four})
			return 0, nil, err
		default: // no IPv6 here
			return port, []int{four}, nil
		}
	}
	return 0, nil, errors.New("64 ports in a row were free for IPv4 but taken for IPv6")
}

func bindPort(family, port int) (fd, bound int, err error) {
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, 0, err
	}
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: netip.IPv4Unspecified().As4()}
	if family == unix.AF_INET6 {
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return -1, 0, err
		}
		address = &unix.SockaddrInet6{Port: port}
	}
	if err = unix.Bind(fd, address); err != nil {
		return -1, 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, err
	}
	if four, ok := name.(*unix.SockaddrInet4); ok {
		port = four.Port
	}
	return fd, port, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
