package head

import (
	"fmt"
	"time"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Whether a node on another machine is there is told from its connection. The
// kernel knows since when nothing has come, and since when the other machine has
// acknowledged nothing; where it is quiet, the head asks (Notice ping).
//
//	nothing has come for   the node is   and then
//	PingEvery (1 s)        up            it is asked
//	SuspectAfter (3 s)     suspect       shown and warned of; its calls wait
//	NodeGrace (60 s)       lost          its calls fail, its agent is ended
//
// It is lost sooner on proof: its backend says so, or another agent joins in its
// place. A connection that ends without proof leaves what is left of the grace to
// come back. What the error says tells apart a machine of which nothing comes
// (down, or cut off), one whose agent alone is silent, and an agent that is gone.

// silence is what the head knows of a node's.
type silence struct {
	since   time.Duration // for how long nothing had come when it was looked at
	looked  time.Time
	ack     time.Duration // for how long its machine has acknowledged nothing
	trip    time.Duration // how long it takes to
	deaf    bool          // it does not get what it is sent
	suspect bool
	asked   time.Time     // when it was asked, and has not answered; zero: it has
	answer  time.Duration // how long its agent took the last time
}

// slowAnswer is how long an agent may take to answer before it is called slow.
const slowAnswer = time.Second

// look takes what the kernel says now, and tells what changed.
func (s *silence) look(q wire.Quiet, now time.Time, suspectAfter time.Duration) (became, healed bool) {
	was := s.suspect
	s.since, s.ack, s.trip, s.deaf, s.looked = q.Data, q.Ack, q.Trip, q.Deaf, now
	s.suspect = q.Data >= suspectAfter
	return s.suspect && !was, was && !s.suspect
}

// text says in words what is wrong with a node that is silent.
func (s *silence) text(name string) string {
	since := inSeconds(s.since + time.Since(s.looked))
	switch heard := s.ack < s.since/2; {
	case heard && s.deaf:
		return fmt.Sprintf("the agent of %s has not answered for %s: its machine is heard, and does not hear this one: the network between loses one direction", name, since)
	case heard:
		return fmt.Sprintf("the agent of %s has not answered for %s, though its machine does: it is stopped, stuck, or far too busy", name, since)
	}
	return fmt.Sprintf("nothing has come from %s for %s: its machine is down, or the network between is cut", name, since)
}

func inSeconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// watchNodes keeps watch over nodes on other machines until the head ends.
func (h *Head) watchNodes() {
	tick := time.NewTicker(h.opts.PingEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.watchOnce()
		case <-h.over:
			return
		case <-h.crash:
			return
		}
	}
}

// lookedAt is a node and the connection that it had when it was looked at.
type lookedAt struct {
	n     *node
	conn  *wire.Conn
	quiet wire.Quiet
}

func (h *Head) watchOnce() {
	var all []lookedAt
	h.mu.Lock()
	for _, n := range h.nodes {
		if n.far && n.conn != nil && n.lost == nil {
			all = append(all, lookedAt{n: n, conn: n.conn})
		}
	}
	h.mu.Unlock()
	for _, w := range all {
		q, ok := w.conn.Quiet()
		if !ok {
			continue // it has ended, and its reader is about to say so
		}
		w.quiet = q
		switch ask, lost := h.lookAt(w); {
		case lost:
			w.n.silentTooLong(w.conn)
		case ask:
			_ = wire.Notify(w.conn, "ping", &wire.Ping{Silent: q.Data.Seconds()}) // a number can be encoded
		}
	}
}

// lookAt takes note of how quiet a node is, and says whether it is to be asked,
// or is lost.
func (h *Head) lookAt(w lookedAt) (ask, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := w.n
	if n.conn != w.conn || n.lost != nil {
		return false, false
	}
	became, healed := n.silence.look(w.quiet, time.Now(), h.opts.SuspectAfter)
	switch {
	case became:
		h.warningLocked(n.silence.text(n.name) + fmt.Sprintf("; its calls wait, for up to %v", h.opts.NodeGrace))
	case healed:
		h.warningLocked(n.name + " is heard of again")
	}
	ask = n.silence.since >= h.opts.PingEvery
	if ask && n.silence.asked.IsZero() {
		n.silence.asked = time.Now()
	}
	return ask, n.silence.since >= h.opts.NodeGrace
}

// answeredLocked: the agent of n answers a ping.
func (n *node) answeredLocked() {
	if !n.silence.asked.IsZero() {
		n.silence.answer, n.silence.asked = time.Since(n.silence.asked), time.Time{}
	}
}

// replacedLocked: an agent that has not been here before joins in the place of
// one that has, over the network. That is the proof that the other is dead.
func (n *node) replacedLocked(hello wire.Hello) error {
	if !n.far || n.gen == 0 || hello.Back != 0 || n.triesAgainLocked(hello) {
		return nil
	}
	how := fmt.Sprintf("its agent (process %d) has ended, another (process %d) joins in its place", n.info.Pid, hello.Node.Pid)
	if n.info.Boot != hello.Node.Boot {
		how = "its machine was started anew"
	}
	why := spec.Errorf(spec.CodeNodeLost, "%s is lost: %s. Its workers went with it", n.name, how)
	told := *why // lose fills in more
	go n.lose(why)
	return &told
}

// triesAgainLocked says that an agent joins that has not heard that it was
// welcome: its connection was cut too soon.
func (n *node) triesAgainLocked(hello wire.Hello) bool {
	return n.far && hello.Back == 0 && hello.Node.Life != "" && n.info.Life == hello.Node.Life
}

// silentTooLong gives up a node that the grace is over for.
func (n *node) silentTooLong(conn *wire.Conn) {
	n.h.mu.Lock()
	why := spec.Errorf(spec.CodeNodeLost, "%s is lost: %s. It was waited for for %v, and is not proved to be dead; its workers are given up", n.name, n.silence.text(n.name), n.h.opts.NodeGrace)
	agent := n.agent
	n.h.mu.Unlock()
	n.lose(why)
	conn.Cut()
	if agent != nil {
		agent.Kill()
	}
}

// graceLocked is how long an agent whose connection has ended may take to come back.
func (n *node) graceLocked() time.Duration {
	if !n.far {
		return n.h.opts.Grace
	}
	return max(n.h.opts.NodeGrace-n.silence.since, n.h.opts.SuspectAfter)
}

// troubleLocked says what keeps a node from answering at the moment; "": nothing
// that is known of.
func (n *node) troubleLocked() string {
	switch {
	case n.lost != nil || !n.far:
		return ""
	case n.silence.suspect:
		return n.silence.text(n.name)
	case n.ready && n.conn == nil:
		return fmt.Sprintf("the connection to %s is cut; it may come back", n.name)
	}
	return ""
}

// heardLocked: the agent of n joins, or comes back, over the network or not.
func (n *node) heardLocked(conn *wire.Conn) {
	if n.silence.suspect {
		n.h.warningLocked(n.name + " is heard of again")
	}
	n.far, n.silence = conn.LocalHost() != "", silence{}
}

// silentError is for who would wait for a node in vain.
func (n *node) silentError() error {
	n.h.mu.Lock()
	defer n.h.mu.Unlock()
	if text := n.troubleLocked(); text != "" {
		return spec.Errorf(spec.CodeNodeLost, "%s", text)
	}
	return nil
}

// slowLocked says that a node answers, and late; "": it does not.
func (n *node) slowLocked() string {
	switch {
	case n.silence.trip >= slowAnswer:
		return fmt.Sprintf("slow: its machine takes %s to acknowledge", inSeconds(n.silence.trip))
	case n.silence.answer >= slowAnswer:
		return fmt.Sprintf("slow: its agent took %s to answer", inSeconds(n.silence.answer))
	}
	return ""
}
