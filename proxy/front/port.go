package front

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

const (
	// readHeaderTimeout and idleTimeout are kube-apiserver's
	// (k8s.io/apiserver/pkg/server/secure_serving.go): a slow head is an attack, and an idle
	// connection is kept a little longer than the 90 s of clients.
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeaderBytes is the engine's limit, a quarter of the default of net/http and
	// kube-apiserver.
	maxHeaderBytes = 256 << 10
)

// Config configures a Port.
type Config struct {
	// Listener accepts the connections. Required.
	Listener *Listener
	// TLS also sets the offered protocols. Required.
	TLS *tls.Config
	// Handler answers requests over HTTP/1.1. Required.
	Handler http.Handler
	// ConnContext is http.Server's. It may be nil.
	ConnContext func(context.Context, net.Conn) context.Context
	// Frames serves the HTTP/2 connections; its Run must run. Required.
	Frames *h2.Server
	// Logger logs errors of clients' handshakes. Nil discards.
	Logger *slog.Logger
}

// Port serves both protocols on one listener.
type Port struct {
	listener net.Listener
	http1    *http.Server
	frames   *h2.Server
	away     atomic.Bool // clients must not keep their connections
}

// New returns a Port that is ready to serve.
func New(c Config) *Port {
	log := cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Port{listener: c.Frames.Listener(c.Listener), frames: c.Frames, http1: &http.Server{
		Handler:           limitSlowClients(c.Handler),
		TLSConfig:         c.TLS,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": c.Frames.Serve},
		ConnContext:       c.ConnContext,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// Serve serves until Shutdown or Close, whose caller does the rest of the drain.
func (p *Port) Serve() error {
	if err := p.http1.ServeTLS(p.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", p.listener.Addr(), err)
	}
	return nil
}

// Keep sets whether clients may keep their connections. With false, requests in flight continue,
// idle connections close, and a new connection ends with its first response. Call it repeatedly
// with false, because HTTP/2 clients are only sent away after a request.
func (p *Port) Keep(keep bool) {
	if p.away.Swap(!keep) == keep {
		p.http1.SetKeepAlivesEnabled(keep) // this also closes idle connections
	}
	if !keep {
		p.frames.SendAway()
	}
}

// Shutdown accepts no new connections and lets requests finish; long-running ones over HTTP/2 end
// after watches. When ctx ends, it closes the remaining connections and returns an error.
func (p *Port) Shutdown(ctx context.Context, watches time.Duration) error {
	var both errgroup.Group
	both.Go(func() error { return p.frames.Shutdown(ctx, watches) }) // net/http only waits for its own connections
	both.Go(func() error { return p.http1.Shutdown(ctx) })
	err := both.Wait()
	if err != nil {
		_ = p.Close() // the shutdown has failed already
	}
	return err //nolint:wrapcheck // an error of ctx
}

// Close closes every connection.
func (p *Port) Close() error { return p.http1.Close() } //nolint:wrapcheck // from the listener
