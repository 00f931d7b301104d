package h2

import (
	"net"
	"sync"
	"syscall"
)

// rawConn stands between crypto/tls and a TCP connection. Until takeOver it is transparent. Afterwards TLS reads what fill has read and
// writes into a buffer, so that neither blocks; the driver moves both sides with non-blocking system calls, many records at a time.
type rawConn struct {
	net.Conn
	sys   syscall.RawConn // nil: no file descriptor, reads and writes block
	async bool
	in    []byte // read from the socket, not yet by TLS
	rest  []byte // the unread part of in

	mu  sync.Mutex // guards out: TLS also writes on its own (key update, alerts)
	out []byte     // written by TLS, not yet to the socket
}

// rawBuffer is what is read from a socket at once: four records, beyond which measurements showed little gain.
const rawBuffer = 64 << 10

// wrapConn is what Endpoint.Dial and Server.Listener wrap TCP connections in.
func wrapConn(c net.Conn) net.Conn {
	r := &rawConn{Conn: c}
	if sc, ok := c.(syscall.Conn); ok && nonBlocking {
		if sys, err := sc.SyscallConn(); err == nil {
			r.sys = sys
		}
	}
	return r
}

// errNoInput is a temporary net.Error, which crypto/tls hands up without giving the connection up.
type errNoInput struct{}

func (errNoInput) Error() string   { return "no input yet" }
func (errNoInput) Timeout() bool   { return true }
func (errNoInput) Temporary() bool { return true }

func (r *rawConn) takeOver() { r.async = true }

func (r *rawConn) Read(p []byte) (int, error) {
	if !r.async {
		return r.Conn.Read(p)
	}
	if len(r.rest) == 0 {
		return 0, errNoInput{}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *rawConn) Write(p []byte) (int, error) {
	if !r.async {
		return r.Conn.Write(p)
	}
	r.mu.Lock()
	r.out = append(r.out, p...)
	r.mu.Unlock()
	return len(p), nil
}

// fill waits for input and reads what is there. The buffer is only held while there is something in it.
func (r *rawConn) fill(b *buffers) error {
	if r.in != nil {
		b.putRaw(r.in)
		r.in, r.rest = nil, nil
	}
	n := 0
	var err error
	if r.sys == nil {
		r.in = b.getRaw()
		n, err = r.Conn.Read(r.in)
	} else {
		n, err = r.wait(b)
	}
	if n > 0 {
		r.rest = r.in[:n]
		return nil
	}
	return err
}

// flush writes what TLS has written, as far as the socket takes it (block: all of it). false: some is left.
func (r *rawConn) flush(block bool) (bool, error) {
	r.mu.Lock()
	p := r.out
	r.out = nil
	r.mu.Unlock()
	if len(p) == 0 {
		return true, nil
	}
	n, err := 0, error(nil)
	switch {
	case r.sys != nil && !block:
		n, err = r.write(p)
	case block:
		n, err = r.Conn.Write(p)
	}
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < len(p) {
		r.out = append(p[n:], r.out...) // TLS may have written meanwhile
		return false, nil
	}
	if r.out == nil && cap(p) <= maxBufferKept {
		r.out = p[:0]
	}
	return len(r.out) == 0, nil
}
