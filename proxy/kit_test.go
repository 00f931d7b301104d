package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// world is a Proxy with real servers for its front door and its backends.
type world struct {
	authorities
	proxy         *Proxy
	local, remote *far
	// front serves HTTP/1.1, frames HTTP/2.
	front, frames *httptest.Server
	lane          *h2.Server
	table         func() *registry.Table
	current       current
	rejections    atomic.Int32
	localDown     atomic.Bool // nothing answers at the local apiserver's address
}

const remoteGV = "/apis/remote.example.com/v1"

type worldConfig struct {
	Config      // what the world does not set itself
	remoteHTTP1 bool
	remote      http.HandlerFunc
	local       http.HandlerFunc
	change      func(*apiregistrationv1.APIService)
	also        func(*registry.Input) // adds to the table
	unhealthy   bool
	incomplete  bool
	// roots verify backends. If nil, the serving CA does.
	roots func(apiService string, b *registry.Backend) *x509.CertPool
	// impersonate sends callers to the local apiserver in Impersonate-*, with our own credential.
	impersonate bool
	// groups are the prefixes of groups that the local apiserver gets; nil means all.
	groups []string
	pools  backend.Config // as Config
	// reviewed is called for each SubjectAccessReview, and tokenReviewed for each TokenReview,
	// which fail with its error. They may be nil.
	reviewed, tokenReviewed func() error
	// forgetful says that no verdict is cached, forgetsTokens that no user of a token is.
	forgetful, forgetsTokens bool
	// unread is what the cluster's ConfigMap has that nobody has read yet: "names" of fields, or the "ca" of clients,
	// too. Empty means that it is read.
	unread string
}

func newWorld(t *testing.T, c worldConfig) *world {
	t.Helper()
	w := &world{authorities: authorities{pki.NewCA("clients"), pki.NewCA("front"), pki.NewCA("serving")}}
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	if c.remote == nil {
		c.remote = ok
	}
	if c.local == nil {
		c.local = ok
	}
	w.remote = newFar(t, &w.authorities, !c.remoteHTTP1, "ext.default.svc", c.remote)
	w.local = newFar(t, &w.authorities, true, "localhost", c.local)
	w.current.Store(buildTable(t, w, c))
	w.table = w.current.Load
	w.start(t, c)
	return w
}

func (w *world) start(t *testing.T, c worldConfig) {
	t.Helper()
	proxyPair := w.authorities.front.Issue(pki.Leaf{CommonName: "front-proxy-client"}).TLS()
	tlsTo := func(name string, certificate bool) *tls.Config {
		tc := &tls.Config{RootCAs: w.serving.Pool(), ServerName: name, MinVersion: tls.VersionTLS12}
		if certificate {
			tc.Certificates = []tls.Certificate{proxyPair}
		}
		return tc
	}
	pools := newPools(t, c.pools, w.table, func(apiService string, b *registry.Backend) (*tls.Config, error) {
		tc := tlsTo(b.ServerName, true)
		if c.roots != nil {
			tc.RootCAs = c.roots(apiService, b)
		}
		return tc, nil
	})
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if w.localDown.Load() {
			return nil, net.ErrClosed
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	local := newLocal(t, w.local.Listener.Addr().String(), dial, func(certificate bool) (*tls.Config, error) {
		return tlsTo("localhost", certificate && !c.impersonate), nil
	})
	local.Report(registry.Report{Endpoint: registry.Endpoint{Address: w.local.Listener.Addr().String(), Health: registry.Healthy}})
	cfg := c.Config
	cfg.CredentialRejected, cfg.Tables, cfg.Backends, cfg.Local = func() { w.rejections.Add(1) }, scene.TableFunc(w.table), pools, local
	cfg.Authn, cfg.Authz = w.authenticator(t, c), newTestAuthorizer(t, c)
	w.proxy = must.Get(New(cfg))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	w.lane = w.proxy.Frames(h2.Config{Memory: c.pools.Memory})
	for _, run := range []func(context.Context) error{pools.Run, local.Run, w.proxy.Run, w.lane.Run} {
		loops.Go(func() { _ = run(ctx) })
	}
	w.front, w.frames = w.server(), w.server()
	w.frames.TLS.NextProtos = []string{"h2"}
	w.frames.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(hs *http.Server, c *tls.Conn, h http.Handler) {
		w.lane.Serve(context.WithValue(h.(interface{ BaseContext() context.Context }).BaseContext(), http.ServerContextKey, hs), c)
	}}
	w.frames.Listener = wrapping{w.frames.Listener}
	w.front.StartTLS()
	w.frames.StartTLS()
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{w.front, w.frames} {
			s.CloseClientConnections()
		}
		cancel()
		loops.Wait()
		w.front.Close()
		w.frames.Close()
	})
}

// newPools makes pools for the remotes of a table. Nobody listens but as c says.
func newPools(t testing.TB, c backend.Config, table func() *registry.Table, to func(string, *registry.Backend) (*tls.Config, error)) *backend.Pools {
	t.Helper()
	c.Tables, c.Dial, c.TLS = scene.TableFunc(table), new(net.Dialer).DialContext, to
	c.Signal, c.IdentityChanged = func(string, string, error) {}, func() <-chan struct{} { return nil }
	if c.Guard == nil {
		c.Guard = func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
	}
	if c.Observe == nil {
		c.Observe = func(string, string, time.Duration) {}
	}
	return backend.New(c)
}

func newLocal(t testing.TB, address string, dial func(ctx context.Context, network, address string) (net.Conn, error), to func(bool) (*tls.Config, error)) *backend.Local {
	t.Helper()
	return backend.NewLocal(backend.LocalConfig{
		Servers: []string{address}, Dial: dial, TLS: to, IdentityChanged: func() <-chan struct{} { return nil }, Signal: func(string, error) {},
	})
}

type wrapping struct{ net.Listener }

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		c = h2.Wrap(c)
	}
	return c, err
}

func (w *world) server() *httptest.Server {
	s := httptest.NewUnstartedServer(w.proxy)
	s.Config.ConnContext = w.proxy.ConnContext
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{w.serving.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	}
	return s
}

// httpClient uses one protocol, with a client certificate if pair is not nil.
func (w *world) httpClient(t *testing.T, proto string, pair *pki.Pair) *http.Client {
	t.Helper()
	tc := &tls.Config{RootCAs: w.serving.Pool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	if pair != nil {
		tc.Certificates = []tls.Certificate{pair.TLS()}
	}
	tr := &http.Transport{TLSClientConfig: tc, ForceAttemptHTTP2: proto != "http/1.1", DisableCompression: true}
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		switch {
		case proto == "h2":
			address = w.frames.Listener.Addr().String()
		case address == frontHost+":443":
			address = w.front.Listener.Addr().String()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (w *world) do(t *testing.T, c *http.Client, r *http.Request) answer {
	t.Helper()
	res := must.Get(c.Do(r))(t)
	defer res.Body.Close()
	body := must.Get(io.ReadAll(res.Body))(t)
	return answer{res.StatusCode, res.Header, string(body)}
}

func (a answer) want(t *testing.T, status int, about ...any) {
	t.Helper()
	check.Same(t, status, a.status, "%v: status of %s", about, a.body)
}

// everyWay runs a test over HTTP/1.1 and HTTP/2, which must behave alike.
func everyWay(t *testing.T, f func(t *testing.T, proto string)) {
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) { f(t, proto) })
	}
}

type received struct {
	method, target, proto string
	header                http.Header
	trailer               http.Header
	peer                  string
	body                  string
}

type far struct {
	*httptest.Server
	mu  sync.Mutex // guards got
	got []received
}

func (f *far) last(t *testing.T) received {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	must.Be(t, len(f.got) > 0, "nothing was received")
	return f.got[len(f.got)-1]
}

func (f *far) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

type authorities struct{ client, front, serving *pki.CA }

// newFar starts a server that records requests, then runs h. Without h2 it speaks only HTTP/1.1.
func newFar(t *testing.T, a *authorities, h2 bool, name string, h http.HandlerFunc) *far {
	t.Helper()
	f := &far{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" { // the pools' probe
			return
		}
		var body []byte
		if r.Header.Get("X-Unread") == "" {
			body, _ = io.ReadAll(r.Body)
		}
		got := received{method: r.Method, target: r.RequestURI, proto: r.Proto, header: r.Header.Clone(), trailer: r.Trailer.Clone(), body: string(body)}
		got.header.Set("Host", r.Host)
		if len(r.TLS.PeerCertificates) > 0 {
			got.peer = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		f.mu.Lock()
		f.got = append(f.got, got)
		f.mu.Unlock()
		h(w, r)
	}))
	pair := a.serving.Issue(pki.Leaf{Names: []string{name, "127.0.0.1"}}).TLS()
	f.EnableHTTP2 = h2
	f.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.front.Pool(), MinVersion: tls.VersionTLS12}
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}
