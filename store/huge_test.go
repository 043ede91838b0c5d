package store

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Huge pages or not, a segment has all its pages, and they are the segment's.
func TestHugePages(t *testing.T) {
	leakCheck(t)
	const size = hugeFrom + 3*hugePage + 5*pageSize // whose end is no huge page
	fd, err := newMemory(size, func() uint64 { return never })
	if err != nil {
		t.Fatal(err)
	}
	seg := &segment{fd: fd, capacity: size}
	defer func() { discard(seg) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Size != size || stat.Blocks*512 != size {
		t.Errorf("a segment of %d bytes has %d, and %d in memory: %v", size, stat.Size, stat.Blocks*512, err)
	}
	mem, err := mapped(seg)
	if err != nil {
		t.Fatal(err)
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))); len(mem) != size || at%hugePage != 0 {
		t.Errorf("%d bytes are mapped at %x", len(mem), at)
	}
	content := noise(size)
	copy(mem, content)
	got := make([]byte, size)
	if n, err := unix.Pread(fd, got, 0); n != size || err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d are not what was written: %v", n, size, err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "memfd:muster")
	_, after, _ = strings.Cut(after, "ShmemPmdMapped:")
	line, _, _ := strings.Cut(after, "\n")
	t.Logf("mapped as huge pages: %s", strings.TrimSpace(line)) // as many as the machine has
}

// Where there are none, nothing is lost.
func TestNoHugePages(t *testing.T) {
	leakCheck(t)
	path := filepath.Join(t.TempDir(), "small")
	content := noise(2*hugePage + 10)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path) // not for writing
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if huge(int(file.Fd()), 0, uint64(len(content))) {
		t.Error("a file that cannot be written to has got other pages")
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file is another one: %v", err)
	}
	if _, err := mmapAligned(-1, 0, pageSize, unix.PROT_READ); err == nil {
		t.Error("no file was mapped")
	}
	if err := munmap(nil); err != nil {
		t.Error(err)
	}
}

// What it takes to have memory, all of it touched.
func BenchmarkMemory(b *testing.B) {
	const size = 256 * mib
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		fd, err := newMemory(size, func() uint64 { return never })
		if err != nil {
			b.Fatal(err)
		}
		seg := &segment{fd: fd, capacity: size}
		mem, err := mapped(seg)
		if err != nil {
			b.Fatal(err)
		}
		touch(mem, true)
		discard(seg)
	}
}
