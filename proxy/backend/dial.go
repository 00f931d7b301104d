package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// dialPhases makes one connection: resolve, connect, handshake.
func (u *Upstream) dialPhases(ctx context.Context, address string, how *dialing) (*tls.Conn, *dialError) {
	cfg, err := u.target.tls()
	if err != nil {
		return nil, &dialError{dialTrust, err}
	}
	cfg.NextProtos = slices.Clone(how.protocols)
	start := time.Now()
	var resolved atomic.Pointer[time.Time] // several dials may look up an egress proxy's name after the server's own
	raw, err := u.target.dial(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSDone: func(httptrace.DNSDoneInfo) { resolved.CompareAndSwap(nil, new(time.Now())) },
	}), "tcp", address)
	if err != nil {
		if _, ok := errors.AsType[*net.DNSError](err); ok {
			return nil, &dialError{dialResolve, err}
		}
		return nil, &dialError{dialConnect, err}
	}
	if at := resolved.Load(); at != nil {
		u.dialMeter().histograms[phaseResolve].observe(at.Sub(start))
		start = *at
	}
	u.dialMeter().histograms[phaseConnect].observe(time.Since(start))
	multiplexed := slices.Contains(how.protocols, "h2")
	if multiplexed {
		expire(raw, u.pingTimeout()) // the engine asks only rarely whether a quiet server still runs
	}
	start = time.Now()
	c, err := reach.Handshake(ctx, h2.Wrap(raw), address, cfg, u.shared.log)
	if err != nil {
		return nil, &dialError{dialTLS, err}
	}
	u.dialMeter().histograms[phaseTLS].observe(time.Since(start))
	agreed := c.ConnectionState().NegotiatedProtocol // one of them, or none
	if multiplexed {
		u.agreement().Store(&agreed)
	}
	if agreed == "" && !slices.Contains(how.protocols, "http/1.1") {
		_ = raw.Close()
		return nil, &dialError{dialTLS, fmt.Errorf("the server agreed to no protocol, want one of %q", how.protocols)}
	}
	return c, nil
}

// Conn is a connection that its caller must close.
type Conn struct {
	*tls.Conn
	socket net.Conn
	how    dialing
	at     *endpoint       // where it was dialled; upgraded connections have taken it
	closed context.Context // canceled by Close
	end    context.CancelFunc
	once   sync.Once
	ended  sync.Once            // by itself
	isCut  atomic.Bool          // its watches had to end
	long   atomic.Bool          // carries a long-running request over HTTP/1.1
	last   atomic.Bool          // carries a response over HTTP/1.1, and may be closed with it
	busy   atomic.Pointer[call] // whose request it carries over HTTP/1.1, or the response

	// The heads of answers over HTTP/1.1 are counted before net/http has read them: it makes a map of all names.
	begins atomic.Bool   // the next bytes begin an answer
	head   wire.TextHead // for the reader, as inHead
	inHead bool
	held   atomic.Int64 // what is counted of head
}

// count counts n bytes for what has come of a head. It reports false if there is no room for them.
func (c *Conn) count(n int64) bool {
	memory := c.at.up.shared.memory
	if !memory.Hold(n, hold.Head) {
		return false
	}
	if memory.Add(-c.held.Swap(n)); c.closed.Err() != nil {
		memory.Add(-c.held.Swap(0))
	}
	return true
}

// Read counts the heads of answers. Interim heads are followed by another.
func (c *Conn) Read(p []byte) (int, error) {
	h2.Quiet(c.Conn, 0)
	n, err := c.Conn.Read(p)
	if c.begins.Swap(false) {
		c.head, c.inHead = wire.TextHead{}, true
	}
	for rest := p[:n]; c.inHead && len(rest) > 0; {
		k, ended := c.head.Read(rest)
		if rest = rest[k:]; ended {
			c.inHead, c.head = c.head.Interim, wire.TextHead{}
		}
	}
	now, held := c.head.Answer(), c.held.Load()
	if c.inHead {
		now = max(now, held) // an interim head, too, may be on its way to the client
	}
	if err == nil && (c.head.Over() || now != held && !c.count(now)) {
		// No part of a line, which could pass for a whole one; without bytes net/http would send the request again.
		p[0] = 0
		return 1, errHugeHead
	}
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}

// dialing says how to make a connection, and what happens to it: see Dial, dialAny and plain.dial.
type dialing struct {
	protocols []string    // offered by ALPN
	closed    func(*Conn) // called once when the connection is closed. Nil means no callback
	// drain is called when the connection must take no new stream: endpoint, trust or our certificate are gone.
	drain func()
	// cut is called when watches must end, too: at most 5 s after the end of the trust, and when Run ends.
	cut func(*Conn)
}

// Address returns the address of the endpoint.
func (c *Conn) Address() string { return c.at.address }

// Host returns the Host of a request to the endpoint.
func (c *Conn) Host() string { return c.at.host() }

// Failed returns the error of a request that was sent on the connection, and got no response head because of err.
func (c *Conn) Failed(err error) error {
	return fail(classify(context.Background(), err, true), c.Address(), err)
}

// Close closes the connection and ends the goroutines that watch it.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.end()
		c.count(0)
		if c.how.closed != nil {
			c.how.closed(c)
		}
	})
	return c.Conn.Close() //nolint:wrapcheck // nothing to add
}

// DialUpgrade returns a new HTTP/1.1 connection for an upgrade request. The caller must close it when its session has
// ended; it closes itself when its trust has ended. If an endpoint cannot be reached, the next is tried.
func (u *Upstream) DialUpgrade(ctx context.Context, by *Stay) (*Conn, error) {
	c, f := u.dialAny(ctx, by, "http/1.1")
	if f != nil {
		return nil, f
	}
	c.begins.Store(true)
	return c, nil
}

func (u *Upstream) dialAny(ctx context.Context, by *Stay, protocols ...string) (conn *Conn, f *engine.Failure) {
	c, how := &call{u: u, by: by}, dialing{
		protocols: protocols,
		drain:     func() {},                       // it carries one request
		cut:       func(c *Conn) { _ = c.Close() }, // its session must end
		closed:    func(c *Conn) { c.at.release() },
	}
	f = c.run(ctx, func(e *endpoint) *engine.Failure {
		within, cancel := context.WithTimeout(ctx, c.patience(e))
		defer cancel()
		var err error
		if conn, err = u.dialOwned(within, e, how); err != nil {
			reason := engine.ReasonDial
			if ctx.Err() != nil {
				reason = over(ctx)
			}
			return fail(reason, e.address, err)
		}
		return nil
	})
	return conn, f
}

// dialOwned dials a connection and watches it until it is closed. It counts failures and signals them to health.
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
	begun := time.Now()
	e.suspicion.dialing.CompareAndSwap(nil, &begun)
	tc, failed := u.dialPhases(ctx, e.address, &how)
	e.suspicion.dialing.Store(nil)
	m := u.dialMeter()
	if failed != nil {
		m.dials[failed.phase].Add(1)
		if failed.phase == dialTLS {
			m.handshakes[slices.Index(handshakeClasses[:], classOf(failed.err))].Add(1)
		}
		if time.Since(begun) < dialTimeout/2 && classOf(failed.err) == "timeout" { // the caller's impatience
			failed.err = fmt.Errorf("%w: %w", errPatience, failed.err)
		}
		u.shared.log.Debug("dialling", "backend", u.name, "endpoint", e.address, "err", failed)
		if u.shared.ctx.Err() == nil && ctx.Err() != context.Canceled && !ours(failed) {
			if e.server == nil { // else signal makes it suspect, in all pools
				e.suspicion.failed.Store(new(time.Now()))
			}
			u.target.signal(e.address, failed)
		}
		return nil, failed
	}
	m.dials[dialOK].Add(1)
	e.suspicion.failed.Store(nil)
	u.took.Store(int64(time.Since(begun)))
	lost, release := u.target.guard(tc.ConnectionState().PeerCertificates)
	c := &Conn{Conn: tc, how: how, at: e}
	c.socket = tc.NetConn().(interface{ NetConn() net.Conn }).NetConn() //nolint:forcetypeassert // Wrap's
	c.closed, c.end = context.WithCancel(context.Background())
	u.shared.spawn(func() {
		defer release()
		c.watch(&c.how, c.closed.Done(), changed, lost, u.shared.ctx.Done())
	})
	return c, nil
}

// watch drains and cuts the connection when its time has come, see dialing. It returns when over
// is closed, at the connection's end at the latest, or stop is.
func (c *Conn) watch(how *dialing, over, changed, lost, stop <-chan struct{}) {
	drain := sync.OnceFunc(how.drain)
	var grace <-chan time.Time // set while the trust is lost, and watches continue
	for ended := false; !ended; {
		select {
		case <-over:
			return
		case <-changed:
			changed = nil
			drain()
			continue
		case _, expired := <-lost:
			if drain(); !expired {
				lost, grace = nil, time.After(watchGrace)
			}
			continue
		case <-grace:
		case <-stop:
			drain()
			ended = true
		}
		c.isCut.Store(true)
		how.cut(c)
	}
}

// dialError says in which phase (dialResolve to dialTrust) a dial failed.
type dialError struct {
	phase int
	err   error
}

func (e *dialError) Error() string { return dialResultNames[e.phase] + ": " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// ours reports whether err says nothing about an endpoint: of a canceled dial, an unreadable bundle, our open files.
func ours(err error) bool {
	d, ok := errors.AsType[*dialError](err)
	return ok && d.phase == dialTrust || errors.Is(err, context.Canceled) || reach.Exhausted(err) ||
		alertOf(err) == noProtocol // as where somebody asks a server that only speaks HTTP/2 for a WebSocket
}

func alertOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}

func classOf(err error) string {
	switch invalid, is := errors.AsType[x509.CertificateInvalidError](err); {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "unknown_authority"
	case errors.As(err, new(x509.HostnameError)):
		return "hostname"
	case is && invalid.Reason == x509.Expired:
		return "expired"
	case is:
		return "invalid"
	case alertOf(err) != "":
		return "alert"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "not_tls"
	case isConnectionError(err):
		return "closed"
	}
	return "other"
}
