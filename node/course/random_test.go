package course

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// played is a job of a leader and replicas on a virtual clock. What orders ask
// for happens some random time later, unless a fault takes its place.
type played struct {
	t        *testing.T
	r        *rand.Rand
	seed     uint64
	now      time.Duration
	later    []happening
	leader   *Leader
	replicas []*Replica // by rank; 0 is nil
	ids      []string
	cut      []bool // no look of this rank succeeds
	killed   bool   // the leader, without a word
	code     int    // the command's
	started  int    // commands
	running  bool
	rays     []bool
	exits    []int // by rank; -1: none yet
	reasons  []string
}

type happening struct {
	at time.Duration
	do func()
}

func (p *played) after(most time.Duration, do func()) {
	p.later = append(p.later, happening{p.now + time.Duration(p.r.Int64N(int64(most))), do})
}

func (p *played) fail(format string, args ...any) {
	p.t.Fatalf("seed %d at %v: %s", p.seed, p.now, fmt.Sprintf(format, args...))
}

// obey carries out the orders of a rank.
func (p *played) obey(rank int, orders []Order) {
	for _, o := range orders {
		if p.exits[rank] >= 0 {
			p.fail("rank %d does %s after its exit", rank, brief([]Order{o}))
		}
		switch o.Do {
		case StartRay:
			if p.rays[rank] {
				p.fail("rank %d starts Ray twice", rank)
			}
			p.rays[rank] = true
			p.after(5*s, func() { p.rayUp(rank) })
		case StopRay:
			p.after(3*s, func() { p.rayEnds(rank, "stopped") })
		case StartCommand:
			p.started++
			p.running = true
			p.after(40*s, func() { p.commandEnds(p.code) })
		case SignalCommand:
			if p.r.IntN(2) == 0 {
				p.after(5*s, func() { p.commandEnds(128 + o.Number) })
			}
		case KillCommand:
			p.after(s, func() { p.commandEnds(137) })
		case Exit:
			if p.rays[rank] || rank == 0 && p.running {
				p.fail("rank %d leaves something behind", rank)
			}
			if (o.Code == 0) != (o.Text == "") {
				p.fail("rank %d exits with %d because of %q", rank, o.Code, o.Text)
			}
			p.exits[rank], p.reasons[rank] = o.Code, o.Text
		}
	}
}

func (p *played) gone(rank int) bool { return p.exits[rank] >= 0 || rank == 0 && p.killed }

func (p *played) rayUp(rank int) {
	if p.gone(rank) || !p.rays[rank] {
		return
	}
	if rank == 0 {
		p.obey(0, p.leader.RayUp(p.now, "a:1"))
	} else {
		p.obey(rank, p.replicas[rank].RayUp(p.now))
	}
}

func (p *played) rayEnds(rank int, how string) {
	if p.gone(rank) || !p.rays[rank] {
		return
	}
	p.rays[rank] = false
	if rank == 0 {
		p.obey(0, p.leader.RayEnded(p.now, how))
	} else {
		p.obey(rank, p.replicas[rank].RayEnded(p.now, how))
	}
}

func (p *played) commandEnds(code int) {
	if !p.running || p.killed {
		return
	}
	p.running = false
	p.obey(0, p.leader.CommandEnded(p.now, code, fmt.Sprint("exit code ", code)))
}

// look is one round between a replica and the leader.
func (p *played) look(rank int) {
	r := p.replicas[rank]
	switch {
	case p.gone(rank):
		return
	case p.cut[rank]:
		p.obey(rank, r.Missed(p.now, NoAnswer, "no answer"))
	case p.gone(0):
		p.obey(rank, r.Missed(p.now, NoListener, "connection refused"))
	default:
		if err := p.leader.Hello(p.now, rank, len(p.replicas), p.ids[rank], fmt.Sprint("host", rank)); err != nil {
			p.fail("%v", err)
		}
		state, reason := r.State()
		p.obey(0, p.leader.Heard(p.now, rank, p.ids[rank], state, reason))
		n := p.leader.Notice()
		p.obey(rank, r.Looked(p.now, n))
		state, reason = r.State()
		if !p.gone(0) {
			p.obey(0, p.leader.Heard(p.now, rank, p.ids[rank], state, reason))
		}
	}
}

// play runs a job to its end, with faults or without.
func play(t *testing.T, seed uint64, faults bool) *played {
	r := rand.New(rand.NewPCG(seed, 7))
	world := 1 + r.IntN(5)
	p := &played{
		t: t, r: r, seed: seed, leader: NewLeader("L", world, world-r.IntN(min(2, world)), limits), replicas: make([]*Replica, world),
		ids: make([]string, world), cut: make([]bool, world), code: r.IntN(3), rays: make([]bool, world), exits: make([]int, world), reasons: make([]string, world),
	}
	begin := make([]time.Duration, world)
	for rank := range world {
		p.exits[rank] = -1
		begin[rank] = time.Duration(r.Int64N(int64(20 * s)))
		if rank > 0 {
			p.replicas[rank] = NewReplica(rank, "host0:6380", limits)
			p.ids[rank] = fmt.Sprint("id", rank)
		}
	}
	if faults {
		for range 1 + r.IntN(3) {
			p.after(60*s, p.fault(r.IntN(6), r.IntN(world)))
		}
	}
	begin[0] = 0
	p.obey(0, p.leader.Start())
	for step := 0; ; step++ {
		p.now = time.Duration(step) * s / 4
		if p.now > 10*time.Minute {
			p.fail("it does not end: %v", p.exits)
		}
		due := p.later
		p.later = nil
		for _, h := range due {
			if h.at <= p.now {
				h.do()
			} else {
				p.later = append(p.later, h)
			}
		}
		if !p.gone(0) {
			p.obey(0, p.leader.Tick(p.now))
		}
		over := p.gone(0)
		for rank := 1; rank < world; rank++ {
			if p.now < begin[rank] {
				over = false
				continue
			}
			if step%4 == 0 {
				p.look(rank)
			}
			if !p.gone(rank) {
				p.obey(rank, p.replicas[rank].Tick(p.now))
			}
			over = over && p.gone(rank)
		}
		if over {
			return p
		}
	}
}

func (p *played) fault(kind, rank int) func() {
	return func() {
		switch {
		case p.gone(rank):
		case kind == 0 && rank == 0:
			p.killed = true
		case kind == 1:
			p.rayEnds(rank, "exit code 1")
		case kind == 2 && rank == 0:
			p.obey(0, p.leader.Signal(p.now, "SIGTERM", 15, true))
		case kind == 2:
			p.obey(rank, p.replicas[rank].Signal(p.now, "SIGTERM", 15))
		case kind == 3:
			p.cut[rank] = true
			p.after(60*s, func() { p.cut[rank] = false })
		case kind == 4 && rank == 0:
			p.obey(0, p.leader.Orphaned(p.now))
		}
	}
}

// Without faults all exit with the command's code, whatever the order of things.
func TestOrderlyRuns(t *testing.T) {
	for seed := range uint64(2000) {
		p := play(t, seed, false)
		for rank, code := range p.exits {
			late := strings.Contains(p.reasons[rank], "in vain") // the command was over before it came
			if code != p.code && !(late && p.leader.need < p.leader.world) {
				p.fail("rank %d exits with %d (%s), the command with %d", rank, code, p.reasons[rank], p.code)
			}
		}
		if p.started != 1 {
			p.fail("the command was started %d times", p.started)
		}
	}
}

// With faults all end, leave nothing, and say why; nobody claims an orderly end
// that the command did not have.
func TestFaultyRuns(t *testing.T) {
	for seed := range uint64(5000) {
		p := play(t, seed, true)
		if p.started > 1 {
			p.fail("the command was started %d times", p.started)
		}
		for rank, code := range p.exits {
			if code == 0 && (p.code != 0 || p.started == 0) {
				p.fail("rank %d says that all went well", rank)
			}
		}
	}
}
