package worker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

// run runs one call, puts its result or error into out and returns the frame's
// flags. It is named in stack dumps: goroutines that have it on their stack are
// inside a method.
func (h *host) run(ctx context.Context, l *leg, out *value.Message) wire.Flags {
	result, err := h.invoke(ctx, l)
	if err == nil && (l.mute || !result.IsValid()) {
		if result.IsValid() {
			value.ReleaseIn(result.Interface())
		}
		out.Raw = []byte{0xc0}
		return 0
	}
	if err == nil {
		if err = out.Append(result.Interface()); err == nil {
			err = out.Settle("result of " + h.info.Cluster + "." + l.method)
		}
		if err != nil {
			e := *spec.AsError(err)
			e.Message = fmt.Sprintf("the result of %s on %s: %s", l.method, h.info.Worker, e.Message)
			err = &e
		}
	}
	if err != nil {
		out.Value = wire.Value{Raw: wire.AppendError(nil, h.wireError(ctx, l.method, err))}
		return wire.FlagError
	}
	return 0
}

// invoke reads the arguments and calls the method; a panic is an error.
func (h *host) invoke(ctx context.Context, l *leg) (result reflect.Value, err error) {
	m := h.class.methods[l.method]
	if m == nil {
		e := spec.Errorf(spec.CodeNotFound, "%s has no method %q", h.class.name, l.method)
		if near := spec.NearestName(l.method, h.class.order); near != "" {
			e.Message += fmt.Sprintf("; did you mean %q?", near)
		}
		return result, e
	}
	in, err := m.arguments(l)
	if err != nil {
		return result, err
	}
	if m.context {
		in = append([]reflect.Value{reflect.ValueOf(ctx)}, in...)
	}
	defer func() {
		if what := recover(); what != nil {
			result, err = reflect.Value{}, panicError(what)
		}
	}()
	outs := m.call.Call(in)
	if m.fails {
		if failure := outs[len(outs)-1]; !failure.IsNil() {
			return result, failure.Interface().(error)
		}
	}
	if m.result {
		result = outs[0]
	}
	return result, nil
}

// arguments reads a payload into what the function takes.
func (m *method) arguments(l *leg) ([]reflect.Value, error) {
	fixed := len(m.params)
	if m.variadic {
		fixed--
	}
	in, rest := make([]reflect.Value, fixed), []reflect.Value(nil)
	kwargs := value.Kwargs{}
	for i := range l.payload.Args {
		arg := &l.payload.Args[i]
		at, label := i, fmt.Sprintf("argument %d", i)
		if name := arg.Name(); name != "" {
			at, label = m.named(name), fmt.Sprintf("argument %q", name)
		}
		var t reflect.Type
		switch {
		case at >= 0 && at < fixed:
			t = m.params[at]
		case at >= 0 && m.variadic:
			t = m.params[fixed].Elem()
		case at < 0 && m.kwargs:
			t = reflect.TypeFor[any]()
		default:
			return nil, spec.Errorf(spec.CodeType, "%s takes no %s", m.Name, label)
		}
		v := reflect.New(t).Elem()
		if err := l.in.DecodeInto(arg.Raw, arg.Bufs, v); err != nil {
			e := *spec.AsError(err)
			e.Message = fmt.Sprintf("%s of %s: %s", label, m.Name, e.Message)
			return nil, &e
		}
		switch {
		case at < 0:
			kwargs[arg.Name()] = v.Interface()
		case at >= fixed:
			rest = append(rest, v)
		case in[at].IsValid():
			return nil, spec.Errorf(spec.CodeType, "%s got its %s twice", m.Name, label)
		default:
			in[at] = v
		}
	}
	for i, v := range in {
		if !v.IsValid() {
			return nil, spec.Errorf(spec.CodeType, "%s misses its argument %s", m.Name, m.Params[i].Name)
		}
	}
	if m.kwargs {
		rest = append(rest, reflect.ValueOf(kwargs))
	}
	return append(in, rest...), nil
}

// named is the place of the parameter of that name, -1 if there is none.
func (m *method) named(name string) int {
	for i := range m.params {
		if m.Params[i].Name == name && m.Params[i].Kind == 1 {
			return i
		}
	}
	return -1
}

// panicked is a panic inside a method.
type panicked struct {
	text  string
	stack string
}

func (p *panicked) Error() string { return "panic: " + p.text }

func panicError(what any) error {
	text := fmt.Sprint(what)
	if err, ok := what.(error); ok {
		text = err.Error()
	}
	return &panicked{text, userStack(string(debug.Stack()))}
}

// userStack cuts from a panic's stack what is ours: above it recover and the
// runtime, below it reflection and the loop that runs calls.
func userStack(stack string) string {
	head, rest, _ := strings.Cut(stack, "\n")
	if _, after, ok := strings.Cut(rest, "\npanic("); ok {
		_, rest, _ = strings.Cut(after, "\n") // the line of its arguments
		_, rest, _ = strings.Cut(rest, "\n")  // and that of its place
	}
	if before, _, ok := strings.Cut(rest, "\nreflect.Value.call("); ok {
		rest = before
	}
	return head + "\n" + rest
}

// wireError is a method's error as its caller gets it.
func (h *host) wireError(ctx context.Context, name string, err error) *spec.Error {
	var told *spec.Error
	var p *panicked
	e := spec.Errorf(spec.CodeUser, "%v", err)
	switch {
	case errors.As(err, &p):
		e.Traceback = p.stack
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err())):
		e = spec.Errorf(spec.CodeCancelled, "%s was cancelled on %s (%v)", name, h.info.Worker, err)
	case errors.As(err, &told):
		passed := *told // from a worker that this one called, or about a value
		e = &passed
	}
	if e.Method == "" {
		e.Method = name
	}
	return e
}
