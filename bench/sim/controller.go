package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// bound is how long any one step may take.
const bound = 2 * time.Minute

// world is a head, its nodes, and the controller that is this process.
type world struct {
	conn  *wire.Conn
	asker *wire.Asker
	calls chan wire.Frame // Answer frames
	next  uint64

	head, nodes *exec.Cmd
	costs       net.Conn
	costLines   *json.Decoder
	puppets     net.Conn
	puppetLines *bufio.Scanner
}

// begin starts the two other processes.
func begin(profile string) (*world, error) {
	w := &world{calls: make(chan wire.Frame, 16)}
	var ends []*os.File // of the others
	defer func() {
		for _, f := range ends {
			_ = f.Close()
		}
	}()
	pair := func() (net.Conn, *os.File, error) {
		ours, theirs, err := socketPair()
		if err != nil {
			return nil, nil, err
		}
		defer ours.Close()
		ends = append(ends, theirs)
		conn, err := net.FileConn(ours)
		return conn, theirs, err
	}
	owner, headOwner, err := pair()
	if err != nil {
		return nil, err
	}
	costs, headControl, err := pair()
	if err != nil {
		return nil, err
	}
	puppets, nodesControl, err := pair()
	if err != nil {
		return nil, err
	}
	headNodes, nodesHead, err := socketPair()
	if err != nil {
		return nil, err
	}
	ends = append(ends, headNodes, nodesHead)
	w.costs, w.costLines = costs, json.NewDecoder(costs)
	w.puppets, w.puppetLines = puppets, bufio.NewScanner(puppets)
	if w.head, err = spawn([]string{"-role", "head", "-profile", profile}, headOwner, headNodes, headControl); err != nil {
		return nil, err
	}
	if w.nodes, err = spawn([]string{"-role", "nodes"}, nodesHead, nodesControl); err != nil {
		_ = w.head.Process.Kill()
		return nil, err
	}
	w.conn = wire.NewConn(owner)
	w.asker = wire.NewAsker(w.conn)
	return w, nil
}

// join says hello as the head's owner, which has it launch all agents.
func (w *world) join(virtual string) error {
	_, err := wire.Join(w.conn, wire.Hello{Role: wire.RoleOwner, Virtual: virtual, Runtime: runtimeOf()})
	if err == nil {
		go w.read()
	}
	return err
}

// runtimeOf has about what a script's environment has, for it travels to every
// node.
func runtimeOf() spec.Runtime {
	env := map[string]string{}
	for i := range 40 {
		env[fmt.Sprintf("VARIABLE_%d", i)] = "some value of a usual length"
	}
	return spec.Runtime{
		Python: "python", Flags: []string{}, SysPath: []string{"a", "b", "c"}, Preload: []string{}, Env: env,
	}
}

func spawn(args []string, files ...*os.File) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", args...) //nolint:gosec // this program itself
	cmd.Args[0] = "sim"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func socketPair() (a, b *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair"), nil
}

func (w *world) read() {
	defer close(w.calls)
	for {
		f, err := w.conn.Read()
		if err != nil {
			w.asker.Fail(fmt.Errorf("the head is gone: %w", err))
			return
		}
		if f.Kind == wire.KindAnswer {
			f.Keep()
			w.calls <- f
		} else {
			w.asker.Deliver(f)
		}
	}
}

func (w *world) ask(verb string, req msgp.Marshaler, resp msgp.Unmarshaler) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	return w.asker.Ask(ctx, verb, req, resp)
}

// send sends a call in its registered mode.
func (w *world) send(cluster uint32, method string, payload []byte) {
	w.sendTo(cluster, method, nil, payload)
}

// sendTo sends a call to these ranks, or in its mode where there are none.
func (w *world) sendTo(cluster uint32, method string, ranks []int, payload []byte) {
	w.next++
	b := []byte{0x92, 0x97}
	b = msgp.AppendUint32(b, cluster)
	b = msgp.AppendString(b, method)
	if ranks == nil {
		b = append(b, 0, 0xc0)
	} else {
		b = msgp.AppendArrayHeader(append(b, 1), uint32(len(ranks))) //nolint:gosec // a number of workers
		for _, r := range ranks {
			b = msgp.AppendInt(b, r)
		}
	}
	b = append(b, 0, 0, 0) // no timeout, no parent, no flags
	w.conn.Send(wire.Header{Kind: wire.KindCall, ID: w.next, Ack: uint32(w.next - 1)}, append(b, payload...), nil)
}

// answer waits for a call's answer.
func (w *world) answer() (wire.Frame, error) {
	select {
	case f, ok := <-w.calls:
		if !ok {
			return f, fmt.Errorf("the head is gone")
		}
		if f.Flags&wire.FlagError != 0 {
			return f, wire.ReadError(f.Body)
		}
		return f, nil
	case <-time.After(bound):
		return wire.Frame{}, fmt.Errorf("no answer within %v", bound)
	}
}

// cost asks the head's process what it has used.
func (w *world) cost(what string) (Cost, error) {
	var c Cost
	if _, err := fmt.Fprintln(w.costs, what); err != nil {
		return c, err
	}
	err := w.costLines.Decode(&c)
	return c, err
}

// order tells the puppets something.
func (w *world) order(format string, args ...any) error {
	_, err := fmt.Fprintf(w.puppets, format+"\n", args...)
	return err
}

// puppet waits for the puppets' next word.
func (w *world) puppet(word string) error {
	if !w.puppetLines.Scan() || w.puppetLines.Text() != word {
		return fmt.Errorf("the nodes said %q instead of %q", w.puppetLines.Text(), word)
	}
	return nil
}

// end takes everything down.
func (w *world) end() {
	_ = w.conn.Close()
	done := time.AfterFunc(bound, func() { _ = w.head.Process.Kill() })
	_ = w.head.Wait()
	done.Stop()
	_ = w.nodes.Process.Kill()
	_ = w.nodes.Wait()
	_ = w.costs.Close()
	_ = w.puppets.Close()
}
