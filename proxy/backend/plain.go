package backend

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// staleIdle closes a connection that was idle for so long. If an HTTP/1.1 server closes an idle connection, nobody
	// knows whether it has read a request just sent, or died. Of usual servers gunicorn does so first, after 2 s.
	staleIdle = 1500 * time.Millisecond
	// expectTimeout is how long a request waits for 100 Continue: the local apiserver may have to ask a webhook first.
	expectTimeout = 10 * time.Second
	// maxDialing limits concurrent dials to an endpoint: after a server died, hundreds would all exceed dialTimeout.
	maxDialing = 16
	hungTime   = 10 * time.Second // how long a long-running request must be quiet to end when its endpoint is hung
	// quickBody is the longest body that surely fits into a server's window. The kernel does not distinguish a server
	// that is gone from one that does not read: a longer body is limited by its request's deadline only.
	quickBody = 32 << 10
)

// plain is net/http's pool of HTTP/1.1 connections to an endpoint: of backends without HTTP/2, and for PoolUnproven.
type plain struct {
	e         *endpoint
	transport *http.Transport
	dialing   chan struct{} // one element for each dial in progress

	mu      sync.Mutex // guards the fields below
	failed  time.Time  // when the last dial failed
	failure error
}

// http1 returns the endpoint's current pool. Nil means that the endpoint is gone.
func (e *endpoint) http1() *plain {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plain == nil && e.gone.Err() == nil {
		p := &plain{e: e, dialing: make(chan struct{}, maxDialing)}
		p.transport = &http.Transport{
			DialTLSContext:         p.dial, // so no HTTP/2
			DisableCompression:     true,   // bodies are passed on unchanged
			ExpectContinueTimeout:  expectTimeout,
			MaxResponseHeaderBytes: http.DefaultMaxHeaderBytes, // as of requests
			MaxConnsPerHost:        e.up.target.maxConns,
			MaxIdleConnsPerHost:    e.up.target.maxConns,
			IdleConnTimeout:        staleIdle,
		}
		e.plain = p
	}
	return e.plain
}

// retire closes connections when their requests have ended.
func (p *plain) retire() {
	if p != nil {
		// Also closes those that become idle later. TLS says farewell, which may wait, and Pools.mu is held.
		p.e.up.shared.spawn(p.transport.CloseIdleConnections)
	}
}

// dial makes a connection, unless a dial has just failed. net/http calls it on a goroutine that
// continues when the request is canceled; a waiting one ends with the dials before it.
func (p *plain) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.dialing <- struct{}{}
	defer func() { <-p.dialing }()
	p.mu.Lock()
	err := p.failure
	recent := err != nil && time.Since(p.failed) < dialPause
	p.mu.Unlock()
	if recent {
		return nil, err
	}
	u := p.e.up
	c, err := u.dialOwned(ctx, p.e, dialing{
		protocols: []string{"http/1.1"},
		drain: func() { // so that the next request dials a new connection
			p.e.mu.Lock()
			if p.e.plain == p {
				p.e.plain = nil
			}
			p.e.mu.Unlock()
			p.retire()
		},
		cut: func(c *Conn) {
			if c.long.Load() || u.shared.ctx.Err() != nil { // else its request ends by itself
				_ = c.Close() // the error does not matter
			}
		},
		closed: func(*Conn) { u.meter.connections.Add(-1) },
	})
	if err == nil || ctx.Err() == nil {
		p.mu.Lock()
		p.failed, p.failure = time.Now(), err
		p.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	expire(c.socket, u.pingTimeout())
	u.meter.connections.Add(1)
	return &pooled{Conn: c}, nil
}

// expire makes the kernel end a connection whose peer has not acknowledged anything for about ping. HTTP/1.1 has no
// ping, some servers count those of HTTP/2, and a request to a host that is gone would wait until its timeout.
func expire(c net.Conn, ping time.Duration) {
	limitUnacked(c, ping)
	if tcp, ok := c.(*net.TCPConn); ok {
		// The first probe is after two fifths of the time, then three more: by default 2 s and 3 × 1 s.
		// The kernel counts in seconds. An error means that the connection is closed.
		idle, interval := max(ping*2/5, time.Second), max(ping/5, time.Second)
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: idle, Interval: interval, Count: 3})
	}
}

// limitUnacked limits how long the peer may leave output unacknowledged, or unread beyond its window (RFC 5482). Zero
// means the kernel's default, which is long and allows a peer not to read. An error: the connection is closed.
func limitUnacked(c net.Conn, most time.Duration) {
	if tcp, ok := c.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(most.Milliseconds()))
			})
		}
	}
}

// pooled signals health if the connection ends by itself, since the server may have died. A response may end so: its
// handler has given up, or it is HTTP/1.0. A watch may only if its head says so: else the server probably stops. So
// does a local apiserver that closes an idle connection. Others may close those soon, or at once: they are only probed.
type pooled struct {
	*Conn
	paused bool        // the server may pause while it reads a body
	begun  bool        // a part of the request was sent
	broken atomic.Bool // the rest was not, see Write
}

// use prepares the connection for a request. Requests do not overlap.
func (c *pooled) use(by *call) {
	n, long := by.req.ContentLength, by.long
	c.busy.Store(by)
	c.begins.Store(true)
	c.begun = false
	if c.long.Store(long); long {
		_ = c.SetReadDeadline(time.Now().Add(hungTime)) // net/http reads already
	}
	if paused := n < 0 || n > quickBody; paused != c.paused {
		c.paused = paused
		limit := c.at.up.pingTimeout()
		if paused {
			limit = 0
		}
		limitUnacked(c.socket, limit)
	}
}

// Write tells late that the server has closed the connection after a part of the request: it may have answered, with
// 413 or 431, before it read all, and net/http closes it at the error, as after the answer or the end.
func (c *pooled) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && (c.begun || n > 0) {
		c.broken.Store(true)
		<-c.closed.Done()
	}
	c.begun = true
	return n, err //nolint:wrapcheck // from the wrapped connection
}

func (c *pooled) Read(p []byte) (n int, err error) {
	for again := true; again; {
		if c.long.Load() {
			_ = c.SetReadDeadline(time.Now().Add(hungTime))
		}
		n, err = c.Conn.Read(p)
		if again = errors.Is(err, os.ErrDeadlineExceeded); again {
			if _ = c.SetReadDeadline(time.Time{}); c.long.Load() && c.at.hung.Load() {
				c.isCut.Store(true)
				return 0, net.ErrClosed
			}
		}
	}
	if err == io.EOF && c.broken.Load() { //nolint:errorlint // crypto/tls does not wrap it
		err = io.ErrUnexpectedEOF // not the end of a body without a length
	}
	//nolint:errorlint // nobody wraps them
	within := err == errHugeHead || err == io.EOF && (c.last.Load() || n > 0 && !c.long.Load())
	if err != nil && !within && c.closed.Err() == nil && !errors.Is(err, context.Canceled) {
		c.ended.Do(func() { c.at.failed(errors.Join(errLost, err), c.busy.Load() == nil && c.at.server == nil) })
	}
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}
