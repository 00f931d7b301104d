package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// stand is a client, a Server and a backend over real TLS on loopback.
type stand struct {
	t       *testing.T
	server  *Server
	url     string
	addr    string
	client  *http.Client
	backend *httptest.Server
	ep      *engine.Endpoint

	change  func(h *wire.Head, p *engine.Plan)
	ended   chan engine.Outcome
	stop    context.CancelFunc // ends Run
	stopped chan struct{}      // closed when Run has returned runErr
	runErr  error
	panics  int64 // minimum of panics that the test causes; 0: none are allowed
}

func newBackend(t testing.TB, h http.Handler) *httptest.Server {
	b := httptest.NewUnstartedServer(h)
	b.EnableHTTP2 = true
	b.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	b.StartTLS()
	t.Cleanup(b.Close)
	return b
}

// startModel starts a net/http server with a ReverseProxy that follows the plan.
func startModel(t *testing.T, backend string) string {
	return newBackend(t, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: backend})
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Trailer = nil
		},
		Transport: newTransport(t), FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}).URL
}

func newTransport(t testing.TB) *http.Transport {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

type listener struct {
	net.Listener
	driver string
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		c = Wrap(through(l.driver, c))
	}
	return c, err
}

// tunnel is no socket, as far as the loop knows.
type tunnel struct{ net.Conn }

func through(driver string, c net.Conn) net.Conn {
	if driver == "bridge" {
		return tunnel{c}
	}
	return c
}

// endpoint returns one at addr, with a long PING timeout for a busy machine.
func endpoint(addr string) *engine.Endpoint {
	return &engine.Endpoint{Name: addr, PingTimeout: time.Minute, Release: func() {}, Failed: func(error, bool) {}, Told: func(*engine.GoAway) {}}
}

func dial(ctx context.Context, ep *engine.Endpoint, through func(net.Conn) net.Conn) (*tls.Conn, func(), error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", ep.Name)
	if err != nil {
		return nil, nil, err
	}
	tc := tls.Client(Wrap(through(raw)), insecure())
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	return tc, func() {}, nil
}

func forward(ep *engine.Endpoint) engine.Plan {
	return engine.Plan{Forward: &engine.Upstream{Pick: func(any, []*engine.Endpoint) *engine.Endpoint { return ep }, Retried: func(engine.Reason) {}}}
}

func (s *stand) plan(h *wire.Head) engine.Plan {
	p := forward(s.ep)
	p.Done = s.done
	if s.change != nil {
		s.change(h, &p)
	}
	return p
}

func (s *stand) done(o engine.Outcome) { s.ended <- o }

// newStand starts everything. change may change each request's plan, if not nil; config may change the server's Config.
func newStand(t *testing.T, driver string, h http.Handler, change func(h *wire.Head, p *engine.Plan), config ...func(*Config)) *stand {
	s := &stand{t: t, backend: newBackend(t, h), change: change, ended: make(chan engine.Outcome, 20_000), stopped: make(chan struct{})}
	s.ep = endpoint(s.backend.Listener.Addr().String())
	toBackend := func(ctx context.Context, ep *engine.Endpoint) (*tls.Conn, func(), error) {
		return dial(ctx, ep, func(c net.Conn) net.Conn { return through(driver, c) })
	}
	cfg := Config{Dial: toBackend, Decide: func(_ *ConnInfo, h *wire.Head, _ func(engine.Plan)) (engine.Plan, bool) { return s.plan(h), true }}
	for _, f := range config {
		f(&cfg)
	}
	s.server = New(cfg)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() { defer close(s.stopped); s.runErr = s.server.Run(ctx) }()
	t.Cleanup(func() {
		s.stop()
		must.Come(t, 10*time.Second, "the server stops", s.stopped)
		n := s.caught()
		check.Same(t, true, n >= s.panics && (s.panics > 0 || n == 0), "%d panics were recovered, want %d", n, s.panics)
	})
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	front.Listener = listener{front.Listener, driver}
	front.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) { s.server.Serve(context.Background(), c) }}
	front.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front.StartTLS()
	t.Cleanup(func() { front.CloseClientConnections(); _ = front.Config.Close() })
	s.addr = front.Listener.Addr().String()
	s.url = "https://" + s.addr
	s.client = &http.Client{Transport: newTransport(t), Timeout: 30 * time.Second}
	return s
}

func (s *stand) caught() (n int64) {
	for _, sh := range s.server.shards {
		n += sh.e.Count.Panics.Load()
	}
	return n
}

func (s *stand) left() (n [2]int64) {
	for _, sh := range s.server.shards {
		n[0] += sh.e.Count.Streams.Load()
		n[1] += sh.e.Count.Queued.Load()
	}
	return n
}

func (s *stand) do(method, path string, body io.Reader) *http.Response {
	s.t.Helper()
	res := must.Get(s.client.Do(must.Get(http.NewRequestWithContext(s.t.Context(), method, s.url+path, body))(s.t)))(s.t)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// RoundTrip makes a guest of a request. Its hook for interim heads is that of net/http's transport.
func (s *stand) RoundTrip(r *http.Request) (*http.Response, error) { return s.invite(r) }

func (s *stand) invite(r *http.Request, change ...func(*http.Request, *engine.Plan)) (*http.Response, error) {
	p := s.plan(&wire.Head{Method: r.Method, Path: r.URL.Path})
	for _, f := range change {
		if f != nil {
			f(r, &p)
		}
	}
	var interims func(int, textproto.MIMEHeader) error
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		interims = trace.Got1xxResponse
	}
	return s.server.RoundTrip(r, headOf(r), p, interims)
}

func headOf(r *http.Request) *wire.Head {
	h := &wire.Head{Method: r.Method, Authority: r.Host}
	h.SetTarget(r.URL.RequestURI())
	for key, values := range r.Header {
		h.Fields = wire.AppendField(h.Fields, key, values)
	}
	if r.ContentLength > 0 {
		h.Fields = append(h.Fields, field("content-length", fmt.Sprint(r.ContentLength)))
	}
	return h
}

func (s *stand) ask(ctx context.Context, method, path string, body io.Reader, change ...func(*http.Request, *engine.Plan)) (*http.Response, error) {
	s.t.Helper()
	return s.invite(must.Get(http.NewRequestWithContext(ctx, method, "https://front.example"+path, body))(s.t), change...)
}

func (s *stand) guest(method, path string, body io.Reader, change ...func(*http.Request, *engine.Plan)) *http.Response {
	s.t.Helper()
	res := must.Get(s.ask(s.t.Context(), method, path, body, change...))(s.t)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (s *stand) reads(res *http.Response, want string) {
	s.t.Helper()
	check.Same(s.t, want, string(must.Get(io.ReadAll(res.Body))(s.t)), "%s: body", res.Request.URL.Path)
}

// ends checks the reason of the next outcome; about identifies the request in the failure message.
func (s *stand) ends(want engine.Reason, about ...any) {
	s.t.Helper()
	o := <-s.ended
	check.Same(s.t, want, o.Reason, "%v: outcome %+v", about, o)
}

func field(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }

// onDrivers runs f with connections whose sockets the loop owns, and with bridges to tunnels.
func onDrivers(t *testing.T, f func(t *testing.T, driver string)) {
	for _, d := range []string{"bridge", "loop"} {
		t.Run(d, func(t *testing.T) { f(t, d) })
	}
}

func crcOf(p []byte) string { return fmt.Sprintf("%x", crc32.ChecksumIEEE(p)) }
