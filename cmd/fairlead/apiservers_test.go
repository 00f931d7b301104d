package main

import (
	"context"
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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
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

// allow answers a SubjectAccessReview.
func allow(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
}

// reviewer asks for reviews as serve does.
func reviewer(t *testing.T, kube *rest.Config) func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	t.Helper()
	_, cfg := must.Get2(follow(kube, slog.New(slog.DiscardHandler)))(t)
	cfg.ContentType = "application/json"
	return must.Get(authz.SubjectAccessReview(must.Get(authorizationv1client.NewForConfig(cfg))(t)))(t)
}

// A review that waits for an apiserver that hangs is asked again elsewhere, as soon as that is
// known.
func TestReviewsLeaveWhatHangs(t *testing.T) {
	ca, arrived, hang := pki.NewCA("serving"), make(chan struct{}), make(chan struct{})
	first := serverAt(t, ca, "127.0.0.1", func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-hang
	})
	defer close(hang)
	second := serverAt(t, ca, "127.0.0.2", allow)
	path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://other.example:1", ca, ""))
	kube, _, own, err := clientConfig(path, []string{first.URL, second.URL})
	must.Do(t, err)
	review := reviewer(t, kube)
	go func() {
		<-arrived
		own.prefer([]registry.Endpoint{
			{Address: strings.TrimPrefix(first.URL, "https://"), Health: registry.Unhealthy}, {Address: strings.TrimPrefix(second.URL, "https://"), Health: registry.Healthy},
		})
	}()
	got, _, err := review(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Path: "/x"})
	if got != authorizer.DecisionAllow || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// muted is a connection whose peer gets nothing any more: a load balancer has lost its state.
type muted struct {
	net.Conn
	off *atomic.Bool
}

func (c muted) Write(b []byte) (int, error) {
	if c.off.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A review that waits on a connection that is dead, but not closed, is asked again on another one.
func TestReviewsLeaveDeadConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("serving")
		path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://local.example:1", ca, ""))
		kube, _, _, err := clientConfig(path, nil)
		must.Do(t, err)
		var first atomic.Bool
		off := &first
		server := &http2.Server{}
		serving := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"local.example"}}).TLS()}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
		kube.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close() })
			go func() { // ends with its connection
				to := tls.Server(far, serving)
				if to.HandshakeContext(ctx) == nil {
					server.ServeConn(to, &http2.ServeConnOpts{Handler: http.HandlerFunc(allow)})
				}
			}()
			c := muted{near, off}
			off = new(atomic.Bool)
			return c, nil
		}
		review := reviewer(t, kube)
		for _, dead := range []bool{false, true} {
			first.Store(dead)
			begun := time.Now()
			got, _, err := review(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Path: "/x"})
			if took := time.Since(begun); got != authorizer.DecisionAllow || err != nil || took >= 10*time.Second {
				t.Errorf("dead %v: %v, %v after %v", dead, got, err, took)
			}
		}
	})
}

// The operator's own times stay.
func TestPingOften(t *testing.T) {
	const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
	t.Setenv(idle, "") // so that it is restored
	must.Do(t, os.Unsetenv(idle))
	t.Setenv(ping, "20")
	pingOften()
	check.Same(t, ownReadIdle+" 20", os.Getenv(idle)+" "+os.Getenv(ping), "times")
}
