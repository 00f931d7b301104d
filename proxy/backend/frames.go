package backend

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// What the engine (proxy/h2) needs: it owns its connections itself.

// noEnd lets the watches of a connection that merely takes no new streams go on.
const noEnd = 365 * 24 * time.Hour

// Plan begins a request over HTTP/2: it is what the engine has to know of the backend.
func (u *Upstream) Plan() h2.Plan {
	u.budget.deposit()
	return h2.Plan{Forward: &u.frames, Retries: maxRetries, Wait: max(u.target.wait, 0), Budget: u.mayRetry}
}

// pick chooses an endpoint. Those that were tried are avoided.
func (u *Upstream) pick(tried []*h2.Endpoint) *h2.Endpoint {
	var avoid [maxRetries]Lease
	n := 0
	for _, t := range tried[:min(len(tried), len(avoid))] {
		if lease, ok := t.Value.(Lease); ok {
			avoid[n] = lease
			n++
		}
	}
	lease, ok := u.Pick(avoid[:n]...)
	if !ok {
		return nil
	}
	return lease.e.engine()
}

// engine is the endpoint as the engine knows it, with connections of its own or with its carrier's: when those are others, so is it.
func (e *endpoint) engine() *h2.Endpoint {
	var via *h2.Endpoint
	if c := e.via.Load(); c != nil {
		via = c.engine()
	}
	for {
		was := e.frames.Load()
		if was != nil && was.Via == via {
			return was
		}
		if next := e.newFrames(via); e.frames.CompareAndSwap(was, next) {
			return next
		}
	}
}

func (e *endpoint) newFrames(via *h2.Endpoint) *h2.Endpoint {
	u, lease := e.up, Lease{e}
	return &h2.Endpoint{
		Name: e.address, Via: via, Value: lease, Release: lease.Release, Lost: e.lost, PingTimeout: u.pingTimeout(),
		Failed: func(err error) { u.target.signal(e.address, err) },
	}
}

// Dial is h2.Config.Dial for an endpoint whose Value is l. The connection is retired when its time is over.
func (l Lease) Dial(ctx context.Context, ep *h2.Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error) {
	e, owner := l.e, l.e.up.owner
	conn, err := e.up.dialH2(ctx, e.address, wrap)
	if err != nil {
		return nil, err
	}
	owner.dialled.Store(conn.Conn, conn)
	go func() { // ends when the connection has ended
		select {
		case <-conn.closed:
			return
		case <-conn.Drain:
		}
		// From now on the endpoint is another one: whoever picks it dials anew.
		e.frames.CompareAndSwap(ep, nil)
		owner.serving().Retire(ep, noEnd)
		select {
		case <-conn.closed:
			return
		case <-conn.Cut:
		}
		owner.serving().Retire(ep, 0)
	}()
	return conn.Conn, nil
}

// Closed is h2.Config.Closed.
func (l Lease) Closed(c *tls.Conn) {
	if known, ok := l.e.up.owner.dialled.LoadAndDelete(c); ok {
		_ = known.(*Conn).Close() //nolint:forcetypeassert // nothing else is stored; it has ended already
	}
}

// Learn finds out whether HTTP/2 is spoken, if nobody knows yet: the first request to a backend makes one more
// handshake for it, and whoever comes meanwhile waits for that.
func (u *Upstream) Learn(ctx context.Context) error {
	if _, known := u.speaks(); known {
		return nil
	}
	asked := u.learning.DoChan("", func() (any, error) {
		c, f := u.dialAny(u.owner.ctx, u.target.protocols()...)
		if f != nil {
			return nil, f
		}
		return nil, c.Close()
	})
	select {
	case r := <-asked:
		if isError[*failure](r.Err) {
			return r.Err
		}
		return nil // closing may fail
	case <-ctx.Done():
		return &failure{kind: failContext, err: ctx.Err()}
	}
}

// HTTP2 reports whether this upstream is known to speak HTTP/2.
func (u *Upstream) HTTP2() bool {
	yes, _ := u.speaks()
	return yes
}

func (u *Upstream) speaks() (http2, known bool) {
	protocols := u.target.protocols()
	if len(protocols) == 1 {
		return protocols[0] == "h2", true
	}
	agreed := u.spoken().Load()
	return agreed == agreedHTTP2, agreed != 0
}

// spoken is what connections have come to: all that have a Backend know.
func (u *Upstream) spoken() *atomic.Int32 {
	if c := u.carrier.Load(); c != nil {
		return &c.agreed
	}
	return &u.agreed
}

// What the last connection's ALPN came to. The zero value is that there was none.
const (
	agreedHTTP2 int32 = iota + 1
	agreedHTTP1
)

// note keeps what a connection that had offered HTTP/2 has agreed to.
func (u *Upstream) note(protocol string) {
	agreed := agreedHTTP1
	if protocol == "h2" {
		agreed = agreedHTTP2
	}
	u.spoken().Store(agreed)
}

// pingTimeout is within how long a silent connection must be found dead.
func (u *Upstream) pingTimeout() time.Duration {
	if d := u.view.Load().pingTimeout; d > 0 {
		return d
	}
	return defaultPing
}

// allowRetry takes one try from the retry budget. It reports false when the budget is used up.
func (u *Upstream) allowRetry() bool {
	if u.budget.withdraw() {
		return true
	}
	u.meter.exhausted.Add(1)
	return false
}

// retried counts a try of the engine's after the first, by how the one before failed.
func (u *Upstream) retried(after h2.Reason) {
	switch after {
	case h2.ReasonDial:
		u.meter.retry(failDial)
	case h2.ReasonRefused:
		u.meter.retry(failRefused)
	case h2.ReasonLost, h2.ReasonReset:
		u.meter.retry(failLost)
	case h2.ReasonEjected:
		u.meter.retry(failEjected)
	}
}

// Observe tells health how long an endpoint took to answer a request that is not long-running. It never waits and does not allocate.
func (u *Upstream) Observe(address string, took time.Duration) {
	u.meter.phase(phaseFirstByte, took)
	u.target.observe(address, took)
}

// dialH2 returns a new HTTP/2 connection to one endpoint, on which nothing has been sent. wrap, if not nil, gets the TCP connection before TLS begins on it.
func (u *Upstream) dialH2(ctx context.Context, address string, wrap func(net.Conn) net.Conn) (*Conn, error) {
	u.mu.Lock()
	e := u.endpoints[address]
	u.mu.Unlock()
	if e == nil {
		return nil, &failure{kind: failDial, address: address, err: errGone}
	}
	conn, err := u.dialOwned(withWrap(ctx, wrap), e, "h2")
	if err != nil {
		if alert := alertOf(err); alert != nil && alert.Error() == textNoProtocol {
			u.note("http/1.1") // so that the next request goes where this is spoken
		}
		return nil, &failure{kind: dialKind(ctx), address: address, err: err}
	}
	return conn, nil
}

func dialKind(ctx context.Context) kind {
	if ctx.Err() != nil {
		return failContext
	}
	return failDial
}

type wrapKey struct{}

// withWrap has the TCP connection of a dial wrapped before TLS begins on it. Nil: as it is.
func withWrap(ctx context.Context, wrap func(net.Conn) net.Conn) context.Context {
	if wrap == nil {
		return ctx
	}
	return context.WithValue(ctx, wrapKey{}, wrap)
}

func wrapped(ctx context.Context, c net.Conn) net.Conn {
	if wrap, ok := ctx.Value(wrapKey{}).(func(net.Conn) net.Conn); ok {
		return wrap(c)
	}
	return c
}
