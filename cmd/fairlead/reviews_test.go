package main

import (
	"context"
	"crypto/tls"
	"fmt"
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
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// allow answers a SubjectAccessReview with the address at which it was asked.
func allow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true,"reason":%q}}`, r.Host)
}

// reviewer asks for reviews as serve does, and returns who has answered, or the error.
func reviewer(t *testing.T, kube *rest.Config) (f *follower, review func() string) {
	t.Helper()
	f, cfg := must.Get2(follow(kube, slog.New(slog.DiscardHandler)))(t)
	cfg.ContentType = "application/json"
	ask := authz.SubjectAccessReview(must.Get(authorizationv1client.NewForConfig(cfg))(t))
	return f, func() string {
		got, by, err := ask(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Path: "/x"})
		if got != authorizer.DecisionAllow || err != nil {
			return fmt.Sprint(got, by, err)
		}
		return by
	}
}

// What a webhook of the local apiserver's could not decide is a review that failed, as the check says.
func TestUndecidedReview(t *testing.T) {
	at := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"evaluationError":"down"}}`)
	})
	d := doorBefore(t, at.URL)
	_, _, err := d.may.Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Path: "/x"})
	check.Fault(t, "could not decide: down", err, "a review")
	check.Has(t, d.lookReviews(time.Time{}).Message, "SubjectAccessReviews fail: ", "could not decide: down")
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
		inside := pki.NewCA("serving") // valid in the bubble
		path := writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText("https://local.example:1", inside, ""))
		kube, _, _, err := clientConfig(path, nil, false)
		must.Do(t, err)
		var first atomic.Bool
		off := &first
		server := &http2.Server{} //nolint:staticcheck // http.Server needs a listener
		serving := &tls.Config{Certificates: []tls.Certificate{inside.Issue(pki.Leaf{Names: []string{"local.example"}}).TLS()}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
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
		_, review := reviewer(t, kube)
		for _, dead := range []bool{false, true} {
			first.Store(dead)
			begun := time.Now()
			check.Same(t, "local.example:1", review(), "dead %v", dead)
			check.Same(t, true, time.Since(begun) < 10*time.Second, "dead %v: it took %v", dead, time.Since(begun))
		}
	})
}
