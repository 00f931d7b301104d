package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The admin port authenticates operators by client certificate, over both protocols.
func TestOperatorsShowCertificates(t *testing.T) {
	users := pki.NewCA("users")
	d, ca := aloneDoor(t, func(o *options) {
		o.clientCA = filepath.Join(t.TempDir(), "users.crt")
		must.Do(t, os.WriteFile(o.clientCA, users.PEM(), 0o600))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.serve(ctx) }()
	jane := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{users.Issue(pki.Leaf{CommonName: "jane"}).TLS()}, MinVersion: tls.VersionTLS12}
	for _, h2 := range []bool{true, false} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: jane.Clone(), ForceAttemptHTTP2: h2}}
		res := must.Get(client.Get("https://" + d.adminListener.Addr().String() + "/metrics"))(t)
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.ProtoMajor == 2 != h2 || res.StatusCode != http.StatusForbidden || !strings.Contains(string(text), `User \"jane\"`) {
			t.Errorf("%s: %d %s", res.Proto, res.StatusCode, text)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// If one port cannot be opened, the start fails and closes the other.
func TestFailedStartClosesItsPort(t *testing.T) {
	there, _ := aloneDoor(t, func(*options) {})
	o := *there.o
	o.adminPort = there.adminListener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	d := &door{o: &o, log: slog.New(slog.DiscardHandler), metrics: prometheus.NewRegistry()}
	if err := d.build(t.Context()); err == nil {
		t.Fatal("two doors listen on one port")
	}
	if conn, err := net.Dial("tcp", d.frontListener.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the front port is still open")
	}
}

// A loop that does not end, because a plugin hangs, delays the end of this process by a bound.
func TestLoopThatDoesNotEnd(t *testing.T) {
	d := &door{log: slog.New(slog.DiscardHandler)}
	fault := errors.New("listening")
	for _, tc := range []struct {
		name  string
		loops time.Duration
		want  error
		takes time.Duration
	}{
		{"at once", 0, fault, 0},
		{"in time", lastWait - time.Second, fault, lastWait - time.Second},
		{"late", time.Hour, nil, lastWait},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped, begun := make(chan struct{}), time.Now()
				close(stopped)
				err := d.ended(func() error { <-time.After(tc.loops); return fault }, stopped)
				if took := time.Since(begun); !errors.Is(err, tc.want) || took != tc.takes {
					t.Errorf("%v after %v, want %v after %v", err, took, tc.want, tc.takes)
				}
				<-time.After(tc.loops) // a bubble waits for its goroutines
			})
		})
	}
}
