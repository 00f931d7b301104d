//go:build unix

package h2

import (
	"io"
	"syscall"
)

// nonBlocking says whether sockets can be read and written without waiting.
const nonBlocking = true

// wait reads into a buffer that is only taken once there is something to read.
func (r *rawConn) wait(b *buffers) (n int, err error) {
	werr := r.sys.Read(func(fd uintptr) bool {
		if r.in == nil {
			r.in = b.getRaw()
		}
		for {
			n, err = syscall.Read(int(fd), r.in)
			if err != syscall.EINTR {
				break
			}
		}
		if err == syscall.EAGAIN {
			b.putRaw(r.in)
			r.in = nil
			return false
		}
		return true
	})
	switch {
	case werr != nil:
		return 0, werr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// write writes what the socket takes at once.
func (r *rawConn) write(p []byte) (n int, err error) {
	werr := r.sys.Write(func(fd uintptr) bool {
		for n < len(p) {
			var k int
			k, err = syscall.Write(int(fd), p[n:])
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				break
			}
			n += k
		}
		return true
	})
	if werr != nil {
		return n, werr
	}
	if err == syscall.EAGAIN {
		err = nil
	}
	return n, err
}
