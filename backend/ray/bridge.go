package ray

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

// bridge is a connection to the bridge's process.
type bridge struct {
	conn    *net.UnixConn
	log     string
	watch   *process.Watch // of its process, once it has said which it is
	ended   func(node int, why string)
	writing sync.Mutex
	done    chan struct{} // closed when it is gone

	mu   sync.Mutex
	next uint64
	open map[uint64]*question
	err  error
}

type question struct {
	answer chan answer
	tell   func(string)
}

type answer struct {
	ok  json.RawMessage
	err error
}

// line is anything that the bridge says.
type line struct {
	ID    uint64          `json:"id"`
	OK    json.RawMessage `json:"ok"`
	Error *struct {
		Code spec.Code `json:"code"`
		Text string    `json:"text"`
	} `json:"error"`
	Event string `json:"event"`
	Node  int    `json:"node"`
	Why   string `json:"why"`
	Text  string `json:"text"`
}

// hello is what a bridge says of itself.
type hello struct {
	Version string  `json:"version"`
	Warning string  `json:"warning"`
	Address string  `json:"address"`
	Pid     int     `json:"pid"`
	Agents  []known `json:"agents"`
	Groups  []int   `json:"groups"`
}

// known is an agent that a bridge has.
type known struct {
	Node    int    `json:"node"`
	Name    string `json:"name"`
	Pid     int    `json:"pid"`
	Started uint64 `json:"started"`
}

// serve takes a connection into use; ended hears of agents.
func serve(conn *net.UnixConn, log string, ended func(int, string)) *bridge {
	b := &bridge{conn: conn, log: log, ended: ended, done: make(chan struct{}), open: map[uint64]*question{}}
	go b.read()
	return b
}

func (b *bridge) read() {
	reader := bufio.NewReader(b.conn)
	for {
		text, err := reader.ReadBytes('\n')
		if err != nil {
			b.fail(err)
			return
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			b.fail(fmt.Errorf("a line that cannot be read: %w", err))
			return
		}
		b.take(l)
	}
}

func (b *bridge) take(l line) {
	if l.Event == "ended" {
		b.ended(l.Node, l.Why)
		return
	}
	b.mu.Lock()
	q := b.open[l.ID]
	if l.Event == "" {
		delete(b.open, l.ID)
	}
	b.mu.Unlock()
	switch {
	case q == nil:
	case l.Event == "waiting":
		if q.tell != nil {
			q.tell(l.Text)
		}
	case l.Error != nil:
		q.answer <- answer{err: spec.Errorf(l.Error.Code, "%s", l.Error.Text)}
	case l.Event == "":
		q.answer <- answer{ok: l.OK}
	}
}

// fail ends the use of a bridge that is gone.
func (b *bridge) fail(err error) {
	_ = b.conn.Close()
	why := "it ended"
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		why = err.Error()
	}
	b.mu.Lock()
	b.err = spec.Errorf(spec.CodeResources, "the bridge to Ray is gone: %s%s", why, lastLine(b.log))
	for id, q := range b.open {
		q.answer <- answer{err: b.err}
		delete(b.open, id)
	}
	b.mu.Unlock()
	close(b.done)
}

// why is what ended it; only after done.
func (b *bridge) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// ask has the bridge do something and takes its answer into out, if that is not
// nil. When ctx ends first, the answer is dropped.
func (b *bridge) ask(ctx context.Context, op string, args, out any, tell func(string)) error {
	q := &question{answer: make(chan answer, 1), tell: tell}
	b.mu.Lock()
	if b.err != nil {
		defer b.mu.Unlock()
		return b.err
	}
	b.next++
	id := b.next
	b.open[id] = q
	b.mu.Unlock()
	text, err := json.Marshal(map[string]any{"id": id, "op": op, "args": args})
	if err != nil {
		return err
	}
	b.writing.Lock()
	_, err = b.conn.Write(append(text, '\n'))
	b.writing.Unlock()
	if err != nil {
		_ = b.conn.Close() // the reader sees that, and answers
	}
	select {
	case a := <-q.answer:
		if a.err != nil || out == nil {
			return a.err
		}
		return json.Unmarshal(a.ok, out)
	case <-ctx.Done():
		b.mu.Lock()
		delete(b.open, id)
		b.mu.Unlock()
		return context.Cause(ctx)
	}
}

// close has the bridge leave Ray, and waits until it has.
func (b *bridge) close(bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	_ = b.ask(ctx, "bye", nil, nil, nil)
	_ = b.conn.Close()
	if b.watch == nil {
		return
	}
	defer b.watch.Close()
	select {
	case <-b.watch.Done():
	case <-ctx.Done():
		_ = b.watch.Signal(syscall.SIGKILL)
		<-b.watch.Done()
	}
}

// lastLine is what the bridge complained of last.
func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-4096), io.SeekStart)
	}
	text, _ := io.ReadAll(file)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return " (" + last + ")"
	}
	return ""
}
