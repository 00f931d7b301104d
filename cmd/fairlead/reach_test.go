package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const namedForItself = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.loop.example.com}
spec: {group: loop.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: x, name: loop, port: %s}}
---
apiVersion: v1
kind: Service
metadata: {namespace: x, name: loop}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]s}]}
`

// A name that resolves to a forbidden address is not probed either: a probe carries our certificate
// as system:masters. Here it resolves to Fairlead itself.
func TestProbesAskTheCheckOfLiveTraffic(t *testing.T) {
	d, _ := aloneDoor(t, func(*options) {})
	_, port := must.Get2(net.SplitHostPort(d.frontListener.Addr().String()))(t)
	writeFile(t, filepath.Join(d.o.directory(), "loop.yaml"), fmt.Sprintf(namedForItself, port))
	must.Run(t, d.registry.Run)
	must.Run(t, d.prober.Run)
	var found registry.Endpoint
	must.Soon(t, 20*time.Second, "a probe has reported", func() bool {
		e := d.registry.Table().Entry(schema.GroupVersion{Group: "loop.example.com", Version: "v1"})
		if e != nil && len(e.Endpoints) > 0 {
			found = e.Endpoints[0]
		}
		return found.Health != registry.Unprobed
	})
	if found.Health != registry.Unhealthy || !strings.Contains(found.Message, "is this server itself") {
		t.Errorf("the probe found %+v", found)
	}
}

// doorBefore builds everything that serve builds before a local apiserver, but does not serve.
func doorBefore(t *testing.T, serve http.HandlerFunc) (d *door, s *httptest.Server) {
	t.Helper()
	d = buildDoor(t, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
		s = httptest.NewUnstartedServer(serve)
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(s.Close)
		o.localAPIServer = []string{s.URL}
	})
	return d, s
}

// The local apiserver's probe results reach its pools, and its lost connections the prober.
func TestLocalApiserverIsProbed(t *testing.T) {
	var unready atomic.Bool
	asked := make(chan string, 100)
	d, s := doorBefore(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Proto + " " + r.URL.Path + " " + r.Header.Get("X-Remote-User") + " " + r.TLS.PeerCertificates[0].Subject.CommonName
		if unready.Load() {
			http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
		}
	})
	for _, name := range []string{"local apiserver's pools", "local apiserver's prober"} {
		must.Run(t, d.loops()[name])
	}
	until := func(want registry.Health, message string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			if e := d.localServers()[0]; e.Health == want && strings.Contains(e.Message, message) {
				return
			}
			select {
			case got := <-asked:
				if want := "HTTP/2.0 /readyz system:kube-aggregator front-proxy-client"; got != want {
					t.Errorf("asked %q, want %q", got, want)
				}
			case <-time.After(time.Millisecond):
			case <-deadline:
				t.Fatalf("the local apiserver is %+v", d.localServers()[0])
			}
		}
	}
	until(registry.Healthy, "")
	page := httptest.NewRecorder()
	d.pages.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/status", nil))
	if !strings.Contains(page.Body.String(), `"probed": "`) {
		t.Errorf("the pages show no probe of the local apiserver: %s", page.Body)
	}
	unready.Store(true)
	s.CloseClientConnections()
	until(registry.Unhealthy, "500: [-]etcd failed")
	unready.Store(false)
	until(registry.Healthy, "")
}

// No document is taken from a local apiserver that is not ready: its discovery lacks CRDs that it
// has not read yet.
func TestDocumentsOfAReadyApiserver(t *testing.T) {
	var d *door
	report := func(h registry.Health) { d.local.Report(d.localServers()[0].Address, h, "") }
	restarts, asked := false, 0
	d, _ = doorBefore(t, func(http.ResponseWriter, *http.Request) {
		if asked++; restarts {
			report(registry.Unhealthy)
		}
	})
	must.Run(t, d.loops()["local apiserver's pools"])
	must.Run(t, func(ctx context.Context) error { return errors.Join(d.frames.Run(ctx), ctx.Err()) })
	fetch := func(ctx context.Context) error {
		res, err := d.fetchLocal(ctx, must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://local/apis", nil))(t))
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fetch(over); err == nil || err.Error() != "no local apiserver is healthy" || asked > 0 {
		t.Errorf("before it is ready: %v, asked %d times", err, asked)
	}
	go report(registry.Healthy)
	if err := fetch(t.Context()); err != nil {
		t.Errorf("once it is ready: %v", err)
	}
	restarts = true
	if err := fetch(t.Context()); err == nil {
		t.Error("the answer of one that has restarted meanwhile is taken")
	}
	check.Same(t, 2, asked, "requests")
}
