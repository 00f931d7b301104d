package h2

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// rawConn is the connection between crypto/tls and TCP. Until takeOver it is transparent.
// Afterwards TLS reads what the driver has read, and writes into a buffer, so neither blocks. The
// driver reads and writes many records at a time with non-blocking system calls.
type rawConn struct {
	net.Conn                 // as accepted or dialled: its Close is called at the end, for wrappers
	sock     socket          // below Conn; nil means that only Conn may be read and written
	sys      syscall.RawConn // of sock; nil means that reads and writes block
	// async is set by takeOver. It is atomic because Close may run concurrently.
	async atomic.Bool
	early []byte // rest's buffer until takeOver
	rest  []byte // read from the socket, not yet by TLS
	left  int    // remaining bytes of the current TLS record, if its header is complete
	head  []byte // the beginning of a record's header, if it is incomplete
	hold  [recordHeader]byte

	records int // number of records whose headers were passed to TLS

	// For reading: arguments and results of readable, kept because a closure per call would be
	// allocated.
	readable func(fd uintptr) bool
	bufs     *buffers
	in       *rawBytes // rest's buffer
	got      int
	err      error

	mu    sync.Mutex // guards the following fields, and is held during non-blocking writes to the socket
	spare *output    // out's free list
	// out is what TLS has written, also on its own (key updates, alerts), not yet to the socket.
	out      []byte
	writable func(fd uintptr) bool
	put      int
	werr     error
	// owned means that a loop owns the connection: sock is closed, fd is its duplicate, Conn closes
	// after fd.
	owned      bool
	fd         int    // changed only by the loop; -1 means closed
	pending    []byte // engine output whose rest is in out; nil means that none waits for the socket
	encrypting bool   // engine output is being encrypted into out; its writer will write out
	blocked    bool   // a goroutine is in a blocking write: no other may write
}

// rawBuffer is how much is read from a socket at once: four records; more gained little.
const rawBuffer = 64 << 10

// earlyBuffer is how much is read at once before takeOver: handshake messages are short.
const earlyBuffer = 2 << 10

const recordHeader = 5 // RFC 8446 §5.1

// wrapConn returns the connection that Config.Dial and Server.Listener put below TLS.
func wrapConn(c net.Conn) net.Conn {
	r := &rawConn{Conn: c, fd: -1}
	r.head = r.hold[:0]
	r.sock = socketOf(c)
	if r.sock != nil && nonBlocking {
		if sys, err := r.sock.SyscallConn(); err == nil {
			r.sys = sys
			r.readable, r.writable = r.tryRead, r.tryWrite
		}
	}
	return r
}

// socket is a connection with a descriptor: *net.TCPConn or *net.UnixConn.
type socket interface {
	syscall.Conn
	Close() error
	CloseWrite() error
}

// socketOf returns the socket that may be read and written instead of c: c itself, or what is below
// wrappers with a method Wraps. A connection that embeds a socket has its methods too, but may
// still change its bytes, count them, or wait for Close.
func socketOf(c net.Conn) socket {
	for {
		switch t := c.(type) {
		case *net.TCPConn:
			return t
		case *net.UnixConn:
			return t
		case interface{ Wraps() net.Conn }:
			c = t.Wraps()
		default:
			return nil
		}
	}
}

// errNoInput is a temporary net.Error: crypto/tls returns it and keeps the connection usable.
type errNoInput struct{}

func (errNoInput) Error() string   { return "no input yet" }
func (errNoInput) Timeout() bool   { return true }
func (errNoInput) Temporary() bool { return true }

// takeOver switches from direct reads and writes to the driver's. Bytes read too early stay in
// rest.
func (r *rawConn) takeOver(out *output) {
	r.early, r.spare = nil, out
	r.async.Store(true) // last: a goroutine that sees it also sees the fields above
}

// Read returns at most the rest of one record. So TLS never holds a record that was not requested,
// and when everything was read, it need not be called again (which allocates) to learn that there
// is no more. This holds from the first byte, because a first request may come with the handshake.
func (r *rawConn) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		switch {
		case r.async.Load():
			return 0, errNoInput{}
		case r.left > 0:
			n, err := r.Conn.Read(p[:min(len(p), r.left)])
			r.left -= n
			return n, err
		}
		if r.early == nil {
			r.early = make([]byte, earlyBuffer)
		}
		n, err := r.Conn.Read(r.early)
		if n == 0 {
			return 0, err
		}
		r.rest = r.early[:n]
	}
	if r.left == 0 {
		r.begin()
	}
	n := min(len(p), len(r.rest))
	if r.left > 0 {
		n = min(n, r.left)
		r.left -= n
	}
	copy(p, r.rest[:n])
	r.rest = r.rest[n:]
	return n, nil
}

// begin parses a record's header at the start of rest.
func (r *rawConn) begin() {
	seen := len(r.head)
	r.head = append(r.head, r.rest[:min(recordHeader-seen, len(r.rest))]...)
	if len(r.head) == recordHeader {
		r.left = recordHeader - seen + int(binary.BigEndian.Uint16(r.head[3:]))
		r.records++
		r.head = r.hold[:0]
	}
}

// Close closes the connection. An owned connection is only shut down: its loop then closes it.
func (r *rawConn) Close() error {
	r.mu.Lock()
	owned := r.owned
	r.mu.Unlock()
	if owned {
		return r.shutdown(syscall.SHUT_RDWR)
	}
	return r.Conn.Close()
}

// closeWrite tells the peer that no more output comes.
func (r *rawConn) closeWrite() {
	r.mu.Lock()
	owned := r.owned
	r.mu.Unlock()
	if owned {
		_ = r.shutdown(syscall.SHUT_WR)
	} else if r.sock != nil {
		_ = r.sock.CloseWrite()
	}
}

// SetWriteDeadline does nothing after takeOver: TLS sets a deadline in the past after its last
// alert, and the alert would be lost.
func (r *rawConn) SetWriteDeadline(t time.Time) error {
	if r.async.Load() {
		return nil
	}
	return r.Conn.SetWriteDeadline(t)
}

// reserve makes room for the records of n bytes: growing per record would leave as much garbage.
func (r *rawConn) reserve(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.encrypting = true
	if r.out == nil {
		r.out = r.spare.get()
	}
	r.out = slices.Grow(r.out, n+(n/recordContent+1)*recordOverhead)
}

// These are a record's maximal content, and its overhead: header, content type and the tag of
// AES-GCM or ChaCha20-Poly1305 (RFC 8446 §5).
const (
	recordContent  = 16 << 10
	recordOverhead = recordHeader + 1 + 16
)

func (r *rawConn) Write(p []byte) (int, error) {
	if !r.async.Load() {
		return r.Conn.Write(p)
	}
	r.mu.Lock()
	if r.out == nil {
		r.out = r.spare.get()
	}
	r.out = append(r.out, p...)
	r.mu.Unlock()
	return len(p), nil
}

// fill waits for input and reads it. It holds a buffer only while there is input in it.
func (r *rawConn) fill(b *buffers) error {
	r.drop(b)
	r.bufs, r.got, r.err = b, 0, nil
	if r.sys == nil {
		r.in = b.raw.get()
		r.got, r.err = r.Conn.Read(r.in[:])
	} else if err := r.sys.Read(r.readable); err != nil {
		return err
	}
	if r.got > 0 {
		r.rest = r.in[:r.got]
		return nil
	}
	return r.err
}

// keep moves input that TLS has not read from the loop's buffer to one of the connection's own.
func (r *rawConn) keep(b *buffers) {
	if r.in == nil {
		r.in = b.raw.get()
		r.rest = r.in[:copy(r.in[:], r.rest)]
	}
}

// drop frees the input buffer.
func (r *rawConn) drop(b *buffers) {
	if r.in != nil {
		b.raw.put(r.in)
		r.in, r.rest = nil, nil
	}
}

// flush writes as much of out as the socket accepts, or with block all of it. It reports whether
// all is written.
func (r *rawConn) flush(block bool) (bool, error) {
	if !block {
		r.mu.Lock()
		defer r.mu.Unlock()
		done, err := r.flushLocked()
		r.encrypting = !done // else its caller writes the rest
		return done, err
	}
	r.mu.Lock()
	p := r.out
	r.out, r.encrypting, r.blocked = nil, false, true
	r.mu.Unlock()
	_, err := r.Conn.Write(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = false
	if err != nil {
		return false, err
	}
	return len(r.out) == 0, nil // TLS may have written meanwhile
}

// maxOwn bounds what TLS has written on its own and the socket has not accepted: hundreds of
// answers to key updates, where one in hours is usual.
const maxOwn = 16 << 10

var errOwnOutput = errors.New("peer does not take what TLS answers")

// flushOwn writes what TLS has written during a read, unless a pending write includes it.
func (r *rawConn) flushOwn() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.out) == 0 || r.pending != nil || r.encrypting || r.blocked {
		return nil
	}
	done, err := r.flushLocked()
	if !done && err == nil && len(r.out) > maxOwn {
		return errOwnOutput
	}
	return err
}

// flushOr is flush without blocking. If some output is left, resume returns p after the rest.
func (r *rawConn) flushOr(p []byte) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.encrypting = false
	done, err := r.flushLocked()
	if !done && err == nil {
		r.pending = p // under the same mutex as the write: otherwise the socket's event could come before
	}
	return done, err
}

// resume continues a write. It returns flushOr's p when that write is complete or broken, else nil.
func (r *rawConn) resume() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	done, err := r.flushLocked() // TLS may have written on its own
	if r.pending == nil || !done && err == nil {
		return nil, nil
	}
	p := r.pending
	r.pending = nil
	return p, err
}

func (r *rawConn) flushLocked() (bool, error) {
	if len(r.out) == 0 || r.sys == nil {
		return len(r.out) == 0, nil
	}
	r.put, r.werr = 0, nil
	switch {
	case !r.owned:
		if err := r.sys.Write(r.writable); err != nil { //fairlead:boundary never waits: tryWrite returns true
			return false, err
		}
	case r.fd < 0:
		return false, net.ErrClosed
	default:
		r.tryWrite(uintptr(r.fd))
	}
	if r.werr != nil {
		return false, r.werr
	}
	if r.put < len(r.out) {
		r.out = append(r.out[:0], r.out[r.put:]...)
		return false, nil
	}
	r.spare.put(r.out) // a connection without output holds no buffer
	r.out = nil
	return true, nil
}
