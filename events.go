package muster

import (
	"context"
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
	options Options
	dial    func() (*wire.Conn, error)
	leaving context.Context // ends when there will be no more
	done    chan struct{}

	mu      sync.Mutex
	conn    *wire.Conn
	mark    uint64        // everything before it has been written
	reached chan struct{} // closed and renewed when mark changes
}

// listen opens the session's events.
func (s *Session) listen(address, token string) error {
	dial := func() (*wire.Conn, error) {
		conn, err := wire.Dial(address)
		if err != nil {
			return nil, err
		}
		if _, err := wire.Join(conn, wire.Hello{Role: wire.RoleEvents, Token: token}); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	s.events = &events{options: s.options, dial: dial, leaving: s.conn.leaving, conn: conn, done: make(chan struct{}), reached: make(chan struct{})}
	go s.events.read()
	return nil
}

// read reads until the session is over; a head that comes back is listened to
// again.
func (e *events) read() {
	defer close(e.done)
	for conn := e.conn; conn != nil; conn = e.again() {
		e.readAll(conn)
		e.reach(math.MaxUint64)
		_ = conn.Close()
	}
}

func (e *events) readAll(conn *wire.Conn) {
	for {
		f, err := conn.Read()
		if err != nil {
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

// again dials until the head is there, or the session is over: then it is nil.
func (e *events) again() *wire.Conn {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := dialFirst; ; pause = min(2*pause, dialMost) {
		select {
		case <-wait.C:
		case <-e.leaving.Done():
			return nil
		}
		if conn, err := e.dial(); err == nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.leaving.Err() != nil {
				_ = conn.Close()
				return nil
			}
			e.conn, e.mark = conn, 0 // a new head begins to count anew
			return conn
		}
		wait.Reset(pause)
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
	case "warning":
		var w wire.Warning
		if _, err := w.UnmarshalMsg(body); err == nil {
			_, _ = fmt.Fprintf(e.options.Log, "muster: %s\n", w.Text)
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
	e.mu.Lock()
	_ = e.conn.Close()
	e.mu.Unlock()
	<-e.done
}
