package backend

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection that its caller must close.
type Conn struct {
	*tls.Conn
	// Drain is closed when the connection must take no new stream: the endpoint is gone, the trust
	// has ended, or our certificate has changed.
	Drain <-chan struct{}
	// Cut is closed when watches must end, too: at most 5 s after the end of the trust.
	Cut <-chan struct{}

	lease  Lease // what it was dialed for; upgraded connections hold it
	held   bool
	closed chan struct{}
	once   sync.Once
	ended  sync.Once   // by itself
	long   atomic.Bool // carries a long-running request over HTTP/1.1
	last   atomic.Bool // carries a response over HTTP/1.1 after which the server closes it
}

func (c *Conn) isClosed() bool { return isOver(c.closed) }
func (c *Conn) isCut() bool    { return isOver(c.Cut) }

func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
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
		if c.held {
			c.lease.Release()
		}
	})
	return c.Conn.Close() //nolint:wrapcheck // nothing to add
}

// DialUpgrade returns a new HTTP/1.1 connection for an upgrade request. The caller must close it
// when its session has ended; it closes itself on Cut. If an endpoint cannot be reached, the next
// one is tried: nothing has been sent.
func (u *Upstream) DialUpgrade(ctx context.Context) (*Conn, error) {
	c, f := u.dialAny(ctx, "http/1.1")
	if f != nil {
		return nil, f
	}
	return c, nil
}

// dialAny dials one endpoint after the other until a dial succeeds.
func (u *Upstream) dialAny(ctx context.Context, protocols ...string) (conn *Conn, f *failure) {
	c := &call{u: u}
	f = c.run(ctx, func(l Lease) *failure {
		within, cancel := context.WithTimeout(ctx, c.patience(l))
		defer cancel()
		var err error
		if conn, err = u.dialOwned(within, l.e, protocols...); err != nil {
			return &failure{kind: dialKind(ctx), address: l.e.address, err: err}
		}
		return nil
	})
	if f != nil {
		return nil, f
	}
	conn.held = true
	u.shared.spawn(func() {
		select {
		case <-conn.Cut:
			_ = conn.Close() // its session must end
		case <-conn.closed:
		}
	})
	return conn, nil
}

// dialOwned dials a connection and watches it until it is closed.
func (u *Upstream) dialOwned(ctx context.Context, e *endpoint, protocols ...string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(e.gone, cancel)() //nolint:contextcheck // it only ends ctx
	e.mu.Lock()
	changed := e.changed
	e.mu.Unlock()
	if e.gone.Err() != nil {
		return nil, &dialError{dialConnect, errGone}
	}
	e.suspicion.dialStarted()
	tc, err := u.dialTLS(ctx, e.address, protocols)
	if err != nil {
		if ctx.Err() == context.Canceled {
			e.suspicion.dialCanceled()
		} else {
			e.suspicion.dialFailed()
		}
		return nil, err
	}
	e.suspicion.dialSucceeded()
	lost, release := u.target.guard(tc.ConnectionState().PeerCertificates)
	drain, cut := make(chan struct{}), make(chan struct{})
	c := &Conn{Conn: tc, Drain: drain, Cut: cut, closed: make(chan struct{}), lease: Lease{e}}
	u.shared.spawn(func() {
		defer release()
		u.shared.watch(c.closed, changed, lost, drain, cut)
	})
	return c, nil
}

// watch closes drain and cut when their time has come. It returns when the connection is closed.
func (o *shared) watch(closed, changed, lost <-chan struct{}, drain, cut chan<- struct{}) {
	select {
	case <-closed:
		return
	case <-changed:
		close(drain)
		select {
		case <-closed:
			return
		case <-lost:
		case <-o.ctx.Done():
		}
	case <-lost:
		close(drain)
	case <-o.ctx.Done():
		close(drain)
	}
	select {
	case <-closed:
	case <-time.After(watchGrace):
		close(cut)
	case <-o.ctx.Done():
		close(cut)
	}
}
