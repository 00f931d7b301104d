package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// dialTLS makes one connection: resolve, connect, handshake. It counts failures and signals them to
// health.
func (u *Upstream) dialTLS(ctx context.Context, address string, how *dialing) (*tls.Conn, error) {
	c, err := u.dialPhases(ctx, address, how)
	u.dialMeter().dialled(err)
	if err == nil {
		return c, nil
	}
	u.shared.log.Debug("dialling", "backend", u.name, "endpoint", address, "err", err)
	// A canceled dial says nothing about the endpoint, nor does an unreadable bundle.
	if u.shared.ctx.Err() == nil && !errors.Is(err, context.Canceled) && err.phase != dialTrust {
		u.target.signal(address, err)
	}
	return nil, err
}

func (u *Upstream) dialPhases(ctx context.Context, address string, how *dialing) (*tls.Conn, *dialError) {
	protocols := how.protocols
	cfg, err := u.target.tls()
	if err != nil {
		return nil, &dialError{dialTrust, err}
	}
	cfg.NextProtos = slices.Clone(protocols)
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, &dialError{dialResolve, err}
		}
		cfg.ServerName = host
	}
	raw, derr := u.dialTCP(ctx, address)
	if derr != nil {
		return nil, derr
	}
	if offers(protocols, "h2") {
		expire(raw, u.pingTimeout()) // the engine asks only rarely whether a quiet server still runs
	}
	if how.wrap != nil {
		raw = how.wrap(raw)
	}
	start := time.Now()
	c := tls.Client(raw, cfg)
	if err := u.handshake(ctx, c); err != nil {
		_ = raw.Close()
		return nil, &dialError{dialTLS, err}
	}
	u.dialMeter().phase(phaseTLS, time.Since(start))
	if offers(protocols, "h2") {
		u.noteProtocol(c.ConnectionState().NegotiatedProtocol)
	}
	if p := c.ConnectionState().NegotiatedProtocol; !offers(protocols, p) && (p != "" || !offers(protocols, "http/1.1")) {
		_ = raw.Close()
		return nil, &dialError{dialTLS, fmt.Errorf("the server agreed to protocol %q, want one of %q", p, protocols)}
	}
	return c, nil
}

// handshake runs c's handshake. A server's certificate can make verification panic
// (CVE-2025-58188), which would end the process on this goroutine.
func (u *Upstream) handshake(ctx context.Context, c *tls.Conn) (err error) {
	defer func() {
		if v := recover(); v != nil {
			u.shared.log.Error("handshake panicked", "backend", u.name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("handshake panicked: %v", v)
		}
	}()
	return c.HandshakeContext(ctx)
}

func (u *Upstream) dialTCP(ctx context.Context, address string) (net.Conn, *dialError) {
	start := time.Now()
	var resolved time.Time
	raw, err := u.target.dial(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSDone: func(httptrace.DNSDoneInfo) { resolved = time.Now() },
	}), "tcp", address)
	if err != nil {
		if _, ok := errors.AsType[*net.DNSError](err); ok {
			return nil, &dialError{dialResolve, err}
		}
		return nil, &dialError{dialConnect, err}
	}
	if !resolved.IsZero() {
		u.dialMeter().phase(phaseResolve, resolved.Sub(start))
		start = resolved
	}
	u.dialMeter().phase(phaseConnect, time.Since(start))
	return raw, nil
}

// offers reports whether protocols contain p.
func offers(protocols []string, p string) bool {
	return slices.ContainsFunc(protocols, func(have string) bool { return strings.EqualFold(have, p) })
}

// noGuard never loses trust.
func noGuard([]*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
