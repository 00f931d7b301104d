package h2

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// flushLocked writes what the socket accepts at once. It reports whether that is all.
func (r *rawConn) flushLocked() (bool, error) {
	if len(r.out) == 0 {
		return true, nil
	}
	if r.fd < 0 {
		return false, net.ErrClosed
	}
	put := 0
	for put < len(r.out) {
		n, err := sysWrite(r.fd, r.out[put:])
		switch {
		case err == nil:
			put += n
		case errors.Is(err, syscall.EAGAIN):
			r.out = append(r.out[:0], r.out[put:]...)
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
	r.spare.put(r.out) // a connection without output holds no buffer
	r.out = nil
	return true, nil
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

// unread reports whether unread input waits in the socket. It knows of an owned one only.
func (r *rawConn) unread() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return false
	}
	var one [1]byte
	n, _, _ := syscall.Recvfrom(r.fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return n > 0
}

// taken returns how many bytes the peer has acknowledged, and whether all others are on their way.
// What our own socket accepts says little, since it buffers megabytes. Zero and true mean unknown.
// Silence is the time since the last acknowledgement: a peer whose window is full is asked again
// and again by our kernel, and its kernel answers even if its process is stopped.
func (r *rawConn) taken() (n uint64, sent bool, silence time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock() // so that fd is not closed meanwhile
	if r.fd < 0 {
		return 0, true, 0
	}
	info, err := unix.GetsockoptTCPInfo(r.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, true, 0
	}
	return info.Bytes_acked, info.Notsent_bytes == 0, time.Duration(info.Last_ack_recv) * time.Millisecond
}
