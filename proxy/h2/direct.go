package h2

import (
	"cmp"
	"errors"
	"io"
	"net"
	"syscall"
)

// Direct returns what reads and writes a connection by system calls that the scheduler is not told of, see sysRead:
// over HTTP/1.1, a seventh of a request's time. Deadlines and Close are c's. One may read at a time, and one write.
func Direct(c net.Conn) io.ReadWriter {
	if sock, ok := c.(*net.TCPConn); ok {
		raw, _ := sock.SyscallConn() // fails only for nil
		return &direct{in: transfer{wait: raw.Read, call: sysRead}, out: transfer{wait: raw.Write, call: sysWrite}}
	}
	return c
}

type direct struct{ in, out transfer }

func (d *direct) Read(p []byte) (int, error) { return d.in.part(p) }

func (d *direct) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = d.out.part(p[n:])
		n += k
	}
	return n, err
}

// transfer is a socket's input or output.
type transfer struct {
	wait func(try func(fd uintptr) (done bool)) error
	call func(fd int, p []byte) (int, error)
	p    []byte
	n    int
	err  error
}

// part waits until some of p is moved.
func (t *transfer) part(p []byte) (int, error) {
	t.p, t.n, t.err = p, 0, nil
	err := t.wait(t.try)
	if err = cmp.Or(err, t.err); err == nil && t.n == 0 {
		err = io.EOF
	}
	return max(t.n, 0), err
}

func (t *transfer) try(fd uintptr) (done bool) {
	t.n, t.err = t.call(int(fd), t.p) // never interrupted: it does not wait
	return !errors.Is(t.err, syscall.EAGAIN)
}
