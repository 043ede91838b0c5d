package store

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/muster-rl/muster/spec"
)

// mapping is a segment as a client has it: shared for writing objects, private
// for reading them. The client's lock guards it.
type mapping struct {
	fd        int
	write     []byte
	read      []byte
	users     int  // drafts and objects that are read
	abandoned bool // it goes with its last user
}

func (m *mapping) shared() (b []byte, err error) {
	if m.write == nil {
		m.write, err = m.mmap(unix.MAP_SHARED)
	}
	return m.write, err
}

// private is copy on write: what one process writes no other sees.
func (m *mapping) private() (b []byte, err error) {
	if m.read == nil {
		m.read, err = m.mmap(unix.MAP_PRIVATE | unix.MAP_NORESERVE)
	}
	return m.read, err
}

func (m *mapping) mmap(flags int) ([]byte, error) {
	var stat unix.Stat_t
	err := unix.Fstat(m.fd, &stat)
	if err == nil && stat.Size == 0 {
		return []byte{}, nil // a spilled object of no bytes
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(m.fd, 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, flags)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeLimit, "a segment of %d bytes cannot be mapped: %v", stat.Size, err)
	}
	return b, nil
}

// forget drops the pages that were written privately.
func (m *mapping) forget() {
	if len(m.read) > 0 {
		if err := unix.Madvise(m.read, unix.MADV_DONTNEED); err != nil {
			panic(fmt.Sprintf("store: a mapping of our own cannot be dropped: %v", err))
		}
	}
}

// release ends one use.
func (m *mapping) release() {
	m.users--
	if m.abandoned && m.users == 0 {
		m.unmap()
	}
}

// abandon has it go: now, or with its last user.
func (m *mapping) abandon() {
	m.abandoned = true
	if m.users == 0 {
		m.unmap()
	}
}

func (m *mapping) unmap() {
	for _, b := range [][]byte{m.write, m.read} {
		if len(b) > 0 {
			_ = unix.Munmap(b) // a mapping of our own, never half
		}
	}
	m.write, m.read = nil, nil
	unix.Close(m.fd)
}
