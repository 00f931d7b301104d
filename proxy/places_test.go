package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// announce sends n heads of requests without their bodies until the test ends.
func (w *world) announce(t *testing.T, c *http.Client, n int, target, token string) {
	t.Helper()
	var sent, over sync.WaitGroup
	sent.Add(n)
	bodies := make([]*io.PipeWriter, n)
	for i := range n {
		body, unsent := io.Pipe()
		bodies[i] = unsent
		r := w.request(t, "POST", target, body)
		r.ContentLength = 100
		r.Header.Set("Authorization", token)
		var once sync.Once
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{WroteHeaders: func() { once.Do(sent.Done) }}))
		over.Go(func() {
			if res, err := c.Do(r); err == nil {
				res.Body.Close()
			}
		})
	}
	sent.Wait()
	t.Cleanup(func() {
		for _, b := range bodies {
			b.Close()
		}
		over.Wait()
	})
}

// Announced bodies that are never sent take no places from others (defect A1).
func TestSilentBodies(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, tc := range []struct {
		name, target, token string
		world               worldConfig
		probe               string
		code                int
	}{
		{"unproven", "/api/v1/namespaces/x/pods", "", worldConfig{}, "/version", 200},
		{"unproven, long-running", "/api/v1/namespaces/x/pods/y/exec", "", worldConfig{}, "/api/v1/namespaces/x/pods/y/exec", 200},
		{"a remote over HTTP/1.1", remoteGV + "/widgets", "Bearer token-of-bob", worldConfig{remoteHTTP1: true, change: annotate("max-inflight", "100")}, remoteGV + "/widgets", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, proto string) {
				w := newWorld(t, tc.world)
				c := w.httpClient(t, proto, nil)
				w.announce(t, c, 200, tc.target, tc.token)
				for i := range 20 {
					for _, token := range []string{tc.token, fmt.Sprint("Bearer new-", i)} {
						r := w.by(t, token, "GET", tc.probe, nil)
						if strings.HasPrefix(token, "Bearer new-") && tc.token != "" {
							r.Header.Set("Authorization", tc.token)
						}
						w.do(t, c, r).want(t, tc.code, tc.probe, token)
					}
				}
				w.do(t, c, w.request(t, "GET", "/readyz", nil)).want(t, 200, "/readyz")
				check.Same(t, 0, w.proxy.UnderWay(), "requests that hold places")
			})
		})
	}
}

// A body that does not arrive in time is answered with 408.
func TestSlowBody(t *testing.T) {
	w := newWorld(t, worldConfig{remoteHTTP1: true})
	const soon = 50 * time.Millisecond
	// Over HTTP/2 no body is buffered: each part is forwarded at once, and the backend waits.
	for _, tc := range []struct {
		target, token string
		length        int64
		time          time.Duration
	}{
		{"/api/v1/namespaces/x/pods", "", 1, soon},
		{remoteGV + "/widgets", "Bearer token-of-bob", 100, soon},
		{remoteGV + "/widgets?timeout=50ms", "Bearer token-of-bob", 100, time.Hour}, // the request's own time
	} {
		target, token := tc.target, tc.token
		w.proxy.bodyTime = tc.time
		everyWay(t, func(t *testing.T, proto string) {
			body, unsent := io.Pipe()
			defer unsent.Close()
			r := w.request(t, "POST", target, body)
			r.ContentLength = tc.length
			r.Header.Set("Authorization", token)
			w.do(t, w.httpClient(t, proto, nil), r).want(t, http.StatusRequestTimeout, target)
			// A body that arrives in time is served afterwards.
			w.do(t, w.httpClient(t, proto, nil), w.by(t, token, "POST", target, strings.NewReader("body"))).want(t, 200, target)
		})
	}
}

// One backend gets half of each limit of the whole server. Reads take nothing from writes.
func TestSharesOfLimits(t *testing.T) {
	for most, want := range map[int]int64{0: 0, 1: 1, 2: 1, 3: 2, 400: 200} {
		var l limits
		l.init(most, 2*most)
		if l.reads.share != want || l.reads.max != int64(most) || l.writes.share != int64(most) || l.writes.max != int64(2*most) {
			t.Errorf("of %d reads %d, of %d writes %d; want of reads %d", l.reads.max, l.reads.share, l.writes.max, l.writes.share, want)
		}
	}
	w := newWorld(t, worldConfig{})
	w.proxy.limits.init(1, 1)
	enter := func(verb string) (held place, ok bool) {
		d, _ := w.proxy.decision(t.Context(), asBob(remoteGV+"/widgets", ""), nil, true)
		d.Request.Verb = verb
		err := w.proxy.enter(&held, &d, w.upstream(), bound.Source{User: "bob"})
		return held, err == nil
	}
	reads, writes := []string{"get", "list", "watch", "head", "options", "proxy"}, []string{"create", "update", "patch", "delete", "deletecollection", "post", ""}
	for _, side := range []struct{ full, free []string }{{reads, writes}, {writes, reads}} {
		first, _ := enter(side.full[0])
		for _, verb := range side.full {
			_, ok := enter(verb)
			check.Same(t, false, ok, "%q beside %q", verb, side.full[0])
		}
		for _, verb := range side.free {
			held, ok := enter(verb)
			check.Same(t, true, ok, "%q beside %q", verb, side.full[0])
			held.leave()
		}
		first.leave()
	}
}

// A request is counted from when it has its places until it gives them back, and long-running ones,
// and those to the local apiserver, take none of the whole server's. A refused one keeps nothing.
func TestPlacesOfARequest(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.proxy.limits.init(2, 2)
	remote, _ := w.proxy.decision(t.Context(), asBob(remoteGV+"/widgets/a", ""), nil, true)
	watch, local, stranger := remote, Decision{Action: ToLocal, Pool: authn.PoolProven, Request: Request{Verb: "get"}}, Decision{Action: ToLocal, Pool: authn.PoolUnproven}
	watch.LongRunning = true
	counted := func(name string, requests, longRunning, places int64) {
		t.Helper()
		n := &w.proxy.underWay
		check.Same(t, [3]int64{requests, longRunning, places}, [3]int64{n.requests.Load(), n.longRunning.Load(), w.proxy.limits.reads.places.Held()}, "%s", name)
	}
	enter := func(d Decision, u *backend.Upstream, user string) (held place, ok bool) {
		err := w.proxy.enter(&held, &d, u, bound.Source{User: user})
		return held, err == nil
	}
	for name, tc := range map[string]struct {
		d                             Decision
		requests, longRunning, places int64
	}{"remote": {remote, 1, 0, 1}, "watch": {watch, 0, 1, 0}, "local": {local, 1, 0, 0}, "a stranger's": {stranger, 1, 0, 0}} {
		u := w.upstream()
		if tc.d.Action == ToLocal {
			u = w.proxy.cfg.Local.Upstream(localPool(tc.d.Pool))
		}
		held, _ := enter(tc.d, u, "bob")
		counted(name, tc.requests, tc.longRunning, tc.places)
		held.leave()
		held.leave()
		counted(name+", over", 0, 0, 0)
	}
	first, _ := enter(remote, w.upstream(), "bob")
	if _, ok := enter(remote, w.upstream(), "carol"); ok {
		t.Error("a backend has got more than its share")
	}
	counted("beyond the share", 1, 0, 1)
	first.leave()
	fillUp(t, w.upstream())
	if _, ok := enter(remote, w.upstream(), "bob"); ok {
		t.Error("a backend has got more than its limit")
	}
	counted("beyond the limit", 0, 0, 0)
}

// Clients are asked to reconnect as often as the operator wants, not with each request.
func TestGoAwayIsRare(t *testing.T) {
	p := &Proxy{cfg: Config{GoAwayChance: 1e-12}}
	for range 1000 {
		if p.goAway() {
			t.Fatal("asked to reconnect, with a chance of one in 10^12")
		}
	}
}

// Strangers whose requests can last take no places from those whose requests cannot, even behind
// the same address: a load balancer's.
func TestLastingStrangers(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var over sync.WaitGroup
	t.Cleanup(over.Wait)
	for range 4 {
		c := w.httpClient(t, "h2", nil)
		for range 70 {
			body, unsent := io.Pipe()
			t.Cleanup(func() { unsent.Close() })
			r := w.request(t, "POST", "/api/v1/namespaces/x/pods", body)
			r.ContentLength = -1
			over.Go(func() {
				if res, err := c.Do(r); err == nil {
					res.Body.Close()
				}
			})
		}
	}
	must.Soon(t, 10*time.Second, "an address's places are taken", func() bool { return w.proxy.UnderWay() == 256 })
	long := "?x=" + strings.Repeat("x", maxEchoed)
	everyWay(t, func(t *testing.T, proto string) {
		for _, token := range []string{"", "Bearer new-" + proto} {
			for target, want := range map[string]int{"/version": 200, "/version" + long[:1+maxEchoed-len("/version")]: 200, "/version" + long: 429} {
				if token != "" && want == 429 {
					continue // the token is proven by now
				}
				w.do(t, w.httpClient(t, proto, nil), w.by(t, token, "GET", target, nil)).want(t, want, token)
			}
		}
		w.do(t, w.httpClient(t, proto, nil), w.by(t, "Bearer watching-"+proto, "GET", "/api/v1/pods?watch=1", nil)).want(t, 200)
		w.do(t, w.httpClient(t, proto, nil), w.request(t, "POST", "/version", strings.NewReader("short"))).want(t, 200)
	})
}

// A user's streamed body is no long-running request of its APIService.
func TestLastingUsers(t *testing.T) {
	w := newWorld(t, worldConfig{remoteHTTP1: true})
	body, unsent := io.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		if res, err := w.httpClient(t, "h2", nil).Do(w.as(t, "bob", "POST", remoteGV+"/widgets", body)); err == nil {
			res.Body.Close()
		}
	}()
	must.Soon(t, 10*time.Second, "the request has its place", func() bool { return w.proxy.UnderWay() == 1 })
	for _, e := range w.table().Entries() {
		if u := w.proxy.cfg.Backends.Upstream(e); u != nil {
			if _, long, _ := u.Load(); long != 0 {
				t.Errorf("%s has %d long-running requests", e.Name, long)
			}
		}
	}
	unsent.Close()
	<-over
}

// A panic at the end of a request costs no place.
func TestPanicAtTheEnd(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{observe: func(string, string, time.Duration) { panic("observing") }})
		w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets", nil)).want(t, 200)
		must.Soon(t, 10*time.Second, "the place is free", func() bool { return w.proxy.UnderWay() == 0 })
	})
}

// A client that does not read its response gives its place back when the request's time is over.
func TestUnreadResponse(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{true, false} {
		everyWay(t, func(t *testing.T, proto string) {
			w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(rw http.ResponseWriter, _ *http.Request) {
				for p := make([]byte, 1<<20); ; { // more than any window and socket holds
					if _, err := rw.Write(p); err != nil {
						return
					}
				}
			}})
			w.proxy.unreadRest = 50 * time.Millisecond
			res := must.Get(w.httpClient(t, proto, nil).Do(w.as(t, "bob", "GET", remoteGV+"/widgets?timeout=1s", nil)))(t)
			defer res.Body.Close()
			must.Soon(t, 10*time.Second, "the place is free", func() bool { return w.proxy.UnderWay() == 0 })
			if n, err := io.Copy(io.Discard, res.Body); err == nil {
				t.Errorf("the response looks complete after %d bytes", n)
			}
		})
	}
}

// A client that does not read a page or a document of this process gives its place there back, too,
// also on the admin port.
func TestUnreadPage(t *testing.T) {
	t.Parallel()                 // it waits most of the time
	text := make([]byte, 64<<20) // more than any window and socket holds
	unread := func(t *testing.T, proto, path string) {
		w, over := newWorld(t, worldConfig{}), make(chan error, 1)
		w.proxy.pageTime, w.proxy.unreadRest = 50*time.Millisecond, 50*time.Millisecond
		page := func(rw http.ResponseWriter, _ *http.Request) {
			_, err := rw.Write(text)
			over <- err
		}
		w.proxy.cfg.Pages, w.proxy.cfg.Documents, w.proxy.cfg.Ready = http.HandlerFunc(page), http.HandlerFunc(page), nil
		r := w.as(t, "bob", "GET", path, nil)
		if path == "/metrics" {
			r.URL.Host = w.guard(t, w.proxy, page).Listener.Addr().String()
		}
		if res, err := w.httpClient(t, proto, nil).Do(r); err == nil { // else its time was over before its head
			defer res.Body.Close()
		}
		select {
		case err := <-over:
			if err == nil {
				t.Errorf("%s was written as a whole", path)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is still written", path)
		}
	}
	everyWay(t, func(t *testing.T, proto string) {
		unread(t, proto, "/fairlead/status")
		unread(t, proto, "/openapi/v2")
	})
	t.Run("admin", func(t *testing.T) { unread(t, "http/1.1", "/metrics") })
}

// fillUp takes every place of an upstream, for many sources.
func fillUp(t *testing.T, u *backend.Upstream) {
	t.Helper()
	for _, long := range []bool{false, true} {
		for i := 0; ; i++ {
			n := 0
			for {
				if _, ok := u.Acquire(bound.Source{User: fmt.Sprint(i)}, long); !ok {
					break
				}
				n++
			}
			if n == 0 {
				break
			}
		}
	}
}

// /readyz and /healthz answer while every pool and the relay's own places are full. Then they
// report the local apiserver's health as the prober knows it.
func TestOwnReadiness(t *testing.T) {
	w := newWorld(t, worldConfig{})
	ready := func(t *testing.T, proto string, relayed bool) {
		for _, path := range []string{"/readyz", "/healthz"} {
			got := w.do(t, w.httpClient(t, proto, nil), w.request(t, "GET", path, nil))
			if got.status != 200 || (got.header.Get("X-Content-Type-Options") == "") != relayed || !relayed && got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%s: %d %q, want relayed: %v", path, got.status, got.body, relayed)
			}
		}
		if got := w.do(t, w.httpClient(t, proto, nil), w.request(t, "GET", "/version", nil)); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" {
			t.Errorf("/version: %d %s: the pool is not full", got.status, got.body)
		}
	}
	fillUp(t, w.proxy.cfg.Local.Upstream(backend.PoolUnproven))
	everyWay(t, func(t *testing.T, proto string) { ready(t, proto, true) })
	// A client at the prober's address has given up too many requests.
	w.proxy.givenUp.charge(account{Source: bound.Source{Address: "127.0.0.1"}}, 10*givenUpBurst)
	everyWay(t, func(t *testing.T, proto string) { ready(t, proto, true) })
	fillUp(t, w.proxy.cfg.Local.Upstream(backend.PoolHealth))
	everyWay(t, func(t *testing.T, proto string) { ready(t, proto, false) })
	w.proxy.cfg.Local.Report(w.local.Listener.Addr().String(), registry.Unhealthy, "down")
	everyWay(t, func(t *testing.T, proto string) {
		w.do(t, w.httpClient(t, proto, nil), w.request(t, "GET", "/readyz", nil)).want(t, http.StatusTooManyRequests, "not ready")
	})
}

// Watches with one new token prove it once, and then share an HTTP/2 connection with other proven
// tokens.
func TestUnprovenWatch(t *testing.T) {
	local := func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer bad" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(rw, r.Proto)
	}
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{local: local})
		for _, tc := range []struct {
			authorization, want string
			status              int
		}{{"Bearer good", "HTTP/2.0", 200}, {"Bearer bad", "", 401}, {"Basic eA==", "HTTP/1.1", 200}, {"", "HTTP/1.1", 200}} {
			r := w.by(t, tc.authorization, "GET", "/api/v1/pods?watch=true", nil)
			if got := w.do(t, w.httpClient(t, proto, nil), r); got.status != tc.status || got.body != tc.want {
				t.Errorf("%q: %d %q", tc.authorization, got.status, got.body)
			}
		}
		check.Same(t, 0, w.proxy.UnderWay(), "requests that hold places")
	})
}

// A request is refused if its authorization fails, for whatever reason, or the review of its token.
func TestNobodyAuthorizes(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	refused := func(failure error, want func(error) bool) {
		if d, known := p.decision(t.Context(), asBob(remoteGV, ""), nil, true); !known || d.Action != Refuse || !want(d.Err) {
			t.Errorf("%v: known %v, %v (%v)", failure, known, d.Action, d.Err)
		}
	}
	for failure, want := range map[error]func(error) bool{bound.ErrFull: apierrors.IsTooManyRequests, errors.New("unreachable"): apierrors.IsServiceUnavailable} {
		p.cfg.Authz = must.Get(authz.New(authz.Config{Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", failure
		}}))(t)
		refused(failure, want)
	}
	for failure, want := range map[error]func(error) bool{bound.ErrFull: apierrors.IsTooManyRequests, errors.New("no review"): apierrors.IsServiceUnavailable} {
		p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, failure }}))(t)
		refused(failure, want)
	}
}
