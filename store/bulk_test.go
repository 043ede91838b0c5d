package store

import (
	"bytes"
	"errors"
	"net"
	"testing"
)

// recorder is a connection that notes what is written, and how often.
type recorder struct {
	net.Conn
	all    bytes.Buffer
	writes int
	fail   error
}

func (r *recorder) Write(b []byte) (int, error) {
	r.writes++
	if r.fail != nil {
		return 0, r.fail
	}
	return r.all.Write(b)
}

func TestRecordsAreWrittenManyAtATime(t *testing.T) {
	r := &recorder{}
	g := &gathering{Conn: r}
	var want []byte
	write := func(n int) {
		record := noise(n)
		want = append(want, record...)
		if m, err := g.Write(record); m != n || err != nil {
			t.Fatalf("%d of %d bytes, %v", m, n, err)
		}
	}
	write(100)
	if r.writes != 1 {
		t.Errorf("%d writes of what was not to be put together", r.writes)
	}
	g.begin()
	for range ChunkSize >> 14 {
		write(16<<10 + 22)
	}
	write(7)
	if err := g.end(); err != nil {
		t.Fatal(err)
	}
	if most := 2 + ChunkSize/gatherSize; r.writes > 1+most {
		t.Errorf("%d writes for a chunk", r.writes-1)
	}
	write(5)
	if !bytes.Equal(r.all.Bytes(), want) {
		t.Error("what was written is not what was given")
	}
	g.begin()
	r.fail = errors.New("gone")
	if _, err := g.Write(make([]byte, 10)); err != nil {
		t.Errorf("it has yet to be written, and failed: %v", err)
	}
	if err := g.end(); !errors.Is(err, r.fail) {
		t.Errorf("it ended with %v", err)
	}
	var none *gathering
	none.begin()
	if err := none.end(); err != nil {
		t.Error(err)
	}
}
