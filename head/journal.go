package head

import (
	"os"
	"time"

	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/process"
)

// What a next head needs and nobody else could tell it is written down when it
// changes, which is rarely: before others hear of it, so that what they were told
// of is never unknown to it. A head without a journal writes nothing.

func (h *Head) noteMetaLocked(virtual string) {
	h.opts.Journal.Put(&journal.Meta{
		Session: h.opts.Session, LogDir: h.opts.LogDir, Secret: h.secret, Virtual: virtual,
		Owner: processOf(h.ownerPid), Begun: float64(h.begun.UnixNano()) / float64(time.Second),
	})
}

// processOf tells a process from a later one of its number.
func processOf(pid int) journal.Process {
	p := journal.Process{Pid: pid}
	if e, err := process.Read(pid); pid > 0 && err == nil {
		p.Started = e.Started
	}
	return p
}

// lives says that it is still the same process.
func lives(p journal.Process) bool {
	if p.Pid == os.Getpid() {
		return true
	}
	e, err := process.Read(p.Pid)
	return err == nil && !e.Gone() && (p.Started == 0 || e.Started == p.Started)
}

// noteNodeLocked: an agent was launched or, with its process, has joined.
func (h *Head) noteNodeLocked(n *node, pid int) {
	if pid != 0 {
		n.pid = pid
	}
	if n.agent == nil {
		return
	}
	warden := n.agent.Handle()
	h.opts.Journal.Put(&journal.Node{
		Index: n.index, Name: n.name,
		Warden: journal.Process{Pid: warden.Pid, Started: warden.Started}, Agent: journal.Process{Pid: n.pid},
	})
}

func (h *Head) noteCallerLocked(c *caller) {
	if h.opts.Journal == nil {
		return
	}
	note := &journal.Caller{Number: c.number, Proc: processOf(c.pid), Owner: h.owner == c}
	if c.worker != nil {
		note.Worker = c.worker.Number
	}
	h.opts.Journal.Put(note)
}

func (h *Head) noteLeftLocked(c *caller) { h.opts.Journal.Delete(&journal.Caller{Number: c.number}) }

func (h *Head) notePoolLocked(p *pool) {
	if h.pools[p.ID] != p {
		return
	}
	note := &journal.Pool{Pool: p.Pool, Origin: p.origin, Released: p.released}
	if p.owner != nil {
		note.Owner = p.owner.number
	}
	h.opts.Journal.Put(note)
}

// noteClusterLocked is for any change of a cluster but its end.
func (h *Head) noteClusterLocked(cl *cluster) {
	if h.opts.Journal == nil || h.clusters[cl.Number] != cl {
		return
	}
	note := &journal.Cluster{
		Number: cl.Number, Spec: cl.spec, Pool: cl.pool.ID, Origin: cl.origin, Description: cl.desc, Ranks: cl.ranks,
		MasterAddr: cl.master.Addr, MasterPort: cl.master.Port, Up: cl.up, Stopping: cl.stopping, Restarts: cl.budget.noted(),
	}
	if cl.owner != nil {
		note.Owner = cl.owner.number
	}
	for _, w := range cl.workers {
		kept := journal.Worker{Number: w.Number, Rank: w.Rank, State: w.state, Pid: w.pid, Why: w.Dead}
		note.Workers = append(note.Workers, kept)
	}
	h.opts.Journal.Put(note)
}

func (h *Head) noteEndLocked(cl *cluster) {
	h.opts.Journal.Delete(&journal.Cluster{Number: cl.Number})
}
