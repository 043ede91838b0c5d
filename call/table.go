package call

import (
	"slices"

	"github.com/muster-rl/muster/spec"
)

// ID is the head's number of a call.
type ID uint64

// An ID is epoch, counter and, in the low bits, what is put between.
const (
	epochShift = 48
	idStep     = ID(1) << 12
)

// State of a call; the table is in the package's doc.
type State uint8

// The states of a call.
const (
	Held State = iota
	Sending
	Running
	Expiring
	Cancelling
	Answered
)

func (s State) String() string {
	return [...]string{"held", "sending", "running", "expiring", "cancelling", "answered"}[s]
}

// Result is a leg's value, or its error.
type Result struct {
	Body []byte
	Bufs any // the head's own: the buffers of the frame it came in
	Err  *spec.Error
}

// Leg is one rank's part in a call.
type Leg struct {
	Worker *Worker
	seq    uint32 // how many legs its worker had got with it
	Done   bool   // answered, lost or skipped
	gave   bool   // a value, whatever became of it
	sent   bool   // its order was given
	Out    bool   // the head has sent it
	told   bool   // of a Split call: its caller has the answer
	ending bool   // CancelLeg was ordered
	Result Result
}

// Worker is one rank of a cluster as calls see it.
type Worker struct {
	// What every leg touches comes first and close together: with thousands of
	// workers, fetching it from memory is most of what a leg costs.
	Rank    int
	Cluster *Cluster
	Dead    *spec.Error // why, once it is known
	Down    *spec.Error // why, while another process is to take its place
	legs    []*Call     // those from past on are out, oldest first
	past    int32
	Dying   bool // its connection has ended: it may come back
	Serial  bool // runs one call at a time: a wait inside it blocks it

	acks   acks
	waits  []*Call // what the leg that runs on it waits for
	Number uint32
	Name   string
	Node   string
}

// Cluster is a group of workers with one order of calls.
type Cluster struct {
	Number  uint32
	Name    string
	Workers []*Worker
	Most    int     // calls that a worker runs at once, if it was said
	held    []*Call // not sent yet, in order
	stuck   int     // how many of these, from the front, are known to stay: see first
	behind  []bool  // by rank: one of them is for it
	free    int     // how many ranks none is for
	full    int     // workers with as many legs as they may have, and those that are Dying
	down    int     // workers whose place another process is to take
	gone    *spec.Error
}

// MaxOut is how many legs a worker has out at most, unless it runs more at once;
// further calls of its cluster are held until it has fewer.
const MaxOut = 1000

func (cl *Cluster) maxOut() int { return max(MaxOut, cl.Most) }

// Request is a call as it comes in.
type Request struct {
	Caller   uint32 // who makes it
	CallerID uint64 // its id there
	Cluster  *Cluster
	Method   string
	Ranks    []int // nil: all
	Split    bool
	Apart    bool // with Split: a rank that is dead fails its own leg alone
	Keep     bool

	Collective bool
	Idempotent bool // it may be run again on a rank that is restarted
	OnTimeout  string

	Parent       ID
	ParentWorker *Worker // whose call makes this one; nil outside workers
	Waiting      bool    // the parent blocks on it from the start
	Whole        bool    // and with it all that its worker runs
	Futures      []Future
	// Paired, where not nil, has for each of Futures and each leg the leg of that
	// call which gives what this one needs of it: a leg goes out as soon as those
	// are there, not when the whole call is answered.
	Paired [][]int
	// Prepares: its arguments are made ready when it is its turn, which may take a
	// while (Prepare, Prepared). Those behind it wait.
	Prepares bool
	// Leased: the head holds objects in its name, until Forget.
	Leased bool

	Data any // the head's own
}

// Future is an argument that is another call's result.
type Future struct {
	CallerID uint64
	Rank     int // -1: the whole answer
}

// Origin is a call as its caller names it, in one number: it stays the same when a
// new head numbers calls anew.
func (r *Request) Origin() uint64 { return uint64(r.Caller)<<32 | r.CallerID&0xffffffff }

// Call is one invocation.
type Call struct {
	Request
	ID    ID
	State State
	Legs  []Leg

	// Value is the joined answer, kept by the head for calls whose result
	// others wait for, or may.
	Value *Result

	asked      bool    // its caller has cancelled it
	kill       bool    // what does not end once it is cancelled is to be killed
	acked      bool    // its caller has read the answer, or is gone
	put        bool    // all there is of it is the answer, which its caller gave back
	misplaced  bool    // its place in the order is past
	bare       bool    // its arguments are to come again before it goes on
	stays      bool    // in its cluster's queue until it is answered: see stay
	preparing  bool    // Prepare was ordered
	prepared   bool    // and has been done
	left       int     // legs not done
	told       int     // legs that are told
	byRank     []int32 // leg + 1 by rank, where Ranks are many
	first      *spec.Error
	skipped    int     // legs that were never sent
	used       bool    // deps are let go of
	forgotten  bool    // it is not in the table any more
	deps       []*Call // what Futures name, until it is answered
	users      int     // calls that have this one among their deps
	shared     bool    // it ever was
	needs      []*Call // of deps, those that are not answered
	dependents []*Call
	waiters    []*Worker
	waits      []*Call // what its legs wait for, on workers that run others meanwhile
}

// Op is an order to the head.
type Op struct {
	Do   Do
	Call *Call
	Leg  int
	Err  *spec.Error
}

// Do says what an Op asks for.
type Do uint8

// The orders.
const (
	Send      Do = iota // send the legs
	SendLeg             // send Leg alone: what it needs is there
	Answer              // join the legs' results and answer
	Fail                // answer with Err
	AnswerLeg           // answer for Leg alone
	FailLeg             // answer for Leg alone with Err
	CancelLeg           // have Leg's worker end it
	KillLeg             // have Leg's worker killed
	Stacks              // collect the stacks of the legs that are out, then Expired
	SendAgain           // send Leg once more, to the process that took its rank's place
	Again               // have the caller send the arguments again, then Resent
	Release             // tell Leg's worker which results it may drop
	Forget              // let go of what was held for the call: of one that is Leased, the last order
	Prepare             // make the arguments ready, then Prepared, or Refuse
)

// Table holds all calls of a head. The slices of Op it returns are valid until
// its next method is called.
type Table struct {
	next     ID
	calls    map[ID]*Call
	byCaller map[callerKey]*Call
	paused   bool // nothing is sent
	ops      []Op
}

type callerKey struct {
	caller uint32
	id     uint64
}

// NewTable makes an empty table for the head that has this epoch, from 1: numbers
// of calls go on from one head of a session to the next, and leave room between
// them for calls that a next head must put there.
func NewTable(epoch uint32) *Table {
	return &Table{next: ID(epoch) << epochShift, calls: map[ID]*Call{}, byCaller: map[callerKey]*Call{}}
}

// Len is how many calls the table holds.
func (t *Table) Len() int { return len(t.calls) }

// Alone says that there is one leg out at most.
func (t *Table) Alone() bool {
	if len(t.calls) > 1 {
		return false
	}
	for _, c := range t.calls {
		return len(c.Legs) <= 1
	}
	return true
}

// Open returns the calls that are not answered, oldest first.
func (t *Table) Open() []*Call {
	return t.sorted(func(c *Call) bool { return c.State != Answered })
}

// Busy is how many calls of a cluster are not answered, or still run.
func (t *Table) Busy(cl *Cluster) int {
	busy := 0
	for _, c := range t.calls {
		if c.Cluster == cl && (c.State != Answered || c.left > 0) {
			busy++
		}
	}
	return busy
}

// Collectives returns the calls of collective methods that ranks are at, oldest first.
func (t *Table) Collectives() []*Call {
	return t.sorted(func(c *Call) bool { return c.Collective && (c.State == Sending || c.State == Running) })
}

// Find returns a call by number.
func (t *Table) Find(id ID) *Call { return t.calls[id] }

// FindCaller returns a call by its caller's number for it.
func (t *Table) FindCaller(caller uint32, id uint64) *Call {
	return t.byCaller[callerKey{caller, id}]
}

// Ended says that no leg is out any more.
func (c *Call) Ended() bool { return c.left == 0 }

// Done is how many legs are not out any more.
func (c *Call) Done() int { return len(c.Legs) - c.left }

// Out returns the legs of c that are out, by index.
func (c *Call) Out() []int {
	var out []int
	for i := range c.Legs {
		if !c.Legs[i].Done {
			out = append(out, i)
		}
	}
	return out
}

func (t *Table) op(do Do, c *Call, leg int, err *spec.Error) {
	t.ops = append(t.ops, Op{Do: do, Call: c, Leg: leg, Err: err})
}

// LegOf finds the leg of worker w, or -1.
func (c *Call) LegOf(w *Worker) int {
	if leg := c.LegOfRank(w.Rank); leg >= 0 && c.Legs[leg].Worker == w {
		return leg
	}
	return -1
}

// LegOfRank finds the leg of a rank, or -1.
func (c *Call) LegOfRank(rank int) int {
	switch {
	case c.Ranks == nil:
		if rank < len(c.Legs) {
			return rank
		}
		return -1
	case len(c.Ranks) <= fewRanks, c.put:
		return slices.Index(c.Ranks, rank)
	case c.byRank == nil:
		c.byRank = make([]int32, len(c.Cluster.Workers))
		for leg, rank := range c.Ranks {
			c.byRank[rank] = int32(leg + 1)
		}
	}
	if rank >= len(c.byRank) {
		return -1
	}
	return int(c.byRank[rank]) - 1
}

// fewRanks are found by looking at each.
const fewRanks = 16

// forget drops an answered call when nothing of it is left: no leg out, no
// result kept.
func (t *Table) forget(c *Call) {
	if c.State != Answered || c.left > 0 || c.Keep || c.users > 0 || c.forgotten || c.Leased && c.lapsed() {
		return
	}
	c.forgotten = true
	delete(t.calls, c.ID)
	key := callerKey{c.Caller, c.CallerID}
	if t.byCaller[key] == c {
		delete(t.byCaller, key)
	}
	if c.Leased {
		t.op(Forget, c, -1, nil)
	}
}

// lapsed says that c has failed, past its deadline say, though its legs did not.
// Should the head end before its caller has read that, the next one takes the
// results that workers keep for the answer: what they name is held until then.
func (c *Call) lapsed() bool {
	if c.acked || !c.failed() {
		return false
	}
	gave := 0
	for i := range c.Legs {
		if c.Legs[i].gave {
			gave++
		}
	}
	return gave > 0 && (c.Split || gave == len(c.Legs))
}

// Unread says that its caller has not read the answer: what its legs give may be
// asked for.
func (c *Call) Unread() bool { return !c.acked }

// Wanted says that its result may become an argument, or has.
func (c *Call) Wanted() bool { return c.Keep || c.shared }

// Dep is the call that Futures[i] names, of a call whose sending was ordered.
func (c *Call) Dep(i int) *Call { return c.deps[i] }

// HasDeps says that there is one for each: of a call that was sent by a head before
// this one there may not be.
func (c *Call) HasDeps() bool { return len(c.deps) == len(c.Futures) }

// unuse lets go of the calls whose results c needed.
func (t *Table) unuse(c *Call) {
	if c.used {
		return
	}
	c.used = true
	for _, dep := range c.deps {
		dep.users--
		t.forget(dep)
	}
}

func (w *Worker) addOut(c *Call) {
	if w.past > 0 && len(w.legs) == cap(w.legs) { // use the room in front before growing
		n := copy(w.legs, w.legs[w.past:])
		clear(w.legs[n:])
		w.legs, w.past = w.legs[:n], 0
	}
	w.legs = append(w.legs, c)
	if len(w.out()) == w.Cluster.maxOut() {
		w.Cluster.full++
	}
}

func (w *Worker) removeOut(c *Call) {
	out := w.out()
	i := slices.Index(out, c)
	if i < 0 {
		return
	}
	if len(out) == w.Cluster.maxOut() {
		w.Cluster.full--
	}
	if i > 0 {
		w.legs = slices.Delete(w.legs, int(w.past)+i, int(w.past)+i+1)
		return
	}
	out[0] = nil // nearly always: legs end in their order
	if w.past++; int(w.past) == len(w.legs) {
		w.legs, w.past = w.legs[:0], 0
	}
}

// Oldest is the call with a leg on w that was sent first; nil: there is none.
func (w *Worker) Oldest() *Call {
	if out := w.out(); len(out) > 0 {
		return out[0]
	}
	return nil
}

// Load is how many legs w has out.
func (w *Worker) Load() int { return len(w.out()) }

// out is the calls with a leg on w, oldest first.
func (w *Worker) out() []*Call { return w.legs[w.past:] }
