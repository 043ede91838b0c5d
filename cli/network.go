package cli

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/muster-rl/muster/backend"
)

// network is how a head meets the agents of other machines; a zero is the head's
// own default.
type network struct {
	host      string
	transport string
	grace     time.Duration
}

// networkOptions reads MUSTER_HOST, MUSTER_TRANSPORT and MUSTER_NODE_GRACE.
func networkOptions(getenv func(string) string) (network, error) {
	n := network{host: getenv("MUSTER_HOST"), transport: getenv("MUSTER_TRANSPORT")}
	host := n.host
	if h, port, err := net.SplitHostPort(n.host); err == nil {
		host = h
		if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
			return n, fmt.Errorf("MUSTER_HOST is %q, and %q is no port", n.host, port)
		}
	}
	if host != "" && net.ParseIP(host) == nil {
		return n, fmt.Errorf("MUSTER_HOST is %q; it is the address of this machine that other nodes reach, as 10.0.0.1, [fd00::1] or 10.0.0.1:7000", n.host)
	}
	switch n.transport {
	case "", backend.TLS, backend.Plain:
	default:
		return n, fmt.Errorf("MUSTER_TRANSPORT is %q; it is %s, or %s on a network that is trusted", n.transport, backend.TLS, backend.Plain)
	}
	if text := getenv("MUSTER_NODE_GRACE"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds <= 1e6) {
			return n, fmt.Errorf("MUSTER_NODE_GRACE is %q; it is how many seconds a node that is not heard of is waited for", text)
		}
		n.grace = time.Duration(seconds * float64(time.Second))
	}
	return n, nil
}
