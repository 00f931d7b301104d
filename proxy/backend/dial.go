package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// dialTLS makes one connection: resolve, connect, handshake. It tells health of failures, and counts them.
func (u *Upstream) dialTLS(ctx context.Context, address string, protocols []string) (*tls.Conn, error) {
	c, err := u.dialPhases(ctx, address, protocols)
	u.counted().dialled(err)
	if err == nil {
		return c, nil
	}
	u.owner.log.Debug("dialling", "backend", u.name, "endpoint", address, "err", err)
	// A dial that was given up says nothing about the endpoint, nor does a bundle that cannot be read.
	if u.owner.ctx.Err() == nil && !errors.Is(err, context.Canceled) && err.phase != dialTrust {
		u.target.signal(address, err)
	}
	return nil, err
}

func (u *Upstream) dialPhases(ctx context.Context, address string, protocols []string) (*tls.Conn, *dialError) {
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
	raw = wrapped(ctx, raw)
	start := time.Now()
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, &dialError{dialTLS, err}
	}
	u.counted().phase(phaseTLS, time.Since(start))
	if offers(protocols, "h2") {
		u.note(c.ConnectionState().NegotiatedProtocol)
	}
	if p := c.ConnectionState().NegotiatedProtocol; !offers(protocols, p) && (p != "" || !offers(protocols, "http/1.1")) {
		_ = raw.Close()
		return nil, &dialError{dialTLS, fmt.Errorf("the server agreed to protocol %q, want one of %q", p, protocols)}
	}
	return c, nil
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
		u.counted().phase(phaseResolve, resolved.Sub(start))
		start = resolved
	}
	u.counted().phase(phaseConnect, time.Since(start))
	return raw, nil
}

// dialer returns dial, or the system's, behind the check of the address. With a dial of one's own (an egress proxy) names are resolved elsewhere and only literal
// addresses can be checked here.
func dialer(dial func(ctx context.Context, network, address string) (net.Conn, error), refuse func(netip.AddrPort) error) func(context.Context, string, string) (net.Conn, error) {
	if dial == nil {
		d := &net.Dialer{
			// Checked after resolving: a name may lead anywhere, and may change.
			ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error { return check(address, refuse) },
		}
		return d.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := check(address, refuse); err != nil {
			return nil, err
		}
		return dial(ctx, network, address)
	}
}

// check asks refuse about a literal address; a name passes.
func check(address string, refuse func(netip.AddrPort) error) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil //nolint:nilerr // it is a name
	}
	return refuse(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
}

// refuseNode refuses what is on, or only meaningful to, this very machine: a connection to it would carry the proxy client certificate, which can be anyone, to
// whatever listens there. The cloud's metadata service is link-local.
func refuseNode(a netip.AddrPort) error {
	ip := a.Addr()
	if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("the address %s is loopback, link-local, unspecified or multicast", ip)
	}
	return nil
}

// noGuard watches over nothing.
func noGuard([]*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
