package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// own is an address of this host and the interface that has it.
type own struct {
	Address   netip.Addr
	Interface string
}

// ownAddresses lists those of all interfaces that are up, in their order.
func ownAddresses() ([]own, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("cannot list this host's interfaces: %w", err)
	}
	var all []own
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue // it went away
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				all = append(all, own{prefix.Addr().Unmap(), i.Name})
			}
		}
	}
	return all, nil
}

// interfaceOf finds the one that has an address.
func interfaceOf(all []own, a netip.Addr) (own, bool) {
	for _, o := range all {
		if o.Address == a.Unmap().WithZone("") || o.Address == a.Unmap() {
			return o, true
		}
	}
	return own{}, false
}

// usual is the address that others most likely reach this host by: that of the
// way out, else the first that is no loopback.
func usual(all []own) own {
	if c, err := net.Dial("udp", "192.0.2.1:9"); err == nil { // nothing is sent
		a := addrOf(c.LocalAddr())
		_ = c.Close()
		if o, ok := interfaceOf(all, a); ok && !a.IsLoopback() {
			return o
		}
	}
	for _, o := range all {
		if o.Address.Is4() && !o.Address.IsLoopback() && !o.Address.IsLinkLocalUnicast() {
			return o
		}
	}
	for _, o := range all {
		if !o.Address.IsLoopback() && !o.Address.IsLinkLocalUnicast() {
			return o
		}
	}
	return own{netip.AddrFrom4([4]byte{127, 0, 0, 1}), "lo"}
}

// addrOf is the address of a socket's end.
func addrOf(a net.Addr) netip.Addr {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	parsed, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return parsed.Unmap()
}

// leaderAddress is which of this host's addresses rank 0 goes by. asked is
// --node-ip, leader what the others were given. A name that cannot be looked up
// is tried again until ctx ends: a pod's own name may take a while to be known.
func leaderAddress(ctx context.Context, asked, leader string) (own, error) {
	all, err := ownAddresses()
	if err != nil {
		return own{}, err
	}
	if asked != "" {
		return askedAddress(all, asked)
	}
	if leader == "" {
		return usual(all), nil
	}
	addresses, err := lookUp(ctx, leader)
	if err != nil {
		return own{}, fmt.Errorf("the leader's name %s cannot be looked up: %w", leader, err)
	}
	loopback := false
	for _, a := range addresses {
		loopback = loopback || a.IsLoopback()
		if o, ok := interfaceOf(all, a); ok && !a.IsLoopback() {
			return o, nil
		}
	}
	if loopback { // /etc/hosts gives a host's own name such an address
		return usual(all), nil
	}
	host, _ := os.Hostname()
	return own{}, fmt.Errorf("this replica (%s, %s) has rank 0, but the leader %s (%s) is another host: two replicas were given rank 0, or the leader's address is wrong; --node-ip says that it is right", host, usual(all).Address, leader, joinAddresses(addresses))
}

// CheckNodeIP refuses what is no address of this host.
func CheckNodeIP(asked string) error {
	all, err := ownAddresses()
	if err == nil {
		_, err = askedAddress(all, asked)
	}
	return err
}

// askedAddress checks --node-ip.
func askedAddress(all []own, asked string) (own, error) {
	a, err := netip.ParseAddr(asked)
	if err != nil {
		return own{}, fmt.Errorf("--node-ip %q is no address", asked)
	}
	o, ok := interfaceOf(all, a)
	if !ok {
		var mine []netip.Addr
		for _, o := range all {
			mine = append(mine, o.Address)
		}
		return own{}, fmt.Errorf("--node-ip %s is not an address of this host, which has %s", asked, joinAddresses(mine))
	}
	return o, nil
}

// lookUp finds the addresses of a name, patiently.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err == nil && len(addresses) > 0 {
			for i := range addresses {
				addresses[i] = addresses[i].Unmap()
			}
			return addresses, nil
		}
		var dns *net.DNSError
		if errors.As(err, &dns) {
			err = errors.New(dns.Err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if err == nil {
				err = ctx.Err()
			}
			return nil, err
		}
	}
}

func joinAddresses(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// Domain is what follows this host's name in its full name, as /etc/hosts has
// it: for a pod of a headless service, the service and its namespace.
func Domain(host, hosts string) string {
	for l := range strings.Lines(hosts) {
		text, _, _ := strings.Cut(l, "#")
		fields := strings.Fields(text)
		for _, name := range fields[min(1, len(fields)):] {
			if domain, ok := strings.CutPrefix(name, host+"."); ok && domain != "" {
				return domain
			}
		}
	}
	return ""
}
