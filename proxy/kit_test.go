package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// received is one request as a backend got it.
type received struct {
	method, target, proto string
	header                http.Header
	trailer               http.Header
	peer                  string
	body                  string
}

// recorder of tests: a TLS server that keeps what it received.
type far struct {
	*httptest.Server
	mu  sync.Mutex
	got []received
}

func (f *far) last(t *testing.T) received {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.got) == 0 {
		t.Fatal("nothing was received")
	}
	return f.got[len(f.got)-1]
}

func (f *far) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

// authorities of a test's little world.
type authorities struct{ client, front, serving *pki.CA }

// newFar starts a server that records, then runs h. With h2 false it speaks HTTP/1.1 only.
func newFar(t *testing.T, a *authorities, h2 bool, name string, h http.HandlerFunc) *far {
	t.Helper()
	f := &far{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" { // the pools' own probe
			return
		}
		body, _ := io.ReadAll(r.Body)
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

// world is a Proxy with real servers on both sides of it.
type world struct {
	authorities
	proxy         *Proxy
	local, remote *far
	// front is the net/http lane, frames the frame lane of the same Proxy.
	front, frames *httptest.Server
	lane          *h2.Server
	table         func() *registry.Table
}

const remoteGV = "/apis/remote.example.com/v1"

type worldConfig struct {
	remoteHTTP1 bool
	remote      http.HandlerFunc
	local       http.HandlerFunc
	change      func(*apiregistrationv1.APIService)
	unhealthy   bool
	anonymous   bool
	incomplete  bool
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
	table := buildTable(t, w, c)
	w.table = func() *registry.Table { return table }
	w.start(t, c)
	return w
}

// buildTable has one remote group-version, served by w.remote, and one local one.
func buildTable(t *testing.T, w *world, c worldConfig) *registry.Table {
	t.Helper()
	address := netip.MustParseAddrPort(w.remote.Listener.Addr().String())
	port := int32(address.Port())
	remote := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.remote.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "remote.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: w.serving.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: new(int32(443))},
		},
	}
	if c.change != nil {
		c.change(remote)
	}
	key := types.NamespacedName{Namespace: "default", Name: "ext"}
	in := registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{
			remote.Name: remote,
			"v1.apps": {ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}, Spec: apiregistrationv1.APIServiceSpec{
				Group: "apps", Version: "v1", GroupPriorityMinimum: 17800, VersionPriority: 15,
			}},
		},
		Services: map[types.NamespacedName]*corev1.Service{key: {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
		}},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{key: {{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext-1"}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.Addr().String()}}},
		}}},
		Options: &registry.Options{AllowLoopback: true}, Complete: !c.incomplete, Now: time.Now(),
	}
	first := registry.Build(in, nil)
	for _, e := range first.Entries() {
		for _, ep := range e.Endpoints {
			h := registry.Report{Name: e.Name, Backend: e.Backend, Address: ep.Address, Health: registry.Healthy}
			if c.unhealthy {
				h.Health, h.Reason, h.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "dial tcp 10.1.2.3:443: refused"
			}
			in.Reports = append(in.Reports, h)
		}
	}
	return registry.Build(in, first)
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
	pools, err := backend.New(backend.Config{
		Table: w.table, AllowLoopback: true, TLS: func(b *registry.Backend) (*tls.Config, error) { return tlsTo(b.ServerName, true), nil },
	})
	check(t, err)
	local, err := backend.NewLocal(backend.LocalConfig{
		Servers: []string{w.local.URL}, TLS: func(certificate bool) (*tls.Config, error) { return tlsTo("localhost", certificate), nil },
	})
	check(t, err)
	w.proxy, err = New(Config{Table: w.table, Authn: w.authenticator(t, c), Authz: newTestAuthorizer(t), Backends: pools, Local: local})
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	w.lane = w.proxy.Frames(h2.Config{})
	for _, run := range []func(context.Context) error{pools.Run, local.Run, w.proxy.Run, w.lane.Run} {
		loops.Go(func() { _ = run(ctx) })
	}
	w.front, w.frames = w.server(), w.server()
	w.front.EnableHTTP2 = true
	w.frames.TLS.NextProtos = []string{"h2"}
	w.frames.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": w.lane.Serve}
	w.frames.Listener = w.lane.Listener(w.frames.Listener)
	w.front.StartTLS()
	w.frames.StartTLS()
	if e := w.table().Entry(schema.GroupVersion{Group: "remote.example.com", Version: "v1"}); !c.remoteHTTP1 {
		// Until a connection has shown that the backend speaks HTTP/2, the net/http lane has its requests.
		conn, err := pools.Upstream(e).DialH2(ctx, e.Endpoints[0].Address, nil)
		check(t, err)
		conn.Close()
	}
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

func (w *world) server() *httptest.Server {
	s := httptest.NewUnstartedServer(w.proxy)
	s.Config.ConnContext = w.proxy.ConnContext
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{w.serving.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	}
	return s
}

func (w *world) authenticator(t *testing.T, c worldConfig) *authn.Authenticator {
	t.Helper()
	verify := func(ca *pki.CA) func([]*x509.Certificate) ([][]*x509.Certificate, error) {
		return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
			return peer[0].Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		}
	}
	a, err := authn.New(authn.Config{
		VerifyClient: verify(w.client), VerifyFrontProxy: verify(w.authorities.front), Anonymous: c.anonymous,
		Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			name, ok := strings.CutPrefix(token, "token-of-")
			if !ok {
				return nil, false, nil
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name, UID: "uid-" + name, Groups: []string{"people"}, Extra: map[string][]string{"scope": {"all"}}}}, true, nil
		},
	})
	check(t, err)
	return a
}

// newTestAuthorizer allows everybody whose name does not begin with "no", and lets only "boss" impersonate.
func newTestAuthorizer(t *testing.T) *authz.Authorizer {
	t.Helper()
	z, err := authz.New(authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		name := a.GetUser().GetName()
		if strings.HasPrefix(name, "no") || strings.HasPrefix(a.GetVerb(), "impersonate") && name != "boss" {
			return authorizer.DecisionDeny, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	}})
	check(t, err)
	return z
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// httpClient speaks to the front door over one protocol, with a client certificate if pair is not nil.
func (w *world) httpClient(t *testing.T, proto string, pair *pki.Pair) *http.Client {
	t.Helper()
	tc := &tls.Config{RootCAs: w.serving.Pool(), MinVersion: tls.VersionTLS12}
	if pair != nil {
		tc.Certificates = []tls.Certificate{pair.TLS()}
	}
	tr := &http.Transport{TLSClientConfig: tc, ForceAttemptHTTP2: proto != "http/1.1", DisableCompression: true}
	if proto == "frames" {
		tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.frames.Listener.Addr().String())
		}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// dialFront opens an HTTP/1.1 connection to the front door, for requests that no client library would send.
func (w *world) dialFront(t *testing.T) net.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", w.front.Listener.Addr().String(), &tls.Config{RootCAs: w.serving.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12})
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// answer is a response with its body read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (w *world) do(t *testing.T, c *http.Client, r *http.Request) answer {
	t.Helper()
	res, err := c.Do(r)
	check(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	check(t, err)
	return answer{res.StatusCode, res.Header, string(body)}
}

// request makes a request to the front door whose target is sent as it stands.
func (w *world) request(t *testing.T, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.front.URL, body)
	check(t, err)
	path, query, has := strings.Cut(target, "?")
	r.URL.Opaque, r.URL.RawQuery, r.URL.ForceQuery = path, query, has
	r.URL.Opaque = "//" + r.URL.Host + path
	return r
}

// everyWay runs a test over HTTP/1.1 and HTTP/2 on the net/http lane, and over HTTP/2 on the frame lane: they must not be told apart.
func everyWay(t *testing.T, f func(t *testing.T, proto string)) {
	for _, proto := range []string{"http/1.1", "h2", "frames"} {
		t.Run(proto, func(t *testing.T) { f(t, proto) })
	}
}
