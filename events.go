package muster

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/muster-rl/muster/wire"
)

// events reads what the head tells while calls go on: workers' output and
// progress. It ends when the head has sent the last of it.
type events struct {
	conn    *wire.Conn
	options Options
	done    chan struct{}

	mu      sync.Mutex
	mark    uint64        // everything before it has been written
	reached chan struct{} // closed and renewed when mark changes
}

// listen opens the session's events.
func (s *Session) listen(address, token string) error {
	conn, err := wire.Dial(address)
	if err != nil {
		return err
	}
	if _, err := wire.Join(conn, wire.Hello{Role: wire.RoleEvents, Token: token}); err != nil {
		_ = conn.Close()
		return err
	}
	s.events = &events{conn: conn, options: s.options, done: make(chan struct{}), reached: make(chan struct{})}
	go s.events.read()
	return nil
}

func (e *events) read() {
	defer close(e.done)
	for {
		f, err := e.conn.Read()
		if err != nil {
			e.reach(math.MaxUint64)
			return
		}
		if f.Kind != wire.KindNotice {
			continue
		}
		if verb, body, err := wire.ReadVerb(f.Body); err == nil {
			e.notice(verb, body)
		}
	}
}

func (e *events) notice(verb string, body []byte) {
	switch verb {
	case "log":
		var log wire.Log
		if _, err := log.UnmarshalMsg(body); err != nil {
			return
		}
		var text strings.Builder
		for _, line := range log.Lines {
			fmt.Fprintf(&text, "[%s] %s\n", line.Worker, line.Text)
		}
		_, _ = e.options.Log.Write([]byte(text.String())) // a log that is full or closed stops nothing
	case "progress":
		var p wire.Progress
		if _, err := p.UnmarshalMsg(body); err == nil && e.options.Progress != nil {
			e.options.Progress(p)
		}
	case "mark":
		var m wire.Mark
		if _, err := m.UnmarshalMsg(body); err == nil {
			e.reach(m.Mark)
		}
	}
}

func (e *events) reach(mark uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark = max(e.mark, mark)
	close(e.reached)
	e.reached = make(chan struct{})
}

// waitFor waits until all that was told before mark has been written.
func (e *events) waitFor(mark uint64) {
	timer := time.NewTimer(drainWait)
	defer timer.Stop()
	for {
		e.mu.Lock()
		there, reached := e.mark >= mark, e.reached
		e.mu.Unlock()
		if there {
			return
		}
		select {
		case <-reached:
		case <-timer.C:
			return
		}
	}
}

// end hangs up; drain: after the head has, for it is ending.
func (e *events) end(drain bool) {
	if drain {
		timer := time.NewTimer(drainWait)
		defer timer.Stop()
		select {
		case <-e.done:
		case <-timer.C:
		}
	}
	_ = e.conn.Close()
	<-e.done
}
