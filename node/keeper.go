package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-rl/muster/node/course"
	"github.com/muster-rl/muster/node/place"
	"github.com/muster-rl/muster/process"
)

// keeper carries out what a course decides. All its fields belong to the
// goroutine of run; others send it events.
type keeper struct {
	Config
	reaper  *process.Reaper
	voice   *Voice
	start   time.Time
	events  chan func(now time.Duration) []course.Order
	stopped chan struct{}

	self    own // this node's address, once it is known
	ray     *rayNode
	temp    string
	remove  func(keep bool)
	command *process.Child
	code    int
	reason  string
	over    bool

	leader  *course.Leader
	board   *board
	replica *course.Replica
	watcher *watcher
}

func newKeeper(c Config, reaper *process.Reaper, voice *Voice) *keeper {
	return &keeper{
		Config: c, reaper: reaper, voice: voice, start: time.Now(),
		events: make(chan func(time.Duration) []course.Order), stopped: make(chan struct{}),
		remove: func(bool) {},
	}
}

// post hands an event to run; after its end, to nobody.
func (k *keeper) post(event func(now time.Duration) []course.Order) {
	select {
	case k.events <- event:
	case <-k.stopped:
	}
}

// run does all of it, and returns the code and the reason for the last line.
func (k *keeper) run(signals <-chan os.Signal, orphaned <-chan struct{}) (int, string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer close(k.stopped)
	if k.Place.Rank == 0 {
		var early *stoppedEarly
		if err := k.lead(ctx, signals); errors.As(err, &early) {
			return 128 + int(early.sig), err.Error()
		} else if err != nil {
			return 1, err.Error()
		}
		defer k.board.close()
	} else {
		k.follow(ctx)
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !k.over {
		var orders []course.Order
		select {
		case event := <-k.events:
			orders = event(k.now())
		case sig := <-signals:
			orders = k.signal(sig.(syscall.Signal))
		case <-orphaned:
			orphaned = nil
			orders = k.orphaned()
		case <-tick.C:
			orders = k.tick()
		}
		k.carryOut(orders)
	}
	k.clear()
	if k.watcher != nil {
		k.watcher.settle(time.Second)
	}
	return k.code, k.reason
}

func (k *keeper) now() time.Duration { return time.Since(k.start) }

func (k *keeper) signal(sig syscall.Signal) []course.Order {
	name := process.SignalName(sig)
	if k.leader != nil {
		return k.leader.Signal(k.now(), name, int(sig), !fromTerminal(sig))
	}
	return k.replica.Signal(k.now(), name, int(sig))
}

func (k *keeper) orphaned() []course.Order {
	if k.leader != nil {
		return k.leader.Orphaned(k.now())
	}
	return k.replica.Signal(k.now(), "SIGKILL", int(syscall.SIGKILL))
}

func (k *keeper) tick() []course.Order {
	if k.leader != nil {
		return k.leader.Tick(k.now())
	}
	return k.replica.Tick(k.now())
}

// lead prepares rank 0: its address, the board, and the start of Ray.
func (k *keeper) lead(ctx context.Context, signals <-chan os.Signal) error {
	look, cancel := context.WithTimeout(ctx, k.Limits.Join)
	defer cancel()
	type answer struct {
		self own
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		self, err := leaderAddress(look, k.NodeIP, k.Place.Leader)
		answers <- answer{self, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return a.err
		}
		k.self = a.self
	case sig := <-signals:
		return &stoppedEarly{sig.(syscall.Signal)}
	}
	for _, port := range []int{k.Port, k.boardPort()} {
		l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("port %d of this host is taken: another muster node has rank 0 here, or another Ray runs; name another by --port, the same for all replicas: %w", port, err)
		}
		if port == k.Port { // Ray's own; that it is free is what we wanted to know
			_ = l.Close()
			continue
		}
		k.leader = course.NewLeader(newNonce()[:16], k.Place.World, k.Need, k.Limits)
		k.board = newBoard(l, k.Token, k.leader.Notice(), (*guestBook)(k))
	}
	k.carryOut(k.leader.Start())
	return nil
}

// follow starts to look for the leader.
func (k *keeper) follow(ctx context.Context) {
	where := net.JoinHostPort(k.Place.Leader, strconv.Itoa(k.boardPort()))
	k.replica = course.NewReplica(k.Place.Rank, where, k.Limits)
	host, _ := os.Hostname()
	state, reason := k.replica.State()
	k.watcher = &watcher{
		address: where, token: k.Token, report: report{state, reason}, news: make(chan struct{}, 1),
		hello: hello{Rank: k.Place.Rank, World: k.Place.World, ID: newNonce()[:16], Host: host},
		looked: func(n course.Notice, c net.Conn) {
			local := addrOf(c.LocalAddr())
			k.post(func(now time.Duration) []course.Order {
				k.meet(local)
				return k.replica.Looked(now, n)
			})
		},
		missed: func(m *miss) {
			k.post(func(now time.Duration) []course.Order { return k.replica.Missed(now, m.how, m.why) })
		},
	}
	go k.watcher.run(ctx)
}

// meet takes the address by which this node reaches the leader for its own.
func (k *keeper) meet(local netip.Addr) {
	if k.self.Address.IsValid() {
		return
	}
	all, err := ownAddresses()
	if err != nil {
		k.voice.Say("warning", err.Error())
	}
	k.self = own{Address: local}
	if k.NodeIP != "" { // it was checked before
		local, _ = netip.ParseAddr(k.NodeIP)
		k.self.Address = local
	}
	if o, ok := interfaceOf(all, local); ok {
		k.self = o
	}
}

// guestBook is the keeper as its board sees it.
type guestBook keeper

func (g *guestBook) hello(h hello) error {
	k := (*keeper)(g)
	answer := make(chan error, 1)
	k.post(func(now time.Duration) []course.Order {
		answer <- k.leader.Hello(now, h.Rank, h.World, h.ID, h.Host)
		return nil
	})
	select {
	case err := <-answer:
		return err
	case <-k.stopped:
		return net.ErrClosed
	}
}

func (g *guestBook) heard(h hello, r report) {
	k := (*keeper)(g)
	k.post(func(now time.Duration) []course.Order { return k.leader.Heard(now, h.Rank, h.ID, r.State, r.Reason) })
}

func (g *guestBook) cut(h hello) {
	k := (*keeper)(g)
	k.post(func(time.Duration) []course.Order {
		k.leader.Cut(h.Rank, h.ID)
		return nil
	})
}

// carryOut does what was decided, and shows the others where we stand.
func (k *keeper) carryOut(orders []course.Order) {
	for len(orders) > 0 {
		var more []course.Order
		for _, o := range orders {
			more = append(more, k.do(o)...)
		}
		orders = more
	}
	if k.board != nil {
		k.board.post(k.leader.Notice())
	}
	if k.replica != nil {
		state, reason := k.replica.State()
		if k.watcher.telling() != (report{state, reason}) {
			k.watcher.tell(report{state, reason})
		}
	}
}

func (k *keeper) do(o course.Order) []course.Order {
	switch o.Do {
	case course.StartRay:
		return k.startRay(o.Address)
	case course.StopRay:
		k.ray.stop()
	case course.StartCommand:
		return k.startCommand()
	case course.SignalCommand:
		k.command.Signal(syscall.Signal(o.Number))
	case course.KillCommand:
		k.command.Signal(syscall.SIGKILL)
	case course.TellLeader: // carryOut does, and run waits until it is done
	case course.Say:
		k.voice.Say(o.Event, o.Text)
	case course.Exit:
		k.over, k.code, k.reason = true, o.Code, o.Text
	}
	return nil
}

// startRay starts the head (address "") or joins.
func (k *keeper) startRay(address string) []course.Order {
	fail := func(err error) []course.Order { return k.rayEnded(err.Error()) }
	settings, err := place.Settings(k.Profile, k.self.Interface, k.Set, os.Getenv)
	if err != nil {
		return fail(err)
	}
	for _, s := range settings {
		k.voice.Say("variable", fmt.Sprintf("%s=%s (%s)", s.Name, s.Value, s.From))
	}
	k.remove(false) // what an earlier try of Ray's has left
	k.temp, k.remove, err = tempDir(k.TempDir)
	if err != nil {
		return fail(err)
	}
	needed := []string{"raylet"}
	if address == "" {
		needed = append(needed, "gcs_server")
	}
	words := startWords(k.Ray, address, k.self.Address, k.Port, k.temp, k.RayFlags)
	k.ray, err = startRay(k.reaper, words, k.environ(settings, false), needed,
		func() {
			k.post(func(now time.Duration) []course.Order {
				if k.leader != nil {
					return k.leader.RayUp(now, k.address())
				}
				return k.replica.RayUp(now)
			})
		},
		func(how string) {
			k.post(func(time.Duration) []course.Order { return k.rayEnded(how) })
		})
	if err != nil {
		return fail(err)
	}
	return nil
}

func (k *keeper) address() string {
	return net.JoinHostPort(k.self.Address.String(), strconv.Itoa(k.Port))
}

// rayEnded shows what Ray said last, where nobody had asked it to end.
func (k *keeper) rayEnded(how string) []course.Order {
	decide := func() []course.Order {
		if k.leader != nil {
			return k.leader.RayEnded(k.now(), how)
		}
		return k.replica.RayEnded(k.now(), how)
	}
	if k.ray == nil {
		return decide()
	}
	if k.ray.stopped.Load() {
		return decide()
	}
	lines := meaningful(k.ray.tail.last())
	cause := telling(lines)
	if cause != "" {
		how += ": " + cause
	}
	if strings.Contains(cause, slowLine) {
		if k.leader != nil {
			return k.leader.RaySlow(k.now(), how)
		}
		return k.replica.RaySlow(k.now(), how)
	}
	for _, l := range lines {
		k.voice.Say("ray", "ray: "+l)
	}
	return decide()
}

// environ is what Ray and the command find in their environment.
func (k *keeper) environ(settings []place.Setting, command bool) []string {
	changes := [][2]string{{"RAY_AUTH_MODE", "token"}, {"RAY_AUTH_TOKEN", k.Token}, {"RAY_AUTH_TOKEN_PATH", ""}, {"RAY_ADDRESS", ""}}
	if mode := os.Getenv("RAY_AUTH_MODE"); mode != "" {
		changes[0][1] = mode
	}
	if !command && os.Getenv("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S") == "" {
		// All nodes end together: there is nobody to drain to.
		changes = append(changes, [2]string{"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"})
	}
	if command {
		changes[3][1] = k.address()
		changes = append(changes, [2]string{"MUSTER_BACKEND", "ray"})
		if os.Getenv("MUSTER_HOST") == "" {
			changes = append(changes, [2]string{"MUSTER_HOST", k.self.Address.String()})
		}
	}
	for _, s := range settings {
		changes = append(changes, [2]string{s.Name, s.Value})
	}
	return environ(os.Environ(), changes...)
}

// startCommand runs what the user gave, with everything set.
func (k *keeper) startCommand() []course.Order {
	settings, err := place.Settings(k.Profile, k.self.Interface, k.Set, os.Getenv)
	path := ""
	if err == nil {
		path, err = exec.LookPath(k.Command[0])
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		k.voice.Say("command", "starting "+quoted(k.Command))
		k.command, err = k.reaper.Start(process.Command{
			Path: path, Args: k.Command, Env: k.environ(settings, true), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		})
	}
	if err != nil {
		return k.leader.CommandEnded(k.now(), 127, "cannot start: "+err.Error())
	}
	child := k.command
	go func() {
		<-child.Done()
		k.post(func(now time.Duration) []course.Order {
			return k.leader.CommandEnded(now, child.Exit().Shell(), child.Exit().String())
		})
	}()
	return nil
}

// clear ends what Ray and the command left, and removes Ray's folder after an
// orderly end; else its logs may be needed.
func (k *keeper) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := k.reaper.Clear(ctx); err != nil {
		k.voice.Say("warning", err.Error())
	}
	if k.temp != "" && k.TempDir == "" && k.code != 0 {
		k.voice.Say("logs", "Ray's logs stay in "+k.temp)
	}
	k.remove(k.code != 0)
}

// stoppedEarly is a signal before there was anything to stop.
type stoppedEarly struct{ sig syscall.Signal }

func (s *stoppedEarly) Error() string {
	return "stopped by " + process.SignalName(s.sig) + " before the command started"
}

// telling picks the line that says most: that of an exception, else the last.
func telling(lines []string) string {
	for _, l := range slices.Backward(lines) {
		if exception.MatchString(l) {
			return strings.TrimSpace(l)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

var exception = regexp.MustCompile(`^[\w.]*(Error|Exception|Timeout)\b.*: `)

// meaningful leaves out empty lines and frames.
func meaningful(lines []string) []string {
	var some []string
	for _, l := range lines {
		if strings.Trim(l, " \t-=*") != "" {
			some = append(some, strings.TrimRight(l, " "))
		}
	}
	const most = 12
	return some[max(0, len(some)-most):]
}
