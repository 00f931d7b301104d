//go:build unix

package h2

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// nonBlocking says whether sockets can be read and written without blocking.
const nonBlocking = true

// tryRead takes a buffer and reads into it. It reports false, and keeps none, if there is no input.
func (r *rawConn) tryRead(fd uintptr) bool {
	if r.in == nil {
		r.in = r.bufs.raw.get()
	}
	for {
		r.got, r.err = sysRead(int(fd), r.in[:])
		if !errors.Is(r.err, syscall.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(r.err, syscall.EAGAIN):
		r.bufs.raw.put(r.in)
		r.in = nil
		return false
	case r.err == nil && r.got == 0:
		r.err = io.EOF
	}
	return true
}

// tryWrite writes what the socket accepts at once.
func (r *rawConn) tryWrite(fd uintptr) bool {
	for r.put < len(r.out) {
		n, err := sysWrite(int(fd), r.out[r.put:])
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return true
		case err != nil:
			r.werr = err
			return true
		default:
			r.put += n
		}
	}
	return true
}

// shutdown makes the peer and the loop see the end of the connection.
func (r *rawConn) shutdown(how int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return net.ErrClosed
	}
	return os.NewSyscallError("shutdown", syscall.Shutdown(r.fd, how))
}

// unread reports whether unread input waits in the socket.
func (r *rawConn) unread() bool {
	if r.sys == nil {
		return false
	}
	var n int
	peek := func(fd int) {
		var one [1]byte
		n, _, _ = syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.owned:
		_ = r.sys.Control(func(fd uintptr) { peek(int(fd)) })
	case r.fd >= 0:
		peek(r.fd)
	}
	return n > 0
}
