package agent

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// The test binary plays every program that an agent meets: itself, the warden,
// and the Python processes, which it is started as when it is the interpreter.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch {
		case os.Args[1] == "warden":
			os.Exit(Warden())
		case os.Args[1] == "agent":
			os.Exit(Main())
		case os.Args[1] == "-c" && strings.Contains(os.Args[2], "zygote"):
			fakeZygote()
		case os.Args[1] == "-c" && strings.Contains(os.Args[2], "spawn"):
			fakeSpawn()
		case os.Args[1] == "fake-middle":
			fakeMiddle()
		case os.Args[1] == "fake-worker":
			fakeWorker()
		case os.Args[1] == "fake-litter":
			fakeLitter()
		case os.Args[1] == "fake-owner":
			select {}
		}
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for those: else each ends a second late
	os.Exit(m.Run())
}

// order is what fake Python processes read of a fork.
type order struct {
	setup    wire.WorkerSetup
	worker   wire.WorkerStart
	env      map[string]string
	agentPid int
}

func (o *order) UnmarshalMsg(b []byte) ([]byte, error) {
	return readMap(b, func(key string, b []byte) ([]byte, error) {
		var err error
		switch key {
		case "setup":
			b, err = o.setup.UnmarshalMsg(b)
		case "worker":
			b, err = o.worker.UnmarshalMsg(b)
		case "env":
			o.env = map[string]string{}
			b, err = readMap(b, func(key string, b []byte) ([]byte, error) {
				var err error
				o.env[key], b, err = msgp.ReadStringBytes(b)
				return b, err
			})
		case "agent_pid":
			o.agentPid, b, err = msgp.ReadIntBytes(b)
		}
		return b, err
	})
}

// orders reads requests and the descriptors that come with them from fd 3.
type orders struct {
	nc   *net.UnixConn
	fds  []int
	conn *wire.Conn
}

// rights is a net.Conn that keeps the descriptors which come with the bytes.
type rights struct {
	net.Conn
	o *orders
}

func (r rights) Read(p []byte) (int, error) {
	oob := make([]byte, 256)
	n, oobn, _, _, err := r.o.nc.ReadMsgUnix(p, oob)
	if oobn > 0 {
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for _, m := range messages {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				unix.CloseOnExec(fd)
			}
			r.o.fds = append(r.o.fds, fds...)
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func openOrders() *orders {
	file := os.NewFile(3, "orders")
	nc, err := net.FileConn(file)
	must(err)
	file.Close()
	o := &orders{nc: nc.(*net.UnixConn)}
	o.conn = wire.NewConn(rights{nc, o})
	o.conn.SetLimit(wire.MaxFrame)
	return o
}

func (o *orders) take() *os.File {
	fd := o.fds[0]
	o.fds = o.fds[1:]
	return os.NewFile(uintptr(fd), "log")
}

func (o *orders) respond(id uint64, key string, value int) {
	body := msgp.AppendMapHeader(nil, 3)
	body = msgp.AppendInt(msgp.AppendString(body, key), value)
	body = msgp.AppendBool(msgp.AppendString(body, "fork_safe"), os.Getenv("FAKE_UNSAFE") == "")
	body = msgp.AppendString(msgp.AppendString(body, "why"), os.Getenv("FAKE_UNSAFE"))
	_, err := o.nc.Write(wire.AppendFrame(nil, wire.Header{Kind: wire.KindResponse, ID: id}, body, nil))
	must(err)
}

func (o *orders) refuse(id uint64, e *spec.Error) {
	_, err := o.nc.Write(wire.AppendFrame(nil, wire.Header{Kind: wire.KindResponse, Flags: wire.FlagError, ID: id}, wire.AppendError(nil, e), nil))
	must(err)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(70)
	}
}

// fakeZygote forks twice as the real one does: through a middle process.
func fakeZygote() {
	if os.Getenv("FAKE_DIES") == "early" {
		fmt.Println("about to crash")
		os.Exit(9)
	}
	o := openOrders()
	for {
		f, err := o.conn.Read()
		if err != nil {
			os.Exit(0)
		}
		verb, body, err := wire.ReadVerb(f.Body)
		must(err)
		switch {
		case verb == "load" && os.Getenv("FAKE_DIES") == "preload":
			o.refuse(f.ID, spec.Errorf(spec.CodeImport, "no module named nonsense"))
		case verb == "load" && os.Getenv("FAKE_LOADS") == "never":
			fmt.Println("loading for ever")
		case verb == "load":
			o.respond(f.ID, "pid", os.Getpid())
		case verb == "fork":
			var ord order
			_, err := ord.UnmarshalMsg(body)
			must(err)
			o.fork(f.ID, ord)
		}
	}
}

func (o *orders) fork(id uint64, ord order) {
	log := o.take()
	defer log.Close()
	gate, hold, err := os.Pipe()
	must(err)
	defer gate.Close()
	defer hold.Close()
	report, tell, err := os.Pipe()
	must(err)
	defer report.Close()
	env := append(environ(ord.env), "FAKE_CONTROL="+ord.setup.ControlAddress, "FAKE_CALLS="+ord.setup.CallAddress,
		"FAKE_TOKEN="+ord.worker.Token, fmt.Sprintf("FAKE_NUMBER=%d", ord.worker.Number), fmt.Sprintf("FAKE_AGENT=%d", ord.agentPid))
	middle, err := syscall.ForkExec("/proc/self/exe", []string{"fake", "fake-middle"}, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, log.Fd(), log.Fd(), gate.Fd(), tell.Fd()},
	})
	must(err)
	tell.Close()
	told, err := io.ReadAll(report)
	must(err)
	if os.Getenv("FAKE_DIES") == "forking" {
		must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		select {}
	}
	_, err = syscall.Wait4(middle, nil, 0, nil)
	must(err)
	pid, err := strconv.Atoi(string(told))
	must(err)
	o.respond(id, "pid", pid)
}

func fakeMiddle() {
	unix.CloseOnExec(4)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"muster worker", "fake-worker"}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, 3}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	must(err)
	_, err = os.NewFile(4, "tell").WriteString(strconv.Itoa(pid))
	must(err)
	os.Exit(0)
}

func fakeSpawn() {
	o := openOrders()
	for {
		f, err := o.conn.Read()
		must(err)
		verb, body, err := wire.ReadVerb(f.Body)
		must(err)
		if verb == "load" {
			o.respond(f.ID, "pid", os.Getpid())
			continue
		}
		var ord order
		_, err = ord.UnmarshalMsg(body)
		must(err)
		o.take().Close()
		os.Setenv("FAKE_CONTROL", ord.setup.ControlAddress)
		os.Setenv("FAKE_TOKEN", ord.worker.Token)
		os.Setenv("FAKE_NUMBER", strconv.Itoa(int(ord.worker.Number)))
		fmt.Println("spawned")
		o.respond(f.ID, "pid", os.Getpid())
		o.nc.Close()
		beWorker()
	}
}

func fakeWorker() {
	runtime.LockOSThread()            // the parent-death signal is the thread's
	io.ReadAll(os.NewFile(3, "gate")) // until our parent is the agent
	must(unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0))
	if agent, _ := strconv.Atoi(os.Getenv("FAKE_AGENT")); os.Getppid() != agent {
		os.Exit(71)
	}
	beWorker()
}

// beWorker does what FAKE_DOES says: words, in order.
func beWorker() {
	must(process.Subreaper())
	number, _ := strconv.Atoi(os.Getenv("FAKE_NUMBER"))
	stacks, err := unix.MemfdCreate("stacks", 0)
	must(err)
	_, err = unix.FcntlInt(uintptr(stacks), unix.F_SETFL, unix.O_APPEND)
	must(err)
	for _, word := range strings.Fields(os.Getenv("FAKE_DOES")) {
		what, arg, _ := strings.Cut(word, ":")
		switch what {
		case "say":
			fmt.Println(arg)
		case "rubbish":
			os.Stdout.Write([]byte("a\xff\x00b\n50%\r100%\n"))
		case "long":
			fmt.Println(strings.Repeat("x", 3*longestLine))
		case "env":
			fmt.Println(os.Getenv(arg))
		case "exit":
			code, _ := strconv.Atoi(arg)
			os.Exit(code)
		case "litter":
			litter(arg)
		case "stubborn":
			signal.Ignore(syscall.SIGTERM)
		case "stacks":
			requests := make(chan os.Signal, 1)
			signal.Notify(requests, process.RealTime(stacksSignal))
			go func() {
				for range requests {
					syscall.Write(stacks, []byte("Thread 0x1 (most recent call first):\n  File \"x.py\", line 7 in step\n"))
				}
			}()
		case "control":
			go fakeControl(uint32(number), stacks, arg)
		case "calls":
			go fakeCalls(uint32(number))
		case "wait":
			select {}
		}
	}
	os.Exit(0)
}

func fakeControl(number uint32, stacks int, how string) {
	c, err := wire.Dial(os.Getenv("FAKE_CONTROL"))
	must(err)
	_, err = wire.Join(c, wire.Hello{Role: wire.RoleControl, Token: os.Getenv("FAKE_TOKEN"), Worker: number, StacksFd: stacks})
	must(err)
	fmt.Println("up")
	for {
		f, err := c.Read()
		if err != nil {
			return
		}
		if how == "silent" {
			continue
		}
		wire.Respond(c, f.ID, &wire.Cancelled{State: "interrupted"}, nil)
	}
}

// fakeCalls answers every Leg with its own body.
func fakeCalls(number uint32) {
	c, err := wire.Dial(os.Getenv("FAKE_CALLS"))
	must(err)
	_, err = wire.Join(c, wire.Hello{Role: wire.RoleWorker, Token: os.Getenv("FAKE_TOKEN"), Worker: number})
	must(err)
	must(wire.Notify(c, "ready", &wire.Ready{Pid: os.Getpid()}))
	for {
		f, err := c.Read()
		if err != nil {
			os.Exit(0)
		}
		f.Keep()
		c.Send(wire.Header{Kind: wire.KindResult, ID: f.ID}, f.Body, f.Bufs)
	}
}

// litter leaves a chain of processes behind, each in a session of its own and
// deaf to TERM, and says their pids.
func litter(depth string) {
	_, err := syscall.ForkExec("/proc/self/exe", []string{"litter", "fake-litter", depth}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	must(err)
}

func fakeLitter() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	depth, _ := strconv.Atoi(os.Args[2])
	fmt.Printf("litter %d\n", os.Getpid())
	if depth > 1 {
		litter(strconv.Itoa(depth - 1))
	}
	time.Sleep(10 * time.Minute)
}
