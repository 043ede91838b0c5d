package muster

import (
	"context"
	"sync"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
)

// Future is a result to come. It can be an argument of another call of the same
// session: the head waits for it then, and its value need not come here.
type Future[T any] struct {
	reply  *reply
	to     target
	method string

	once   sync.Once
	result T
	err    error
}

func failedFuture[T any](t target, method string, err error) *Future[T] {
	r := &reply{done: make(chan struct{}), err: err}
	close(r.done)
	return &Future[T]{reply: r, to: t, method: method}
}

// Get waits for the result. When ctx ends first it returns ctx's error, and the
// call goes on.
func (f *Future[T]) Get(ctx context.Context) (T, error) {
	select {
	case <-f.reply.done:
	default:
		if parent := parentOf(ctx); parent != 0 {
			f.reply.conn.waits(parent, f.reply.id)
		}
		select {
		case <-f.reply.done:
		case <-ctx.Done():
			var none T
			return none, context.Cause(ctx)
		}
	}
	f.once.Do(func() {
		if f.err = f.reply.err; f.err == nil {
			f.err = f.to.about(f.method, f.reply.raw.Decode(&f.result))
		}
	})
	return f.result, f.err
}

// Done is closed when the call is answered.
func (f *Future[T]) Done() <-chan struct{} { return f.reply.done }

// Cancel asks for the call's end. The future is answered when its ranks have
// ended it, or after the head's grace; calls that were answered stay so.
func (f *Future[T]) Cancel() {
	select {
	case <-f.reply.done:
	default:
		f.reply.conn.cancel(f.reply.id, false)
	}
}

// Kill is Cancel, and kills the workers that have not ended the call when the
// head's grace is over: nothing else ends code in C.
func (f *Future[T]) Kill() {
	select {
	case <-f.reply.done:
	default:
		f.reply.conn.cancel(f.reply.id, true)
	}
}

// argument makes the future an argument of a call over c, which then wants the
// result of the call returned. Where the value is here already, it is the
// argument itself.
func (f *Future[T]) argument(c *conn) (arg any, wanted uint64, err error) {
	if f.reply.conn == c && c.want(f.reply) {
		return value.FutureOf(f.reply.id, f.reply.rank), f.reply.id, nil
	}
	select {
	case <-f.reply.done:
		return f.reply.raw, 0, f.reply.err
	default:
	}
	return nil, 0, spec.Errorf(CodeInvalid, "a future of %s.%s, which is of another session: Get it first, and pass on what it gives", f.to, f.method)
}

// GetAll waits for every future and returns their results in order, or the
// error of the first, in order, that has one.
func GetAll[T any](ctx context.Context, futures []*Future[T]) ([]T, error) {
	results := make([]T, len(futures))
	for i, f := range futures {
		result, err := f.Get(ctx)
		if err != nil {
			return nil, err
		}
		results[i] = result
	}
	return results, nil
}
