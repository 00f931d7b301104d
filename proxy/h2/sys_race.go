//go:build race

package h2

import "syscall"

// With these the race detector sees that data was written before it is read.

func sysRead(fd int, p []byte) (int, error) { return syscall.Read(fd, p) }

func sysWrite(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }

func epollPoll(fd int, events []syscall.EpollEvent) (int, error) {
	return syscall.EpollWait(fd, events, 0)
}
