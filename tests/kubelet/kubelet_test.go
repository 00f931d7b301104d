package kubelet

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// harbour is a kubelet with one container, and its CA.
type harbour struct {
	*Kubelet
	ca  *pki.CA
	url string
}

func newHarbour(t *testing.T) *harbour {
	t.Helper()
	ca := pki.NewCA("harbour")
	k := must.Get(New(Config{Certificate: ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS(), ClientCAs: ca.Pool(), Dir: t.TempDir()}))(t)
	t.Cleanup(k.Close)
	must.Get(k.newContainer("ns", "buoy"))(t)
	return &harbour{Kubelet: k, ca: ca, url: "https://" + k.listen.Addr().String()}
}

// config is the configuration of a client in group.
func (h *harbour) config(group string) *rest.Config {
	pair := h.ca.Issue(pki.Leaf{CommonName: "someone", Organizations: []string{group}})
	return &rest.Config{Host: h.url, TLSClientConfig: rest.TLSClientConfig{CAData: h.ca.PEM(), CertData: pair.CertPEM(), KeyData: pair.KeyPEM()}}
}

func (h *harbour) get(t *testing.T, group, path string) (int, string) {
	t.Helper()
	client := must.Get(rest.HTTPClientFor(h.config(group)))(t)
	res := must.Get(client.Do(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+path, nil))(t)))(t)
	defer res.Body.Close()
	return res.StatusCode, string(must.Get(io.ReadAll(res.Body))(t))
}

func TestOnlyMastersMayAsk(t *testing.T) {
	h := newHarbour(t)
	for _, path := range []string{"/metrics/resource", "/containerLogs/ns/buoy/main", "/exec/ns/buoy/main?output=1&command=true"} {
		if code, body := h.get(t, "dev", path); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	conn, err := tls.Dial("tcp", h.listen.Addr().String(), &tls.Config{RootCAs: h.ca.Pool(), ServerName: "127.0.0.1"})
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the refusal arrives after the client's handshake
		_ = conn.Close()
	}
	if err == nil {
		t.Error("a client without a certificate was admitted")
	}
}
