//go:build e2e

package rotation

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// front is a Fairlead and all certificates of its own side, in files that this test replaces.
type front struct {
	*cluster.Front
	w *world

	servingCA *pki.CA
	serving   string // base name of the serving pair's files
	clients   *bundle
	proxies   *bundle
	proxyPair string // base name of the proxy client pair's files
	admin     *http.Client
}

func startFront(t *testing.T, w *world) *front {
	t.Helper()
	in := func(name string) string { return filepath.Join(w.Dir(), name) }
	f := &front{
		w: w, servingCA: pki.NewCA("serving-ca"), serving: in("serving"),
		clients: newBundle(t, in("new-client-ca.crt"), "client-ca"), proxies: newBundle(t, in("requestheader-ca.crt"), "requestheader-ca"), proxyPair: in("proxy-client"),
	}
	f.admin = &http.Client{Transport: f.transport(masters(f.clients.lasting), true)}
	f.newServing(t)
	cert, key := writePair(t, f.proxyPair, w.frontCAs[0].Issue(pki.Leaf{CommonName: "fairlead"}))
	suite.Put(t, in("new-serving-ca.crt"), f.servingCA.PEM())
	f.Front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.binary, CAFile: in("new-serving-ca.crt"), Args: []string{
		"--tls-cert-file=" + f.serving + ".crt", "--tls-private-key-file=" + f.serving + ".key",
		"--client-ca-file=" + f.clients.file, "--requestheader-client-ca-file=" + f.proxies.file, "--requestheader-allowed-names=gateway",
		"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key,
	}}))(t)
	return f
}

// newServing replaces the serving pair and returns the new certificate.
func (f *front) newServing(t *testing.T) *x509.Certificate {
	t.Helper()
	pair := f.servingCA.Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}})
	writePair(t, f.serving, pair)
	return pair.Certificate
}

// served returns the certificate that a new connection gets.
func (f *front) served(t *testing.T) *x509.Certificate {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{RootCAs: f.servingCA.Pool(), MinVersion: tls.VersionTLS12}}
	conn := must.Get(d.DialContext(t.Context(), "tcp", strings.TrimPrefix(f.Endpoint.URL, "https://")))(t)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// bundle is a file of CAs. first is rotated away; lasting stays.
type bundle struct {
	file           string
	first, lasting *pki.CA
}

func newBundle(t *testing.T, file, name string) *bundle {
	t.Helper()
	b := &bundle{file: file, first: pki.NewCA(name), lasting: pki.NewCA("lasting-" + name)}
	b.write(t, b.first, b.lasting)
	return b
}

func (b *bundle) write(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	suite.Put(t, b.file, pki.Bundle(cas...))
}

// identity is a caller's credentials.
type identity struct {
	pair   *pki.Pair   // client certificate; nil: none
	header http.Header // of every request
}

// gateway is a front proxy's identity, with a user in system:masters.
func gateway(ca *pki.CA) identity {
	return identity{
		pair:   ca.Issue(pki.Leaf{CommonName: "gateway"}),
		header: http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"system:masters"}},
	}
}

func masters(ca *pki.CA) identity {
	return identity{pair: ca.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"system:masters"}})}
}

// transport returns one with its own connections.
func (f *front) transport(id identity, h2 bool) *http.Transport {
	cfg := &tls.Config{RootCAs: f.servingCA.Pool(), MinVersion: tls.VersionTLS12}
	if id.pair != nil {
		// Regardless of the CAs that the server names: with Certificates, crypto/tls would send
		// none of another CA, and the request would be anonymous.
		pair := id.pair.TLS()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &http.Transport{TLSClientConfig: cfg, Protocols: ask.Only(h2), DisableCompression: true, MaxIdleConnsPerHost: 16}
}

// onOne sends a request on the client's open connection, if it has one.
func (s *stage) onOne(t *testing.T, c *http.Client, id identity, tg target, want int) {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused && want != http.StatusOK {
			t.Error("the open connection was closed")
		}
	}})
	if reply, err := ask.Do(ctx, c, http.MethodGet, s.Endpoint.URL+tg.get, id.header, ""); err != nil || reply.Code != want {
		t.Errorf("%s: %d (%v) on the open connection, want %d", tg.name, reply.Code, err, want)
	}
}

// metric returns the lines of Fairlead's metrics that begin with name and contain all parts.
func (f *front) metric(t *testing.T, name string, parts ...string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(must.Get(ask.Get(t.Context(), f.admin, f.Admin.URL+"/metrics"))(t)) {
		if strings.HasPrefix(line, name) && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}
