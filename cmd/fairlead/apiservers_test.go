package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// apiserverAt answers with its own address and what it was sent; its certificate names that address
// alone, as those of control plane nodes do.
func apiserverAt(t *testing.T, ca *pki.CA, ip string) *httptest.Server {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(ip, "0")))(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s", r.Host, body)
	}))
	_ = s.Listener.Close() // the one on 127.0.0.1 that it comes with
	s.Listener, s.EnableHTTP2 = l, true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{ip}}).TLS()}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Reviews and watches must not stay with an apiserver that accepts connections and answers nobody,
// and each server is known by its own name.
func TestOwnClientsLeaveWhatHangs(t *testing.T) {
	ca := pki.NewCA("serving")
	first, second := apiserverAt(t, ca, "127.0.0.1"), apiserverAt(t, ca, "127.0.0.2")
	path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://other.example:1", ca, ""))
	dead := apiserverAt(t, ca, "127.0.0.3")
	dead.Close()
	kube, _, own, err := clientConfig(path, []string{dead.URL, first.URL, second.URL})
	must.Do(t, err)
	_, cfg, err := follow(kube, slog.New(slog.DiscardHandler))
	must.Do(t, err)
	client := must.Get(corev1client.NewForConfig(cfg))(t)
	one, two := strings.TrimPrefix(first.URL, "https://"), strings.TrimPrefix(second.URL, "https://")
	answered := func(when, by string) {
		t.Helper()
		got, err := client.RESTClient().Post().AbsPath("/who").Body([]byte("asked")).DoRaw(t.Context())
		if err != nil || string(got) != by+" asked" {
			t.Errorf("%s: %q, %v, want an answer of %s", when, got, err, by)
		}
	}
	connections := func(when, to string, want int) {
		t.Helper()
		if got := len(own.connectedTo([]string{to})); got != want {
			t.Errorf("%s: %d connections to %s, want %d", when, got, to, want)
		}
	}
	known := func(a, b registry.Health) {
		own.prefer([]registry.Endpoint{{Address: one, Health: a}, {Address: two, Health: b}})
	}
	answered("at first, with one dead that nobody knows of", one)
	known(registry.Unhealthy, registry.Unhealthy)
	connections("while nothing is well", one, 1)
	known(registry.Unhealthy, registry.Healthy)
	connections("when the first hangs", one, 0)
	answered("when the first hangs", two)
}
