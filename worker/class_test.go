package worker

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/value"
	"github.com/muster-rl/muster/wire"
)

func TestMethodsAreCheckedAtTheStart(t *testing.T) {
	fine := func() {}
	for want, class := range map[string]*Class{
		"is no function":              NewClass("C").Method("m", 5),
		"a int is no":                 NewClass("C").Method("m", 5),
		"it returns 2 values":         NewClass("C").Method("m", func() (int, int) { return 1, 2 }),
		"into a chan int":             NewClass("C").Method("m", func(chan int) {}),
		"the interface error":         NewClass("C").Method("m", func([]error) {}),
		"two of that name":            NewClass("C").Method("m", fine).Method("m", fine),
		"unknown mode \"SOME\"":       NewClass("C").Register("m", "SOME", fine),
		"begins with a letter":        NewClass("C").Method("_m", fine),
		"Params names 2 parameters":   NewClass("C").Method("m", func(int) {}, Params("a", "b")),
		"a parameter timeout":         NewClass("C").Register("m", OneToAll, func(int) {}, Params("timeout")),
		"OnTimeout(\"wait\")":         NewClass("C").Method("m", fine, OnTimeout("wait")),
		"Concurrency(0)":              NewClass("C").Concurrency(0),
		"worker class C: method odd:": NewClass("C").Method("odd", nil),
	} {
		if class.err == nil || !strings.Contains(class.err.Error(), want) {
			t.Errorf("%v; want %q", class.err, want)
		}
	}
}

func TestDescription(t *testing.T) {
	c := NewClass("C").Doc("What it is.").
		Register("step", DPCompute, func(context.Context, []int, float64) ([]int, error) { return nil, nil }, Params("rows", "rate"), Collective(), Idempotent(), OnTimeout("kill")).
		Method("any", func(_ string, _ ...int) {}).
		Method("named", func(value.Kwargs) {})
	if c.err != nil {
		t.Fatal(c.err)
	}
	d := c.description(true)
	want := spec.Description{Class: "C", Doc: "What it is.", Serial: true, Methods: []spec.Method{
		{
			Name: "step", Registered: true, Dispatch: "DP_MP_COMPUTE", Execute: "ALL", Collective: true, Idempotent: true, OnTimeout: "kill",
			Params: []spec.Param{{Name: "rows", Kind: 1}, {Name: "rate", Kind: 1}},
		},
		{Name: "any", Params: []spec.Param{{Name: "arg0"}, {Name: "args", Kind: 2}}},
		{Name: "named", Params: []spec.Param{{Name: "kwargs", Kind: 4}}},
	}}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%+v", d)
	}
}

func TestInvoke(t *testing.T) {
	c := NewClass("C").
		Method("join", func(sep string, words ...string) string { return strings.Join(words, sep) }, Params("sep", "words")).
		Method("keys", func(x int, kwargs value.Kwargs) int { return x + len(kwargs) }, Params("x")).
		Method("fail", func() (int, error) { return 1, errors.New("no") }).
		Method("panic", func() { panic(errors.New("oh")) })
	if c.err != nil {
		t.Fatal(c.err)
	}
	h := newHost(c, &Info{Worker: "c-0"}, nil, nil, 1)
	call := func(name string, args ...any) (any, *spec.Error) {
		t.Helper()
		args, kwargs := value.Split(args)
		body := value.NewMessage(nil)
		if _, err := body.AppendPayload(args, kwargs); err != nil {
			t.Fatal(err)
		}
		payload, err := wire.ParsePayload(body.Raw, body.Bufs)
		if err != nil {
			t.Fatal(err)
		}
		out := value.NewMessage(nil)
		flags := h.run(t.Context(), &leg{method: name, payload: payload, in: value.NewIncoming(nil)}, out)
		if flags&wire.FlagError != 0 {
			return nil, wire.ReadError(out.Raw)
		}
		var v any
		if err := value.Decode(out.Raw, out.Bufs, &v); err != nil {
			t.Fatal(err)
		}
		return v, nil
	}
	for _, test := range []struct {
		name string
		args []any
		want any
		code spec.Code
		text string
	}{
		{"join", []any{"-", "a", "b"}, "a-b", "", ""},
		{"join", []any{"-"}, "", "", ""},
		{"join", []any{value.Kwargs{"sep": "+"}}, "", "", ""},
		{"join", nil, nil, spec.CodeType, "misses its argument sep"},
		{"join", []any{"-", 5}, nil, spec.CodeEncoding, "argument 1 of join: a value cannot be read into string"},
		{"join", []any{"-", value.Kwargs{"sep": "+"}}, nil, spec.CodeType, "twice"},
		{"join", []any{"-", value.Kwargs{"x": "+"}}, nil, spec.CodeType, `takes no argument "x"`},
		{"keys", []any{1, value.Kwargs{"a": 1, "b": nil}}, int64(3), "", ""},
		{"keys", []any{value.Kwargs{"x": 1, "b": nil}}, int64(2), "", ""},
		{"keys", []any{1, 2}, nil, spec.CodeType, "takes no argument 1"},
		{"fail", nil, nil, spec.CodeUser, "no"},
		{"panic", nil, nil, spec.CodeUser, "panic: oh"},
		{"joni", nil, nil, spec.CodeNotFound, `did you mean "join"`},
	} {
		got, err := call(test.name, test.args...)
		if test.code == "" && err != nil || test.code != "" && (err == nil || err.Code != test.code || !strings.Contains(err.Message, test.text)) || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s%v = %v, %v; want %v, %s %q", test.name, test.args, got, err, test.want, test.code, test.text)
		}
	}
}

func TestStacksTellMethodsFirst(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	c := NewClass("C").Method("wait", func() { close(begun); <-end })
	h := newHost(c, &Info{Worker: "c-0"}, nil, nil, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = h.run(t.Context(), &leg{method: "wait", in: value.NewIncoming(nil)}, value.NewMessage(nil))
	}()
	<-begun
	text := stacks()
	close(end)
	<-ended
	first, _, _ := strings.Cut(text, "\n\n")
	if !strings.Contains(first, "TestStacksTellMethodsFirst.func1") || strings.Contains(first, "reflect.Value.call") {
		t.Errorf("the first stack is\n%s", first)
	}
	if text := stacks(); !strings.HasPrefix(text, "no method runs") {
		t.Errorf("with no call it is\n%s", text)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("MUSTER_TEST_OLD", "1")
	req := wire.WorkerEnv{Set: map[string]string{"MUSTER_TEST_NEW": "2"}, Unset: []string{"MUSTER_TEST_OLD"}}
	t.Setenv("MUSTER_TEST_NEW", "")
	body, err := req.MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := changeEnvironment(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := got.Env["MUSTER_TEST_OLD"]; there || got.Env["MUSTER_TEST_NEW"] != "2" {
		t.Errorf("got %v", got.Env)
	}
	if _, err := changeEnvironment([]byte{1}); err == nil {
		t.Error("rubbish is no request")
	}
}
