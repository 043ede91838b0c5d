package wire

import (
	"bytes"
	"net"
	"testing"
)

// A connection begins with a small buffer and grows it as frames and traffic
// ask for; frames of every size around its steps come whole.
func TestReadBufferGrows(t *testing.T) {
	a, b := net.Pipe()
	from, to := NewConn(a), NewConn(b)
	defer from.Close()
	defer to.Close()
	to.SetLimit(MaxFrame)
	sizes := []int{0, 1, 100, firstBuffer - headerSize - 1, firstBuffer - headerSize, firstBuffer - headerSize + 1, 3}
	for size := firstBuffer; size <= 2*readBuffer; size *= 2 {
		sizes = append(sizes, size-headerSize-1, size-headerSize, size-headerSize+1, 5)
	}
	go func() {
		for i, size := range sizes {
			from.Queue(Header{Kind: KindCall, ID: uint64(i)}, nil, bytes.Repeat([]byte{byte(i)}, size), nil)
		}
		from.Flush()
	}()
	if len(to.buf) != firstBuffer {
		t.Fatalf("it begins with %d bytes", len(to.buf))
	}
	for i, size := range sizes {
		f, err := to.Read()
		if err != nil {
			t.Fatal(err)
		}
		if f.ID != uint64(i) || !bytes.Equal(f.Body, bytes.Repeat([]byte{byte(i)}, size)) {
			t.Fatalf("frame %d of %d bytes came as frame %d of %d", i, size, f.ID, len(f.Body))
		}
	}
	if len(to.buf) > readBuffer {
		t.Errorf("it grew to %d bytes", len(to.buf))
	}
}
