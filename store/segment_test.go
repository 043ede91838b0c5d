package store

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFilesWithoutNames(t *testing.T) {
	for name, make := range map[string]func(string) (int, error){"never named": unlinked, "named and unlinked": unnamed} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			dir := t.TempDir()
			fd, err := make(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if _, err := unix.Write(fd, []byte("text")); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("there is %v, %v", left, err)
			}
			if _, err := make(dir + "/gone"); err == nil {
				t.Error("a folder that is not there")
			}
		})
	}
}

// A copy is exact, can be read alone, and gives its disk back although somebody
// has it mapped.
func TestSpillTo(t *testing.T) {
	leakCheck(t)
	const size = 2*copyChunk + 12345
	want := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
	memory, err := newMemory(capacity(size), func() uint64 { return never })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memory)
	if _, err := unix.Pwrite(memory, want, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := spillTo(t.TempDir(), memory, size, func() bool { return true }); !errors.Is(err, errStopped) {
		t.Errorf("it was told to stop: %v", err)
	}
	if _, err := spillTo(t.TempDir(), memory, 2*size, func() bool { return false }); err == nil {
		t.Error("more than there is was copied")
	}
	fd, err := spillTo(t.TempDir(), memory, size, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	m := &mapping{fd: fd}
	got, err := m.private()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(want), err)
	}
	if _, err := unix.Write(fd, []byte("x")); !errors.Is(err, unix.EBADF) {
		t.Errorf("readers could write: %v", err)
	}
	other, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	discard(&segment{fd: other, file: true})
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Size != 0 || stat.Blocks != 0 {
		t.Errorf("%d bytes in %d blocks are left, %v", stat.Size, stat.Blocks, err)
	}
	m.abandon()
}

// What cannot be spared is not taken, also when that shows on the way.
func TestMemoryThatIsNotThere(t *testing.T) {
	leakCheck(t)
	spare := uint64(takeChunk)
	_, err := newMemory(takeChunk+pageSize, func() uint64 {
		defer func() { spare = 0 }()
		return spare
	})
	if !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got %v", err)
	}
}

// Pages are touched once for a segment, however many objects lie in it.
func TestPagesAreTouchedOnce(t *testing.T) {
	seg := &segment{capacity: 2*ChunkSize + 1}
	for round := range 2 {
		for chunk := range chunksOf(seg.capacity) {
			if first := seg.firstUse(chunk); first != (round == 0) {
				t.Errorf("chunk %d, object %d: to be touched is %v", chunk, round, first)
			}
		}
	}
	f := newFarRig(t, farOptions{nodes: 2})
	for round := range 3 {
		id, content := f.put(0, 2*ChunkSize+round)
		f.same(f.client(1, 7), id, content)
		f.drop(id)
		f.empty()
	}
	for _, h := range f.hosts {
		h.mu.Lock()
		if n := len(h.ledger.segments); n != 1 {
			t.Errorf("%s has %d segments for objects of about one size", h.opts.Name, n)
		}
		for _, seg := range h.ledger.segments {
			if n := len(seg.used); n != 3 || slices.Contains(seg.used, false) {
				t.Errorf("%s has used chunks %v of three", h.opts.Name, seg.used)
			}
		}
		h.mu.Unlock()
	}
}
