package front

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A backend may begin its answer before it has read the whole body, and still gets the rest of it:
// a truncated body would end early there, or reset the request in the middle of its answer.
func TestAnswerWhileTheBodyComes(t *testing.T) {
	s := httptest.NewServer(limitSlowClients(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(w, r.Body, int64(len("first")))
		_ = http.NewResponseController(w).Flush()
		if _, err := io.Copy(w, r.Body); err != nil {
			_, _ = io.WriteString(w, err.Error())
		}
	})))
	t.Cleanup(s.Close)
	body, upload := io.Pipe()
	go func() { _, _ = io.WriteString(upload, "first") }()
	res := must.Get(http.Post(s.URL, "text/plain", body))(t)
	defer res.Body.Close()
	go func() {
		_, _ = io.WriteString(upload, " and second")
		_ = upload.Close()
	}()
	check.Same(t, "first and second", string(must.Get(io.ReadAll(res.Body))(t)), "all that was sent")
}

// The rest of an unread body is never parsed as a request, whatever its sender does next. A handler
// that writes nothing has answered, too.
func TestRestOfABodyIsNoRequest(t *testing.T) {
	for _, want := range []int{http.StatusUnauthorized, http.StatusOK} { // nothing is written for 200
		t.Run(http.StatusText(want), func(t *testing.T) {
			t.Parallel() // each waits for bodyRest
			var requests atomic.Int64
			s := httptest.NewServer(limitSlowClients(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1); want != http.StatusOK {
					w.WriteHeader(want)
				}
			})))
			t.Cleanup(s.Close)
			conn := must.Get(net.Dial("tcp", s.Listener.Addr().String()))(t)
			defer conn.Close()
			began := time.Now()
			must.Get(io.WriteString(conn, "POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nbegun"))(t)
			r := bufio.NewReader(conn)
			res := must.Get(http.ReadResponse(r, nil))(t)
			must.Be(t, res.StatusCode == want && res.Close, "%+v, want an immediate %d that ends the connection", res, want)
			must.Get(io.Copy(io.Discard, res.Body))(t)
			check.Within(t, 0, bodyRest, time.Since(began), "time until the response ended")
			_, _ = io.WriteString(conn, "GET /second HTTP/1.1\r\nHost: x\r\n\r\n")
			must.Get(io.Copy(io.Discard, r))(t)
			check.Within(t, bodyRest, 2*bodyRest, time.Since(began), "time until the connection ended")
			check.Same(t, 1, requests.Load(), "requests, none of them the rest of a body")
		})
	}
}

// A chunked body ends its connection: net/http hides whether it also had a Content-Length. It ignores the encoding over
// HTTP/1.0, where a proxy before Fairlead may not: to that, what follows the length is still the body.
func TestChunkedBodyEndsConnection(t *testing.T) {
	s := httptest.NewServer(limitSlowClients(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	t.Cleanup(s.Close)
	for request, want := range map[string]bool{
		"1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody":                                                false,
		"1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n":                     true,
		"1.0\r\nConnection: keep-alive\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nb": true,
	} {
		conn := must.Get(net.Dial("tcp", s.Listener.Addr().String()))(t)
		defer conn.Close()
		must.Get(io.WriteString(conn, "POST / HTTP/"+request))(t)
		res := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		check.Same(t, want, res.Close, "%q: the connection ends", request)
	}
}

type served struct {
	*Port
	listener *Listener
	client   *tls.Config
	from     string // the clients' address
}

func serve(t *testing.T, most int, handler http.Handler, change ...func(*Config)) *served {
	t.Helper()
	frames := h2.New(h2.Config{Decide: func(*h2.ConnInfo, *wire.Head, func(engine.Plan)) (engine.Plan, bool) {
		return engine.Plan{Serve: handler}, true
	}})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = frames.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: most, Sinks: metric.Sinks{Metrics: prometheus.NewRegistry()}}))(t)
	server, client := secured()
	c := Config{Listener: l, Handler: handler, Frames: frames, ConnContext: same, TLS: server}
	for _, f := range change {
		f(&c)
	}
	p := New(c)
	go func() { _ = p.Serve() }() // ends with Close
	t.Cleanup(func() { _ = p.Close() })
	return &served{p, l, client, "127.0.0.1"}
}

func secured() (server, client *tls.Config) {
	ca := pki.NewCA("serving")
	pair := ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()
	server = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	return server, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

func same(ctx context.Context, _ net.Conn) context.Context { return ctx }
