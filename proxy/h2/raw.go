package h2

import (
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/internal/spare"
)

// rawConn is the connection between crypto/tls and TCP. It counts TLS records. Until a loop owns it
// (loop.own), or if none does, it is transparent. Then TLS reads what the loop has read, and writes
// into a buffer, so neither blocks, and the loop reads and writes many records at a time.
type rawConn struct {
	net.Conn        // as accepted or dialled: its Close is called at the end, for wrappers
	sock     socket // below Conn; nil means that only Conn may be read and written
	// owned means that a loop owns the connection: sock is closed, fd is its duplicate, Conn closes
	// after fd. It is atomic because Close may run concurrently.
	owned atomic.Bool
	early []byte // rest's buffer until then
	rest  []byte // read from the socket, not yet by TLS
	left  int    // remaining bytes of the current TLS record, if its header is complete
	head  [recordHeader]byte
	seen  int // bytes in head, the beginning of a record's header

	records int // number of records whose headers were passed to TLS
	quiet   int // bytes that were passed since TLS last returned content, see Quiet
	most    int // the bound of quiet; zero means none

	mu         sync.Mutex     // guards the following fields, and is held during non-blocking writes to the socket
	out        []byte         // what TLS has written, also on its own (key updates, alerts), not yet to the socket
	sent       int            // how much of out, less than half, the socket has accepted all the same
	spare      *spare.Buffers // out's free list
	fd         int            // changed only by the loop; -1 means closed
	pending    []byte         // engine output whose rest is in out; nil means that none waits for the socket
	encrypting bool           // engine output is being encrypted into out; its writer will write out
}

const (
	rawBuffer    = 64 << 10 // how much is read from a socket at once: four records; more gained little
	earlyBuffer  = 2 << 10  // the same before a loop owns the connection: handshake messages are short
	recordHeader = 5        // RFC 8446 §5.1
	maxQuiet     = 64 << 10 // TLS would collect a message of 256 KiB after the handshake. Servers' tickets are short
)

// Wrap returns the connection to put below TLS: a Server serves no other. One that wraps another without changing its
// bytes should have a method Wraps() net.Conn: then the engine uses the socket itself, and closes the wrapper after it.
func Wrap(c net.Conn) net.Conn { return &rawConn{Conn: c, fd: -1, sock: socketOf(c)} }

// socket is a connection with a descriptor: *net.TCPConn or *net.UnixConn.
type socket interface {
	syscall.Conn
	Close() error
}

// socketOf returns the socket that may be read and written instead of c: c itself, or what is below wrappers with a
// method Wraps. One that embeds a socket has its methods too, but may change its bytes, count them, or wait for Close.
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
var errNoInput = os.ErrDeadlineExceeded

// Quiet must be called before each Read, after the handshake, of a connection that no Server serves: if TLS finds no
// content in so many bytes, the Read fails. Zero means as many as a Server lets pass.
func Quiet(c *tls.Conn, most int) {
	r := c.NetConn().(*rawConn) //nolint:forcetypeassert // see Wrap
	r.quiet, r.most = 0, cmp.Or(most, maxQuiet)
}

// Read returns at most the rest of one record: TLS never holds one that was not requested, and need not be called
// again, which allocates, to learn that there is no more. A first request may come with the handshake.
func (r *rawConn) Read(p []byte) (int, error) {
	if r.most > 0 && r.quiet > r.most {
		return 0, errQuiet
	}
	if len(r.rest) == 0 {
		switch {
		case r.owned.Load():
			return 0, errNoInput
		case r.left > 0:
			n, err := r.Conn.Read(p[:min(len(p), r.left)])
			r.left, r.quiet = r.left-n, r.quiet+n
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
	if r.left == 0 { // a record's header begins, or goes on
		n := copy(r.head[r.seen:], r.rest)
		if r.seen += n; r.seen == recordHeader {
			r.left, r.seen = n+int(binary.BigEndian.Uint16(r.head[3:])), 0
			r.records++
		}
	}
	n := min(len(p), len(r.rest))
	if r.left > 0 {
		n = min(n, r.left)
		r.left -= n
	}
	copy(p, r.rest[:n])
	r.rest = r.rest[n:]
	r.quiet += n
	return n, nil
}

// sealed returns how many bytes have become no content: those that TLS has not read, a part of a record or message.
func (r *rawConn) sealed() int { return len(r.rest) + r.quiet }

func (r *rawConn) NetConn() net.Conn { return r.Conn }

// Close closes the connection. An owned connection is only shut down: its loop then closes it.
func (r *rawConn) Close() error {
	if r.owned.Load() {
		return r.shutdown(syscall.SHUT_RDWR)
	}
	return r.Conn.Close()
}

// SetWriteDeadline does nothing to an owned connection: TLS sets one in the past after its last alert, which is lost.
func (r *rawConn) SetWriteDeadline(t time.Time) error {
	if r.owned.Load() {
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
		r.out = r.spare.Get()
	}
	r.out = slices.Grow(r.out, n+2*(n/recordContent+1)*recordOverhead) // a full frame takes two records
}

// These are a record's maximal content, and its overhead: header, content type and tag (RFC 8446 §5).
const (
	recordContent  = 16 << 10
	recordOverhead = recordHeader + 1 + 16
)

func (r *rawConn) Write(p []byte) (int, error) {
	if !r.owned.Load() {
		return r.Conn.Write(p)
	}
	r.mu.Lock()
	r.out = append(r.out, p...)
	r.mu.Unlock()
	return len(p), nil
}

// maxOwn bounds what TLS has written on its own and the socket has not accepted: hundreds of answers to key updates.
const maxOwn = 16 << 10

var errOwnOutput = errors.New("peer does not take what TLS answers")
var errQuiet = errors.New("peer sends messages of TLS without content")

// flushOwn writes what TLS has written during a read, unless a pending write includes it.
func (r *rawConn) flushOwn() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil && !r.encrypting {
		if _, err := r.flushLocked(); err != nil {
			return err
		}
	}
	if !r.encrypting && len(r.out)-r.sent > maxOwn+2*len(r.pending) { // whose records are hardly longer
		return errOwnOutput
	}
	return nil
}

// flushOr writes of out what the socket accepts. It reports whether that is all; if not, resume returns p after it.
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

// flushLocked writes what the socket accepts at once. It reports whether that is all. The rest is moved when it is half
// of out: after each small part that a slow reader takes, moving would take the square of what waits.
func (r *rawConn) flushLocked() (bool, error) {
	if len(r.out) == 0 {
		return true, nil
	}
	if r.fd < 0 {
		return false, net.ErrClosed
	}
	for r.sent < len(r.out) {
		n, err := sysWrite(r.fd, r.out[r.sent:])
		switch {
		case err == nil:
			r.sent += n
		case errors.Is(err, syscall.EAGAIN):
			if 2*r.sent >= len(r.out) {
				r.out, r.sent = append(r.out[:0], r.out[r.sent:]...), 0
			}
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			r.out, r.sent = nil, 0 // flushOwn does not try again: there may be input
			return false, err
		}
	}
	r.spare.Put(r.out) // a connection without output holds no buffer
	r.out, r.sent = nil, 0
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

// taken is engine.Config.Taken. What our own socket accepts says little, since it buffers megabytes. A peer whose
// window is full is asked again and again, and its kernel answers for a stopped process.
func (r *rawConn) taken() (n uint64, sent bool, silence time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock() // so that fd is not closed meanwhile
	// This is asked at ticks, of peers that have not read all.
	r.out, r.pending = r.spare.Fit(r.out), r.spare.Fit(r.pending)
	info, err := unix.GetsockoptTCPInfo(r.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil { // it is closed, or no TCP
		return 0, true, 0
	}
	return info.Bytes_acked, info.Notsent_bytes == 0, time.Duration(info.Last_ack_recv) * time.Millisecond
}
