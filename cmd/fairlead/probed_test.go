package main

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The prober's word on the local apiserver reaches its pools, and what they have lost the prober.
func TestLocalApiserverIsProbed(t *testing.T) {
	var unready atomic.Bool
	asked := make(chan string, 100)
	var s *httptest.Server
	d := buildDoor(t, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
		s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.Proto + " " + r.URL.Path + " " + r.Header.Get("X-Remote-User") + " " + r.TLS.PeerCertificates[0].Subject.CommonName
			if unready.Load() {
				http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
			}
		}))
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(s.Close)
		o.localAPIServer = []string{s.URL}
	})
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, name := range []string{"local apiserver's pools", "local apiserver's prober"} {
		run := d.loops()[name]
		running.Go(func() { _ = run(t.Context()) })
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
				t.Fatalf("it is %+v", d.localServers()[0])
			}
		}
	}
	until(registry.Healthy, "")
	unready.Store(true)
	s.CloseClientConnections()
	until(registry.Unhealthy, "500: [-]etcd failed")
	unready.Store(false)
	until(registry.Healthy, "")
}
