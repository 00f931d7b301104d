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

// A drain ends the sessions that are open, and the logs have the end of each.
func TestDrainRecordsSessions(t *testing.T) {
	const sessions = 50
	o, ca := directoryOptions(t)
	dir := t.TempDir()
	o.authzMode, o.anonymous, o.audit.format = authzAlwaysAllow, true, "json"
	o.access.path, o.audit.path = filepath.Join(dir, "access.log"), filepath.Join(dir, "audit.log")
	o.audit.policy = writeFile(t, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	writeFile(t, filepath.Join(o.directory(), "consoles.yaml"), fmt.Sprintf(consoles, s.URL, base64.StdEncoding.EncodeToString(ca.PEM())))
	d := madeDoor(t, o, prometheus.NewRegistry())
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
