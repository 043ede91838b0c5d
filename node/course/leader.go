package course

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Leader decides for rank 0. Its methods are not to be called concurrently.
type Leader struct {
	world, need int
	limits      Limits
	notice      Notice
	members     map[int]*member
	shown       string // the last progress that was said
	shownAt     time.Duration

	ray      bool // it was started and has not ended
	command  bool // so
	leaving  time.Duration
	stopping bool          // the command is to end
	killAt   time.Duration // 0: not set
	broken   string        // why the command is stopped, if not by a signal
	stopped  bool          // Ray was told to stop
	gone     bool
}

// member is a replica as the leader knows it.
type member struct {
	id, host string
	state    State
	reason   string
	heard    time.Duration
	cut      bool // its connection ended after that
}

// present says that a member may still do something.
func (m *member) present() bool { return m.state == Seeking || m.state == Joining || m.state == Joined }

// NewLeader makes the leader of world replicas, whose command starts when need
// of them, itself among them, have joined. id names this run of it.
func NewLeader(id string, world, need int, limits Limits) *Leader {
	return &Leader{
		world: world, need: need, limits: limits, members: make(map[int]*member),
		notice: Notice{Leader: id, Phase: Starting, Need: need},
	}
}

// Start is the first event.
func (l *Leader) Start() []Order {
	l.ray = true
	return []Order{{Do: StartRay}}
}

// Notice is what replicas are told now.
func (l *Leader) Notice() Notice { return l.notice }

// RayUp says that Ray's head has started, and where.
func (l *Leader) RayUp(now time.Duration, address string) []Order {
	if l.notice.Phase != Starting {
		return nil
	}
	l.notice.Phase, l.notice.Ray = Gathering, address
	return append([]Order{say("ray", "Ray's head is up at %s", address)}, l.gather(now)...)
}

// Hello hears of a replica and decides whether it is one of ours.
func (l *Leader) Hello(now time.Duration, rank, world int, id, host string) error {
	switch old := l.members[rank]; {
	case world != l.world:
		return fmt.Errorf("rank %d on %s was told of %d replicas, and the leader of %d: all need the same number", rank, host, world, l.world)
	case rank == 0:
		return fmt.Errorf("rank 0 on %s is not needed: the leader is rank 0, and two replicas were given that rank", host)
	case rank < 0 || rank >= l.world:
		return fmt.Errorf("rank %d on %s is not one of 1 to %d: the leader has %d replicas", rank, host, l.world-1, l.world)
	case old != nil && old.id != id && old.present() && !old.cut && now-old.heard < l.limits.Silence:
		return fmt.Errorf("rank %d on %s is already here, on %s: two replicas were given that rank", rank, host, old.host)
	case old == nil || old.id != id:
		l.members[rank] = &member{id: id, host: host, state: Seeking, heard: now}
	}
	return nil
}

// Heard takes what a replica that was welcomed says of itself.
func (l *Leader) Heard(now time.Duration, rank int, id string, state State, reason string) []Order {
	m := l.members[rank]
	if m == nil || m.id != id {
		return nil // another has taken its place
	}
	before := m.state
	m.state, m.reason, m.heard, m.cut = state, reason, now, false
	var orders []Order
	switch {
	case state == Failed && before != Failed:
		orders = append(orders, say("failed", "rank %d on %s failed: %s", rank, m.host, reason))
	case before == Lost && m.present():
		orders = append(orders, say("back", "rank %d on %s answers again", rank, m.host))
	}
	return append(orders, l.step(now)...)
}

// Cut says that a replica's connection ended. It may come back; until then its
// rank is free, for one that was started in its place.
func (l *Leader) Cut(rank int, id string) {
	if m := l.members[rank]; m != nil && m.id == id {
		m.cut = true
	}
}

// Orphaned says that nobody waits for this process any more.
func (l *Leader) Orphaned(now time.Duration) []Order {
	const why = "the leader's muster node was killed"
	if !l.command {
		if l.notice.Phase == Ended {
			return nil
		}
		return l.leave(now, 1, why)
	}
	l.stopping, l.broken = true, why
	return []Order{{Do: KillCommand}}
}

// CommandEnded says how the command ended.
func (l *Leader) CommandEnded(now time.Duration, code int, how string) []Order {
	l.command = false
	if l.broken != "" {
		return l.leave(now, 1, l.broken) // its own code says less
	}
	if code == 0 {
		return l.leave(now, 0, "")
	}
	return l.leave(now, code, "the command ended with "+how)
}

// RayEnded says that the head's Ray is gone, told to or not.
func (l *Leader) RayEnded(now time.Duration, how string) []Order {
	l.ray = false
	switch {
	case l.notice.Phase == Ended:
		return l.step(now)
	case l.command && l.stopping: // whoever stops us may have stopped Ray too
		return nil
	case l.command:
		l.broken = "Ray's head ended while the command ran: " + how
		orders := []Order{say("lost", "%s; the command is stopped", l.broken)}
		return append(orders, l.stopCommand(now, 15)...)
	case l.notice.Phase == Starting:
		return l.leave(now, 1, "Ray's head did not start: "+how)
	}
	return l.leave(now, 1, "Ray's head ended before the command started: "+how)
}

// RaySlow says that Ray gave its own start up, as that took longer than it allows
// itself. Here it may take until the deadline.
func (l *Leader) RaySlow(now time.Duration, how string) []Order {
	if l.notice.Phase != Starting || now >= l.limits.Join {
		return l.RayEnded(now, how)
	}
	return []Order{say("slow", slowly), {Do: StartRay}}
}

// Signal takes a signal to this process. forward is false where the command has
// got it too, from the terminal.
func (l *Leader) Signal(now time.Duration, name string, number int, forward bool) []Order {
	switch {
	case l.command && l.stopping:
		return nil
	case l.command:
		orders := []Order{say("signal", "%s: the command may take %s to end", name, span(l.limits.Stop))}
		if !forward {
			number = 0
		}
		return append(orders, l.stopCommand(now, number)...)
	case l.notice.Phase == Ended: // no time for farewells
		l.leaving = now - l.limits.Farewell
		return l.step(now)
	}
	return l.leave(now, signalled(number), fmt.Sprintf("stopped by %s before the command started", name))
}

// Tick says that time went on.
func (l *Leader) Tick(now time.Duration) []Order {
	var orders []Order
	for rank, m := range l.members {
		if m.present() && now-m.heard > l.limits.Silence {
			m.state, m.reason = Lost, "it has not answered for "+span(l.limits.Silence)
			orders = append(orders, say("lost", "rank %d on %s: %s", rank, m.host, m.reason))
		}
	}
	slices.SortFunc(orders, func(a, b Order) int { return strings.Compare(a.Text, b.Text) })
	if l.command && l.killAt != 0 && now >= l.killAt {
		l.killAt = 0
		orders = append(orders, say("kill", "the command did not end within %s: it is killed", span(l.limits.Stop)), Order{Do: KillCommand})
	}
	if now >= l.limits.Join {
		switch l.notice.Phase {
		case Starting:
			return append(orders, l.leave(now, 1, "Ray's head was not up within "+span(l.limits.Join))...)
		case Gathering:
			return append(orders, l.leave(now, 1, fmt.Sprintf("within %s only %s", span(l.limits.Join), l.progress()))...)
		}
	}
	return append(orders, l.step(now)...)
}

// stopCommand has it end, by a signal if number is one.
func (l *Leader) stopCommand(now time.Duration, number int) []Order {
	l.stopping, l.killAt = true, now+l.limits.Stop
	if number == 0 {
		return nil
	}
	return []Order{{Do: SignalCommand, Number: number}}
}

// step does what the state asks for.
func (l *Leader) step(now time.Duration) []Order {
	switch l.notice.Phase {
	case Gathering, Running:
		return l.gather(now)
	case Ended:
		return l.farewell(now)
	}
	return nil
}

// gather counts who is there, and starts the command when that is enough.
func (l *Leader) gather(now time.Duration) []Order {
	l.notice.Joined = 1
	for _, m := range l.members {
		if m.state == Joined {
			l.notice.Joined++
		}
	}
	if l.notice.Phase != Gathering {
		return nil
	}
	var orders []Order
	if text := l.progress(); text != l.shown {
		l.shown, l.shownAt = text, now
		orders = append(orders, say("waiting", "%s", text))
	} else if now-l.shownAt >= again {
		l.shownAt = now
		orders = append(orders, say("waiting", "%s; %s of %s are over", text, span(now), span(l.limits.Join)))
	}
	if l.notice.Joined >= l.need {
		l.notice.Phase, l.command = Running, true
		orders = append(orders, Order{Do: StartCommand})
	}
	return orders
}

// progress says who is here and who is not.
func (l *Leader) progress() string {
	of := fmt.Sprintf("%d of %d nodes joined", l.notice.Joined, l.world)
	if l.need < l.world {
		of += fmt.Sprintf(" (%d are enough)", l.need)
	}
	var missing, others []string
	for rank := 1; rank < l.world; rank++ {
		switch m := l.members[rank]; {
		case m == nil:
			missing = append(missing, fmt.Sprint(rank))
		case m.state == Joined:
		case m.reason != "":
			others = append(others, fmt.Sprintf("rank %d on %s %s: %s", rank, m.host, m.state, m.reason))
		default:
			others = append(others, fmt.Sprintf("rank %d on %s is %s", rank, m.host, m.state))
		}
	}
	if len(missing) > 8 {
		missing = append(missing[:8], fmt.Sprintf("%d more", len(missing)-8))
	}
	if len(others) > 4 {
		others = append(others[:4], fmt.Sprintf("and %d more", len(others)-4))
	}
	if len(missing) > 0 {
		others = append([]string{"not heard of: rank " + strings.Join(missing, ", ")}, others...)
	}
	if len(others) > 0 {
		of += "; " + strings.Join(others, "; ")
	}
	return of
}

// leave tells the others of the end.
func (l *Leader) leave(now time.Duration, code int, reason string) []Order {
	l.notice.Phase, l.notice.Code, l.notice.Reason = Ended, code, reason
	l.leaving = now
	return l.farewell(now)
}

// farewell waits until all who are here know, and stops Ray.
func (l *Leader) farewell(now time.Duration) []Order {
	if now-l.leaving < l.limits.Farewell {
		for _, m := range l.members {
			if m.present() {
				return nil
			}
		}
	}
	switch {
	case l.ray && !l.stopped:
		l.stopped = true
		return []Order{{Do: StopRay}}
	case !l.ray && !l.gone:
		l.gone = true
		return []Order{{Do: Exit, Code: l.notice.Code, Text: l.notice.Reason}}
	}
	return nil
}
