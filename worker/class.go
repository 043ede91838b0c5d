package worker

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/muster-rl/muster/dispatch"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
)

// Mode says how the arguments of a call are cut and which results come back.
type Mode string

// The modes; docs of the Python package's Dispatch have the table.
const (
	OneToAll     Mode = "ONE_TO_ALL"     // every rank gets everything; a list by rank comes back
	OneToAllOne  Mode = "ONE_TO_ALL_ONE" // the same, rank 0's result comes back
	AllToAll     Mode = "ALL_TO_ALL"     // rank r gets element r of each argument; a list by rank
	DPCompute    Mode = "DP_MP_COMPUTE"  // rows are cut over dp ranks; the dp parts are chained
	DPCollectAll Mode = "DP_MP_COMPUTE_COLLECT_ALL"
)

// Batch is rows of named columns in shared memory. Those that come as arguments
// are released when the method returns, and those that it returns when they are
// sent: what is to stay has to be a Clone, or a Slice.
type Batch = value.Batch

// Class is what a worker offers: its methods by name.
type Class struct {
	name        string
	doc         string
	methods     map[string]*method
	order       []string
	concurrency int
	onEnd       func()
	err         error // the first thing that was wrong
}

// method is a Go function as a method of the class.
type method struct {
	spec.Method
	call     reflect.Value
	context  bool           // its first parameter is a context
	params   []reflect.Type // without the context and keywords
	variadic bool
	kwargs   bool // its last parameter takes keywords
	result   bool
	fails    bool // it returns an error
	names    []string
}

// NewClass makes a class without methods.
func NewClass(name string) *Class {
	return &Class{name: name, methods: map[string]*method{}, concurrency: 1}
}

// Doc sets what the class says of itself.
func (c *Class) Doc(text string) *Class {
	c.doc = text
	return c
}

// Concurrency lets n calls run at once, in goroutines of their own; they begin in
// order. A cluster's MaxConcurrency wins over it.
func (c *Class) Concurrency(n int) *Class {
	if n < 1 {
		c.fail(spec.Errorf(spec.CodeInvalid, "worker class %s: Concurrency(%d); it is 1 or more", c.name, n))
	}
	c.concurrency = n
	return c
}

// OnEnd has f run when the worker ends in an orderly way.
func (c *Class) OnEnd(f func()) *Class {
	c.onEnd = f
	return c
}

// Option changes how a method is called.
type Option func(*method)

// Params names the parameters of a method, all but context and keywords, so that
// callers may use the names.
func Params(names ...string) Option { return func(m *method) { m.names = names } }

// name gives the parameters the names that Params said.
func (m *method) name() error {
	if m.names == nil {
		return nil
	}
	if len(m.names) != len(m.params) {
		return fmt.Errorf("Params names %d parameters (%s), and it has %d", len(m.names), strings.Join(m.names, ", "), len(m.params))
	}
	for i, name := range m.names {
		m.Params[i].Name = name
		if m.Params[i].Kind == 0 {
			m.Params[i].Kind = 1
		}
	}
	return nil
}

// RankZero has the method run on rank 0 alone.
func RankZero() Option { return func(m *method) { m.Execute = dispatch.ExecuteRankZero } }

// Collective says that the ranks need each other in the method: when one fails,
// the others are cancelled.
func Collective() Option { return func(m *method) { m.Collective = true } }

// Idempotent says that running the method again does no harm: on a cluster that
// restarts ranks, a call that died with one is run again on the new one.
func Idempotent() Option { return func(m *method) { m.Idempotent = true } }

// OnTimeout says what happens at a deadline to ranks that still run: "cancel" or
// "kill".
func OnTimeout(what string) Option { return func(m *method) { m.OnTimeout = what } }

// Register makes a function a method that the cluster as a whole is called by.
// f is
//
//	func([ctx context.Context,] [args …] [, kwargs muster.Kwargs]) ([result] [, error])
//
// with arguments and result of any types that values can be read into; it may be
// variadic. What is wrong with it keeps the worker from starting.
func (c *Class) Register(name string, mode Mode, f any, options ...Option) *Class {
	if _, ok := dispatch.Lookup(string(mode)); !ok {
		c.fail(spec.Errorf(spec.CodeInvalid, "worker class %s: %s is registered with an unknown mode %q: there are %s", c.name, name, mode, strings.Join(dispatch.Names(), ", ")))
	}
	return c.add(name, f, func(m *method) {
		m.Registered, m.Dispatch, m.Execute = true, string(mode), dispatch.ExecuteAll
	}, options)
}

// Method makes a function a public method that is not registered: it is called
// on every rank or on one.
func (c *Class) Method(name string, f any, options ...Option) *Class {
	return c.add(name, f, func(*method) {}, options)
}

func (c *Class) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *Class) add(name string, f any, set func(*method), options []Option) *Class {
	where := "worker class " + c.name + ": method " + name
	m, err := reflectMethod(name, f)
	if err == nil {
		set(m)
		for _, option := range options {
			option(m)
		}
		if err = m.name(); err == nil {
			err = m.check()
		}
	}
	if err == nil && c.methods[name] != nil {
		err = fmt.Errorf("there are two of that name")
	}
	if err != nil {
		c.fail(spec.Errorf(spec.CodeInvalid, "%s: %v", where, err))
		return c
	}
	c.methods[name] = m
	c.order = append(c.order, name)
	return c
}

const publicName = `^[A-Za-z][A-Za-z0-9_]*$`

func (m *method) check() error {
	if !regexp.MustCompile(publicName).MatchString(m.Name) {
		return fmt.Errorf("a public name begins with a letter and has letters, digits and _")
	}
	if m.OnTimeout != "" && m.OnTimeout != "cancel" && m.OnTimeout != "kill" {
		return fmt.Errorf("OnTimeout(%q); it is \"cancel\" or \"kill\"", m.OnTimeout)
	}
	for _, p := range m.Params {
		if m.Registered && (p.Name == "timeout" || p.Name == "blocking") {
			return fmt.Errorf("a parameter %s, which a cluster's methods take for themselves: rename it", p.Name)
		}
	}
	return nil
}

var (
	typeContext = reflect.TypeFor[context.Context]()
	typeError   = reflect.TypeFor[error]()
	typeKwargs  = reflect.TypeFor[value.Kwargs]()
)

// reflectMethod looks at a function once, at the start.
func reflectMethod(name string, f any) (*method, error) {
	v := reflect.ValueOf(f)
	if v.Kind() != reflect.Func || v.IsNil() {
		return nil, fmt.Errorf("a %T is no function", f)
	}
	t := v.Type()
	m := &method{Method: spec.Method{Name: name, Params: []spec.Param{}}, call: v, variadic: t.IsVariadic()}
	for i := range t.NumIn() {
		in := t.In(i)
		switch {
		case i == 0 && in == typeContext:
			m.context = true
			continue
		case i == t.NumIn()-1 && in == typeKwargs:
			m.kwargs = true
			m.Params = append(m.Params, spec.Param{Name: "kwargs", Kind: 4})
			continue
		}
		if err := readable(in); err != nil {
			return nil, fmt.Errorf("its parameter %d: %w", i, err)
		}
		p := spec.Param{Name: fmt.Sprintf("arg%d", len(m.params))}
		if m.variadic && i == t.NumIn()-1 {
			p.Kind, p.Name = 2, "args"
		}
		m.params = append(m.params, in)
		m.Params = append(m.Params, p)
	}
	outs := t.NumOut()
	if outs > 0 && t.Out(outs-1) == typeError {
		m.fails = true
		outs--
	}
	if outs > 1 {
		return nil, fmt.Errorf("it returns %d values; a method returns one, and perhaps an error: put them into a struct or slice", outs)
	}
	m.result = outs == 1
	return m, nil
}

// readable refuses types that no value can be read into.
func readable(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return fmt.Errorf("no value can be read into a %s", t)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("no value can be read into the interface %s: use any, or a type", t)
		}
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return readable(t.Elem())
	}
	return nil
}

// description is the class as callers see it.
func (c *Class) description(serial bool) spec.Description {
	d := spec.Description{Class: c.name, Methods: []spec.Method{}, Serial: serial, Doc: c.doc}
	for _, name := range c.order {
		d.Methods = append(d.Methods, c.methods[name].Method)
	}
	return d
}
