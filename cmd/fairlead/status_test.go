package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const withoutService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.g%[1]d.example.com}
spec: {group: g%[1]d.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: x, name: gone}}
`

// The leader writes an Event to the local apiserver for a new APIService that is not available.
func TestEventsReachTheLocalApiserver(t *testing.T) {
	written := make(chan string, 100)
	manifests := t.TempDir()
	d := buildDoor(t, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				http.NotFound(w, r)
				return
			}
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			_, _ = w.Write(body) // it accepts every write
			written <- r.URL.Path + string(body)
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, MinVersion: tls.VersionTLS12}
		s.StartTLS()
		t.Cleanup(s.Close)
		o.localAPIServer, o.registry = []string{s.URL}, "dir:"+manifests
	})
	for _, name := range []string{"table", "events"} {
		must.Run(t, d.loops()[name])
	}
	late := time.After(20 * time.Second)
	for n := 0; ; n++ { // the first ones may exist before it leads
		must.Do(t, os.WriteFile(filepath.Join(manifests, fmt.Sprintf("%d.yaml", n)), fmt.Appendf(nil, withoutService, n), 0o600))
		select {
		case got := <-written:
			if strings.HasPrefix(got, "/api/v1/namespaces/default/events") && strings.Contains(got, "ServiceNotFound") {
				return
			}
		case <-time.After(100 * time.Millisecond):
		case <-late:
			t.Fatal("there is no Event")
		}
	}
}

// Without the flag, no Events are written.
func TestEventsAreAskedFor(t *testing.T) {
	d := buildDoor(t, prometheus.NewRegistry(), func(o *options, _ *pki.CA) { o.emitEvents = false })
	if loops := d.loops(); loops["events"] != nil || loops["status writer"] == nil {
		t.Errorf("events: %v, status writer: %v", loops["events"] != nil, loops["status writer"] != nil)
	}
}
