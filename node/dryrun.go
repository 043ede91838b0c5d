package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/muster-rl/muster/node/place"
)

// plan is what would be done, for programs.
type plan struct {
	Rank      int             `json:"rank"`
	World     int             `json:"world"`
	Leader    string          `json:"leader"`
	Found     []string        `json:"found"`
	Address   string          `json:"address"`
	Interface string          `json:"interface"`
	Problem   string          `json:"problem,omitempty"`
	Variables []place.Setting `json:"variables"`
	Ray       []string        `json:"ray"`
	Command   []string        `json:"command,omitempty"`
	Waits     string          `json:"waits"`
}

// lookWithin is how long a dry run tries to find the leader's address.
const lookWithin = 3 * time.Second

// DryRun shows what was found and what would be done, and starts nothing.
func DryRun(ctx context.Context, out io.Writer, c Config, found []string) error {
	p := plan{Rank: c.Place.Rank, World: c.Place.World, Leader: c.Place.Leader, Found: found}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	self, err := c.selfAddress(ctx)
	if err != nil {
		p.Problem = err.Error()
	}
	p.Interface = self.Interface
	if self.Address.IsValid() {
		p.Address = self.Address.String()
	}
	if p.Variables, err = place.Settings(c.Profile, self.Interface, c.Set, os.Getenv); err != nil {
		return err
	}
	address := ""
	if p.Rank != 0 {
		address = net.JoinHostPort(c.Place.Leader, strconv.Itoa(c.Port))
	}
	temp := c.TempDir
	if temp == "" {
		temp = "(a folder of its own)"
	}
	if !self.Address.IsValid() {
		self.Address = netip.IPv4Unspecified() // not known yet
	}
	p.Ray = startWords(c.Ray, address, self.Address, c.Port, temp, c.RayFlags)
	if p.Rank == 0 {
		p.Command = c.Command
		p.Waits = fmt.Sprintf("up to %v for %d of %d nodes", c.Limits.Join, c.Need, p.World)
	} else {
		p.Waits = fmt.Sprintf("up to %v for the leader", c.Limits.Join)
	}
	if c.JSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(p)
	}
	p.print(out)
	return nil
}

func (p plan) print(out io.Writer) {
	for _, line := range p.Found {
		fmt.Fprintln(out, line)
	}
	if p.Problem != "" {
		fmt.Fprintln(out, "as it is now:", p.Problem)
	} else {
		fmt.Fprintf(out, "this host is %s on %s\n", p.Address, p.Interface)
	}
	for _, s := range p.Variables {
		fmt.Fprintf(out, "%s=%s (%s)\n", s.Name, s.Value, s.From)
	}
	fmt.Fprintln(out, "waits", p.Waits)
	fmt.Fprintln(out, "would run", quoted(p.Ray))
	if p.Rank == 0 {
		fmt.Fprintln(out, "and then", quoted(p.Command))
	}
}

// selfAddress is the address that this node would have.
func (c *Config) selfAddress(ctx context.Context) (own, error) {
	if c.Place.Rank == 0 || c.NodeIP != "" {
		return leaderAddress(ctx, c.NodeIP, c.Place.Leader)
	}
	addresses, err := lookUp(ctx, c.Place.Leader)
	if err != nil {
		return own{}, fmt.Errorf("the leader's name %s cannot be looked up: %w", c.Place.Leader, err)
	}
	all, err := ownAddresses()
	if err != nil {
		return own{}, err
	}
	conn, err := net.Dial("udp", net.JoinHostPort(addresses[0].String(), strconv.Itoa(c.boardPort()))) // nothing is sent
	if err != nil {
		return own{}, fmt.Errorf("there is no way to the leader %s: %w", c.Place.Leader, err)
	}
	defer conn.Close()
	local := addrOf(conn.LocalAddr())
	o, ok := interfaceOf(all, local)
	if !ok {
		o = own{Address: local}
	}
	return o, nil
}
