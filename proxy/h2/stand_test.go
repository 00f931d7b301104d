package h2

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// stand is a client, a Server and a backend over real TLS on loopback.
type stand struct {
	t       *testing.T
	server  *Server
	url     string
	addr    string
	client  *http.Client
	backend *httptest.Server
	ep      *Endpoint

	ended chan Outcome

	stopped   chan struct{} // closed when Run has returned runErr
	runErr    error
	panics    int64 // minimum of panics that the test causes; 0: none are allowed
	unwrapped bool  // connections bypass Server.Listener and wrap
}

// newBackend starts an HTTP/2 server.
func newBackend(t testing.TB, h http.Handler) *httptest.Server {
	b := httptest.NewUnstartedServer(h)
	b.EnableHTTP2 = true
	b.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	b.StartTLS()
	t.Cleanup(b.Close)
	return b
}

func newTransport(t testing.TB) *http.Transport {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// endpoint returns one at addr, with a long PING timeout for a busy machine.
func endpoint(addr string) *Endpoint { return &Endpoint{Name: addr, PingTimeout: time.Minute} }

// dial connects to the address in an endpoint's name, with ALPN h2.
func dial(ctx context.Context, ep *Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", ep.Name)
	if err != nil {
		return nil, err
	}
	tc := tls.Client(wrap(raw), insecure())
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return tc, nil
}

// forward returns a Plan that forwards everything to ep.
func forward(ep *Endpoint) Plan {
	return Plan{Forward: &Upstream{Pick: func([]*Endpoint) *Endpoint { return ep }}}
}

// newStand starts everything. change may change each request's plan, if not nil; config may change
// the server's Config.
func newStand(t *testing.T, driver string, h http.Handler, change func(h *Head, p *Plan), config ...func(*Config)) *stand {
	s := &stand{t: t, backend: newBackend(t, h), ended: make(chan Outcome, 10000)}
	s.ep = endpoint(s.backend.Listener.Addr().String())
	plan := forward(s.ep)
	s.unwrapped = driver == "unwrapped"
	cfg := Config{portable: driver != "loop", Decide: func(_ *ConnInfo, h *Head, _ func(Plan)) (Plan, bool) {
		p := plan
		p.Done = s.done
		if change != nil {
			change(h, &p)
		}
		return p, true
	}}
	for _, f := range config {
		f(&cfg)
	}
	s.start(cfg)
	return s
}

// caught counts the recovered panics.
func (s *stand) caught() (n int64) {
	for _, sh := range s.server.shards {
		n += sh.e.Count.Panics.Load()
	}
	return n
}

func (s *stand) done(o Outcome) { s.ended <- o }

func (s *stand) start(cfg Config) {
	t := s.t
	if cfg.Dial == nil {
		cfg.Dial = dial
	}
	if s.unwrapped {
		cfg.Dial = func(ctx context.Context, ep *Endpoint, _ func(net.Conn) net.Conn) (*tls.Conn, error) {
			return dial(ctx, ep, func(c net.Conn) net.Conn { return c })
		}
	}
	s.server = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	s.stopped = make(chan struct{})
	go func() { defer close(s.stopped); s.runErr = s.server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.stopped:
		case <-time.After(10 * time.Second):
			t.Error("the server did not stop")
		}
		if n := s.caught(); n < s.panics || s.panics == 0 && n > 0 {
			t.Errorf("%d panics were recovered, want %d", n, s.panics)
		}
	})
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if !s.unwrapped {
		front.Listener = s.server.Listener(front.Listener)
	}
	front.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": s.server.Serve}
	front.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front.StartTLS()
	t.Cleanup(func() { front.CloseClientConnections(); _ = front.Config.Close() })
	s.addr = front.Listener.Addr().String()
	s.url = "https://" + s.addr
	s.client = &http.Client{Transport: newTransport(t), Timeout: 30 * time.Second}
}

func (s *stand) do(method, path string, body io.Reader, header ...string) *http.Response {
	s.t.Helper()
	req := must.Get(http.NewRequestWithContext(s.t.Context(), method, s.url+path, body))(s.t)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	res := must.Get(s.client.Do(req))(s.t)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (s *stand) read(res *http.Response) string {
	s.t.Helper()
	return string(must.Get(io.ReadAll(res.Body))(s.t))
}

// reads checks a response's body.
func (s *stand) reads(res *http.Response, want string) {
	s.t.Helper()
	check.Same(s.t, want, s.read(res), "%s: body", res.Request.URL.Path)
}

// ends checks the reason of the next outcome; about identifies the request in the failure message.
func (s *stand) ends(want Reason, about ...any) {
	s.t.Helper()
	if o := <-s.ended; o.Reason != want {
		s.t.Errorf("%v: outcome %+v, want %s", about, o, want)
	}
}

func field(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }

// drivers are the drivers for every test over real connections: a goroutine per connection, the
// event loop (where it exists), and unwrapped connections, whose reads and writes block.
var drivers = []string{"portable", "loop", "unwrapped"}

func onDrivers(t *testing.T, f func(t *testing.T, driver string)) {
	for _, d := range drivers {
		t.Run(d, func(t *testing.T) { f(t, d) })
	}
}
