package course

import (
	"fmt"
	"time"
)

// Miss is how a look at the leader failed.
type Miss int

// The ways.
const (
	NoName      Miss = iota // its name cannot be looked up
	NoListener              // its host refuses the connection: nobody listens there
	NoAnswer                // nothing came back
	BadToken                // it does not have our token, or we not its
	NotWelcome              // it says that we are none of its replicas
	Unspeakable             // something else listens there
)

// badTokens is how many looks in a row must fail for the token: the port may
// still belong to another job that is just ending.
const badTokens = 3

// Replica decides for a rank other than 0. Its methods are not to be called
// concurrently.
type Replica struct {
	rank    int
	where   string // the leader, for people
	limits  Limits
	state   State
	leader  string // which run of it was joined
	reason  string
	code    int
	ray     bool
	stopped bool
	gone    bool

	good    time.Duration // the last look that succeeded
	misses  int           // in a row
	refused int           // in a row
	tokens  int           // in a row
	address string        // of the Ray that it joins
	last    string        // why the last look failed
	shown   string
	shownAt time.Duration
}

// NewReplica makes a replica that looks for the leader at where.
func NewReplica(rank int, where string, limits Limits) *Replica {
	return &Replica{rank: rank, where: where, limits: limits, state: Seeking}
}

// State is what the leader is told, and why.
func (r *Replica) State() (State, string) { return r.state, r.reason }

// Looked takes what the leader says.
func (r *Replica) Looked(now time.Duration, n Notice) []Order {
	r.good, r.misses, r.refused, r.tokens = now, 0, 0, 0
	if r.over() {
		return nil
	}
	if r.leader != "" && r.leader != n.Leader {
		return r.leave(Failed, 1, fmt.Sprintf("the leader at %s is another than the one that was joined: it was started anew", r.where))
	}
	switch {
	case n.Phase == Ended:
		reason := ""
		if n.Code != 0 {
			reason = "the leader ended: " + n.Reason
		}
		return r.leave(Left, n.Code, reason)
	case r.state == Seeking && n.Ray != "":
		r.state, r.leader, r.ray, r.address = Joining, n.Leader, true, n.Ray
		return []Order{say("joining", "the leader is at %s; joining Ray at %s", r.where, n.Ray), {Do: StartRay, Address: n.Ray}}
	case r.state == Seeking:
		r.last = "it is there, but its Ray was not up"
		return r.show("waiting", "the leader at %s is there; its Ray is not up yet", r.where)
	case r.state == Joined:
		if n.Phase == Gathering {
			return r.show("waiting", "%d of %d nodes joined", n.Joined, n.Need)
		}
		return r.show("running", "the command runs on rank 0")
	}
	return nil
}

// Missed takes a look that failed, and why.
func (r *Replica) Missed(now time.Duration, how Miss, why string) []Order {
	if r.over() {
		return nil
	}
	r.misses++
	r.last = why
	if how == NoListener {
		r.refused++
	} else {
		r.refused = 0
	}
	if how == BadToken {
		r.tokens++
	} else {
		r.tokens = 0
	}
	switch {
	case how == NotWelcome:
		return r.leave(Failed, 1, "the leader refuses this replica: "+why)
	case r.tokens >= badTokens:
		return r.leave(Failed, 1, fmt.Sprintf("%s at %s: the replicas need the same RAY_AUTH_TOKEN", why, r.where))
	case r.state == Seeking:
		return r.show("waiting", "waiting for the leader at %s: %s", r.where, why)
	case r.refused >= r.limits.Refused:
		return r.leave(Failed, 1, fmt.Sprintf("the leader at %s is gone without a word: %s, %d looks in a row", r.where, why, r.misses))
	case now-r.good >= r.limits.Silence && r.misses >= r.limits.Refused:
		return r.leave(Failed, 1, fmt.Sprintf("the leader at %s is gone without a word: no answer for %s, %d looks in a row (%s)", r.where, span(now-r.good), r.misses, why))
	case r.misses == 2:
		return []Order{say("suspect", "the leader at %s does not answer: %s", r.where, why)}
	}
	return nil
}

// RayUp says that this node has joined Ray.
func (r *Replica) RayUp(time.Duration) []Order {
	if r.state != Joining {
		return nil
	}
	r.state = Joined
	return []Order{say("joined", "rank %d has joined", r.rank)}
}

// RayEnded says that this node's Ray is gone, told to or not.
func (r *Replica) RayEnded(_ time.Duration, how string) []Order {
	r.ray = false
	switch {
	case r.over():
		return r.finish()
	case r.state == Joining:
		return r.leave(Failed, 1, "this node could not join Ray: "+how)
	}
	return r.leave(Failed, 1, "lost raylet: this node's Ray ended: "+how)
}

// RaySlow says that Ray gave its own start up, as that took longer than it allows
// itself. Here it may take until the deadline.
func (r *Replica) RaySlow(now time.Duration, how string) []Order {
	if r.state != Joining || now >= r.limits.Join {
		return r.RayEnded(now, how)
	}
	return []Order{say("slow", slowly), {Do: StartRay, Address: r.address}}
}

// Signal takes a signal to this process.
func (r *Replica) Signal(_ time.Duration, name string, number int) []Order {
	if r.over() {
		return nil
	}
	return r.leave(Failed, signalled(number), fmt.Sprintf("stopped by %s while %s", name, r.state))
}

// Tick says that time went on.
func (r *Replica) Tick(now time.Duration) []Order {
	if now < r.limits.Join {
		if r.state == Seeking && now-r.shownAt >= again {
			r.shownAt = now
			return []Order{say("waiting", "still waiting for the leader at %s: %s; %s of %s are over", r.where, r.last, span(now), span(r.limits.Join))}
		}
		return nil
	}
	switch r.state {
	case Seeking:
		return r.leave(Failed, 1, fmt.Sprintf("rank %d waited %s for the leader at %s in vain: %s", r.rank, span(r.limits.Join), r.where, r.last))
	case Joining:
		return r.leave(Failed, 1, fmt.Sprintf("rank %d did not join Ray within %s", r.rank, span(r.limits.Join)))
	}
	return nil
}

func (r *Replica) over() bool { return r.state == Left || r.state == Failed }

// show says something that was not said just before.
func (r *Replica) show(event, format string, args ...any) []Order {
	order := say(event, format, args...)
	if order.Text == r.shown {
		return nil
	}
	r.shown = order.Text
	return []Order{order}
}

// leave ends: the leader hears why, Ray stops, then this replica exits.
func (r *Replica) leave(state State, code int, reason string) []Order {
	r.state, r.code, r.reason = state, code, reason
	return append([]Order{{Do: TellLeader}}, r.finish()...)
}

func (r *Replica) finish() []Order {
	switch {
	case r.ray && !r.stopped:
		r.stopped = true
		return []Order{{Do: StopRay}}
	case !r.ray && !r.gone:
		r.gone = true
		return []Order{{Do: Exit, Code: r.code, Text: r.reason}}
	}
	return nil
}
