package cli

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/fake"
	"github.com/muster-rl/muster/head"
	"github.com/muster-rl/muster/session"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

const patience = 30 * time.Second

// place makes the folders of a session; short, for sockets' sake.
func place(t *testing.T) session.Session {
	t.Helper()
	dir, err := os.MkdirTemp("", "mc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := session.Session{Name: "1-test", Dir: filepath.Join(dir, "s"), LogDir: filepath.Join(dir, "logs"), Pid: os.Getpid()}
	if err := errors.Join(os.Mkdir(s.Dir, 0o700), os.Mkdir(s.LogDir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return s
}

// live starts a head of its own with workers that are not there.
func live(t *testing.T) (session.Session, *fake.Backend, func()) {
	t.Helper()
	s := place(t)
	nodes := fake.New(1, fake.Script{Stack: func(w *fake.Worker) string { return "stack of " + w.Name + "\n" }})
	h, err := head.New(head.Options{
		Dir: s.Dir, LogDir: s.LogDir, Session: s.Name,
		Backend: func(spec.Virtual, bool) (backend.Backend, error) { return nodes, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, nil) }()
	h.StartNodes(spec.Virtual{Nodes: 1, Devices: 4}, true)
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return s, nodes, end
}

// script is a controller with a cluster; it holds it until the test is over.
func script(t *testing.T, s session.Session, name string, world int) *client {
	t.Helper()
	c, err := dial(s, wire.RoleController, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close) // also keeps it: a connection that nobody refers to is collected, and so closed
	var pool spec.Pool
	if err := c.ask("pool.create", &wire.PoolCreate{Nodes: 1, Timeout: patience.Seconds()}, &pool); err != nil {
		t.Fatal(err)
	}
	req := wire.ClusterCreate{Pool: pool.ID, Spec: spec.Cluster{
		Name: name, World: world, Class: spec.Class{Module: "m", Name: "C", Pickle: []byte{}}, Mapping: []int{}, Env: map[string]string{}, Config: []byte{},
		Runtime: spec.Runtime{Python: "python", Flags: []string{}, SysPath: []string{}, Preload: []string{}, Env: map[string]string{}},
	}}
	if err := c.ask("cluster.create", &req, &wire.ClusterInfo{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClientAsksALiveHead(t *testing.T) {
	s, _, end := live(t)
	script(t, s, "actor", 3)
	c, err := dial(s, wire.RoleController, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var status wire.Status
	if err := c.ask("status", &wire.StatusRequest{}, &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Clusters) != 1 || status.Clusters[0].Name != "actor" || status.LogDir != s.LogDir || c.welcome.LogDir != s.LogDir {
		t.Errorf("%+v", status)
	}
	var stacks wire.StacksAnswer
	if err := c.ask("cluster.stacks", &wire.ClusterStacks{Name: "actor", Ranks: []int{1}}, &stacks); err != nil {
		t.Fatal(err)
	}
	if len(stacks.Stacks) != 1 || stacks.Stacks[0].Text != "stack of actor-1\n" {
		t.Errorf("%+v", stacks)
	}
	err = c.ask("cluster.stacks", &wire.ClusterStacks{Name: "actr"}, &stacks)
	if exitOf(err).code != exitNothing || !strings.Contains(err.Error(), `did you mean "actor"`) {
		t.Error(err)
	}
	end()
	if err := c.ask("status", &wire.StatusRequest{}, &status); !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := dial(s, wire.RoleController, patience); !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// A head that is stopped, killed or of another kind is told as that, in time.
func TestClientDoesNotHang(t *testing.T) {
	s := place(t)
	_, err := dial(s, wire.RoleController, patience)
	wantError(t, err, "is just starting, or was killed") // no token yet
	write(t, filepath.Join(s.Dir, "token"), "secret")
	_, err = dial(s, wire.RoleController, patience)
	wantError(t, err, "is just starting, or was killed") // no socket yet

	listener, err := net.Listen("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = dial(s, wire.RoleController, 50*time.Millisecond) // nobody accepts
	wantError(t, err, "did not answer within 50ms: it may be stopped, or too busy")

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request, says some other program\r\n\r\n"))
		}
	}()
	// The first one in the queue is that of before.
	_, err = dial(s, wire.RoleController, patience)
	wantError(t, err, "session 1-test: ")
}

func TestClientWithAWrongToken(t *testing.T) {
	s, _, _ := live(t)
	write(t, filepath.Join(s.Dir, "token"), "wrong")
	_, err := dial(s, wire.RoleController, patience)
	wantError(t, err, "the token is not that of this session")
}

func wantError(t *testing.T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("got %v, want %q", err, words)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// signalling is a buffer that tells of every write.
type signalling struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	written chan struct{}
}

func (w *signalling) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() {
		select {
		case w.written <- struct{}{}:
		default:
		}
	}()
	return w.buf.Write(p)
}

func (w *signalling) until(t *testing.T, words string) {
	t.Helper()
	for {
		w.mu.Lock()
		text := w.buf.String()
		w.mu.Unlock()
		if strings.Contains(text, words) {
			return
		}
		select {
		case <-w.written:
		case <-time.After(patience):
			t.Fatalf("%q did not come, this did:\n%s", words, text)
		}
	}
}

// Following shows new lines and new files, and ends with the head.
func TestFollowingLogs(t *testing.T) {
	s, nodes, end := live(t)
	first := filepath.Join(s.LogDir, "actor", "actor-0.log")
	write(t, first, "one\ntwo\nthr")
	script(t, s, "actor", 2)
	c, err := dial(s, wire.RoleEvents, patience)
	if err != nil {
		t.Fatal(err)
	}
	out := &signalling{written: make(chan struct{}, 1)}
	followed := make(chan error, 1)
	tail := &tailer{dir: s.LogDir, show: lineWriter(out, false, true), flush: func() error { return nil }, open: map[string]*tail{}}
	files, err := findLogs(s.LogDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tail.start(files, 1); err != nil {
		t.Fatal(err)
	}
	go func() { followed <- tail.follow(c) }()
	say := func(path, text string) {
		appendTo(t, path, text)
		nodes.Worker("actor-0").Print("a line rings the bell")
	}
	say(first, "ee\nbell \x07 and \xff\n")
	out.until(t, "[actor-0] three\n[actor-0] bell \\x07 and \\xff\n")
	second := filepath.Join(s.LogDir, "critic", "critic-0.log")
	write(t, second, "")
	say(second, "50%\r100%\r\nlast words")
	out.until(t, "[critic-0] 100%\n")
	end()
	if err := <-followed; err != nil {
		t.Error(err)
	}
	if got := out.buf.String(); !strings.HasSuffix(got, "[critic-0] last words\n") || strings.Contains(got, "two") {
		t.Errorf("it showed:\n%s", got)
	}
}
