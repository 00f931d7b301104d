package backend

import (
	"context"
	"net"
	"time"
)

// What the frame lane (proxy/h2) needs besides Pick and Acquire: it owns its connections itself.

// Learn finds out whether HTTP/2 is spoken, if nobody knows yet: the first request to a backend makes one more
// handshake for it, and whoever comes meanwhile waits for that.
func (u *Upstream) Learn(ctx context.Context) error {
	if _, known := u.speaks(); known {
		return nil
	}
	asked := u.learning.DoChan("", func() (any, error) { //nolint:contextcheck // many wait for it
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
	agreed := u.agreed.Load()
	if c := u.carrier.Load(); c != nil && c.agreed.Load() != 0 {
		agreed = c.agreed.Load() // who shares connections shares what they have come to
	}
	return agreed == agreedHTTP2, agreed != 0
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
	u.agreed.Store(agreed)
	if c := u.carrier.Load(); c != nil {
		c.agreed.Store(agreed)
	}
}

// PingTimeout is within how long a silent connection must be found dead.
func (u *Upstream) PingTimeout() time.Duration {
	if d := u.view.Load().pingTimeout; d > 0 {
		return d
	}
	return defaultPing
}

// Wait is for how long a request waits when none of the endpoints can be dialled. Zero: not at all.
func (u *Upstream) Wait() time.Duration { return max(u.target.wait, 0) }

// CountRequest earns the retry budget its share of a request.
func (u *Upstream) CountRequest() { u.budget.deposit() }

// AllowRetry takes one try from the retry budget. It reports false when the budget is used up.
func (u *Upstream) AllowRetry() bool {
	if u.budget.withdraw() {
		return true
	}
	u.meter.exhausted.Add(1)
	return false
}

// Retried counts a try after the first that the lane makes, by how the one before failed.
func (u *Upstream) Retried(after string) {
	if after == "reset" {
		after = failLost.String()
	}
	for k := range u.meter.retries {
		if kind(k).String() == after {
			u.meter.retry(kind(k))
		}
	}
}

// Signal tells health that an endpoint failed on a connection that the caller owns.
func (u *Upstream) Signal(address string, err error) { u.target.signal(address, err) }

// Observe tells health how long an endpoint took to answer a request that is not long-running on a connection that the caller owns. It never waits and does not allocate.
func (u *Upstream) Observe(address string, took time.Duration) {
	u.meter.phase(phaseFirstByte, took)
	u.target.observe(address, took)
}

// Ejected reports whether an endpoint is unhealthy while others are not: requests that it holds up should go elsewhere. next is closed when it may have become so; then
// ask again. A nil next: there is no such endpoint.
func (u *Upstream) Ejected(address string) (next <-chan struct{}, out bool) {
	u.mu.Lock()
	e := u.endpoints[address]
	u.mu.Unlock()
	if e == nil {
		return nil, false
	}
	verdict, out := e.state()
	return verdict.Done(), out
}

// DialH2 returns a new HTTP/2 connection to one endpoint, on which nothing has been sent. wrap, if not nil, gets the TCP connection before TLS begins on it.
func (u *Upstream) DialH2(ctx context.Context, address string, wrap func(net.Conn) net.Conn) (*Conn, error) {
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
