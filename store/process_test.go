package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// The test binary plays other processes too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "client" {
		if err := play(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for those: else each ends a second late
	os.Exit(m.Run())
}

// play is a client that does what its standard input says, a line each.
func play(dir string, in io.Reader, out io.Writer) error {
	c, err := Dial(dir, 3, token, 77)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	var draft *Draft
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		number := uint64(0)
		if len(words) > 1 {
			if number, err = strconv.ParseUint(words[1], 10, 64); err != nil {
				return err
			}
		}
		switch words[0] {
		case "write": // and never seal
			if draft, err = c.Alloc(number); err == nil {
				clear(draft.Bytes)
				fmt.Fprintln(out, draft.Object)
			}
		case "put":
			var object uint64
			object, _, err = c.Put("from another process", make([]byte, number))
			fmt.Fprintln(out, object)
		case "open":
			var views []*View
			if views, err = c.Open(number); err == nil {
				views[0].Bytes[0] = 99 // for itself
				fmt.Fprintln(out, len(views[0].Bytes))
			}
		case "leave": // but live on
			c.Close()
			fmt.Fprintln(out, "left")
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// other is another process with a connection.
type other struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (r *rig) process() *other {
	r.Helper()
	cmd := exec.Command("/proc/self/exe", "client", r.dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	p := &other{t: r, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	r.Cleanup(p.kill)
	return p
}

func (p *other) does(format string, args ...any) string {
	p.t.Helper()
	fmt.Fprintf(p.in, format+"\n", args...)
	if !p.out.Scan() {
		p.t.Fatalf("the other process ended: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *other) object(format string, args ...any) uint64 {
	p.t.Helper()
	id, err := strconv.ParseUint(p.does(format, args...), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p *other) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.in.Close()
	}
}

func TestAWriterIsKilled(t *testing.T) {
	r := newRig(t, nil)
	reader := r.client(1)
	writer := r.process()
	id := writer.object("write %d", mib)
	waited := make(chan error, 1)
	go func() {
		_, err := reader.Open(id)
		waited <- err
	}()
	r.until("somebody to wait", func(*wire.StoreStatus) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sealing[id] != nil
	})
	writer.kill()
	wantError(t, <-waited, spec.CodeWorkerDied, "process "+strconv.Itoa(writer.cmd.Process.Pid), "before the object was sealed")
	// Its memory is used again, and holds nothing up.
	r.until("its memory to be free", func(s *wire.StoreStatus) bool { return s.Used == 0 && s.Pooled == mib })
	_, err := reader.Open(id)
	wantError(t, err, spec.CodeWorkerDied)
	r.Objects(&wire.Objects{Gone: []uint64{77}})
	_, err = reader.Open(id)
	wantError(t, err, spec.CodeNotFound)
	put(t, reader, mib, 5)
	if s := r.Status(); s.Used != mib || s.Pooled != 0 {
		t.Errorf("the segment was not used again: %+v", s)
	}
}

// A process is killed while it waits for room: the head says that it is gone before
// what it asked for is begun, and nothing is left of that.
func TestKilledBeforeItHasRoom(t *testing.T) {
	r := newRig(t, nil)
	waiting := r.join(77, 0)
	r.Objects(&wire.Objects{Gone: []uint64{77}})
	if _, _, err := r.allocate(t.Context(), waiting, mib); err != nil {
		t.Fatal(err)
	}
	r.leave(waiting)
	r.until("what it was to write to go", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Pooled == mib })
	// Nor is room made for one that has ended.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.allocate(ended, r.join(78, 0), mib); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAReaderIsKilled(t *testing.T) {
	r := newRig(t, nil)
	maker := r.client(1)
	id := put(t, maker, mib, 5)
	r.hold(id)
	reader := r.process()
	reader.does("open %d", id)
	r.drop(id)
	if s := r.Status(); len(s.Objects) != 1 || s.Objects[0].Views[0].Holder != 77 {
		t.Errorf("it is being read: %+v", s)
	}
	reader.kill()
	r.until("its lease to end", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Pooled == mib })
}

// A process that leaves its connection and lives on still reads what it has
// mapped: nothing else may be written there.
func TestLeasesOutliveTheConnection(t *testing.T) {
	r := newRig(t, nil)
	maker := r.client(1)
	id := put(t, maker, mib, 5)
	r.hold(id)
	reader := r.process()
	reader.does("open %d", id)
	written := reader.object("write %d", 2*mib+slack)
	reader.does("leave")
	r.drop(id)
	_, err := maker.Open(written)
	wantError(t, err, spec.CodeWorkerDied, "its connection ended")
	r.until("the writing to be broken", func(s *wire.StoreStatus) bool { return s.Objects[0].State == "broken" })
	if s := r.Status(); len(s.Objects) != 2 || s.Used != 3*mib+slack {
		t.Errorf("the process is alive: %+v", s)
	}
	reader.kill()
	r.until("all to be free", func(s *wire.StoreStatus) bool { return s.Used == 0 && s.Pooled == 3*mib+slack })
}

// What was sealed and never told of goes when the head says that its maker is
// gone, not before: the word of it may be on its way.
func TestASealedObjectOutlivesItsMaker(t *testing.T) {
	r := newRig(t, nil)
	reader := r.client(1)
	maker := r.process()
	told, untold := maker.object("put %d", mib), maker.object("put %d", mib)
	maker.kill()
	r.hold(told)
	r.Objects(&wire.Objects{Gone: []uint64{77}})
	r.until("what nobody knows of to go", func(s *wire.StoreStatus) bool { return len(s.Objects) == 1 })
	open(t, reader, told)[0].Close()
	_, err := reader.Open(untold)
	wantError(t, err, spec.CodeNotFound)
	r.drop(told)
	r.until("the rest to go", func(s *wire.StoreStatus) bool { return len(s.Objects) == 0 && s.Pooled == 2*mib })
}

// In-place writes of one process are seen by no other.
func TestWritesStayLocal(t *testing.T) {
	r := newRig(t, nil)
	maker := r.client(1)
	id := put(t, maker, mib, 5)
	mine := open(t, maker, id)[0]
	r.process().does("open %d", id) // and changes the first byte
	if err := filled(mine.Bytes, mib, 5); err != nil {
		t.Error(err)
	}
	mine.Bytes[1] = 42
	theirs := open(t, r.client(2), id)[0]
	if err := filled(theirs.Bytes, mib, 5); err != nil {
		t.Error(err)
	}
	again := open(t, maker, id)[0]
	if again.Bytes[1] != 42 {
		t.Error("a process sees what it wrote for as long as it has a view")
	}
	for _, v := range []*View{mine, again, theirs} {
		v.Close()
	}
	mine = open(t, maker, id)[0]
	if err := filled(mine.Bytes, mib, 5); err != nil {
		t.Errorf("with its last view, what it wrote goes: %v", err)
	}
	mine.Close()
}
