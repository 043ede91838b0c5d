package dispatch

import (
	"strconv"

	"github.com/muster-rl/muster/batch"
	"github.com/muster-rl/muster/spec"
)

// Kind says what can be done with an argument.
type Kind uint8

// The kinds of arguments; package wire reads them off the bytes, in the same
// order.
const (
	KindWhole     Kind = iota // cannot be cut
	KindList                  // can
	KindTuple                 // can
	KindPerRank               // marked: an element for each rank, in any mode
	KindBroadcast             // marked: whole, in any mode
	KindFuture                // not known yet; never part of a Request
	KindBatch                 // rows in the store, by reference
)

// Arg is one argument as far as dispatch is concerned.
type Arg struct {
	Name     string // its keyword; "" for a positional one, told by its place
	Kind     Kind
	Len      int    // of a list, tuple, PerRank or batch
	TypeName string // of what cannot be cut, for messages

	// Of a batch: how it wants to be cut, and with it all arguments that are; nil:
	// evenly.
	Cut *batch.Cut
	// Of a batch: it has neither columns nor rows to cut, and goes whole where rows
	// are cut.
	MetaOnly bool
}

// How a method is executed.
const (
	ExecuteAll      = "ALL"
	ExecuteRankZero = "RANK_ZERO"
)

// Request is one call as far as dispatch is concerned.
type Request struct {
	Method  string // for messages
	Mode    Mode
	Execute string // ExecuteAll, which "" means too, or ExecuteRankZero
	// Ranks, where not nil, are those that run, in the order in which their
	// results come back; only for modes that cut nothing. Of a mode that keeps
	// one result it is that of Ranks[0].
	Ranks  []int
	Layout []spec.RankInfo // of every rank; see spec.CheckLayout
	// OwnRows lets arguments that are cut by rows have different numbers of them:
	// each is cut by its own.
	OwnRows bool
	Args    []Arg
}

// cutting is what check learned of the arguments.
type cutting struct {
	cut     bool // some argument is cut as the mode says
	perRank bool // some argument has an element for each rank
	batch   bool // some argument that is cut is a batch
	by      int  // the argument that says how rows are cut, or -1
}

// check refuses arguments that do not suit the mode and its number of parts.
func (r *Request) check(parts int) (cutting, error) {
	c := cutting{by: -1}
	rows := -1  // the first argument whose rows are cut
	other := -1 // one that has another number of them
	for i := range r.Args {
		a := &r.Args[i]
		switch a.Kind {
		case KindPerRank:
			if a.Len != len(r.Layout) {
				return c, r.errorf(spec.CodeInvalid, "%s is PerRank of length %d, but the world size is %d: it needs one element for each rank",
					r.called(i), a.Len, len(r.Layout))
			}
			c.perRank = true
			continue
		case KindFuture:
			return c, r.errorf(spec.CodeInternal, "%s is a future that has not been waited for", r.called(i))
		}
		if r.goesWhole(i) {
			continue
		}
		if !a.cuttable(r.Mode.Cut) {
			return c, r.errorf(spec.CodeType, "%s is of type %s, which %s cannot cut: pass a list or a tuple, or Broadcast(x) to give every rank all of it",
				r.called(i), a.typeName(), r.Mode.Name)
		}
		if r.Mode.Cut == CutElements && a.Len != parts {
			return c, r.errorf(spec.CodeInvalid, "%s has length %d, but %s gives one element to each of %d ranks: pass %d elements, or Broadcast(x) to give every rank all of it",
				r.called(i), a.Len, r.Mode.Name, parts, parts)
		}
		if rows >= 0 && a.Len != r.Args[rows].Len && r.Mode.Cut == CutRows {
			other = i
		}
		if other == i && !r.OwnRows {
			return c, r.errorf(spec.CodeInvalid, "%s has length %d and %s has length %d: %s cuts all arguments by the same rows; pass equal lengths, or Broadcast(x) to give every rank all of one",
				r.called(rows), r.Args[rows].Len, r.called(i), a.Len, r.Mode.Name)
		}
		if rows < 0 {
			rows = i
		}
		c.cut = true
		c.batch = c.batch || a.Kind == KindBatch
		if a.Cut == nil {
			continue
		}
		if c.by >= 0 && !a.Cut.Equal(r.Args[c.by].Cut) {
			return c, r.errorf(spec.CodeInvalid, "%s (%v) and %s (%v) want to be cut in two ways: %s cuts all arguments by the same rows; say it of one batch and pass the other plain, or Broadcast(x) to give every rank all of one",
				r.called(c.by), r.Args[c.by].Cut, r.called(i), a.Cut, r.Mode.Name)
		}
		if c.by < 0 {
			c.by = i
		}
	}
	if other >= 0 && c.by >= 0 {
		return c, r.errorf(spec.CodeInvalid, "%s wants to be %v, but %s has length %d and %s has length %d: pass equal lengths, or the batch as one that is cut evenly",
			r.called(c.by), r.Args[c.by].Cut, r.called(rows), r.Args[rows].Len, r.called(other), r.Args[other].Len)
	}
	return c, nil
}

// goesWhole says that argument i goes to every rank as it is.
func (r *Request) goesWhole(i int) bool {
	a := &r.Args[i]
	switch {
	case a.Kind == KindBroadcast, r.Mode.Cut == CutNothing:
		return true
	case a.Kind == KindBatch && a.MetaOnly && r.Mode.Cut == CutRows:
		return true
	}
	return r.isSpec(i)
}

// cuttable says whether the argument can be cut this way; a batch has rows but
// no elements.
func (a *Arg) cuttable(cut Cut) bool {
	return a.Kind == KindList || a.Kind == KindTuple || a.Kind == KindBatch && cut == CutRows
}

func (a *Arg) typeName() string {
	if a.Kind == KindBatch {
		return "Batch"
	}
	return a.TypeName
}

// isSpec says that argument i is the one that a mode with Spec gives whole.
func (r *Request) isSpec(i int) bool { return r.Mode.Spec && i == 0 && r.Args[i].Name == "" }

// called is how messages call argument i.
func (r *Request) called(i int) string {
	if name := r.Args[i].Name; name != "" {
		return "argument '" + name + "'"
	}
	return "argument " + strconv.Itoa(i)
}

func (r *Request) errorf(code spec.Code, format string, args ...any) error {
	e := spec.Errorf(code, format, args...)
	e.Method = r.Method
	if r.Method != "" {
		e.Message = r.Method + ": " + e.Message
	}
	return e
}
