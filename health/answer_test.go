package health

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// answer says how servers answer some requests.
type answer struct {
	nth, every   int64         // by number; zero means all
	path, host   string        // empty means any
	takes        time.Duration // the work, which ends if the client leaves
	uneven       time.Duration // up to four times this more
	period       time.Duration // all of a period are answered together at its end
	status       int           // zero means 200
	hangs        bool
	aborts, cuts bool // the stream, or the whole connection
	closes       bool // the connection, after the response
	floods       bool // the connection with PINGs, of which a hundred thousand come
}

// answer changes the answers: for some requests, or for all.
func (w *world) answer(words ...string) {
	a := answer{}
	set := map[string]func(v string){
		"nth":    func(v string) { a.nth = w.value(v) },
		"every":  func(v string) { a.every = w.value(v) },
		"claim":  func(v string) { a.path = pathOf(w.all[w.value(v)]) },
		"at":     func(v string) { a.host = w.all[0].Endpoints[w.value(v)].Address },
		"takes":  func(v string) { a.takes = time.Duration(w.value(v)) },
		"uneven": func(v string) { a.uneven = time.Duration(w.value(v)) },
		"period": func(v string) { a.period = time.Duration(w.value(v)) },
		"hangs":  func(string) { a.hangs = true },
		"aborts": func(string) { a.aborts = true },
		"cuts":   func(string) { a.cuts = true },
		"closes": func(string) { a.closes = true },
		"floods": func(string) { a.floods = true },
		"":       func(v string) { a.status = int(w.value(v)) },
	}
	w.does(words, set)
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.nth == 0 && a.every == 0 && a.path == "" && a.host == "" {
		w.answers = nil
	}
	w.answers = slices.Insert(w.answers, 0, a)
}

func (w *world) answerTo(r *http.Request, n int64) answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.answers {
		numbered := (a.nth == 0 || a.nth == n) && (a.every == 0 || n%a.every == 0)
		if numbered && (a.path == "" || a.path == r.URL.Path) && (a.host == "" || a.host == r.Host) {
			return a
		}
	}
	return answer{}
}

// note notes a request, and returns its number.
func (w *world) note(r *http.Request) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	w.requests[r.URL.Path]++
	w.request = r
	return w.asked
}

// work takes as long as an answer's work, and counts those that work at the same time.
func (w *world) work(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	count := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.working += n
		w.most = max(w.most, w.working)
	}
	count(1)
	defer count(-1)
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

type connKey struct{}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	n := w.note(r)
	a := w.answerTo(r, n)
	d := a.takes + time.Duration(n%5)*a.uneven
	if a.period > 0 {
		d = time.Until(time.Now().Truncate(a.period).Add(a.period))
	}
	w.work(r, d)
	switch a = w.answerTo(r, n); { // it may have changed meanwhile
	case a.hangs:
		<-r.Context().Done()
	case a.aborts:
		panic(http.ErrAbortHandler)
	case a.cuts:
		_ = r.Context().Value(connKey{}).(net.Conn).Close() //nolint:forcetypeassert // as in serve
	case a.closes:
		rw.Header().Set("Connection", "close")
	case a.floods:
		go func() {
			c := r.Context().Value(connKey{}).(net.Conn) //nolint:forcetypeassert // as in serve
			for range 100 {
				_, _ = io.WriteString(c, strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x00flooding", 1000))
			}
		}()
	}
	if a.status == http.StatusFound {
		rw.Header().Set("Location", "/elsewhere")
	}
	if rw.WriteHeader(cmp.Or(a.status, http.StatusOK)); a.status >= http.StatusBadRequest {
		_, _ = rw.Write([]byte("[-]etcd failed"))
	}
}

// serve runs an HTTPS server on a host until the test ends: with HTTP/2 or, by alpn, with another protocol or none.
func (w *world) serve(h *host, alpn string, streams int, idle time.Duration) {
	s := &http.Server{
		Handler: w, IdleTimeout: idle, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams},
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{w.pair}, ClientAuth: tls.RequireAnyClientCert},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	run := func() { _ = s.ServeTLS(h, "", "") }
	if alpn != "" {
		if alpn != "none" {
			s.TLSConfig.NextProtos = []string{alpn}
		}
		run = func() { _ = s.Serve(tls.NewListener(h, s.TLSConfig)) }
	}
	h.set("listening")
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	w.t.Cleanup(func() {
		_ = s.Close()
		<-done
		synctest.Wait()
	})
}

// typedError is an error like those of package certs/trust.
type typedError struct{}

func (typedError) Error() string  { return "no certificate in the bundle" }
func (typedError) Reason() string { return registry.ReasonInvalidCABundle }

// trust is what the Prober trusts: good or other roots, none, no connection (refused), or nothing
// can be found out (broken, and odd: it panics).
func (w *world) trust(owner string, b *registry.Backend) (*tls.Config, error) {
	check.Same(w.t, b.Owner, owner, "whose trust is asked for")
	w.mu.Lock()
	trusts, takes := w.trusts, w.handshake
	w.mu.Unlock()
	time.Sleep(takes)
	c := &tls.Config{RootCAs: w.roots[trusts], Certificates: []tls.Certificate{w.pair}}
	switch trusts {
	case "none":
		return nil, fmt.Errorf("looking: %w", typedError{})
	case "broken":
		return nil, errors.New("no key pair")
	case "refused":
		c.InsecureSkipVerify, c.VerifyConnection = true, func(tls.ConnectionState) error { return typedError{} }
	case "odd":
		c.InsecureSkipVerify, c.VerifyConnection = true, func(tls.ConnectionState) error { panic("odd key") }
	}
	return c, nil
}

// host is a machine at an address of a network in memory, which works in a bubble.
type host struct {
	*bufconn.Listener
	address string
	mu      sync.Mutex // guards the fields below
	state   string     // see set
	dials   []time.Time
	conns   []*conn // those that the host has not ended
}

func newHost(address string) *host {
	return &host{Listener: bufconn.Listen(64 << 10), address: address, state: "refusing"}
}

func (h *host) dial(ctx context.Context) (net.Conn, error) {
	h.mu.Lock()
	h.dials = append(h.dials, time.Now())
	state := h.state
	h.mu.Unlock()
	fault := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: name(h.address), Err: err}
	}
	switch state {
	case "refusing":
		return fault(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	case "vanished":
		<-ctx.Done()
		return fault(os.ErrDeadlineExceeded)
	case "unknown":
		return fault(&net.DNSError{Err: "no such host", IsNotFound: true})
	case "frozen":
		near, _ := net.Pipe()
		return newConn(near), nil
	case "closing":
		near, far := net.Pipe()
		return near, far.Close()
	case "distant":
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	near, err := h.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := newConn(near)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c, nil
}

// Accept implements net.Listener.
func (h *host) Accept() (net.Conn, error) {
	far, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newConn(far), nil
}

// set changes the state: listening, distant (it takes long to dial), refusing (the process has
// died, and its connections with it), vanished (packets are dropped), lost (the same, and the
// kernel has noticed it, if it was told to look within 2 s), frozen (only its kernel answers),
// closing (each connection is closed at once), or unknown (its name has no address).
func (h *host) set(state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		switch state {
		case "refusing":
			_ = c.Conn.Close()
		case "vanished", "lost", "frozen":
			c.silent.Store(true)
			if k := c.keepAlive; state == "lost" && k.Enable && k.Idle+time.Duration(k.Count)*k.Interval <= 2*time.Second {
				_ = c.Conn.Close()
			}
		}
	}
	if state == "lost" {
		state = "vanished"
	}
	if h.state = state; state != "listening" {
		h.conns = nil
	}
}

// open counts the connections that the Prober has not closed.
func (h *host) open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		select {
		case <-c.closed:
		default:
			n++
		}
	}
	return n
}

// dialled returns the times of all dials.
func (h *host) dialled() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.dials)
}

// conn is one side of a connection.
type conn struct {
	net.Conn
	silent    atomic.Bool               // packets from the host are lost
	until     atomic.Pointer[time.Time] // the deadline of reads; nil or zero means none
	once      sync.Once
	closed    chan struct{}
	keepAlive net.KeepAliveConfig
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, closed: make(chan struct{})} }

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err == nil && c.silent.Load() {
			<-c.closed
			return 0, net.ErrClosed
		}
		if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
			return n, err
		}
		until := c.until.Load()
		if until != nil && !until.IsZero() && !time.Now().Before(*until) {
			return n, os.ErrDeadlineExceeded // after bufconn's own error crypto/tls would never read again
		}
		// bufconn's timer of an earlier deadline was late. net/http's server would take that for the client's end.
		_ = c.Conn.SetReadDeadline(time.Time{})
		if until != nil {
			_ = c.Conn.SetReadDeadline(*until)
		}
	}
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.until.Store(&t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *conn) SetKeepAliveConfig(k net.KeepAliveConfig) error {
	c.keepAlive = k
	return nil
}

type name string

func (name) Network() string  { return "tcp" }
func (n name) String() string { return string(n) }
