package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// harbour is a kubelet with one container, and its clients.
type harbour struct {
	*Kubelet
	container *Container
	ca        *pki.CA
	url       string
}

func newHarbour(t *testing.T) *harbour {
	t.Helper()
	ca := pki.NewCA("harbour")
	k := must.Get(New(Config{Certificate: ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS(), ClientCAs: ca.Pool(), Dir: t.TempDir()}))(t)
	t.Cleanup(k.Close)
	return &harbour{Kubelet: k, container: must.Get(k.newContainer("ns", "buoy"))(t), ca: ca, url: "https://" + k.listen.Addr().String()}
}

// config is the configuration of a client in group.
func (h *harbour) config(group string) *rest.Config {
	pair := h.ca.Issue(pki.Leaf{CommonName: "someone", Organizations: []string{group}})
	return &rest.Config{Host: h.url, TLSClientConfig: rest.TLSClientConfig{CAData: h.ca.PEM(), CertData: pair.CertPEM(), KeyData: pair.KeyPEM()}}
}

func (h *harbour) get(t *testing.T, group, path string) (int, string) {
	t.Helper()
	client := must.Get(rest.HTTPClientFor(h.config(group)))(t)
	res := must.Get(client.Do(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+path, nil))(t)))(t)
	defer res.Body.Close()
	return res.StatusCode, string(must.Get(io.ReadAll(res.Body))(t))
}

func TestExec(t *testing.T) {
	h := newHarbour(t)
	for _, tc := range []struct {
		name, command, in, out, errs string
		code                         int
	}{
		{"output", "echo there; echo here >&2", "", "there\n", "here\n", 0},
		{"input", "cat", "round", "round", "", 0},
		{"exit code", "exit 4", "", "", "", 4},
		{"more input than is read", "true", strings.Repeat("x", 1<<20), "", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u, err := url.Parse(h.url + "/exec/ns/buoy/main?input=1&output=1&error=1&command=sh&command=-c&command=" + url.QueryEscape(tc.command))
			if err != nil {
				t.Fatal(err)
			}
			e := must.Get(remotecommand.NewSPDYExecutor(h.config("system:masters"), http.MethodPost, u))(t)
			var out, errs bytes.Buffer
			err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(tc.in), Stdout: &out, Stderr: &errs})
			code := 0
			if exit, ok := err.(utilexec.ExitError); ok { //nolint:errorlint // an interface of client-go, returned as it is
				code, err = exit.ExitStatus(), nil
			}
			if err != nil || code != tc.code || out.String() != tc.out || errs.String() != tc.errs {
				t.Errorf("%v, exit code %d, %q, %q", err, code, out.String(), errs.String())
			}
		})
	}
}

func TestOnlyMastersMayAsk(t *testing.T) {
	h := newHarbour(t)
	for _, path := range []string{"/metrics/resource", "/containerLogs/ns/buoy/main", "/exec/ns/buoy/main?output=1&command=true"} {
		if code, body := h.get(t, "dev", path); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	conn, err := tls.Dial("tcp", h.listen.Addr().String(), &tls.Config{RootCAs: h.ca.Pool(), ServerName: "127.0.0.1"})
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the refusal arrives after the client's handshake
		_ = conn.Close()
	}
	if err == nil {
		t.Error("a client without a certificate was admitted")
	}
}

func TestLogs(t *testing.T) {
	h := newHarbour(t)
	for _, l := range []string{"a", "b", "c"} {
		h.container.Log(l)
	}
	for query, want := range map[string]string{"": "a\nb\nc\n", "?tailLines=2": "b\nc\n", "?tailLines=0": "", "?tailLines=9": "a\nb\nc\n"} {
		if code, body := h.get(t, "system:masters", "/containerLogs/ns/buoy/main"+query); code != http.StatusOK || body != want {
			t.Errorf("%s: %d %q, want %q", query, code, body, want)
		}
	}
	for _, path := range []string{"/containerLogs/ns/other/main", "/containerLogs/ns/buoy/other", "/exec/ns/other/main?output=1&command=true", "/portForward/ns/other"} {
		if code, _ := h.get(t, "system:masters", path); code != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", path, code)
		}
	}
	if code, _ := h.get(t, "system:masters", "/containerLogs/ns/buoy/main?tailLines=x"); code != http.StatusBadRequest {
		t.Errorf("%d, want 400", code)
	}
}

func TestTerminal(t *testing.T) {
	tty := must.Get(OpenTerminal())(t)
	defer tty.Close()
	must.Do(t, tty.Resize(81, 25))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "stty", "size")
	must.Do(t, tty.Start(cmd))
	out, _ := io.ReadAll(tty) // ends with an error when the program has left the terminal
	if err := cmd.Wait(); err != nil || string(out) != "25 81\r\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	h := newHarbour(t)
	u := must.Get(url.Parse(h.url + "/exec/ns/buoy/main?output=1&command=sh&command=-c&command=" + url.QueryEscape("echo runs; exec sleep 600")))(t)
	e := must.Get(remotecommand.NewSPDYExecutor(h.config("system:masters"), http.MethodPost, u))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: stdout})
		_ = stdout.CloseWithError(err)
		ended <- err
	}()
	// Before its streams exist, an exec does not notice the end of its connection, and between fork
	// and exec a child holds all sockets.
	must.Get(io.ReadFull(out, make([]byte, len("runs\n"))))(t)
	h.Close()
	// The client treats a connection that ends before the exit code as success: only ctx shows that
	// nothing has ended.
	if err := <-ended; ctx.Err() != nil {
		t.Errorf("the command continued: %v", err)
	}
	if _, err := net.DialTimeout("tcp", h.listen.Addr().String(), time.Second); err == nil {
		t.Error("the kubelet still listens")
	}
}
