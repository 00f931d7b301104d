//go:build e2e

package incidents

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// yesterday lets kube-apiserver's answers say that it is yesterday: for Fairlead, its own clock is a day ahead.
func yesterday(t *testing.T, w *world) *incident {
	var behind atomic.Bool
	serving := must.Get(w.PKI.Serving.Issue("relay", cluster.Leaf{User: "relay", Names: []string{"127.0.0.1"}, NotAfter: time.Now().Add(long)}))(t)
	to := must.Get(url.Parse(w.Endpoint().URL))(t)
	transports := map[bool]http.RoundTripper{}
	for proxied, pair := range map[bool]cluster.Pair{true: w.fronts, false: {}} {
		transports[proxied] = &http.Transport{TLSClientConfig: suite.TLS(t, w.Endpoint(), cluster.Credentials{Pair: pair}), ForceAttemptHTTP2: true}
	}
	relay := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     proxiedBy(transports),
		ModifyResponse: func(r *http.Response) error {
			if behind.Load() {
				r.Header.Set("Date", time.Now().Add(-24*time.Hour).UTC().Format(http.TimeFormat))
			}
			return nil
		},
	}
	e := serveTLS(t, relay, serving, w.PKI.Serving.CertFile)
	f := w.serveAt(t, e, "yesterday")
	return &incident{fronts: []*cluster.Front{f}, start: func(*testing.T) { behind.Store(true) }, mend: func(*testing.T) { behind.Store(false) }}
}

// proxiedBy are the transports for requests with and without a client certificate.
type proxiedBy map[bool]http.RoundTripper

func (p proxiedBy) RoundTrip(r *http.Request) (*http.Response, error) {
	return p[len(r.TLS.PeerCertificates) > 0].RoundTrip(r)
}

// serveTLS serves a handler on loopback until the test ends.
func serveTLS(t *testing.T, h http.Handler, pair cluster.Pair, ca string) cluster.Endpoint {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", alone.Ports(t, 1)[0])
	s := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}}
	t.Cleanup(func() { _ = s.Close() })
	go func() { _ = s.ListenAndServeTLS(pair.CertFile, pair.KeyFile) }() // ends with s
	return cluster.Endpoint{URL: "https://" + address, CAFile: ca}
}
