package muster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
)

// How a route picks ranks, and its flags: docs/wire.md.
const (
	howMode = 0
	howAll  = 1
	howOne  = 2

	routeSplit   = 1
	routeWaiting = 2
	routeMarked  = 4
	routeKeep    = 8
)

// headLate is how long after a deadline the head may still be collecting stacks.
const headLate = 10 * time.Second

// Target is whom a call goes to: a *Cluster, or some of its ranks.
type Target interface{ target() target }

type target struct {
	cluster *Cluster
	how     uint8
	rank    int // of howOne
}

func (t target) target() target { return t }

// Call calls a method and waits for its result.
func Call[T any](ctx context.Context, to Target, method string, args ...any) (T, error) {
	var result T
	raw, err := wait(ctx, to.target(), method, args)
	if err == nil {
		err = to.target().about(method, raw.Decode(&result))
	}
	raw.Release() // the result has its own right to what it needs
	return result, err
}

// Do calls a method and waits for its end; what it returns is not looked at.
func Do(ctx context.Context, to Target, method string, args ...any) error {
	raw, err := wait(ctx, to.target(), method, args)
	raw.Release()
	return err
}

// All calls a method on every rank, each with all arguments, and returns their
// results in rank order. Any public method will do, registered or not.
func All[T any](ctx context.Context, c *Cluster, method string, args ...any) ([]T, error) {
	return Call[[]T](ctx, c.All(), method, args...)
}

// RankZero calls a method on rank 0 alone. Any public method will do.
func RankZero[T any](ctx context.Context, c *Cluster, method string, args ...any) (T, error) {
	return Call[T](ctx, c.RankZero(), method, args...)
}

// Go calls a method and does not wait. The context is the call's: its deadline,
// and its cancel as long as the call is not answered. What goes wrong before
// anything is sent is told by the future too.
func Go[T any](ctx context.Context, to Target, method string, args ...any) *Future[T] {
	t := to.target()
	replies, err := t.start(ctx, method, args, routeKeep, []int{-1})
	if err != nil {
		return failedFuture[T](t, method, err)
	}
	return &Future[T]{reply: replies[0], to: t, method: method}
}

// Each calls a method on every rank and returns one future per rank, in rank
// order. They are one call: cancelling one cancels all.
func Each[T any](ctx context.Context, c *Cluster, method string, args ...any) []*Future[T] {
	t := c.All()
	futures := make([]*Future[T], c.World())
	ranks := make([]int, c.World())
	for rank := range ranks {
		ranks[rank] = rank
	}
	replies, err := t.target().start(ctx, method, args, routeKeep|routeSplit, ranks)
	for rank := range futures {
		if err != nil {
			futures[rank] = failedFuture[T](t.target(), method, err)
			continue
		}
		futures[rank] = &Future[T]{reply: replies[rank], to: t.target(), method: method}
	}
	return futures
}

// wait is a call whose caller blocks on it.
func wait(ctx context.Context, t target, method string, args []any) (Raw, error) {
	replies, err := t.start(ctx, method, args, routeWaiting, []int{-1})
	if err != nil {
		return Raw{}, err
	}
	r := replies[0]
	select {
	case <-r.done:
		return r.raw, r.err
	case <-ctx.Done():
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Raw{}, t.givenUp(ctx, method)
	}
	late := time.NewTimer(headLate)
	defer late.Stop()
	select {
	case <-r.done:
		return r.raw, r.err
	case <-late.C:
		return Raw{}, t.givenUp(ctx, method)
	}
}

func (t target) title(method string) string { return t.cluster.Name() + "." + method }

// givenUp words the end of a context before an answer came.
func (t target) givenUp(ctx context.Context, method string) error {
	code, text := CodeCancelled, "was cancelled by its caller"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code, text = CodeTimeout, "had not ended at its deadline"
	}
	e := spec.Errorf(code, "%s %s (%v)", t.title(method), text, context.Cause(ctx))
	e.Cluster, e.Method = t.cluster.Name(), method
	return failed(e)
}

// about says which call an error of this process is about.
func (t target) about(method string, err error) error {
	if err == nil {
		return nil
	}
	e := *spec.AsError(err)
	e.Message = t.title(method) + ": " + e.Message
	e.Cluster, e.Method = t.cluster.Name(), method
	return failed(&e)
}

// start checks, encodes and sends a call.
func (t target) start(ctx context.Context, name string, args []any, flags uint8, ranks []int) ([]*reply, error) {
	if ctx.Err() != nil {
		return nil, t.givenUp(ctx, name)
	}
	args, kwargs := value.Split(args)
	m, err := t.cluster.method(name, t.how == howMode)
	if err == nil {
		err = m.check(args, kwargs)
	}
	if err != nil {
		return nil, failed(err)
	}
	conn := t.cluster.session.conn
	var names []uint64
	if namesFutures(args, kwargs) {
		defer conn.freeze()()
		if args, kwargs, names, err = placeFutures(conn, args, kwargs); err != nil {
			conn.unwant(names)
			return nil, t.about(name, err)
		}
	}
	payload := value.NewMessage(conn.link)
	route, err := t.encode(ctx, name, args, kwargs, flags, payload)
	if err != nil {
		conn.unwant(names)
		payload.Release()
		return nil, t.about(name, err)
	}
	return conn.send(ctx, route, payload, names, ranks)
}

// futureArg is a *Future of any type.
type futureArg interface {
	argument(c *conn) (arg any, wanted uint64, err error)
}

func namesFutures(args []any, kwargs Kwargs) bool {
	for _, arg := range args {
		if _, ok := arg.(futureArg); ok {
			return true
		}
	}
	for _, arg := range kwargs {
		if _, ok := arg.(futureArg); ok {
			return true
		}
	}
	return false
}

// placeFutures returns the arguments with what stands for futures in their
// place, and the calls that it has the connection want for that. The connection
// must be frozen until they are sent.
func placeFutures(c *conn, args []any, kwargs Kwargs) (placed []any, named Kwargs, names []uint64, err error) {
	place := func(arg any) any {
		if f, ok := arg.(futureArg); ok && err == nil {
			var wanted uint64
			if arg, wanted, err = f.argument(c); wanted != 0 {
				names = append(names, wanted)
			}
		}
		return arg
	}
	for _, arg := range args {
		placed = append(placed, place(arg))
	}
	named = make(Kwargs, len(kwargs))
	for name, arg := range kwargs {
		named[name] = place(arg)
	}
	return placed, named, names, err
}

// encode makes the body of a Call frame, [route, payload]: it returns what comes
// before the payload.
func (t target) encode(ctx context.Context, method string, args []any, kwargs Kwargs, flags uint8, payload *value.Message) (route, error) {
	for _, arg := range args {
		if err := t.checkPerRank(arg); err != nil {
			return route{}, err
		}
	}
	marked, err := payload.AppendPayload(args, kwargs)
	if err == nil {
		err = payload.Settle("arguments of " + t.title(method))
	}
	if err != nil {
		return route{}, err
	}
	if marked {
		flags |= routeMarked
	}
	head := append(make([]byte, 0, len(method)+48), 0x92, 0x97)
	head = msgp.AppendUint32(head, t.cluster.info.Number)
	head = msgp.AppendString(head, method)
	head = msgp.AppendUint8(head, t.how)
	if t.how == howOne {
		head = msgp.AppendInt(msgp.AppendArrayHeader(head, 1), t.rank)
	} else {
		head = msgp.AppendNil(head)
	}
	deadline, _ := ctx.Deadline()
	after := msgp.AppendUint64(make([]byte, 0, 12), parentOf(ctx))
	return route{before: head, after: msgp.AppendUint8(after, flags), deadline: deadline}, nil
}

func (t target) checkPerRank(arg any) error {
	mark, ok := arg.(Mark)
	if !ok {
		return nil
	}
	ranks := t.cluster.World()
	if t.how == howOne {
		ranks = 1
	}
	if n, ok := mark.PerRankLen(); ok && n != ranks {
		return spec.Errorf(CodeInvalid, "a PerRank of length %d, but %d ranks are called: it needs one element for each", n, ranks)
	}
	return nil
}

type parentKey struct{}

// InCall says that what is called with the context is called from within call
// number. Package worker gives methods such a context; with it the head finds
// calls that wait for each other.
func InCall(ctx context.Context, number uint64) context.Context {
	return context.WithValue(ctx, parentKey{}, number)
}

func parentOf(ctx context.Context) uint64 {
	number, _ := ctx.Value(parentKey{}).(uint64)
	return number
}

// String is for people: "actor", "all of actor", "rank 3 of actor".
func (t target) String() string {
	switch t.how {
	case howAll:
		return "all of " + t.cluster.Name()
	case howOne:
		return fmt.Sprintf("rank %d of %s", t.rank, t.cluster.Name())
	}
	return t.cluster.Name()
}
