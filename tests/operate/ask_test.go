//go:build e2e

package operate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// answer is what a command left behind.
type answer struct {
	out, errs string
	code      int
}

// command runs a program to its end.
func command(t *testing.T, stdin, name string, args ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%s: %v", name, err)
	}
	return answer{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// must runs a program that must succeed.
func must(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	a := command(t, stdin, name, args...)
	if a.code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", filepath.Base(name), strings.Join(args, " "), a.code, a.out, a.errs)
	}
	return a.out
}

// get asks an endpoint with a token and returns code and body. Without a token it is a member of system:masters.
func (w *world) get(t *testing.T, e cluster.Endpoint, path, token string) (int, string) {
	t.Helper()
	pem, err := os.ReadFile(e.CAFile)
	check(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	tc := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if token == "" {
		pair, err := tls.LoadX509KeyPair(w.PKI.Admin.CertFile, w.PKI.Admin.KeyFile)
		check(t, err)
		tc.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tc, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.URL+path, nil)
	check(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	check(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	return resp.StatusCode, string(body)
}
