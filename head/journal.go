package head

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/muster-rl/muster/journal"
	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/wire"
)

// What a next head needs and nobody else could tell it is written down when it
// changes, which is rarely: before others hear of it, so that what they were told
// of is never unknown to it. A head without a journal writes nothing.

func (h *Head) noteMetaLocked(virtual string) {
	h.virtualText = virtual
	note := &journal.Meta{
		Session: h.opts.Session, LogDir: h.opts.LogDir, Secret: h.secret, Virtual: virtual,
		Owner: processOf(h.ownerPid), Begun: float64(h.begun.UnixNano()) / float64(time.Second),
	}
	if f := h.far; f != nil {
		key, err := f.authority.Marshal()
		if err != nil { // its kind of key can be written
			panic(err)
		}
		note.Listen, note.Plain, note.Authority = f.address, f.config == nil, key
	}
	h.opts.Journal.Put(note)
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
		Index: n.index, Name: n.name, Moved: n.moved,
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
		MasterAddr: cl.master.Addr, MasterPort: cl.master.Port, Up: cl.up, Stopping: cl.stopping, Restarts: cl.budget.noted(), Lost: cl.lost,
	}
	if !cl.spec.Restarts() { // nothing is made of it again; it may be large
		note.Spec.Config = nil
	} else if cl.setup != nil {
		note.Bufs, note.Objects = notedBufs(cl.setup.bufs)
	}
	if cl.owner != nil {
		note.Owner = cl.owner.number
	}
	for _, w := range cl.workers {
		kept := journal.Worker{Number: w.Number, Rank: w.Rank, State: w.state, Pid: w.pid, Why: w.Dead, Final: w.final}
		switch {
		case w.Dead != nil:
		case w.try != nil:
			kept.State, kept.Why = stateDown, w.try.cause
		case w.replaced: // before its calls are told, and after
			kept.State, kept.Why = stateDown, cl.causeOf(w.Rank)
		}
		note.Workers = append(note.Workers, kept)
	}
	h.opts.Journal.Put(note)
}

// stateDown is a rank that another process is to take the place of.
const stateDown = "down"

// noteSoonLocked is for what others could tell the next head too, and what often
// comes together: the ends of workers.
func (h *Head) noteSoonLocked(cl *cluster) {
	if h.opts.Journal == nil || cl.noting {
		return
	}
	cl.noting = true
	time.AfterFunc(noteWait, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		cl.noting = false
		h.noteClusterLocked(cl)
		h.fault("noted")
	})
}

const noteWait = 50 * time.Millisecond

func (h *Head) noteEndLocked(cl *cluster) {
	h.opts.Journal.Delete(&journal.Cluster{Number: cl.Number}, &journal.Beginning{Cluster: cl.Number})
}

// noteBegunLocked: ranks were initialized.
func (h *Head) noteBegunLocked(cl *cluster) {
	if h.opts.Journal == nil {
		return
	}
	note := &journal.Beginning{Cluster: cl.Number}
	at := map[*byte]int{} // ranks that were sent the same share it
	for rank, k := range cl.begun {
		start := unsafe.SliceData(k.value.Raw)
		index, there := at[start]
		if !there {
			index = len(note.Values)
			at[start] = index
			v := journal.Value{Raw: k.value.Raw}
			v.Bufs, v.Objects = notedBufs(k.value.Bufs)
			note.Values = append(note.Values, v)
		}
		note.Legs = append(note.Legs, journal.BegunLeg{
			Rank: rank, Call: k.id, Parent: k.parent, Origin: k.origin, Flags: uint8(k.flags), Value: index,
		})
	}
	h.opts.Journal.Put(note)
}

// restoreBegun takes back what ranks were initialized with.
func (cl *cluster) restoreBegun(note *journal.Beginning) error {
	cl.begun = map[int]*beginning{}
	values := make([]wire.Value, len(note.Values))
	for i, v := range note.Values {
		bufs, ok := restoredBufs(v.Bufs, v.Objects)
		if !ok {
			return fmt.Errorf("the journal tells of what %s was initialized with, and not all of it", cl.Name)
		}
		values[i] = wire.Value{Raw: v.Raw, Bufs: bufs}
	}
	for _, l := range note.Legs {
		if l.Value >= len(values) || l.Rank >= len(cl.workers) {
			return fmt.Errorf("the journal tells of what rank %d of %s was initialized with, and not all of it", l.Rank, cl.Name)
		}
		cl.begun[l.Rank] = &beginning{id: l.Call, parent: l.Parent, origin: l.Origin, flags: wire.Flags(l.Flags), value: values[l.Value]}
	}
	return nil
}

// notedBufs is buffers as they are written down: bytes, and what they name.
func notedBufs(bufs []wire.Buf) (data [][]byte, objects []uint64) {
	for i := range bufs {
		data, objects = append(data, bufs[i].Data), append(objects, bufs[i].Object)
	}
	return data, objects
}

// restoredBufs takes them back; false where something is missing.
func restoredBufs(data [][]byte, objects []uint64) ([]wire.Buf, bool) {
	if len(data) != len(objects) {
		return nil, false
	}
	var bufs []wire.Buf
	for i := range data {
		bufs = append(bufs, wire.Buf{Data: data[i], Object: objects[i]})
	}
	return bufs, true
}
