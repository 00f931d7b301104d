//go:build e2e

package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// door is one Fairlead under test. All certificates of its own side are in files that tests replace.
type door struct {
	*cluster.Front
	w         *world
	serving   string       // base name of the serving pair's files
	proxyPair string       // and of the proxy client pair's
	admin     *http.Client // of its admin port
	now       atomic.Pointer[map[string]float64]
}

// newDoor starts a Fairlead in front of both kube-apiservers. It ends with the test.
func (w *world) newDoor(t *testing.T, args ...string) *door {
	t.Helper()
	name := w.name("fairlead")
	d := &door{w: w, serving: w.in(name + "-serving"), proxyPair: w.in(name + "-proxy"), admin: w.users(1, true)[0]}
	d.newServing(t)
	cert, key := writePair(t, d.proxyPair, w.fronts[0].Issue(pki.Leaf{CommonName: "front-proxy-client"}))
	d.Front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: name, CAFile: w.in("rotated-serving-ca.crt"), Args: append([]string{
		"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL,
		"--tls-cert-file=" + d.serving + ".crt", "--tls-private-key-file=" + d.serving + ".key",
		"--client-ca-file=" + w.clients.file, "--requestheader-client-ca-file=" + w.proxies.file, "--requestheader-allowed-names=gateway",
		"--proxy-client-cert-file=" + cert, "--proxy-client-key-file=" + key,
	}, args...)}))(t)
	t.Cleanup(d.Part.Kill)
	d.now.Store(new(map[string]float64))
	repeat(t, 50*time.Millisecond, func(ctx context.Context) {
		if s, err := ask.Metrics(ctx, d.admin, d.Admin.URL); err == nil {
			d.now.Store(&s)
		}
	})
	return d
}

// repeat calls a function at an interval until the test ends.
func repeat(t *testing.T, every time.Duration, do func(context.Context)) {
	t.Helper()
	must.Run(t, func(ctx context.Context) error { wait.NonSlidingUntilWithContext(ctx, do, every); return ctx.Err() })
}

// scrape returns the latest metrics. There is one reader for all cases, because a scrape costs
// Fairlead some milliseconds.
func (d *door) scrape() map[string]float64 { return *d.now.Load() }

// series returns the latest metrics whose names and labels begin with name and contain all parts.
func (d *door) series(name string, parts ...string) map[string]float64 {
	all := maps.Clone(d.scrape())
	maps.DeleteFunc(all, func(series string, _ float64) bool {
		lacks := !strings.HasPrefix(series, name)
		for _, p := range parts {
			lacks = lacks || !strings.Contains(series, p)
		}
		return lacks
	})
	return all
}

// newServing replaces the serving pair and returns the new certificate.
func (d *door) newServing(t *testing.T) *x509.Certificate {
	t.Helper()
	pair := d.w.servingCA.Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}})
	writePair(t, d.serving, pair)
	return pair.Certificate
}

// served returns the certificate that a new connection gets.
func (d *door) served(t *testing.T) *x509.Certificate {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: d.w.servingCA.Pool(), MinVersion: tls.VersionTLS12}}
	conn := must.Get(dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(d.Endpoint.URL, "https://")))(t)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// writePair writes the files <base>.crt and <base>.key as careless tools do: in place, and the key
// long before its certificate.
func writePair(t *testing.T, base string, pair *pki.Pair) (cert, key string) {
	t.Helper()
	cert, key = base+".crt", base+".key"
	must.Do(t, os.WriteFile(key, pair.KeyPEM(), 0o600))
	suite.Pause(t, 50*time.Millisecond)
	must.Do(t, os.WriteFile(cert, pair.CertPEM(), 0o600))
	return cert, key
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

// transport returns one with its own connections to Fairleads.
func (w *world) transport(id identity, h2 bool) *http.Transport {
	cfg := &tls.Config{RootCAs: w.servingCA.Pool(), MinVersion: tls.VersionTLS12}
	if id.pair != nil {
		// Regardless of the CAs that the server names: with Certificates, crypto/tls would send
		// none of another CA, and the request would be anonymous.
		pair := id.pair.TLS()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &http.Transport{TLSClientConfig: cfg, Protocols: ask.Only(h2), DisableCompression: true}
}

// users returns n clients with one connection each, as a member of system:masters.
func (w *world) users(n int, h2 bool) (list []*http.Client) {
	for range n {
		list = append(list, &http.Client{Transport: w.transport(masters(w.clients.lasting), h2)})
	}
	return list
}
