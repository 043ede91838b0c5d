package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tailLines  = 50      // kept for the notice of a worker's end
	tailLine   = 4 << 10 // of each, at most this much
	drainBound = 2 * time.Second
)

// stream is the output of one process: read from a pipe, written as it is to a
// file, sent line by line to the head.
type stream struct {
	number uint32
	name   string
	path   string
	file   io.WriteCloser // nil: could not be opened, or gave up
	reader *os.File
	out    *outbox
	done   chan struct{}

	mu   sync.Mutex
	tail []string
}

// openStream makes the pipe of a process and starts to read it. The caller
// closes the write end once the process has it. A file that cannot be opened is
// told on the stream: a worker runs also without.
func openStream(out *outbox, path string, number uint32, name string) (*stream, *os.File, error) {
	// Not os.Pipe: its write end does not block, and the process that gets it
	// would find that out the hard way.
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(pipe[0], true); err != nil {
		closeAll(pipe[:])
		return nil, nil, err
	}
	reader, writer := os.NewFile(uintptr(pipe[0]), "log"), os.NewFile(uintptr(pipe[1]), "log")
	s := &stream{number: number, name: name, path: path, reader: reader, out: out, done: make(chan struct{})}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		var file *os.File
		if file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); err == nil {
			s.file = file
		}
	}
	if err != nil {
		s.giveUp(err)
	}
	go s.pump()
	return s, writer, nil
}

func (s *stream) pump() {
	defer close(s.done)
	lines := splitter{emit: s.line}
	buf := make([]byte, 64<<10)
	for {
		n, err := s.reader.Read(buf)
		if n > 0 {
			s.keep(buf[:n])
			lines.write(time.Now(), buf[:n])
			s.out.ring()
		}
		if err != nil {
			break
		}
	}
	lines.close()
	s.out.ring()
	s.reader.Close()
	if s.file != nil {
		s.file.Close()
	}
}

// keep writes to the file. A full disk must not stop a worker: it is told once,
// and what comes after is not kept.
func (s *stream) keep(p []byte) {
	if s.file == nil {
		return
	}
	if _, err := s.file.Write(p); err != nil {
		s.file.Close()
		s.file = nil
		s.giveUp(err)
	}
}

func (s *stream) giveUp(err error) {
	var bare *os.PathError
	if errors.As(err, &bare) {
		err = bare.Err
	}
	what := "cannot write"
	if errors.Is(err, syscall.ENOSPC) {
		what = "the disk is full: cannot write"
	}
	s.line(fmt.Sprintf("muster: %s %s: %v: from here on this output is shown but not kept", what, s.path, err))
}

func (s *stream) line(text string) {
	short := text
	if len(short) > tailLine {
		short = strings.ToValidUTF8(short[:tailLine], "") + cutMark
	}
	s.mu.Lock()
	if len(s.tail) == tailLines {
		s.tail = append(s.tail[:0], s.tail[1:]...)
	}
	s.tail = append(s.tail, short)
	s.mu.Unlock()
	s.out.add(s.number, s.name, s.path, text)
}

// last returns the last lines so far.
func (s *stream) last() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.tail...)
}

// drain waits until every writer of the pipe is gone, but not for ever: someone
// elsewhere may have been handed the descriptor.
func (s *stream) drain() {
	timer := time.NewTimer(drainBound)
	defer timer.Stop()
	select {
	case <-s.done:
		return
	case <-timer.C:
	}
	_ = s.reader.SetReadDeadline(time.Unix(1, 0))
	<-s.done
}
