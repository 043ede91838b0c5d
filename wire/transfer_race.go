//go:build race

package wire

import (
	"errors"
	"syscall"
)

// Under the race detector the plain calls: they tell it that what was written
// before a write happened before what follows the read of it, which matters where
// both ends are in one process, as in tests.

// useRing is off for the same reason.
const useRing = false

func readFd(fd uintptr, b []byte) (int, syscall.Errno)  { return plainly(syscall.Read, fd, b) }
func writeFd(fd uintptr, b []byte) (int, syscall.Errno) { return plainly(syscall.Write, fd, b) }

func plainly(do func(int, []byte) (int, error), fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, err := do(int(fd), b)
		var errno syscall.Errno
		if err == nil || !errors.As(err, &errno) {
			return n, 0
		}
		if errno != syscall.EINTR {
			return 0, errno
		}
	}
}
