package head_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// launches keeps what agents were launched with.
type launches struct {
	mu    sync.Mutex
	joins []backend.Join
}

func (s *launches) note(join *backend.Join) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins = append(s.joins, *join)
	return nil
}

func (s *launches) first(t testing.TB) backend.Join {
	t.Helper()
	var join backend.Join
	eventually(t, "the launch of an agent", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.joins) > 0 {
			join = s.joins[0]
		}
		return len(s.joins) > 0
	})
	return join
}

// dialFar reaches a head as an agent does.
func dialFar(t testing.TB, join backend.Join) *wire.Conn {
	t.Helper()
	var config *tls.Config
	if join.Transport == backend.TLS {
		var err error
		config, err = secure.Pinned(join.Pin)
		must(t, err)
	}
	c, err := wire.DialFar(context.Background(), join.Hosts, config, patience)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestWhoIsLetInOverTheNetwork(t *testing.T) {
	for _, shape := range []string{"1x2+net", "1x2+net+plain"} {
		t.Run(shape, func(t *testing.T) {
			var launched launches
			r := newRig(t, setup{virtual: shape, script: fake.Script{Launch: launched.note, Answer: echo}})
			info := r.cluster("a", 2)
			join := launched.first(t)
			if wantPlain := strings.HasSuffix(shape, "plain"); (join.Transport == backend.Plain) != wantPlain || len(join.Hosts) == 0 || !join.Relay {
				t.Fatalf("told %+v", join)
			}
			w := r.worker("a-0")
			node := &spec.Node{Devices: []spec.Device{}}
			for name, test := range map[string]struct {
				hello wire.Hello
				words string
			}{
				"a script":      {wire.Hello{Role: wire.RoleController, Token: r.head.Token()}, "agents alone"},
				"events":        {wire.Hello{Role: wire.RoleEvents, Token: r.head.Token()}, "agents alone"},
				"a worker":      {wire.Hello{Role: wire.RoleWorker, Token: w.Token, Worker: w.Number}, "agents alone"},
				"an owner":      {wire.Hello{Role: wire.RoleOwner}, "agents alone"},
				"rubbish":       {wire.Hello{Role: strings.Repeat("x", 1000)}, "agents alone"},
				"a wrong token": {wire.Hello{Role: wire.RoleAgent, Token: "no", Node: node}, "the token is not that of the agent of node 0"},
				"no token":      {wire.Hello{Role: wire.RoleAgent, Node: node}, "the token is not that"},
				"no such node":  {wire.Hello{Role: wire.RoleAgent, Token: join.Token, Node: &spec.Node{Index: 7}}, "node 7"},
			} {
				t.Run(name, func(t *testing.T) {
					_, err := wire.Join(dialFar(t, join), test.hello)
					wantError(t, err, spec.CodeAuth, test.words)
					if len(err.Error()) > 400 {
						t.Errorf("%d bytes: %v", len(err.Error()), err)
					}
				})
			}
			same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))), "[1 1]")
		})
	}
}

// An agent that has the certificate of its node cannot speak for another.
func TestACertificateOfAnotherNode(t *testing.T) {
	var launched launches
	r := newRig(t, setup{virtual: "2x0+net", script: fake.Script{Launch: func(j *backend.Join) error {
		if j.Node == 1 {
			return launched.note(j)
		}
		return nil
	}}})
	r.pool(0, 2)
	join := launched.first(t)
	key, err := secure.NewKey()
	must(t, err)
	request, err := secure.Request(key)
	must(t, err)
	own := wire.Hello{Role: wire.RoleAgent, Token: join.Token, Node: &spec.Node{Index: 1}, Back: 1, Request: request}
	welcome, err := wire.Join(dialFar(t, join), own)
	must(t, err)
	_, client, err := secure.Mutual(welcome.CA, welcome.Cert, key)
	must(t, err)
	client = client.Clone()
	client.ServerName = secure.HeadName
	c, err := wire.DialFar(context.Background(), join.Hosts, client, patience)
	must(t, err)
	defer c.Close()
	_, err = wire.Join(c, wire.Hello{Role: wire.RoleAgent, Token: join.Token, Node: &spec.Node{Index: 0}})
	wantError(t, err, spec.CodeAuth, "node 0", "certificate of node 1")
	own.Request = []byte("rubbish")
	_, err = wire.Join(dialFar(t, join), own)
	wantError(t, err, spec.CodeInvalid, "CERTIFICATE REQUEST")
}

func TestRubbishOverTheNetwork(t *testing.T) {
	for _, shape := range []string{"1x2+net", "1x2+net+plain"} {
		t.Run(shape, func(t *testing.T) {
			var launched launches
			r := newRig(t, setup{virtual: shape, script: fake.Script{Launch: launched.note, Answer: echo}})
			info := r.cluster("a", 2)
			join := launched.first(t)
			for _, text := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\xff\xff", strings.Repeat("\x00", 4096), "\xff\xff\xff\x3f\x01"} {
				nc, err := net.Dial("tcp", join.Hosts[0])
				must(t, err)
				_, err = nc.Write([]byte(text))
				must(t, err)
				_ = nc.(*net.TCPConn).CloseWrite()
				_, err = io.Copy(io.Discard, nc) // until the head hangs up
				if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
					t.Error(err)
				}
				_ = nc.Close()
			}
			same(t, r.owner.value(r.owner.send(callee{cluster: info.Number, method: "all"}, args(1))), "[1 1]")
		})
	}
}

// Connections that say nothing do not keep an agent out.
func TestManyWhoSayNothing(t *testing.T) {
	var launched launches
	r := newRig(t, setup{virtual: "1x0+net", script: fake.Script{Launch: launched.note}})
	r.pool(0, 1)
	join := launched.first(t)
	var idle []net.Conn
	defer func() {
		for _, nc := range idle {
			_ = nc.Close()
		}
	}()
	for range 300 {
		nc, err := net.Dial("tcp", join.Hosts[0])
		must(t, err)
		idle = append(idle, nc)
	}
	_, err := wire.Join(dialFar(t, join), wire.Hello{Role: wire.RoleAgent, Token: join.Token, Node: &spec.Node{}, Back: 1})
	must(t, err)
	_ = idle[0].SetReadDeadline(time.Now().Add(patience))
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of them is still there: %v", err)
	}
}

// The head that comes after is the same for its agents: authority and address.
func TestANewHeadOverTheNetwork(t *testing.T) {
	var launched launches
	s := newCrashes(t, "2x1+net", fake.Script{Launch: launched.note, Answer: echo})
	c := s.controller()
	before := launched.first(t)
	s.joined() // one that was launched, and not written down, would be launched again
	s.crash()
	err := s.ends(c, workload(c))
	must(t, err)
	if s.epochs < 2 {
		t.Errorf("there were %d heads", s.epochs)
	}
	launched.mu.Lock()
	defer launched.mu.Unlock()
	if len(launched.joins) > 2 {
		t.Errorf("agents were launched %d times, first with %+v", len(launched.joins), before)
	}
}

func TestAHostThatIsNotHere(t *testing.T) {
	r := newRig(t, setup{virtual: "1x0+net", options: head.Options{Host: "192.0.2.1"}})
	var p spec.Pool
	err := r.owner.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: 10}, &p)
	wantError(t, err, spec.CodeResources, "192.0.2.1", "cannot listen")
}
