package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestRun(t *testing.T) {
	front := pki.NewCA("front")
	file := filepath.Join(t.TempDir(), "front.crt")
	must.Do(t, os.WriteFile(file, front.PEM(), 0o600))
	own := pki.NewCA("own")
	caCert, caKey, err := own.WriteFiles(t.TempDir(), "own")
	if err != nil {
		t.Fatal(err)
	}
	parent, hangUp := io.Pipe()
	out, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(t.Context(), []string{
			"-parent", "-group-versions=a.test/v1,a.test/v2", "-names=svc.ns.svc", "-requestheader-client-ca-file=" + file,
			"-requestheader-allowed-names=proxy", "-ca-cert-file=" + caCert, "-ca-key-file=" + caKey,
		}, parent, stdout)
	}()
	line := must.Get(bufio.NewReader(out).ReadBytes('\n'))(t)
	var r ready
	must.Do(t, json.Unmarshal(line, &r))
	if r.CA != string(own.PEM()) {
		t.Errorf("signed by another CA than the one given:\n%s", r.CA)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(r.CA))
	for name, want := range map[string]int{"proxy": 200, "other": 401} {
		pair := front.Issue(pki.Leaf{CommonName: name}).TLS()
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
			RootCAs: pool, ServerName: "svc.ns.svc", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		}}
		res := must.Get((&http.Client{Transport: transport}).Get("https://" + r.Address + "/apis/a.test/v2"))(t)
		res.Body.Close()
		transport.CloseIdleConnections()
		if res.StatusCode != want {
			t.Errorf("as %s: %d, want %d", name, res.StatusCode, want)
		}
	}
	if got, err := (&extension.Client{URL: r.Control}).Requests(t.Context(), 0); err != nil || len(got) != 2 {
		t.Errorf("%d requests: %v", len(got), err)
	}
	hangUp.Close()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-requestheader-client-ca-file=/does/not/exist"},
		{"-requestheader-client-ca-file=main.go"},
		{"-ca-cert-file=main.go", "-ca-key-file=main.go"},
		{"-no-http1", "-no-http2"},
		{"-group-versions=v1"},
		{"-control=nowhere"},
	} {
		if err := run(context.Background(), args, nil, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
