package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const namedByURL = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.far.example.com
  annotations: {fairlead.dev/probe-interval: 1s, fairlead.dev/url: "https://backend.example.com:%s,https://127.0.0.1:%s,https://127.0.0.1:1"}
spec: {group: far.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100, caBundle: %s, service: {namespace: x, name: nobody}}
`

// resolve makes this process resolve every name to an address that may change.
func resolve(t *testing.T, to *atomic.Pointer[net.IP]) {
	t.Helper()
	server := must.Get(new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0"))(t)
	var answering sync.WaitGroup
	answering.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return // it was closed
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte(to.Load().To4())}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	})
	before := net.DefaultResolver
	// A lookup may outlive its caller, and the test: its dialer must not read net.DefaultResolver.
	dialer := &net.Dialer{Resolver: before}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		_ = server.Close()
		answering.Wait()
	})
}

// Three URLs, one with a name, one with an address, one without a server: each server is called by
// its own name, verified by it, and used. When the name resolves to a forbidden address, no packet
// goes there, and requests go to the remaining server, with a renewed client certificate, too.
func TestBackendsByURL(t *testing.T) {
	var at atomic.Pointer[net.IP]
	bind := func(ip string) { parsed := net.ParseIP(ip); at.Store(&parsed) }
	bind("127.0.0.1")
	resolve(t, &at)
	d, ca := aloneDoor(t, func(o *options) { o.anonymous, o.authzMode = true, "AlwaysAllow" })
	var shown atomic.Value // by the last request for things
	serve := func(name string) (port string) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if called := r.TLS.ServerName; called != name && net.ParseIP(name) == nil || called != "" && net.ParseIP(name) != nil {
				t.Errorf("%s is called %q for %s", name, called, r.URL.Path)
			}
			if strings.HasSuffix(r.URL.Path, "/things") {
				shown.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
			}
			_, _ = io.WriteString(w, name)
		}))
		s.EnableHTTP2, s.Config.ErrorLog = true, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		pair := ca.Issue(pki.Leaf{Names: []string{name}}).TLS()
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
		return port
	}
	named := serve("backend.example.com")
	manifest := fmt.Sprintf(namedByURL, named, serve("127.0.0.1"), base64.StdEncoding.EncodeToString(ca.PEM()))
	writeFile(t, filepath.Join(d.o.directory(), "far.yaml"), manifest)
	runDoor(t, d)
	until := func(what string, ok func(e *registry.Entry, named registry.Endpoint) bool) {
		t.Helper()
		limit, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		for table := range latest.Of(limit, d.registry.Table, nil) {
			for _, e := range table.Entries() {
				for _, p := range e.Endpoints {
					if p.Address == "backend.example.com:"+named && ok(e, p) {
						return
					}
				}
			}
		}
		t.Fatalf("never %s: %+v", what, d.registry.Table().Entries()[0].Endpoints)
	}
	ask := func(http2 bool) map[string]int {
		t.Helper()
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: http2}
		defer tr.CloseIdleConnections()
		answers := map[string]int{}
		for range 50 {
			url := "https://" + d.frontListener.Addr().String() + "/apis/far.example.com/v1/things"
			res := must.Get(tr.RoundTrip(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)))(t)
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", res.Status, body)
			}
			answers[string(body)]++
		}
		return answers
	}
	until("well", func(e *registry.Entry, _ registry.Endpoint) bool {
		n := map[registry.Health]int{}
		for _, p := range e.Endpoints {
			n[p.Health]++
		}
		return e.Verdict.Available() && n[registry.Healthy] == 2 && n[registry.Unhealthy] == 1
	})
	const byName, byAddress = "backend.example.com", "127.0.0.1"
	for _, http2 := range []bool{true, false} {
		if answers := ask(http2); answers[byName] == 0 || answers[byAddress] == 0 || len(answers) != 2 {
			t.Errorf("HTTP/2 %v: %v", http2, answers)
		}
	}
	bind("169.254.169.254")
	until("refused", func(e *registry.Entry, p registry.Endpoint) bool {
		return e.Verdict.Available() && p.Health == registry.Unhealthy && strings.Contains(p.Message, "169.254.169.254 is a link-local address")
	})
	for _, http2 := range []bool{true, false} {
		if answers := ask(http2); answers[byAddress] != 50 {
			t.Errorf("HTTP/2 %v, after the name's address changed: %v", http2, answers)
		}
	}
	writePair(t, ca.Issue(pki.Leaf{CommonName: "renewed", Names: []string{"localhost"}}), filepath.Dir(d.o.proxyCert), "front")
	must.Soon(t, 20*time.Second, "the renewed certificate is shown", func() bool {
		ask(true)
		return shown.Load() == "renewed"
	})
}
