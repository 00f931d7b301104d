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

// rawConn stands between crypto/tls and a TCP connection. Until takeOver it is transparent. Afterwards TLS reads what the driver has
// read and writes into a buffer, so that neither blocks; the driver moves both sides with non-blocking system calls, many records at
// a time.
type rawConn struct {
	net.Conn                 // what was accepted or dialled: whoever wrapped the socket learns of its end by Close
	sock     socket          // below it; nil: only Conn may be read and written
	sys      syscall.RawConn // of sock; nil: reads and writes block
	async    atomic.Bool     // after takeOver; whoever closes a server may close the connection meanwhile
	early    []byte          // what rest is part of until takeOver
	rest     []byte          // read from the socket, not yet by TLS
	left     int             // bytes of the TLS record being passed on that are still to come, if its header is complete
	head     []byte          // the beginning of a record's header, if it is not
	hold     [recordHeader]byte

	records int // whose headers were passed on to TLS

	// For reading: what wait's callback is given and gives, here because a closure for each call would be allocated.
	readable func(fd uintptr) bool
	bufs     *buffers
	in       *rawBytes // what rest is part of
	got      int
	err      error

	mu       sync.Mutex // guards what follows, and is held while the socket is written without waiting
	spare    *output    // where out comes from
	out      []byte     // written by TLS, which also writes on its own (key update, alerts), not yet to the socket
	writable func(fd uintptr) bool
	put      int
	werr     error
	owned    bool   // by a loop: sock is closed, fd is what remains of it, and Conn is closed after fd
	fd       int    // changed by the loop alone; -1: closed
	pending  []byte // output of the engine of which out is the rest; nil: nobody waits for room
	sealing  bool   // output of the engine is on its way into out; who has brought it writes it
	blocked  bool   // a goroutine writes what was out, waiting for room: nobody else may write
}

// rawBuffer is what is read from a socket at once: four records, beyond which measurements showed little gain.
const rawBuffer = 64 << 10

// earlyBuffer is what is read from a socket at once before takeOver when a record begins: messages of a handshake are short.
const earlyBuffer = 2 << 10

const recordHeader = 5 // RFC 8446 §5.1

// wrapConn is what Config.Dial and Server.Listener wrap TCP connections in.
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

// socket is what has a descriptor: *net.TCPConn or *net.UnixConn.
type socket interface {
	syscall.Conn
	Close() error
	CloseWrite() error
}

// socketOf returns the socket that may be read and written in place of c: c itself, or what is below wrappers that say so. A connection that embeds a socket has its
// methods too, and may all the same change its bytes, or count them, or wait for Close.
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

// errNoInput is a temporary net.Error, which crypto/tls hands up without giving the connection up.
type errNoInput struct{}

func (errNoInput) Error() string   { return "no input yet" }
func (errNoInput) Timeout() bool   { return true }
func (errNoInput) Temporary() bool { return true }

// takeOver ends the time when reads and writes go straight to the connection. What was read too much stays in rest.
func (r *rawConn) takeOver(out *output) {
	r.early, r.spare = nil, out
	r.async.Store(true) // last: who sees it sees what is above
}

// Read gives TLS at most the rest of one record: so it never holds a record that it was not asked for, and when everything was read
// nobody has to ask it (which is an allocation) whether there is more. It does so from the first byte, because a client's first
// request may come with the end of its handshake.
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

// begin looks for a record's header at the start of rest.
func (r *rawConn) begin() {
	seen := len(r.head)
	r.head = append(r.head, r.rest[:min(recordHeader-seen, len(r.rest))]...)
	if len(r.head) == recordHeader {
		r.left = recordHeader - seen + int(binary.BigEndian.Uint16(r.head[3:]))
		r.records++
		r.head = r.hold[:0]
	}
}

// Close closes the connection. An owned one is only shut down: its loop then sees the end and closes it.
func (r *rawConn) Close() error {
	r.mu.Lock()
	owned := r.owned
	r.mu.Unlock()
	if owned {
		return r.shutdown(syscall.SHUT_RDWR)
	}
	return r.Conn.Close()
}

// closeWrite tells the peer that nothing more comes.
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

// SetWriteDeadline does nothing once TLS writes into a buffer: it sets one in the past after its last alert, which would be lost then.
func (r *rawConn) SetWriteDeadline(t time.Time) error {
	if r.async.Load() {
		return nil
	}
	return r.Conn.SetWriteDeadline(t)
}

// reserve makes room for what TLS will make of n bytes: growing record by record would leave as much garbage behind.
func (r *rawConn) reserve(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealing = true
	if r.out == nil {
		r.out = r.spare.get()
	}
	r.out = slices.Grow(r.out, n+(n/recordContent+1)*recordOverhead)
}

// The most that a record holds, and what it is longer by than its content: header, content type and the tag of AES-GCM or ChaCha20-Poly1305 (RFC 8446 §5).
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

// fill waits for input and reads what is there. The buffer is only held while there is something in it.
func (r *rawConn) fill(b *buffers) error {
	r.drop(b)
	r.bufs, r.got, r.err = b, 0, nil
	if r.sys == nil {
		r.in = b.getRaw()
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

// keep moves what was not read by TLS yet from the loop's buffer to one of the connection's own.
func (r *rawConn) keep(b *buffers) {
	if r.in == nil {
		r.in = b.getRaw()
		r.rest = r.in[:copy(r.in[:], r.rest)]
	}
}

// drop gives the buffer back.
func (r *rawConn) drop(b *buffers) {
	if r.in != nil {
		b.putRaw(r.in)
		r.in, r.rest = nil, nil
	}
}

// flush writes what TLS has written, as far as the socket takes it (block: all of it). false: some is left.
func (r *rawConn) flush(block bool) (bool, error) {
	if !block {
		r.mu.Lock()
		defer r.mu.Unlock()
		done, err := r.flushLocked()
		r.sealing = !done // then somebody comes to write the rest
		return done, err
	}
	r.mu.Lock()
	p := r.out
	r.out, r.sealing, r.blocked = nil, false, true
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

// maxOwn is what TLS may have written on its own and the socket not taken: hundreds of answers to key updates, one of which is usual in hours.
const maxOwn = 16 << 10

var errOwnOutput = errors.New("peer does not take what TLS answers")

// flushOwn writes what TLS has written while it read, if nobody waits for room who will write it.
func (r *rawConn) flushOwn() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.out) == 0 || r.pending != nil || r.sealing || r.blocked {
		return nil
	}
	done, err := r.flushLocked()
	if !done && err == nil && len(r.out) > maxOwn {
		return errOwnOutput
	}
	return err
}

// flushOr is flush without waiting; if some is left, p is what resume returns when the rest was written.
func (r *rawConn) flushOr(p []byte) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealing = false
	done, err := r.flushLocked()
	if !done && err == nil {
		r.pending = p // under the same mutex as the write: else the event that there is room could come before
	}
	return done, err
}

// resume goes on writing. It returns what flushOr was given if that is done or broken now, else nil.
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
		if err := r.sys.Write(r.writable); err != nil {
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
