package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
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

// A name that leads where nobody may dial is not probed there either: a probe carries our
// certificate and asks as system:masters. Here it leads to Fairlead itself.
func TestProbesAskTheCheckOfLiveTraffic(t *testing.T) {
	d, _ := aloneDoor(t, func(*options) {})
	_, port, err := net.SplitHostPort(d.frontListener.Addr().String())
	must.Do(t, err)
	writeFile(t, filepath.Join(d.o.directory(), "loop.yaml"), fmt.Sprintf(namedForItself, port))
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, run := range []func(context.Context) error{d.registry.Run, d.prober.Run} {
		running.Go(func() { _ = run(t.Context()) })
	}
	deadline := time.After(20 * time.Second)
	for {
		table := d.registry.Table()
		for _, e := range table.Entries() {
			if e.Name != "v1.loop.example.com" || len(e.Endpoints) == 0 || e.Endpoints[0].Health == registry.Unprobed {
				continue
			}
			if e.Endpoints[0].Health != registry.Unhealthy || !strings.Contains(e.Endpoints[0].Message, "is this server itself") {
				t.Errorf("the probe found %+v", e.Endpoints[0])
			}
			return
		}
		select {
		case <-table.Superseded():
		case <-deadline:
			t.Fatalf("no probe has told anything: %+v", table.Entries())
		}
	}
}

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
