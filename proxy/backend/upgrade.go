package backend

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection that its caller must close.
type Conn struct {
	*tls.Conn
	how    dialing
	lease  Lease // what it was dialled for; upgraded connections hold it
	closed chan struct{}
	once   sync.Once
	ended  sync.Once   // by itself
	isCut  atomic.Bool // its watches had to end
	long   atomic.Bool // carries a long-running request over HTTP/1.1
	last   atomic.Bool // carries a response over HTTP/1.1 after which the server closes it
}

// dialing says how to make a connection, and what happens to it.
type dialing struct {
	// protocols are offered by ALPN.
	protocols []string
	// wrap wraps the TCP connection before TLS. Nil means no wrapping.
	wrap func(net.Conn) net.Conn
	// drain is called when the connection must take no new stream: the endpoint is gone, the trust
	// has ended, or our certificate has changed. Nil means no callback.
	drain func()
	// cut is called when watches must end, too: at most 5 s after the end of the trust, and when
	// Run ends.
	cut func(*Conn)
	// closed is called once when the connection is closed. Nil means no callback.
	closed func(*Conn)
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Address returns the address of the endpoint.
func (c *Conn) Address() string { return c.lease.Address() }

// Failed returns the error of a request that was sent on the connection, and got no response head
// because of err: ErrUnanswered if the connection has ended, otherwise ErrBadResponse.
func (c *Conn) Failed(err error) error {
	k := failBad
	if isConnectionError(err) {
		k = failLost
	}
	return &failure{kind: k, address: c.Address(), err: err}
}

// Close closes the connection and ends the goroutines that watch it.
func (c *Conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		if c.how.closed != nil {
			c.how.closed(c)
		}
	})
	return c.Conn.Close() //nolint:wrapcheck // nothing to add
}

// DialUpgrade returns a new HTTP/1.1 connection for an upgrade request. The caller must close it
// when its session has ended; it closes itself when its trust has ended. If an endpoint cannot be
// reached, the next one is tried: nothing has been sent.
func (u *Upstream) DialUpgrade(ctx context.Context, by *Stay) (*Conn, error) {
	c, f := u.dialAny(ctx, by, "http/1.1")
	if f != nil {
		return nil, f
	}
	return c, nil
}

// dialAny dials one endpoint after the other until a dial succeeds.
func (u *Upstream) dialAny(ctx context.Context, by *Stay, protocols ...string) (conn *Conn, f *failure) {
	c, how := &call{u: u, by: by}, dialing{
		protocols: protocols,
		cut:       func(c *Conn) { _ = c.Close() }, // its session must end
		closed:    func(c *Conn) { c.lease.Release() },
	}
	f = c.run(ctx, func(l Lease) *failure {
		within, cancel := context.WithTimeout(ctx, c.patience(l))
		defer cancel()
		var err error
		if conn, err = u.dialOwned(within, l.e, how); err != nil {
			return &failure{kind: dialKind(ctx), address: l.e.address, err: err}
		}
		return nil
	})
	return conn, f
}

// dialOwned dials a connection and watches it until it is closed.
func (u *Upstream) dialOwned(ctx context.Context, e *endpoint, how dialing) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(e.gone, cancel)() //nolint:contextcheck // it only ends ctx
	e.mu.Lock()
	changed := e.changed
	e.mu.Unlock()
	if e.gone.Err() != nil {
		return nil, &dialError{dialConnect, errGone}
	}
	e.suspicion.dialing.CompareAndSwap(0, time.Now().UnixNano())
	tc, err := u.dialTLS(ctx, e.address, &how)
	e.suspicion.dialing.Store(0)
	if err != nil {
		if ctx.Err() != context.Canceled { // else it says nothing about the endpoint
			e.suspicion.failed.Store(time.Now().UnixNano())
		}
		return nil, err
	}
	e.suspicion.failed.Store(0)
	lost, release := u.target.guard(tc.ConnectionState().PeerCertificates)
	c := &Conn{Conn: tc, how: how, closed: make(chan struct{}), lease: Lease{e}}
	u.shared.spawn(func() {
		defer release()
		c.watch(changed, lost, u.shared.ctx.Done())
	})
	return c, nil
}

// watch drains and cuts the connection when its time has come. It returns when the connection is
// closed, or stop is.
func (c *Conn) watch(changed, lost, stop <-chan struct{}) {
	select {
	case <-c.closed:
		return
	case <-changed:
	case <-lost:
		changed = nil
	case <-stop:
	}
	if c.how.drain != nil {
		c.how.drain()
	}
	if changed != nil { // still trusted
		select {
		case <-c.closed:
			return
		case <-lost:
		case <-stop:
		}
	}
	select {
	case <-c.closed:
		return
	case <-time.After(watchGrace):
		c.isCut.Store(true)
		c.how.cut(c)
	case <-stop:
	}
	select {
	case <-c.closed:
	case <-stop:
		c.isCut.Store(true)
		c.how.cut(c)
	}
}
