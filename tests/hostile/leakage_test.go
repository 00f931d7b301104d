//go:build e2e

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	mixed   = 10_000 // requests
	crowd   = 40     // users that share a front proxy's connection
	workers = 32
	echoes  = "/apis/mirror.example.com/v1/namespaces/default/echoes/"
	reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	review  = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// No caller is answered as another one. tests/e2e shows what forged headers do.
func TestIdentity(t *testing.T) {
	w := newWorld(t)
	for name, impersonates := range map[string]bool{"frame": false, "impersonate": true} {
		t.Run(name, func(t *testing.T) { testLeakage(t, newHarbour(t, w, impersonates)) })
	}
}

// saying is the echoing backend's answer: user, target and body, repeated to at least size bytes.
func saying(user, target, body string, size int) string {
	line := user + " " + target + " " + body + "\n"
	return strings.Repeat(line, size/len(line)+1)
}

// echo lets a backend's answers name their caller.
func echo(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, echoes) {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left
		}
		size, _ := strconv.Atoi(r.URL.Query().Get("size"))
		_, _ = io.WriteString(w, saying(strings.Join(r.Header["X-Remote-User"], ","), r.RequestURI, string(body), size))
	})
}

// caller is one of many on a connection.
type caller struct {
	client *http.Client
	user   string
	header http.Header
}

// callers are users who share connections: behind a front proxy, with tokens, impersonated; and one
// with its own certificate.
func (h *harbour) callers() []caller {
	var list []caller
	outer, root := h.outer.Issue(pki.Leaf{CommonName: "outer"}), h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"wheel"}})
	dave := h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "dave"})
	for _, proto := range []string{"h2", "http/1.1"} {
		shared, nobody, master, own := client(h.tls(outer), proto), client(h.tls(nil), proto), client(h.tls(root), proto), client(h.tls(dave), proto)
		for i := range crowd {
			name := fmt.Sprintf("user-%02d", i)
			list = append(list,
				caller{shared, name, http.Header{"X-Remote-User": {name}, "X-Remote-Group": {"system:authenticated"}}},
				caller{master, "as-" + name, http.Header{"Impersonate-User": {"as-" + name}}})
		}
		for range crowd / 4 {
			list = append(list, caller{own, "dave", nil},
				caller{nobody, "alice", ask.Bearer("alice-token")}, caller{nobody, "bob", ask.Bearer("bob-token")})
		}
	}
	return list
}

// testLeakage sends requests of many users over the same connections at once: local and remote,
// short and long, some given up half way. Each answer must be its caller's own.
func testLeakage(t *testing.T, h *harbour) {
	callers := h.callers()
	var answered atomic.Int64
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(workers)
	for n := range mixed {
		g.Go(func() error {
			c := &callers[rand.IntN(len(callers))]
			whole, err := h.exchange(ctx, c, n)
			if err != nil {
				return fmt.Errorf("request %d of %s: %w", n, c.user, err)
			}
			if whole {
				answered.Add(1)
			}
			return nil
		})
	}
	must.Do(t, g.Wait())
	if n := answered.Load(); n < mixed/2 {
		t.Errorf("only %d requests were answered", n)
	}
}

// exchange makes one request, whose number selects the kind. It reports whether it got the whole
// answer: it may be asked to retry, or give up.
func (h *harbour) exchange(ctx context.Context, c *caller, n int) (whole bool, err error) {
	defer try.Catch(&err)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size := []int{0, 100, 3000, 60_000, 200_000}[n%7%5]
	method, target, body := http.MethodGet, fmt.Sprintf("%s%d?size=%d", echoes, n, size), ""
	switch {
	case n%5 == 0:
		method, target, body = http.MethodPost, reviews, review
	case n%3 == 0:
		method, body = http.MethodPost, strings.Repeat(fmt.Sprint(c.user, "+", n, ";"), n%500+1)
	}
	r := try.Get(http.NewRequestWithContext(ctx, method, h.front.Endpoint.URL+target, strings.NewReader(body)))
	r.Header.Set("Content-Type", "application/json")
	maps.Copy(r.Header, c.header)
	res := try.Get(c.client.Do(r))
	defer res.Body.Close()
	if res.StatusCode == http.StatusTooManyRequests || n%11 == 0 && target != reviews { // the rest of this answer must not reach other requests
		return false, nil
	}
	got := try.Get(io.ReadAll(res.Body))
	if target == reviews {
		var r authenticationv1.SelfSubjectReview
		if err := json.Unmarshal(got, &r); err != nil || r.Status.UserInfo.Username != c.user {
			return false, fmt.Errorf("the local apiserver sees user %q: %d %.200s", r.Status.UserInfo.Username, res.StatusCode, got)
		}
		return true, nil
	}
	if want := saying(c.user, target, body, size); string(got) != want {
		return false, fmt.Errorf("%d: %.100q, want %.100q (%d and %d bytes)", res.StatusCode, got, want, len(got), len(want))
	}
	return true, nil
}
