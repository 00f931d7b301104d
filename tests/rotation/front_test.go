//go:build e2e

package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// front is a Fairlead and all certificates of its own side, in files that this test replaces.
type front struct {
	*cluster.Front
	w    *world
	lane string
	dir  string

	servingCA *pki.CA
	serving   volume
	clients   *bundle
	proxies   *bundle
	proxyPair string // base name of the proxy client pair's files
	admin     *pki.Pair
}

// startFront runs a Fairlead on one lane.
func startFront(t *testing.T, w *world, lane string, args ...string) *front {
	t.Helper()
	dir := filepath.Join(w.Dir(), strings.Join(append([]string{lane}, args...), ""))
	must.Do(t, os.MkdirAll(filepath.Join(dir, "serving"), 0o700))
	f := &front{
		w: w, lane: lane, dir: dir, servingCA: pki.NewCA("serving-ca"), serving: volume{dir: filepath.Join(dir, "serving")},
		clients: newBundle(t, filepath.Join(dir, "client-ca.crt"), "client-ca"), proxies: newBundle(t, filepath.Join(dir, "requestheader-ca.crt"), "requestheader-ca"),
		proxyPair: filepath.Join(dir, "proxy-client"),
	}
	f.admin = f.clients.lasting.Issue(pki.Leaf{CommonName: "admin", Organizations: []string{"system:masters"}})
	f.newServing(t)
	cert, key := writePair(t, f.proxyPair, w.frontCAs[0].Issue(pki.Leaf{CommonName: "fairlead"}))
	ca := filepath.Join(dir, "serving-ca.crt")
	suite.Put(t, ca, f.servingCA.PEM())
	f.Front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.binary, Name: "fairlead-" + filepath.Base(dir), CAFile: ca,
		Args: append([]string{
			"--tls-cert-file=" + filepath.Join(f.serving.dir, "tls.crt"), "--tls-private-key-file=" + filepath.Join(f.serving.dir, "tls.key"),
			"--client-ca-file=" + f.clients.file, "--requestheader-client-ca-file=" + f.proxies.file, "--requestheader-allowed-names=gateway",
			"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key, fmt.Sprint("--http2=", lane == "h2"),
		}, args...),
	}))(t)
	return f
}

// newServing replaces the serving pair and returns the new certificate.
func (f *front) newServing(t *testing.T) *x509.Certificate {
	t.Helper()
	pair := f.servingCA.Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}})
	f.serving.write(t, map[string][]byte{"tls.crt": pair.CertPEM(), "tls.key": pair.KeyPEM()})
	return pair.Certificate
}

// served returns the certificate that a new connection gets.
func (f *front) served(ctx context.Context) (*x509.Certificate, error) {
	d := tls.Dialer{Config: &tls.Config{RootCAs: f.servingCA.Pool(), MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(f.Endpoint.URL, "https://"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// bundle is a file of CAs that this test adds and removes. Concurrent cases share it.
type bundle struct {
	file string
	// first exists at the start, and is rotated away; lasting stays.
	first, lasting *pki.CA

	mu  sync.Mutex // guards cas and orders the writes
	cas []*pki.CA
}

func newBundle(t *testing.T, file, name string) *bundle {
	t.Helper()
	b := &bundle{file: file, first: pki.NewCA(name), lasting: pki.NewCA("lasting-" + name)}
	b.add(t, b.first, b.lasting)
	return b
}

func (b *bundle) add(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cas = append(b.cas, cas...)
	b.writeLocked(t)
}

func (b *bundle) remove(t *testing.T, ca *pki.CA) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cas = slices.DeleteFunc(b.cas, func(c *pki.CA) bool { return c == ca })
	b.writeLocked(t)
}

func (b *bundle) writeLocked(t *testing.T) {
	t.Helper()
	suite.Put(t, b.file, pki.Bundle(b.cas...))
}

// identity is a caller's credentials.
type identity struct {
	pair   *pki.Pair   // client certificate; nil: none
	header http.Header // of every request
}

// user is an identity by certificate.
func user(pair *pki.Pair) identity { return identity{pair: pair} }

// gateway is a front proxy's identity, with a user in system:masters.
func gateway(ca *pki.CA) identity {
	return identity{
		pair:   ca.Issue(pki.Leaf{CommonName: "gateway"}),
		header: http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"system:masters"}},
	}
}

func masters(ca *pki.CA) identity {
	return user(ca.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"system:masters"}}))
}

// client sends requests with one identity.
type client struct {
	http   *http.Client
	base   string
	header http.Header
	dials  atomic.Int64
}

// client returns a client with its own connections, over HTTP/1.1 or, where it is offered, HTTP/2.
func (f *front) client(id identity, h2 bool) *client {
	h2 = h2 && f.lane == "h2"
	cfg := &tls.Config{RootCAs: f.servingCA.Pool(), MinVersion: tls.VersionTLS12}
	if id.pair != nil {
		// Regardless of the CAs that the server names: with Certificates, crypto/tls would send
		// none of another CA, and the request would be anonymous.
		pair := id.pair.TLS()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	dialer := &tls.Dialer{Config: cfg}
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	if h2 {
		cfg.NextProtos = []string{"h2"}
	}
	c := &client{base: f.Endpoint.URL, header: id.header}
	transport := &http.Transport{Protocols: &protocols, DisableCompression: true, MaxIdleConnsPerHost: 16, DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c.dials.Add(1)
		return dialer.DialContext(ctx, network, address)
	}}
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c
}

// get sends a request and reads the whole answer. Any status but 200 is an error.
func (c *client) get(ctx context.Context, path string) (status int, err error) {
	// 10 s: no request here takes a tenth of a second on an idle machine, so a client that waits
	// longer has failed.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	reply, err := ask.Do(ctx, c.http, http.MethodGet, c.base+path, c.header, "")
	if err == nil && reply.Code != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", reply.Code, reply.Body)
	}
	return reply.Code, err
}

func (c *client) close() { c.http.CloseIdleConnections() }

// metric returns the lines of Fairlead's metrics that begin with name and contain all parts.
func (f *front) metric(t *testing.T, name string, parts ...string) []string {
	t.Helper()
	c := f.client(user(f.admin), true)
	defer c.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var found []string
	for line := range strings.Lines(must.Get(ask.Get(ctx, c.http, f.Admin.URL+"/metrics"))(t)) {
		if strings.HasPrefix(line, name) && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}
