package main

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

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
			{Address: first.Listener.Addr().String(), Health: registry.Unhealthy}, {Address: second.Listener.Addr().String(), Health: registry.Healthy},
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
		server := &http2.Server{} //nolint:staticcheck // http.Server needs a listener
		serving := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"local.example"}}).TLS()}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
		kube.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close() })
			go func() { // ends with its connection
				to := tls.Server(far, serving)
				if to.HandshakeContext(ctx) == nil {
					server.ServeConn(to, &http2.ServeConnOpts{Handler: http.HandlerFunc(allow)}) //nolint:staticcheck // likewise
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
