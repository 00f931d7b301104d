package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// get sends a GET as bob.
func (w *world) get(t *testing.T, proto, target string) answer {
	t.Helper()
	return w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", target, nil))
}

// upstream returns the remote's.
func (w *world) upstream() *backend.Upstream {
	return w.proxy.cfg.Backends.Upstream(w.table().Entry(schema.GroupVersion{Group: "remote.example.com", Version: "v1"}))
}

func statusOf(t *testing.T, a answer) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || s.Kind != "Status" {
		t.Fatalf("not a Status: %v: %q", err, a.body)
	}
	return s
}

func annotate(key, value string) func(*apiregistrationv1.APIService) {
	return func(a *apiregistrationv1.APIService) { a.Annotations = map[string]string{"fairlead.dev/" + key: value} }
}

func TestErrors(t *testing.T) {
	t.Parallel() // it waits most of the time
	redirect := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, tc := range []struct {
		name       string
		world      worldConfig
		target     string
		code       int
		message    string
		retryAfter string
	}{
		{"unavailable", worldConfig{unhealthy: true}, remoteGV + "/widgets", 503, "v1.remote.example.com is unavailable: FailedDiscoveryCheck", "1"},
		{"maintenance", worldConfig{change: annotate("maintenance", "back at noon")}, remoteGV + "/widgets", 503, "v1.remote.example.com is in maintenance: back at noon", ""},
		{"incomplete", worldConfig{incomplete: true}, "/apis/unknown.example.com/v1", 503, "not complete", "1"},
		{"redirect", worldConfig{remote: redirect}, remoteGV + "/widgets", 502, "attempted to redirect", ""},
		{"timeout", worldConfig{remote: hang}, remoteGV + "/widgets?timeout=50ms", 504, "did not answer within", ""},
		{"bad timeout", worldConfig{}, remoteGV + "/widgets?timeout=soon", 400, "invalid timeout", ""},
		{"timeout in the past", worldConfig{}, remoteGV + "/widgets?timeout=-1s", 400, "invalid timeout", ""},
		{"policy timeout", worldConfig{remote: hang, change: annotate("request-timeout", "1s")}, remoteGV + "/widgets", 504, "did not answer within", ""},
		{"cut", worldConfig{remote: cut}, remoteGV + "/widgets", 503, "ended the connection before it had answered", ""},
		{"own page without pages", worldConfig{}, "/fairlead/none", 404, "could not find", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.world)
			everyWay(t, func(t *testing.T, proto string) {
				got := w.get(t, proto, tc.target)
				s := statusOf(t, got)
				if got.status != tc.code || int(s.Code) != tc.code || !strings.Contains(s.Message, tc.message) || got.header.Get("Retry-After") != tc.retryAfter {
					t.Errorf("%d %+v, Retry-After %q", got.status, s, got.header.Get("Retry-After"))
				}
				if ids := got.header.Values("Audit-Id"); len(ids) != 1 || ids[0] == "" {
					t.Errorf("Audit-Id %q", ids)
				}
				if strings.Contains(got.body, "10.1.2.3") || strings.Contains(got.body, "127.0.0.1") {
					t.Errorf("the answer contains an address: %s", got.body)
				}
			})
		})
	}
}

func TestLoop(t *testing.T) {
	w := newWorld(t, worldConfig{})
	r := w.request(t, "GET", "/api/v1/pods", nil)
	r.Header.Set(loopHeader, "other, "+w.proxy.instance)
	w.do(t, w.httpClient(t, "h2", nil), r).want(t, http.StatusLoopDetected)
	r = w.request(t, "GET", "/api/v1/pods", nil)
	r.Header.Set(loopHeader, "other")
	w.do(t, w.httpClient(t, "h2", nil), r)
	check.Same(t, "other, "+w.proxy.instance, w.local.last(t).header.Get(loopHeader), "forwarded with")
}

// A request beyond the limit is refused once, by the decision already made. A second decision might
// forward it over connections of its own if a place came free in between (defect C14).
func TestBusy(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		began, end := make(chan struct{}), make(chan struct{})
		metrics := prometheus.NewRegistry()
		counted := func(cfg *backend.Config) { cfg.Metrics = metrics }
		w := newWorld(t, worldConfig{change: annotate("max-inflight", "1"), backends: counted, remote: func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-end }})
		first := make(chan answer)
		go func() { first <- w.get(t, proto, remoteGV+"/widgets") }()
		<-began
		const message = "v1.remote.example.com is at its request limit"
		for accept, want := range map[string]string{
			"": "application/json", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json": "application/json", "application/yaml": "application/yaml",
			"application/vnd.kubernetes.protobuf": "application/vnd.kubernetes.protobuf",
		} {
			r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
			if accept != "" {
				r.Header.Set("Accept", accept)
			}
			got := w.do(t, w.httpClient(t, proto, nil), r)
			h := got.header
			if got.status != 429 || h.Get("Content-Type") != want || h.Get("Retry-After") != "1" || h.Get("Audit-Id") == "" || !strings.Contains(got.body, message) {
				t.Errorf("Accept %q: answered with %d %v %q", accept, got.status, h, got.body)
			}
			if want != "application/json" {
				continue
			}
			if s := statusOf(t, got); s.Reason != metav1.StatusReasonTooManyRequests || s.Details.RetryAfterSeconds != 1 {
				t.Errorf("%+v", s)
			}
		}
		close(end)
		(<-first).want(t, 200, "the first")
		const want = `
# HELP fairlead_backend_rejections_total Requests refused at a limit, and retries refused by the retry budget.
# TYPE fairlead_backend_rejections_total counter
fairlead_backend_rejections_total{limit="inflight",name="v1.remote.example.com"} 4
fairlead_backend_rejections_total{limit="longrunning",name="v1.remote.example.com"} 0
fairlead_backend_rejections_total{limit="retry_budget",name="v1.remote.example.com"} 0
`
		must.Do(t, testutil.GatherAndCompare(metrics, strings.NewReader(want), "fairlead_backend_rejections_total"))
	})
}

// rejected checks that n requests to the remote were refused, all at one limit.
func rejected(t *testing.T, metrics prometheus.Gatherer, limit string, n int) {
	t.Helper()
	for _, f := range must.Get(metrics.Gather())(t) {
		if f.GetName() != "fairlead_backend_rejections_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			of, want := m.GetLabel()[0].GetValue(), 0.
			if of == limit {
				want, limit = float64(n), ""
			}
			check.Same(t, want, m.GetCounter().GetValue(), "refused at limit %s", of)
		}
	}
	check.Same(t, n == 0, limit != "", "there is no series of the limit %s", limit)
}

// A watch's events arrive as they are sent, and a drain ends the watch as its timeout would.
func TestWatch(t *testing.T) {
	next := make(chan string)
	watch := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		for r.URL.RawQuery != "" {
			select {
			case e := <-next:
				fmt.Fprintln(w, e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	for _, http1 := range []bool{false, true} {
		everyWay(t, func(t *testing.T, proto string) {
			w := newWorld(t, worldConfig{remote: watch, remoteHTTP1: http1})
			c := w.httpClient(t, proto, nil)
			w.do(t, c, w.as(t, "bob", "GET", remoteGV+"/widgets", nil)).want(t, 200, "a list") // the backend's protocol is known
			r := w.as(t, "bob", "GET", remoteGV+"/widgets?watch=true", nil)
			res := must.Get(c.Do(r))(t)
			defer res.Body.Close()
			for _, event := range []string{"one", "two"} {
				next <- event
				got := make([]byte, 4)
				if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != event+"\n" {
					t.Fatalf("%q, %v", got, err)
				}
			}
			w.proxy.EndLongRunning()
			if rest, err := io.ReadAll(res.Body); err != nil || len(rest) != 0 {
				t.Errorf("ended with %q, %v", rest, err)
			}
			must.Soon(t, 10*time.Second, "no request under way, for which a drain would wait", func() bool { return w.proxy.UnderWay() == 0 })
		})
	}
}

// What a drain cuts off looks complete only where nothing can be complete: to its client, half of a
// log or of a download by proxy would be all of it.
func TestCutOff(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		everyWay(t, func(t *testing.T, proto string) {
			w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "first\n")
				w.(http.Flusher).Flush()
				if r.URL.Path != remoteGV {
					<-r.Context().Done()
				}
			}})
			c := w.httpClient(t, proto, nil)
			w.do(t, c, w.as(t, "bob", "GET", remoteGV, nil)).want(t, 200, "a document") // the backend's protocol is known
			ends := make(map[string]*http.Response)
			for _, path := range []string{"/widgets?watch=1", "/widgets/a/log?follow=true", "/widgets/a/log", "/widgets/a/log?follow=false", "/widgets/a/proxy/dump"} {
				ends[path] = must.Get(c.Do(w.as(t, "bob", "GET", remoteGV+path, nil)))(t)
			}
			w.proxy.EndLongRunning()
			for path, res := range ends {
				got, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if clean := strings.Contains(path, "watch=1") || strings.Contains(path, "follow=true"); string(got) != "first\n" || clean != (err == nil) {
					t.Errorf("backend over HTTP/1.1 %v: %s: %q, %v, want a clean end: %v", http1, path, got, err, clean)
				}
			}
		})
	}
}

// A drain ends no watch in the middle of an event: its client would log an unexpected end.
func TestWatchEndsBetweenEvents(t *testing.T) {
	const first, second = "{half of an", " event}\n"
	for _, http1 := range []bool{false, true} {
		everyWay(t, func(t *testing.T, proto string) {
			begun, more := make(chan struct{}), make(chan struct{})
			w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, first)
				w.(http.Flusher).Flush()
				close(begun)
				<-more
				_, _ = io.WriteString(w, second)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}})
			r := w.as(t, "bob", "GET", remoteGV+"/widgets?watch=true", nil)
			res := must.Get(w.httpClient(t, proto, nil).Do(r))(t)
			defer res.Body.Close()
			<-begun
			got := make([]byte, len(first))
			must.Get(io.ReadFull(res.Body, got))(t)
			w.proxy.EndLongRunning()
			if proto == "h2" {
				go func() { _ = w.lane.Shutdown(t.Context(), 0) }() // waits for the client to leave
			}
			time.AfterFunc(100*time.Millisecond, func() { close(more) })
			if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != second {
				t.Errorf("after half of an event: %q, %v", rest, err)
			}
		})
	}
}

func TestImpersonation(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, tc := range []struct {
		token  string
		status int
	}{{"token-of-boss", 200}, {"token-of-bob", 403}} {
		everyWay(t, func(t *testing.T, proto string) {
			r := w.request(t, "GET", remoteGV+"/widgets", nil)
			r.Header = http.Header{"Authorization": {"Bearer " + tc.token}, "Impersonate-User": {"jane"}, "Impersonate-Group": {"dev"}}
			got := w.do(t, w.httpClient(t, proto, nil), r)
			got.want(t, tc.status)
			if tc.status != 200 {
				return
			}
			in := identityFields(w.remote.last(t).header)
			if got := in["x-remote-user"]; len(in) == 0 || len(got) != 1 || got[0] != "jane" || in["impersonate-user"] != nil {
				t.Errorf("arrived as %v", in)
			}
		})
	}
	// The local apiserver handles impersonation itself.
	r := w.request(t, "GET", "/api/v1/pods", nil)
	r.Header = http.Header{"Authorization": {"Bearer token-of-bob"}, "Impersonate-User": {"jane"}}
	w.do(t, w.httpClient(t, "h2", nil), r)
	check.Same(t, "jane", w.local.last(t).header.Get("Impersonate-User"), "Impersonate-User at the local apiserver")
}

// noteConn records the connection that a request uses.
func noteConn(r *http.Request, conns map[string]bool) *http.Request {
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { conns[i.Conn.LocalAddr().String()] = true },
	}))
}

// While leaving, Fairlead closes HTTP/1.1 connections with the next answer.
func TestLeave(t *testing.T) {
	w := newWorld(t, worldConfig{})
	everyWay(t, func(t *testing.T, proto string) {
		c := w.httpClient(t, proto, nil)
		conns := map[string]bool{}
		ask := func(target string) {
			t.Helper()
			w.do(t, c, noteConn(w.as(t, "bob", "GET", target, nil), conns)).want(t, 200, target)
		}
		for range 2 {
			ask("/api/v1/pods")
		}
		if len(conns) != 1 {
			t.Fatalf("%d connections before Leave", len(conns))
		}
		w.proxy.Leave()
		defer w.proxy.leaving.Store(false)
		for _, target := range []string{"/api/v1/pods", remoteGV + "/widgets", "/readyz"} {
			ask(target)
		}
		check.Same(t, map[bool]int{true: 3, false: 1}[proto == "http/1.1"], len(conns), "connections in all")
	})
}

// One backend gets half of a server-wide limit, at least one place, separately for reads and
// writes. One user leaves some of that to others.
func TestShareOfServerWideLimit(t *testing.T) {
	for limit, users := range map[int][]string{1: {"bob"}, 2: {"bob"}, 3: {"carol", "bob"}, 5: {"carol", "carol", "bob"}} {
		began, end := make(chan struct{}), make(chan struct{})
		metrics := prometheus.NewRegistry()
		counted := func(cfg *backend.Config) { cfg.Metrics = metrics }
		w := newWorld(t, worldConfig{maxInFlight: limit, backends: counted, remote: func(_ http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/slow") {
				began <- struct{}{}
				<-end
			}
		}})
		read := func(proto, user, name string) answer {
			return w.do(t, w.httpClient(t, proto, nil), w.as(t, user, "GET", remoteGV+"/widgets"+name, nil))
		}
		held := make(chan answer, len(users))
		for i, user := range users {
			if i > 0 && i == len(users)-1 {
				read("h2", users[0], "").want(t, 429, "the last place, limit", limit)
			}
			go func() { held <- read([]string{"h2", "http/1.1"}[i%2], user, "/slow") }()
			<-began
		}
		everyWay(t, func(t *testing.T, proto string) {
			if got := read(proto, "bob", ""); got.status != 429 || got.header.Get("Retry-After") != "1" {
				t.Errorf("limit %d, %d under way: another is answered with %d", limit, len(users), got.status)
			}
			w.get(t, proto, "/api/v1/pods").want(t, 200, "a local read, limit", limit)
			w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "POST", remoteGV+"/widgets", nil)).want(t, 200, "a write, limit", limit)
		})
		close(end)
		for range users {
			(<-held).want(t, 200, "one of", len(users))
		}
		w.settled(t)
		w.get(t, "h2", remoteGV+"/widgets").want(t, 200, "none under way, limit", limit)
		rejected(t, metrics, "server", 2+min(len(users)-1, 1))
	}
}

func TestRejectNew(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.proxy.RejectNew()
	everyWay(t, func(t *testing.T, proto string) {
		if got := w.get(t, proto, "/api/v1/pods"); got.status != 429 || got.header.Get("Retry-After") != "5" {
			t.Errorf("%d, Retry-After %q", got.status, got.header.Get("Retry-After"))
		}
		w.get(t, proto, "/readyz").want(t, 200, "health")
	})
}

// With a probability of one, each request uses a connection of its own.
func TestGoAway(t *testing.T) {
	const bob, widgets = "Bearer token-of-bob", remoteGV + "/widgets"
	for _, tt := range []struct {
		full                  bool // has the remote no place left?
		token, accept, target string
		status                int
	}{
		{false, "", "", "/api/v1/pods", 200},
		{false, bob, "*/*", widgets, 200},
		{true, bob, "application/json", widgets, 429},
		{true, bob, "application/yaml", widgets, 429},
	} {
		w := newWorld(t, worldConfig{goAway: 1})
		if tt.full {
			w.get(t, "h2", tt.target)
			// The first response shows that the remote takes HTTP/2. Its place is free soon.
			must.Soon(t, 10*time.Second, "all places are taken", func() bool {
				fillUp(t, w.upstream())
				return w.do(t, w.httpClient(t, "h2", nil), w.as(t, "bob", "GET", tt.target, nil)).status == tt.status
			})
		}
		c, conns := w.httpClient(t, "h2", nil), map[string]bool{}
		for range 3 {
			r := noteConn(w.request(t, "GET", tt.target, nil), conns)
			for name, value := range map[string]string{"Authorization": tt.token, "Accept": tt.accept} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			w.do(t, c, r).want(t, tt.status, tt.target, tt.accept)
		}
		if len(conns) < 2 {
			t.Errorf("%s, accepting %s: no GOAWAY", tt.target, tt.accept)
		}
	}
}

// A ready refusal needs no goroutine; one of an unauthenticated caller is charged to its
// connection. ServeHTTP answers in other formats, and to HEAD.
func TestReadyRefusals(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, tt := range []struct {
		method, accept string
		ready          bool
	}{
		{"GET", "", true}, {"GET", "application/json;as=Table", true}, {"GET", "*/*", true}, {"GET", "application/yaml", false}, {"HEAD", "", false},
	} {
		r := newFrameRequest(w.proxy.frames)
		*r.head = Head{Method: tt.method, Path: "/api"}
		if tt.accept != "" {
			r.head.Fields = []hpack.HeaderField{{Name: "accept", Value: tt.accept}}
		}
		r.front = &frameConn{}
		r.decision = Decision{Action: Refuse, Err: errUnauthorized()}
		if plan := w.proxy.frames.plan(r); (plan.Answer != nil) != tt.ready || plan.Unwelcome != tt.ready || (plan.Serve == nil) != tt.ready {
			t.Errorf("%s, accepting %q: %+v", tt.method, tt.accept, plan)
		}
	}
}

// Fetch returns an error for a backend that cannot be reached.
func TestFetchFails(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.remote.Close()
	for _, u := range []*backend.Upstream{nil, w.upstream()} {
		if res, err := w.proxy.Fetch(u, w.request(t, "GET", remoteGV, nil), false); err == nil {
			t.Errorf("answered with %v", res)
		}
	}
}

// Fetch asks a backend over the protocol that it speaks.
func TestFetch(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		res := must.Get(w.proxy.Fetch(w.upstream(), w.request(t, "GET", remoteGV, nil), false))(t)
		res.Body.Close()
		if got, http2 := w.remote.last(t).proto == "HTTP/2.0", w.remote.EnableHTTP2; res.StatusCode != 200 || got != http2 {
			t.Errorf("%d, over HTTP/2: %v, want %v", res.StatusCode, got, http2)
		}
	})
}

func TestForwardRedirects(t *testing.T) {
	w := newWorld(t, worldConfig{forwardRedirects: true, remote: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }})
	everyWay(t, func(t *testing.T, proto string) {
		if got := w.get(t, proto, remoteGV+"/widgets"); got.status != 302 || got.header.Get("Location") != "/elsewhere" {
			t.Errorf("%d to %q", got.status, got.header.Get("Location"))
		}
	})
}
