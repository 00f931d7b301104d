package backend

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxResponseHeader is net/http's limit for servers: what a client of ours would accept, a backend may send.
	maxResponseHeader = 1 << 20
	// staleIdle is after how long without use a connection is closed. HTTP/1.1 does not tell whether a server that closes an idle connection has read the
	// request that was on its way, so a write must not go where the server may be about to close.
	staleIdle = 3 * time.Second
	// maxDialing bounds the dials under way to one endpoint: hundreds of handshakes at once, of a crowd whose server has died, would all take longer than dialTimeout.
	maxDialing = 16
)

// plain is net/http's pool of connections over HTTP/1.1 to one endpoint: for backends that speak nothing else, and for callers whom nobody has proven.
type plain struct {
	e         *endpoint
	transport *http.Transport
	dialing   chan struct{} // has an element for each dial under way

	mu      sync.Mutex // guards what follows
	failed  time.Time  // when the last dial failed
	failure error
}

// http1 returns the connections that may be used now. Nil: the endpoint is gone.
func (e *endpoint) http1() *plain {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.plain == nil && !e.removed {
		p := &plain{e: e, dialing: make(chan struct{}, maxDialing)}
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		p.transport = &http.Transport{
			DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
			DisableCompression:     true, // bodies are passed on as they are
			MaxResponseHeaderBytes: maxResponseHeader,
			MaxConnsPerHost:        e.up.target.maxConns,
			MaxIdleConnsPerHost:    e.up.target.maxConns,
			IdleConnTimeout:        staleIdle,
			Protocols:              &protocols,
		}
		e.plain = p
	}
	return e.plain
}

// retire has connections end with the requests that they carry.
func (p *plain) retire() {
	if p != nil {
		p.transport.CloseIdleConnections() // and those that become idle, as long as nobody asks for another
	}
}

// dial makes a connection, unless one has just failed. net/http has it done by a goroutine of its own, which goes on when the request is given up; those that wait here end
// with the dials before them.
func (p *plain) dial(ctx context.Context) (net.Conn, error) {
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
	c, err := u.dialOwned(ctx, p.e, "http/1.1")
	if err == nil || ctx.Err() == nil {
		p.mu.Lock()
		p.failed, p.failure = time.Now(), err
		p.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	expire(c.NetConn(), u.view.Load().pingTimeout)
	u.meter.connections.Add(1)
	u.owner.spawn(func() { p.watch(c) })
	return &pooled{Conn: c}, nil
}

// watch ends when the connection has.
func (p *plain) watch(c *Conn) {
	defer p.e.up.meter.connections.Add(-1)
	select {
	case <-c.closed:
		return
	case <-c.Drain:
	}
	p.e.forget(p)
	select {
	case <-c.closed:
		return
	case <-c.Cut:
	}
	if !c.long.Load() { // a request ends by itself
		select {
		case <-c.closed:
		case <-p.e.up.owner.ctx.Done():
		}
	}
	_ = c.Close() // what it could say helps nobody
}

// forget has the next request dial anew.
func (e *endpoint) forget(p *plain) {
	e.mu.Lock()
	if e.plain == p {
		e.plain = nil
	}
	e.mu.Unlock()
	p.retire()
}

// pooled is a connection that tells health when it has ended by itself: a process may have died.
type pooled struct{ *Conn }

func (c *pooled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !c.isClosed() && !errors.Is(err, context.Canceled) {
		c.ended.Do(func() {
			c.lease.e.lost()
			c.lease.e.up.target.signal(c.lease.e.address, errLost)
		})
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// watchBody ends cleanly when it is ended because its connection is no longer trusted, as when the server's own timeout has passed: the client watches anew, and has no
// error to report.
type watchBody struct {
	io.ReadCloser
	on *Conn
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.on != nil && b.on.isCut() {
		err = io.EOF
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}
