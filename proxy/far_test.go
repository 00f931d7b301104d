package proxy

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// received is one request as a backend received it.
type received struct {
	method, target, proto string
	header                http.Header
	trailer               http.Header
	peer                  string
	body                  string
}

// far is a TLS server that records the requests it receives.
type far struct {
	*httptest.Server
	mu  sync.Mutex // guards got
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

// authorities are the CAs of a test.
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
