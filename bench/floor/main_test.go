package main

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

func dial(t *testing.T, path string, kind byte) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	send(t, conn, kind, 1)
	receive(t, conn, 1)
	return conn
}

func send(t *testing.T, conn net.Conn, kind byte, count int) {
	t.Helper()
	run := make([]byte, count*frameSize)
	for i := 0; i < len(run); i += frameSize {
		run[i] = kind
		run[i+8] = byte(i / frameSize)
	}
	if _, err := conn.Write(run); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, conn net.Conn, count int) []byte {
	t.Helper()
	run := make([]byte, count*frameSize)
	if _, err := io.ReadFull(conn, run); err != nil {
		t.Fatal(err)
	}
	return run
}

func TestFramesComeBackToWhoSentThem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- newRelay().serve(l) }()
	workers := make([]net.Conn, 3)
	for i := range workers {
		workers[i] = dial(t, path, kindWorker)
		go func() { _, _ = io.Copy(workers[i], workers[i]) }()
	}
	for range 2 {
		c := dial(t, path, kindCaller)
		send(t, c, kindOne, 100)
		run := receive(t, c, 100)
		for i := range 100 {
			if run[i*frameSize+8] != byte(i) {
				t.Fatalf("frame %d came back as number %d", i, run[i*frameSize+8])
			}
		}
		for range 10 {
			send(t, c, kindAll, 1)
			receive(t, c, 1)
		}
	}
	l.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
