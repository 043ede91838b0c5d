//go:build !race

package wire

import (
	"syscall"
	"unsafe"
)

// useRing: whether many small writes are one system call.
const useRing = true

func readFd(fd uintptr, b []byte) (int, syscall.Errno)  { return transfer(syscall.SYS_READ, fd, b) }
func writeFd(fd uintptr, b []byte) (int, syscall.Errno) { return transfer(syscall.SYS_WRITE, fd, b) }

// transfer reads or writes a descriptor that does not block. It does not tell the
// scheduler: that would wake a thread of the runtime for every call of a process
// that is idle in between, which costs more than the call.
func transfer(number, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno == 0 {
			return int(n), 0
		}
		if errno != syscall.EINTR {
			return 0, errno
		}
	}
}
