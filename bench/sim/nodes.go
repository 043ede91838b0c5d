package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Descriptors that the process with the nodes inherits.
const (
	nodesHead    = 3
	nodesControl = 4
)

// runNodes launches agents as it is told and pretends to be their workers.
func runNodes() error {
	headConn, err := inherited(nodesHead)
	if err != nil {
		return err
	}
	control, err := inherited(nodesControl)
	if err != nil {
		return err
	}
	p := &puppets{control: control}
	p.fake = fake.New(0, fake.Script{Class: class(), Answer: p.answer})
	go p.obey()

	var mu sync.Mutex
	back := json.NewEncoder(headConn)
	for dec := json.NewDecoder(headConn); ; {
		var o order
		if err := dec.Decode(&o); err != nil {
			return nil //nolint:nilerr // the head is gone: so is this
		}
		if o.Kill != nil {
			p.fake.Agent(*o.Kill).Kill()
			continue
		}
		agent, err := p.fake.Launch(context.Background(), *o.Join)
		if err != nil {
			return err
		}
		node := o.Join.Node
		go func() {
			<-agent.Done()
			e := ended{Node: node}
			if err := agent.Err(); err != nil {
				e.Err = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			_ = back.Encode(e)
		}()
	}
}

// puppets answers for all workers.
type puppets struct {
	fake    *fake.Backend
	control net.Conn

	mu   sync.Mutex
	held int // legs of the method hold
	want int // as many are waited for
}

// class is what the workers offer: a broadcast, a list cut over the ranks, and
// a call that they never answer by themselves.
func class() spec.Description {
	m := func(name, dispatch string) spec.Method {
		return spec.Method{Name: name, Registered: true, Dispatch: dispatch, Execute: "ALL", Params: []spec.Param{}, Custom: []byte{}}
	}
	return spec.Description{Class: "Puppet", Serial: true, Methods: []spec.Method{
		m("broadcast", "ONE_TO_ALL"), m("cut", "DP_MP_COMPUTE"), m("hold", "ONE_TO_ALL"),
	}}
}

func (p *puppets) answer(l *fake.Leg) {
	switch l.Method {
	case "hold":
		p.mu.Lock()
		p.held++
		full := p.held == p.want
		p.mu.Unlock()
		if full {
			fmt.Fprintln(p.control, "held")
		}
	case "cut":
		l.Return([]byte{0x91, 7})
	default:
		l.Return([]byte{7})
	}
}

// obey takes orders: "hold N" (say "ready", and "held" when N legs are), "kill
// NAME".
func (p *puppets) obey() {
	for lines := bufio.NewScanner(p.control); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "hold":
			p.mu.Lock()
			p.held = 0
			_, _ = fmt.Sscan(rest, &p.want)
			p.mu.Unlock()
			fmt.Fprintln(p.control, "ready")
		case "kill":
			if w := p.fake.Worker(rest); w != nil {
				w.Die(wire.Exited{Signal: "SIGKILL"})
			}
		}
	}
}
