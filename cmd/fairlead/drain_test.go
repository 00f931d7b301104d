package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const consoles = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.consoles.example.com, annotations: {fairlead.dev/url: %q}}
spec: {group: consoles.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100, caBundle: %s, service: {namespace: x, name: nobody}}
`

// consoleDoor builds a door whose only backend runs h.
func consoleDoor(t *testing.T, o *options, ca *pki.CA, h http.HandlerFunc) *door {
	t.Helper()
	o.authzMode, o.anonymous = authzAlwaysAllow, true
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	writeFile(t, filepath.Join(o.directory(), "consoles.yaml"), fmt.Sprintf(consoles, s.URL, base64.StdEncoding.EncodeToString(ca.PEM())))
	return madeDoor(t, o, prometheus.NewRegistry())
}

// A drain ends the sessions that are open, and the logs have the end of each.
func TestDrainRecordsSessions(t *testing.T) {
	const sessions = 50
	o, ca := directoryOptions(t)
	dir := t.TempDir()
	o.audit.format = "json"
	o.access.path, o.audit.path = filepath.Join(dir, "access.log"), filepath.Join(dir, "audit.log")
	o.audit.policy = writeFile(t, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n")
	d := consoleDoor(t, o, ca, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx) }()
	open := func() int {
		conn := must.Get(tls.Dial("tcp", d.frontListener.Addr().String(), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}))(t)
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprint(conn, "GET /apis/consoles.example.com/v1/consoles/a/open HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
		return must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t).StatusCode
	}
	must.Soon(t, 20*time.Second, "the first session", func() bool { return open() == http.StatusSwitchingProtocols })
	for range sessions - 1 {
		check.Same(t, http.StatusSwitchingProtocols, open(), "status")
	}
	stop()
	must.Do(t, <-done)
	must.Do(t, d.closeLogs())
	for path, line := range map[string]string{o.access.path: `"status":101,`, o.audit.path: `"code":101}`} {
		check.Same(t, sessions, strings.Count(string(must.Get(os.ReadFile(path))(t)), line), "sessions in %s", filepath.Base(path))
	}
}

// With --shutdown-send-retry-after, new requests are asked to come back while others are still
// under way. --max-requests-inflight limits reads, and no writes.
func TestDrainRejectsNew(t *testing.T) {
	o, ca := directoryOptions(t)
	o.sendRetryAfter, o.maxInFlight = true, 1
	came, over := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(over) })
	d := consoleDoor(t, o, ca, func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			came <- struct{}{}
			<-over
		}
	})
	t.Cleanup(release) // before the backend ends
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	ask := func(method, name string) string {
		r := must.Get(http.NewRequestWithContext(t.Context(), method, "https://"+d.frontListener.Addr().String()+"/apis/consoles.example.com/v1/consoles/"+name, nil))(t)
		res, err := transport.RoundTrip(r)
		if err != nil {
			return err.Error()
		}
		res.Body.Close()
		return strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", res.Header.Get("Retry-After")))
	}
	must.Soon(t, 20*time.Second, "the backend", func() bool { return ask(http.MethodGet, "a") == "200" })
	slow := make(chan string, 2)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		go func() { slow <- ask(method, "slow") }()
		<-came
	}
	check.Same(t, "429 1", ask(http.MethodGet, "a"), "a read more than the limit")
	check.Same(t, "200", ask(http.MethodPost, "a"), "a second write")
	stop()
	must.Soon(t, 20*time.Second, "new requests are rejected", func() bool { return ask(http.MethodPost, "a") == "429 5" })
	release()
	for range 2 {
		check.Same(t, "200", <-slow, "a request under way")
	}
	must.Do(t, <-done)
}
