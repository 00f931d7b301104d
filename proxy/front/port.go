package front

import (
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
	// readHeaderTimeout and idleTimeout are those of kube-apiserver's own server
	// (k8s.io/apiserver/pkg/server/secure_serving.go): a slow head is an attack, and an idle
	// connection lives a little longer than the 90 s for which clients keep theirs.
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeaderBytes is the engine's limit, a quarter of net/http's default and kube-apiserver's.
	maxHeaderBytes = 256 << 10
)

// Config is what a Port serves.
type Config struct {
	// Listener has the connections. Required.
	Listener *Listener
	// TLS says which protocols are offered. Required.
	TLS *tls.Config
	// Handler answers requests over HTTP/1.1. Required.
	Handler http.Handler
	// ConnContext is http.Server's. Nil: connections have nothing of their own.
	ConnContext func(context.Context, net.Conn) context.Context
	// Frames has the connections over HTTP/2; its Run must run. Required.
	Frames *h2.Server
	// Logger is for what clients do wrong in their handshakes. Nil discards.
	Logger *slog.Logger
}

// Port serves both protocols on one listener.
type Port struct {
	listener net.Listener
	http1    *http.Server
	frames   *h2.Server
	away     atomic.Bool // clients are sent away
}

// New returns a Port that is ready to serve.
func New(c Config) *Port {
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Port{listener: c.Frames.Listener(c.Listener), frames: c.Frames, http1: &http.Server{
		Handler:           patientNoMore(c.Handler),
		TLSConfig:         c.TLS,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": c.Frames.Serve},
		ConnContext:       c.ConnContext,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// Serve serves until Shutdown or Close; whoever calls them sees to the rest of the drain.
func (p *Port) Serve() error {
	if err := p.http1.ServeTLS(p.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", p.listener.Addr(), err)
	}
	return nil
}

// Keep says whether clients may keep their connections. While they may not, what is under way goes
// on, what is idle is closed, and a new connection ends with its first answer. With false it is
// called again and again, since HTTP/2 clients are sent away when they have asked.
func (p *Port) Keep(keep bool) {
	if p.away.Swap(!keep) == keep {
		p.http1.SetKeepAlivesEnabled(keep) // it also closes what is idle
	}
	if !keep {
		p.frames.SendAway()
	}
}

// Shutdown takes no new connections and lets requests finish, long-running ones over HTTP/2 for
// watches. What is left when ctx ends is cut, and reported as an error.
func (p *Port) Shutdown(ctx context.Context, watches time.Duration) error {
	var both errgroup.Group
	both.Go(func() error { return p.frames.Shutdown(ctx, watches) }) // net/http only waits for its connections
	both.Go(func() error { return p.http1.Shutdown(ctx) })
	err := both.Wait()
	if err != nil {
		_ = p.Close() // it was not clean already
	}
	return err //nolint:wrapcheck // ctx's
}

// Close cuts every connection.
func (p *Port) Close() error { return p.http1.Close() } //nolint:wrapcheck // of the listener
