// Package front serves clients on a port: it accepts connections up to a share of the file descriptors, serves
// HTTP/1.1, passes HTTP/2 connections to the engine (proxy/h2), and ends both when the port is drained.
//
// A Listener and a Port are safe for concurrent use. A connection's goroutines are net/http's or the engine's.
//
// This package does not look at what a request asks for, and decides nothing about it.
package front

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// readHeaderTimeout and idleTimeout are kube-apiserver's (secure_serving.go): the latter exceeds the 90 s of clients.
const readHeaderTimeout, idleTimeout = 32 * time.Second, 2 * time.Minute

// Config configures a Port (makePorts in cmd/fairlead).
type Config struct {
	Listener  *Listener    // accepts the connections. Required
	TLS       *tls.Config  // also sets the offered protocols. Required
	Handler   http.Handler // answers requests over HTTP/1.1: the front door's is a proxy.Proxy. Required
	Frames    *h2.Server   // serves the HTTP/2 connections; its Run must run. Required
	Balancers []net.IPNet  // networks of load balancers that begin with the PROXY protocol's header. Empty means none
	Memory    *hold.Bound  // bounds what heads over HTTP/1.1 may hold, with everything else. Nil means its own
	Logger    *slog.Logger // logs errors of clients' handshakes. Nil discards
	// ConnContext is http.Server's (Proxy.ConnContext); its context ends with the connection. Required.
	ConnContext func(context.Context, net.Conn) context.Context
}

// Port serves both protocols on one listener.
type Port struct {
	cfg   Config
	http1 *http.Server
	heads heads
	away  atomic.Bool // clients must not keep their connections

	ready  chan net.Conn   // connections over HTTP/1.1 after their handshake, for handedOver.Accept
	ending context.Context // ends with Close and Shutdown
	end    context.CancelFunc
}

// New returns a Port that is ready to serve.
func New(c Config) *Port {
	c.Memory, c.Logger = cmp.Or(c.Memory, hold.New(0)), cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	p := &Port{cfg: c, ready: make(chan net.Conn), heads: heads{memory: c.Memory, all: map[*plain]struct{}{}}}
	p.heads.conns.Lend = true // to one load balancer
	p.ending, p.end = context.WithCancel(context.Background())
	p.heads.open, p.heads.cut = context.WithCancelCause(context.Background())
	p.http1 = &http.Server{
		Handler:                      limitSlowClients(countWhole(c.Handler)),
		DisableGeneralOptionsHandler: true, // it waits for the body of OPTIONS * without a limit
		ConnContext:                  p.connContext,
		ConnState:                    changed,
		ReadHeaderTimeout:            readHeaderTimeout,
		IdleTimeout:                  idleTimeout,
		ErrorLog:                     slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
	}
	return p
}

// Serve serves until Shutdown or Close, whose caller does the rest of the drain.
func (p *Port) Serve() error {
	p.cfg.Listener.room = func(of *hold.Source) { p.cfg.Frames.MakeRoom(of); p.heads.makeRoom(of, atOnce, roomIdle) }
	failed := make(chan error, 1)
	go func() { failed <- p.http1.Serve(handedOver{p}) }() // ends with Close or Shutdown
	for pause := time.Duration(0); ; {
		conn, err := p.cfg.Listener.Accept()
		if err == nil {
			pause = 0
			go p.greet(conn) // ends with the handshake, or the HTTP/2 connection
			continue
		}
		if !errors.Is(err, net.ErrClosed) { // it passes, also one that net does not call temporary, such as ENOMEM
			pause = min(max(2*pause, 5*time.Millisecond), time.Second) // net/http's
			if latest.Sleep(p.ending, pause) {
				continue
			}
		}
		if p.ending.Err() == nil {
			_ = p.Close()
			return fmt.Errorf("serving %s: %w", p.cfg.Listener.Addr(), err)
		}
		<-failed //nolint:errcheck // http.ErrServerClosed
		return nil
	}
}

// greet does the handshake, and gives the connection to who speaks its protocol: net/http gets counted plaintext.
func (p *Port) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ending, readHeaderTimeout)
	defer cancel()
	conn := tls.Server(h2.Wrap(raw), p.cfg.TLS)
	c := &plain{Conn: conn, all: &p.heads}
	defer func() { // a panic of one connection does not end the process, as in net/http
		if v := recover(); v != nil {
			p.cfg.Logger.Error("serving a connection panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			if _ = conn.NetConn().Close(); c.source != nil { // else it was not introduced
				c.leave()
			}
		}
	}()
	err := p.introduce(ctx, raw)
	from := bound.Stranger(raw.RemoteAddr().String()).AnyConn()
	c.source, c.from = p.heads.memory.Source(from.Address), from
	if err == nil {
		err = c.handshake(ctx, raw, p.cfg.Listener)
	}
	if err != nil {
		c.leave()
		cause := p.cfg.Listener.fail(err, raw.RemoteAddr())
		p.cfg.Logger.Debug("TLS handshake", "client", raw.RemoteAddr(), "cause", cause, "err", err)
		if cause == "plain_http" { // as net/http
			const answer = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
			_, _ = io.WriteString(conn.NetConn(), answer)
		}
		_ = raw.Close()
		return
	}
	cancel()
	if conn.ConnectionState().NegotiatedProtocol == "h2" {
		defer c.leave()
		ctx, gone := context.WithCancel(context.WithValue(context.Background(), http.ServerContextKey, p.http1))
		defer gone()
		p.cfg.Frames.Serve(p.connContext(ctx, conn), conn)
		return
	}
	place, ok := p.heads.take(c, perConn)
	if c.begun, c.place = time.Now(), place; !ok {
		p.heads.memory.Refuse(hold.Connection)
		_ = c.refuse(http.StatusTooManyRequests) // as for a head
		_ = c.Close()
		return
	}
	p.heads.mu.Lock()
	p.heads.all[c] = struct{}{}
	p.heads.mu.Unlock()
	select {
	case p.ready <- c:
	case <-p.ending.Done():
		_ = c.Close()
	}
}

// errIntroduction is wrapped by the error of a load balancer's connection without a valid header of the PROXY protocol.
var errIntroduction = errors.New("PROXY protocol")

// maxIntroduction is how much is read at once: more than a header has that carries no certificate, and less than TLS
// reads at first (earlyBuffer in proxy/h2), so nothing is left here when the engine takes the socket.
const maxIntroduction = 512

// introduce reads from a load balancer who its client is. The protocol forbids to guess (proxy-protocol.txt §2): one
// could send a header through one that sends none. Its checks (LOCAL) come from itself, as who has no address of TCP.
func (p *Port) introduce(ctx context.Context, raw net.Conn) error {
	c, ok := raw.(*placed)
	at, tcp := raw.RemoteAddr().(*net.TCPAddr)
	if !ok || !tcp || !slices.ContainsFunc(p.cfg.Balancers, func(n net.IPNet) bool { return n.Contains(at.IP) }) {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // long ago
	defer stop()
	r := bufio.NewReaderSize(c.Conn, maxIntroduction)
	if _, err := r.Peek(1); err != nil && ctx.Err() == nil {
		return errUnused
	}
	header, err := proxyproto.Read(r) // of at most 4 KiB
	if err != nil {
		return fmt.Errorf("%w: %w", errIntroduction, cmp.Or(ctx.Err(), err))
	}
	c.in = io.MultiReader(io.LimitReader(r, int64(r.Buffered())), c.in)
	if source, _, ok := header.TCPAddrs(); ok && header.Command.IsProxy() {
		c.client = source
	}
	return nil
}

// handedOver is the listener of net/http.
type handedOver struct{ *Port }

func (h handedOver) Accept() (net.Conn, error) {
	select {
	case c := <-h.ready:
		return c, nil
	case <-h.ending.Done():
		return nil, net.ErrClosed
	}
}

func (h handedOver) Addr() net.Addr { return h.cfg.Listener.Addr() }

// Close also ends handshakes.
func (h handedOver) Close() error {
	h.end()
	return h.cfg.Listener.Close() //nolint:wrapcheck // from the listener
}

// Keep sets whether clients may keep their connections. With false, requests in flight continue, idle connections
// close, and new ones end with their first response. Call it repeatedly then: HTTP/2 clients leave after a request.
func (p *Port) Keep(keep bool) {
	if p.away.Swap(!keep) == keep {
		p.http1.SetKeepAlivesEnabled(keep) // this also closes idle connections
	}
	if !keep {
		p.cfg.Frames.SendAway()
	}
}

// Shutdown accepts no new connections and lets requests finish; long-running ones over HTTP/2 end
// within watches. When ctx ends, it closes the remaining connections and returns an error.
func (p *Port) Shutdown(ctx context.Context, watches time.Duration) error {
	var both errgroup.Group
	both.Go(func() error { return p.cfg.Frames.Shutdown(ctx, watches) }) // net/http only waits for its own connections
	both.Go(func() error { return p.http1.Shutdown(ctx) })
	err := both.Wait()
	if err != nil {
		_ = p.Close() // the shutdown has failed already
	}
	return err //nolint:wrapcheck // an error of ctx
}

// Close closes every connection.
func (p *Port) Close() error {
	p.heads.cut(errCut)
	_ = handedOver{p}.Close()
	return p.http1.Close() //nolint:wrapcheck // from the listener
}
