package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-rl/muster/wire"
)

// listener returns an outbox and the end that hears what it sends.
func listener(t *testing.T) (*outbox, *wire.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "muster")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := wire.Dial(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.SetDeadline(time.Now().Add(patience))
	theirs := wire.NewConn(nc)
	theirs.SetLimit(wire.MaxFrame)
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	head := newUplink()
	head.set(ours)
	return newOutbox(head), theirs
}

// hear reads lines until one is last.
func hear(t *testing.T, c *wire.Conn, last string) []string {
	t.Helper()
	var got []string
	for {
		f, err := c.Read()
		if err != nil {
			t.Fatalf("%v after %d lines", err, len(got))
		}
		_, rest, err := wire.ReadVerb(f.Body)
		if err != nil {
			t.Fatal(err)
		}
		var log wire.Log
		if _, err := log.UnmarshalMsg(rest); err != nil {
			t.Fatal(err)
		}
		for _, l := range log.Lines {
			got = append(got, l.Text)
			if l.Text == last {
				return got
			}
		}
	}
}

func TestAFullDiskDoesNotStopAWorker(t *testing.T) {
	out, head := listener(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go out.run(ctx)
	s, w, err := openStream(out, "/dev/full", 1, "actor-0")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "one")
	fmt.Fprintln(w, "two")
	w.Close()
	s.drain()
	got := hear(t, head, "two")
	if len(got) != 3 || !strings.Contains(got[0], "the disk is full") || got[1] != "one" {
		t.Errorf("got %q", got)
	}
}

func TestASlowHeadCostsLinesNotMemory(t *testing.T) {
	out, head := listener(t)
	text := strings.Repeat("x", 1000)
	for i := range 10_000 { // 10 MB, and nobody sends
		out.add(1, "actor-0", "/logs/actor-0.log", fmt.Sprint(i, text))
	}
	if out.size > outboxLimit {
		t.Errorf("%d bytes are kept", out.size)
	}
	out.flush(nil)
	out.add(1, "actor-0", "", "end")
	out.flush(nil)
	got := hear(t, head, "end")
	mark := got[len(got)-2]
	kept := len(got) - 2
	if want := fmt.Sprintf("muster: %d lines dropped here; /logs/actor-0.log has them", 10_000-kept); mark != want {
		t.Errorf("got %q, want %q", mark, want)
	}
}

func TestTheLastLinesAreKept(t *testing.T) {
	out, head := listener(t)
	s, w, err := openStream(out, filepath.Join(t.TempDir(), "c", "w.log"), 1, "w")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		fmt.Fprintln(w, i)
	}
	io.WriteString(w, strings.Repeat("y", 10_000))
	w.Close()
	s.drain()
	out.flush(nil)
	last := s.last()
	if len(last) != tailLines || last[0] != "11" || len(last[tailLines-1]) > tailLine+8 {
		t.Errorf("got %q", last)
	}
	hear(t, head, strings.Repeat("y", 10_000))
}

func TestADrainDoesNotWaitForEver(t *testing.T) {
	out, _ := listener(t)
	s, w, err := openStream(out, filepath.Join(t.TempDir(), "w.log"), 1, "w")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // someone keeps it
	fmt.Fprint(w, "half a line")
	s.drain()
	if got := s.last(); len(got) != 1 || got[0] != "half a line" {
		t.Errorf("got %q", got)
	}
}
