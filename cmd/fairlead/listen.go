package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

const (
	// readHeaderTimeout and idleTimeout are those of kube-apiserver's own server (k8s.io/apiserver/pkg/server/secure_serving.go): a slow head is an attack, and
	// an idle connection lives a little longer than the 90 s for which clients keep theirs.
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeaderBytes is the frame lane's limit, a quarter of net/http's default and kube-apiserver's: 4 KB of HPACK can stand for as much as this, frame after
	// frame, and net/http ends no connection for it.
	maxHeaderBytes = 256 << 10
)

// listen opens a TCP listener. It is done for every port before anything is served, so that a port in use is a clear error.
func listen(ctx context.Context, address string, port int) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	return l, nil
}

// newServer is an HTTP/1.1 server with sane limits; HTTP/2 is proxy/h2's.
func newServer(h http.Handler, tc *tls.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           patientNoMore(h),
		TLSConfig:         tc,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// serve runs a server until ctx ends; whoever ends ctx sees to the draining.
func serve(srv *http.Server, l net.Listener) error {
	if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}

// ownAddresses are the addresses at which a listener can be reached: a backend that resolves to one of them would be ourselves.
func ownAddresses(l net.Listener) ([]netip.AddrPort, error) {
	bound, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("reading the listener's address: %w", err)
	}
	if !bound.Addr().IsUnspecified() {
		return []netip.AddrPort{netip.AddrPortFrom(bound.Addr().Unmap().WithZone(""), bound.Port())}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}
	var own []netip.AddrPort
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, netip.AddrPortFrom(prefix.Addr().Unmap().WithZone(""), bound.Port()))
		}
	}
	return own, nil
}
