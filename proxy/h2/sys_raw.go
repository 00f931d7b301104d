//go:build !race

package h2

import (
	"syscall"
	"unsafe"
)

// The loops' system calls never block: sockets are non-blocking, and epoll_wait has a timeout of 0. So they need not
// inform the scheduler. Package syscall does, which wakes the scheduler's monitor thread whenever the process was idle,
// and that thread then polls every 20 µs: for single requests this was four of six context switches each.

func sysRead(fd int, p []byte) (int, error) { return sysMove(syscall.SYS_READ, fd, p) }

func sysWrite(fd int, p []byte) (int, error) { return sysMove(syscall.SYS_WRITE, fd, p) }

func sysMove(trap uintptr, fd int, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	return sysResult(n, errno)
}

func epollPoll(fd int, events []syscall.EpollEvent) (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT,
		uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return sysResult(n, errno)
}

func sysResult(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
