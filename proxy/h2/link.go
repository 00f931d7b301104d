package h2

import (
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/fairlead-proxy/fairlead/internal/spare"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// link is one connection, whose bytes its shard's loop moves.
type link struct {
	sh   *shard
	c    *engine.Conn
	tls  *tls.Conn
	info *ConnInfo // of a client's connection
	raw  *rawConn  // below tls

	gone   chan struct{} // closed by the loop when the connection has ended
	paused atomic.Bool   // the loop does not read: set by the loop, cleared under the shard's mutex

	// For the loop's goroutine only.
	seen    int    // the number of the last TLS record with application data
	idle    int    // records without application data that the engine has not charged yet
	closing bool   // the engine is closing the connection: further input need not be decrypted
	heads   int    // field blocks handled since the loop reset it
	rest    []byte // decrypted input that the engine left for the next turn
	at      int    // index in the loop's active, if the link is there
}

const plainBuffer = 64 << 10 // how much is decrypted before the engine is called: one turn for four full records

// newLink returns a link for a connection after its handshake. With an error, the connection is closed.
func (sh *shard) newLink(tc *tls.Conn) (*link, error) {
	raw := tc.NetConn().(*rawConn) //nolint:forcetypeassert // see Wrap
	if err := sh.loop.own(raw); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("taking a connection over: %w", err)
	}
	return &link{sh: sh, tls: tc, raw: raw, seen: raw.records, gone: make(chan struct{})}, nil
}

// discard closes a connection that came too late.
func (l *link) discard() {
	l.sh.loop.disown(l.raw)
	_ = l.raw.Conn.Close()
}

func linkOf(c *engine.Conn) *link { return c.Value.(*link) } //nolint:forcetypeassert // Serve and connect set it

// serve returns when the connection has ended. Then Close is for wrappers, and for tunnels, where it may wait.
func (l *link) serve() {
	l.sh.loop.watch(l)
	<-l.gone
	_ = l.raw.Conn.Close()
}

// turnRecords bounds the work of a turn. A buffer of ordinary input has about four records, one of the shortest records
// three thousand. Each record costs TLS as much as a frame costs the engine, and a key update ten times as much.
const turnRecords = 256

// decrypt decrypts what was read and passes it to the engine. If the turn ends before, some remains in rest, raw.rest.
func (l *link) decrypt(buf []byte) error {
	if len(l.rest) > 0 {
		if l.rest = l.take(l.rest); len(l.rest) > 0 {
			return nil
		}
	}
	for last := l.raw.records + turnRecords; !l.closing; {
		n, err := l.gather(buf, last)
		if n > 0 || l.c.Sealed != l.raw.sealed() {
			l.rest = slices.Clone(l.take(buf[:n])) // cloned at its size: many connections may wait
		}
		if err == nil || len(l.rest) > 0 { // an error of TLS comes again, after what came before it was handled
			err = l.raw.flushOwn()
		}
		if err != nil || n < len(buf) || len(l.rest) > 0 { // else TLS may hold decrypted input
			return err
		}
	}
	l.raw.rest = nil
	return nil
}

func (l *link) hasInput() bool { return len(l.raw.rest) > 0 || len(l.rest) > 0 }

// gather decrypts input, up to the last record of the turn or the end of buf.
func (l *link) gather(buf []byte, last int) (n int, err error) {
	for n < len(buf) {
		k, err := l.tls.Read(buf[n:]) //fairlead:boundary of what raw has, else errNoInput
		n += k
		// The records before the one that has brought k bytes were idle: TLS uses each up before the next.
		if k > 0 && l.raw.records > l.seen {
			l.idle += l.raw.records - l.seen - 1
			l.seen, l.raw.quiet = l.raw.records, 0
		}
		switch {
		case err == errNoInput: //nolint:errorlint // crypto/tls returns it as it is, and errors.As would allocate
			return n, nil
		case err != nil:
			return n, err
		case len(l.raw.rest) == 0, // the record was read to its end, and TLS has no other one
			l.raw.records > last:
			return n, nil
		}
	}
	return n, nil
}

// take passes input to the engine, and returns what it leaves for another turn. It pauses the link of a slow reader.
func (l *link) take(p []byte) []byte {
	l.sh.lock()
	defer l.sh.mu.Unlock() // the loop settles once for everything it has read
	l.c.Sealed = l.raw.sealed()
	l.sh.e.IdleRecords(l.c, l.idle)
	p = l.sh.e.Feed(l.c, p)
	l.idle, l.closing = 0, l.c.Closing()
	l.heads += l.c.Heads()
	if l.c.Over() {
		l.paused.Store(true)
	}
	return p
}

// write encrypts and writes output without blocking. It reports true if some is left, which the loop then writes.
func (l *link) write(p []byte) (bool, error) {
	l.raw.reserve(len(p))
	if err := l.encrypt(p); err != nil {
		return false, err
	}
	done, err := l.raw.flushOr(p)
	return !done && err == nil, err
}

// encrypt writes p. A backend gets records of whole frames, or of one longer frame alone: Tomcat
// loses its place if the rest of a frame comes with others (docs/evidence/interop.md).
func (l *link) encrypt(p []byte) error {
	for len(p) > 0 {
		n := len(p)
		if l.info == nil {
			n = wire.Whole(p, recordContent)
		}
		if _, err := l.tls.Write(p[:n]); err != nil { //fairlead:boundary into raw's buffer
			return err
		}
		p = p[n:]
	}
	return nil
}

// finishWrite ends a write. The shard's mutex must be held.
func (l *link) finishWrite(buf []byte, err error) {
	l.c.Wrote(buf, err)
	if !l.paused.Load() || l.c.Over() {
		return
	}
	l.paused.Store(false) // the loop reads it again
	l.raw.mu.Lock()
	defer l.raw.mu.Unlock()
	if fd := l.raw.fd; fd >= 0 {
		ev := &syscall.EpollEvent{Events: loopInterest, Fd: int32(fd)}
		_ = syscall.EpollCtl(l.sh.loop.fd, syscall.EPOLL_CTL_MOD, fd, ev)
	}
}

// shut closes the connection: at once if it is broken, else when the peer closes or the engine cuts it. If a socket
// with unread input is closed, the kernel sends a reset, which can destroy our GOAWAY in flight.
func (l *link) shut() {
	l.sh.mu.Lock()
	cut := l.c.Cut()
	l.sh.mu.Unlock()
	if cut {
		_ = l.raw.Close() //fairlead:boundary only shut down, see rawConn.Close
		return
	}
	_ = l.tls.CloseWrite() //fairlead:boundary into raw's buffer
	_ = l.raw.flushOwn()
	_ = l.raw.shutdown(syscall.SHUT_WR)
}

// buffers are free lists that all links share, of all shards.
type buffers struct {
	part sync.Pool     // of *partBytes
	out  spare.Buffers // for output
}

type partBytes [guestChunk]byte
