// Package muster is the controller in Go: it starts named clusters of worker
// processes, placed on chosen GPUs, and calls each of them as one object. The
// workers are Python classes, or programs made with package worker; both can be
// in one pipeline.
//
//	s, err := muster.Start(ctx, muster.Options{Virtual: "1x8"})
//	defer s.Close()
//	pool, err := s.Pool(ctx, 1, 8)
//	actor, err := s.Cluster(ctx, muster.ClusterConfig{
//		Name: "actor_train", Class: "roles.Actor", Pool: pool, Devices: "0-7", TP: 2,
//	})
//	err = muster.Do(ctx, actor, "initialize", map[string]any{"scale": 2})
//	rows, err := muster.Call[[]int](ctx, actor, "train_step", []int{1, 2, 3, 4, 5})
//
// # Pools
//
// [Session.Pool] reserves nodes that are alike, [Session.PoolOf] all that a
// [PoolConfig] can say: what workers need, bundles that may differ, devices by
// their numbers.
//
// # Calls
//
// [Call] and [Do] wait; [Go] returns a [Future], [Each] one per rank. They go to
// a [Target]: a [*Cluster] calls a method as it is registered, cut and collected
// by its mode; [Cluster.All], [Cluster.Rank] and [Cluster.RankZero] call every
// rank or one, with all arguments. [PerRank] and [Broadcast] say otherwise for
// one argument, [Kwargs] at the end are keyword arguments, and a future of the
// same session can be an argument: the head waits for it.
//
// The deadline of the context is the call's: when it passes, the error carries
// the stacks of every rank that had not answered. Cancelling the context cancels
// the call in the workers.
//
// # Values
//
// Results are read into the type asked for; package value has the table. Large
// []byte and array data may be sent without a copy, so leave them alone until the
// call is answered.
//
// # Batches
//
// A [Batch] is rows of named columns in shared memory, as Arrow lays them out.
// [NewBatch] makes one of a record; as an argument it is cut by rows, and what
// travels is a handle, never the rows. A result that is a batch is read as a
// *Batch:
//
//	b, err := muster.NewBatch(record, map[string]any{"step": 3})
//	out, err := muster.Call[*muster.Batch](ctx, actor, "generate", b)
//	scored, err := muster.Call[*muster.Batch](ctx, reward, "score", out)
//	record, err := scored.Record()
//
// Release batches and records that are no longer needed. The collector does so
// too, but later, and the store holds the rows until then.
//
// # Errors
//
// Errors that crossed a process are *[Error], found by errors.As; [CodeOf] tells
// their kind, and errors.Is finds context.DeadlineExceeded and context.Canceled
// in those that a context caused.
//
// # When the head is killed
//
// A session outlives its head. One that it started itself is started anew, at most
// three times a minute; another is dialled until it is there again, for 30 seconds
// (MUSTER_HEAD_GRACE). Meanwhile calls wait, and what workers run goes on; then
// everything unanswered is asked of the new head, nothing runs twice, and calls
// just return. What cannot be found again fails with [CodeHeadLost].
//
// Everything here may be used concurrently. The package imports value, column,
// object, wire, spec and session. It never decides what goes where; that is the
// head's.
package muster

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
)

// What the head, workers and controllers have in common.
type (
	// Error is the one error that crosses process boundaries.
	Error = spec.Error
	// Stack is what one worker was doing when a deadline passed.
	Stack = spec.Stack
	// Code tells kinds of errors apart.
	Code = spec.Code
	// RankInfo is one rank's place in the parallel layout.
	RankInfo = spec.RankInfo
	// Node is what a node has.
	Node = spec.Node

	// Raw is a value that is passed on undecoded.
	Raw = value.Raw
	// Batch is rows of named columns in shared memory.
	Batch = value.Batch
	// Tensor is a column of rows of one shape.
	Tensor = column.TensorArray
	// Array is a numpy array or a torch tensor on the CPU.
	Array = value.Array
	// Range is Python's range.
	Range = value.Range
	// Mark is an argument that says itself how it goes to the ranks.
	Mark = value.Mark
	// Kwargs are keyword arguments; they come last.
	Kwargs = value.Kwargs
)

// The kinds of errors.
const (
	CodeUser       = spec.CodeUser       // raised by the user's code in a worker
	CodeWorkerDied = spec.CodeWorkerDied // a worker's process ended
	CodeNodeLost   = spec.CodeNodeLost   // an agent ended or is out of reach
	CodeHeadLost   = spec.CodeHeadLost   // the head ended or is out of reach
	CodeTimeout    = spec.CodeTimeout    // a deadline passed
	CodeCancelled  = spec.CodeCancelled  // cancelled by its caller, or with its call
	CodeDeadlock   = spec.CodeDeadlock   // a wait would close a cycle
	CodeTainted    = spec.CodeTainted    // the worker had an exception injected
	CodeInvalid    = spec.CodeInvalid    // an argument that cannot be, by its value
	CodeType       = spec.CodeType       // an argument that cannot be, by its type
	CodeNotFound   = spec.CodeNotFound   // no such cluster, method, pool
	CodeTaken      = spec.CodeTaken      // a name that a living service has
	CodePlacement  = spec.CodePlacement  // cannot be placed
	CodeResources  = spec.CodeResources  // not there, or held by others
	CodeImport     = spec.CodeImport     // a class that cannot be imported
	CodeStartup    = spec.CodeStartup    // a worker did not become ready
	CodeLayout     = spec.CodeLayout     // an impossible rank layout was reported
	CodeEncoding   = spec.CodeEncoding   // a value that cannot be encoded or decoded
	CodeTooLarge   = spec.CodeTooLarge   // a frame over the limit
	CodeProtocol   = spec.CodeProtocol   // a malformed frame, a wrong version
	CodeAuth       = spec.CodeAuth       // a wrong or missing token
	CodeLimit      = spec.CodeLimit      // open files, memory, disk
	CodeStoreFull  = spec.CodeStoreFull  // a node's store has no room
	CodeInternal   = spec.CodeInternal   // a bug of Muster's own
)

// CodeOf is the kind of an error, "" where it is none of Muster's.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// PerRank gives each rank its own element.
func PerRank[T any](values []T) Mark { return value.PerRank(values) }

// Broadcast gives every rank all of x, whatever the method's mode.
func Broadcast(x any) Mark { return value.Broadcast(x) }

// NewBatch makes a batch of a record, each of whose columns is one of the batch,
// and of a dict that goes along, which may be nil. Package column has what
// columns can be. The batch keeps the record until it is first sent: then its
// rows are copied to shared memory.
func NewBatch(record arrow.RecordBatch, meta map[string]any) (*Batch, error) {
	return value.NewBatch(record, meta)
}

// Concat puts the rows of batches of the same columns one after another, without
// touching them.
func Concat(batches ...*Batch) (*Batch, error) { return value.Concat(batches...) }

// NewTensor makes rows of one shape of their elements, in C order: a column of
// more than one dimension.
func NewTensor(elements arrow.Array, shape ...int) (*Tensor, error) {
	return column.NewTensor(elements, shape...)
}

// ArrayOf makes a numpy array of elements; without a shape it has one dimension.
func ArrayOf[T value.Element](elements []T, shape ...int) Array {
	return value.ArrayOf(elements, shape...)
}

// Elements are the elements of an array of that very type, as they lie in it.
func Elements[T value.Element](a Array) ([]T, error) { return value.Elements[T](a) }

// failure is an Error as a controller sees it: what a user's code said is told
// with where it was said, and contexts are found by errors.Is.
type failure struct{ err *Error }

func (f *failure) Error() string {
	e := *f.err
	if e.Code == CodeUser && e.Worker != "" {
		e.Message = fmt.Sprintf("%s.%s on %s (rank %d, %s): %s", e.Cluster, e.Method, e.Worker, e.Rank, e.Node, e.Message)
	}
	return e.Error()
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) Is(target error) bool {
	return target == context.DeadlineExceeded && f.err.Code == CodeTimeout ||
		target == context.Canceled && f.err.Code == CodeCancelled
}

// failed makes what a controller is given of an error that came over the wire.
func failed(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return &failure{e}
	}
	return err
}
