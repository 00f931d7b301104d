package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// apiserverAt answers with its address and the request's credential. Its certificate names only
// that address, like those of control plane nodes.
func apiserverAt(t *testing.T, ca *pki.CA, ip string) *httptest.Server {
	t.Helper()
	return serverAt(t, ca, ip, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s", r.Host, body)
	})
}

func serverAt(t *testing.T, ca *pki.CA, ip string, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(ip, "0")))(t)
	s := httptest.NewUnstartedServer(answer)
	_ = s.Listener.Close() // httptest's default, on 127.0.0.1
	s.Listener, s.EnableHTTP2 = l, true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{ip}}).TLS()}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Reviews and watches leave an apiserver that accepts connections and never answers, and each
// server is verified by its own name.
func TestOwnClientsLeaveWhatHangs(t *testing.T) {
	ca := pki.NewCA("serving")
	first, second := apiserverAt(t, ca, "127.0.0.1"), apiserverAt(t, ca, "127.0.0.2")
	path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://other.example:1", ca, ""))
	dead := apiserverAt(t, ca, "127.0.0.3")
	dead.Close()
	kube, _, own, err := clientConfig(path, []string{dead.URL, first.URL, second.URL})
	must.Do(t, err)
	for _, bad := range []string{"http://127.0.0.1:1", "https://", "https://%"} {
		if _, _, _, err := clientConfig(path, []string{bad}); err == nil || !strings.Contains(err.Error(), "is not an https URL") {
			t.Errorf("--local-apiserver %s: %v", bad, err)
		}
	}
	f, cfg := must.Get2(follow(kube, slog.New(slog.DiscardHandler)))(t)
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
		check.Same(t, want, len(own.connectedTo([]string{to})), "%s: connections to %s", when, to)
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
	must.Get(f.reload(path, must.Get(os.ReadFile(path))(t)))(t)
	answered("after the kubeconfig has changed", two)
}
