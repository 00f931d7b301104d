package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A body that does not arrive in time is answered with 408. Until then it takes no place from
// others (defect A1): here there is none, and a request that wanted one would get 429. Its client is still there.
func TestSlowBody(t *testing.T) {
	for _, target := range []string{"/api/v1/namespaces/x/pods", "/api/v1/namespaces/x/pods/y/exec"} {
		access, seen, _ := newLog(t)
		w := newWorld(t, worldConfig{Config: Config{AccessLog: access}})
		everyWay(t, func(t *testing.T, proto string) {
			w.do(t, w.httpClient(t, proto, nil), w.by(t, "", "POST", target, strings.NewReader("body"))).want(t, 200, "in time", target)
			<-seen
		})
		w.settled(t)
		w.proxy.bodyTime = 50 * time.Millisecond
		fillUp(t, w.proxy.cfg.Local.Upstream(backend.PoolUnproven), false, true)
		everyWay(t, func(t *testing.T, proto string) {
			body, unsent := io.Pipe()
			defer unsent.Close()
			r := w.by(t, "", "POST", target, body)
			r.ContentLength = 1
			w.do(t, w.httpClient(t, proto, nil), r).want(t, http.StatusRequestTimeout, target)
			check.Has(t, <-seen, `"end":"refused-here"`)
		})
	}
}

// Other bodies have no such limit: they are forwarded as they come, and end with their request.
func TestSlowOtherBody(t *testing.T) {
	w := newWorld(t, worldConfig{remoteHTTP1: true})
	w.proxy.bodyTime = 10 * time.Millisecond
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			sent, length, want int
			timeout            string
		}{{5, 5, 200, "30s"}, {1 << 20, 1 << 20, 200, "30s"}, {0, 5, 504, "1s"}} {
			body, unsent := io.Pipe()
			defer unsent.Close()
			time.AfterFunc(10*w.proxy.bodyTime, func() {
				if _, _ = unsent.Write(make([]byte, tc.sent)); tc.sent == tc.length {
					_ = unsent.Close()
				}
			})
			r := w.as(t, "bob", "POST", remoteGV+"/widgets?timeout="+tc.timeout, body)
			r.ContentLength = int64(tc.length)
			w.do(t, w.httpClient(t, proto, nil), r).want(t, tc.want, tc.sent, tc.length)
			if tc.want == http.StatusOK {
				check.Same(t, tc.sent, len(w.remote.last(t).body), "bytes at the backend")
			}
		}
	})
}

// One backend gets half of each limit of the whole server. Reads take nothing from writes.
func TestSharesOfLimits(t *testing.T) {
	check.Same(t, math.MaxInt/2+1, int(newLimit(math.MaxInt, false).share), "share of the highest limit")
	for most, want := range map[int]int64{0: 0, 1: 1, 2: 1, 3: 2, 400: 200} {
		l := limits{reads: newLimit(most, false), writes: newLimit(2*most, true)}
		check.Same(t, [4]int64{want, int64(most), int64(most), int64(2 * most)}, [4]int64{l.reads.share, l.reads.max, l.writes.share, l.writes.max}, "share and limit of reads, and of writes")
	}
	var l limits
	for _, verb := range []string{"get", "list", "watch", "head", "options", "proxy"} {
		check.Same(t, true, l.of(verb) == &l.reads, "%q is a read", verb)
	}
	for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection", "post", ""} {
		check.Same(t, true, l.of(verb) == &l.writes, "%q is a write", verb)
	}
}

// A request is counted from when it has its places until it gives them back, and long-running ones,
// and those to the local apiserver, take none of the whole server's. A refused one keeps nothing.
func TestPlacesOfARequest(t *testing.T) {
	w := newWorld(t, worldConfig{Config: Config{MaxInFlight: 2, MaxMutating: 2}})
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
	_, ok := enter(remote, w.upstream(), "carol")
	check.Same(t, false, ok, "a backend has got more than its share")
	counted("beyond the share", 1, 0, 1)
	first.leave()
	fillUp(t, w.upstream(), false)
	_, ok = enter(remote, w.upstream(), "bob")
	check.Same(t, false, ok, "a backend has got more than its limit")
	counted("beyond the limit", 0, 0, 0)
}

// One user leaves some of a backend's share of the server's places to others. Reads take nothing
// from writes. Refusals are counted.
func TestShareOfAUser(t *testing.T) {
	metrics := prometheus.NewRegistry()
	w := newWorld(t, worldConfig{Config: Config{MaxInFlight: 5, MaxMutating: 6}, pools: backend.Config{Sinks: metric.Sinks{Metrics: metrics}}})
	check.Same(t, [2]int64{5, 6}, [2]int64{w.proxy.limits.reads.max, w.proxy.limits.writes.max}, "limits of reads and writes")
	d, _ := w.proxy.decision(t.Context(), asBob(remoteGV+"/widgets/a", ""), nil, true)
	for _, tc := range []struct {
		user, verb string
		want       bool
	}{{"carol", "get", true}, {"carol", "list", true}, {"carol", "get", false}, {"bob", "get", true}, {"dave", "get", false}, {"dave", "create", true}} {
		var held place
		d.Request.Verb = tc.verb
		err := w.proxy.enter(&held, &d, w.upstream(), bound.Source{User: tc.user})
		check.Same(t, tc.want, err == nil, "a place for %s", tc.user)
	}
	check.Same(t, 2, rejections(t, metrics)["server"], "refusals at the share")
	for i := range 5 { // of other backends
		w.proxy.limits.reads.places.Take(bound.Source{User: fmt.Sprint(i)}, 1, 5)
	}
	d.Request.Verb = "get"
	check.Same(t, true, w.proxy.enter(new(place), &d, w.upstream(), bound.Source{User: "erin"}) != nil, "refused when all of the server's are taken")
	check.Same(t, 3, rejections(t, metrics)["server"], "refusals")
}

// Clients are asked to reconnect as often as the operator wants, not with each request. Who is rejected in a drain is
// always asked: it would retry over the same connection, and be rejected again.
func TestGoAwayIsRare(t *testing.T) {
	p := &Proxy{cfg: Config{GoAwayChance: 1e-12}}
	for range 1000 {
		check.Same(t, false, p.goAway(), "asked to reconnect, with a chance of one in 10^12")
	}
	p.RejectNew()
	check.Same(t, true, p.goAway(), "asked to reconnect with a 429")
}

// A panic at the end of a request costs no place.
func TestPanicAtTheEnd(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{pools: backend.Config{Observe: func(string, string, time.Duration) { panic("observing") }}})
		w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", remoteGV+"/widgets", nil)).want(t, 200)
		must.Soon(t, 10*time.Second, "the place is free", func() bool { return w.proxy.UnderWay() == 0 })
	})
}

// A client that does not read its response gives its place back when the request's time is over.
func TestUnreadResponse(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{true, false} {
		everyWay(t, func(t *testing.T, proto string) {
			t.Parallel()
			w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(rw http.ResponseWriter, _ *http.Request) {
				for p := make([]byte, 1<<20); ; { // more than any window and socket holds
					if _, err := rw.Write(p); err != nil {
						return
					}
				}
			}})
			w.proxy.unreadRest = 50 * time.Millisecond
			res := must.Get(w.httpClient(t, proto, nil).Do(w.as(t, "bob", "GET", remoteGV+"/widgets?timeout=2s", nil)))(t) // enough for its head
			defer res.Body.Close()
			must.Soon(t, 10*time.Second, "the place is free", func() bool { return w.proxy.UnderWay() == 0 })
			n, err := io.Copy(io.Discard, res.Body)
			check.Same(t, true, err != nil, "the response does not look complete after %d bytes", n)
		})
	}
}

// A client that does not read a page or a document of this process gives its place there back, too,
// also on the admin port.
func TestUnreadPage(t *testing.T) {
	t.Parallel()                 // it waits most of the time
	text := make([]byte, 64<<20) // more than any window and socket holds
	for _, tc := range []struct{ proto, path string }{
		{"http/1.1", "/fairlead/status"}, {"h2", "/fairlead/status"}, {"http/1.1", "/openapi/v2"}, {"h2", "/openapi/v2"}, {"http/1.1", "/metrics"},
	} {
		w, over := newWorld(t, worldConfig{}), make(chan error, 1)
		w.proxy.pageTime = 100 * time.Millisecond
		page := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { over <- check.Err(rw.Write(text)) })
		w.proxy.cfg.Pages, w.proxy.cfg.Documents = page, page
		r := w.as(t, "bob", "GET", tc.path, nil)
		if tc.path == "/metrics" {
			r.URL.Host = w.guard(t, w.proxy, page).Listener.Addr().String()
		}
		if res, err := w.httpClient(t, tc.proto, nil).Do(r); err == nil { // else its time was over before its head
			defer res.Body.Close()
		}
		check.Same(t, true, must.Come(t, 10*time.Second, tc.path+" is written no more", over) != nil, "%s is not written as a whole", tc.path)
	}
	// A page that streams has no such time.
	w := newWorld(t, worldConfig{})
	w.proxy.pageTime = 20 * time.Millisecond
	r := w.as(t, "bob", "GET", "/events", nil)
	late := make(chan struct{})
	r.URL.Host = w.guard(t, w.proxy, func(rw http.ResponseWriter, _ *http.Request) {
		time.AfterFunc(200*time.Millisecond, func() { close(late) })
		<-late
		_, _ = io.WriteString(rw, "late")
	}).Listener.Addr().String()
	check.Same(t, "late", w.do(t, w.httpClient(t, "http/1.1", nil), r).body, "what streams")
}

// timed is a response that passes on how long its client has time to read it.
type timed struct {
	*httptest.ResponseRecorder
	until func(time.Time)
}

func (w *timed) SetWriteDeadline(t time.Time) error {
	w.until(t)
	return nil
}

// A short answer waits for its client when its handler has long returned. It has the same time, a refusal, too.
func TestUnreadShortAnswer(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for target, want := range map[string]int{remoteGV + "/widgets": 401, "/fairlead/status": 401, "/openapi/v2?short": 200, remoteGV + "/widgets?as=jane": 403} {
		w.proxy.cfg.Documents = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		var until time.Time
		rw, r := &timed{httptest.NewRecorder(), func(t time.Time) { until = t }}, httptest.NewRequestWithContext(t.Context(), "GET", target, nil)
		if want != http.StatusUnauthorized {
			r.Header.Set("Authorization", "Bearer token-of-bob")
		}
		if want == http.StatusForbidden { // by the impersonation filter
			r.Header.Set("Impersonate-User", "jane")
		}
		w.proxy.ServeHTTP(rw, r)
		check.Same(t, want, rw.Code, "%s: status", target)
		check.Within(t, pageTime/2, pageTime, time.Until(until), "%s: time to read it", target)
	}
	// A request that is forwarded as another user has no such time: it may be a watch.
	until := time.Time{}
	rw, r := &timed{httptest.NewRecorder(), func(t time.Time) { until = t }}, httptest.NewRequestWithContext(t.Context(), "GET", remoteGV+"/widgets", nil)
	r.Header.Set("Authorization", "Bearer token-of-boss")
	r.Header.Set("Impersonate-User", "jane")
	w.proxy.ServeHTTP(rw, r)
	check.Same(t, "200 ok true", fmt.Sprint(rw.Code, " ", rw.Body, " ", until.IsZero()), "as jane")
}

// The time for an unread response is set before its handler returns, or not at all: it would be the next request's.
func TestUnreadIsNotTheNext(t *testing.T) {
	t.Parallel() // it waits most of the time
	w := newWorld(t, worldConfig{remoteHTTP1: true, remote: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }})
	returned, late := make(chan struct{}), make(chan bool, 1) // whether the handler had returned when it was set
	slow := &timed{httptest.NewRecorder(), func(until time.Time) {
		if time.Until(until) < pageTime/2 { // that of hasten, which takes a moment to set
			select {
			case <-returned:
				late <- true
			case <-time.After(100 * time.Millisecond):
				late <- false
			}
		}
	}}
	r := httptest.NewRequestWithContext(t.Context(), "GET", remoteGV+"/widgets?timeout=200ms", nil)
	r.Header.Set("Authorization", "Bearer token-of-bob")
	w.proxy.ServeHTTP(slow, r)
	close(returned)
	select {
	case was := <-late:
		check.Same(t, false, was, "it is set after the handler's return")
	case <-time.After(time.Second): // it was not set at all
	}
}

// fillUp takes every place of an upstream for requests of these kinds, for many sources.
func fillUp(t *testing.T, u *backend.Upstream, longRunning ...bool) {
	t.Helper()
	for _, long := range longRunning {
		for i, taken := 0, true; taken; i++ {
			taken = false
			for ok := true; ok; taken = taken || ok {
				_, ok = u.Acquire(bound.Source{User: fmt.Sprint(i)}, long)
			}
		}
	}
}

// An answer that comes before the end of the request's body is forwarded at once, and the request's
// goroutine does not wait for the rest.
func TestAnswerBeforeTheBody(t *testing.T) {
	t.Parallel() // it waits most of the time
	for _, http1 := range []bool{false, true} {
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
			must.Do(t, http.NewResponseController(w).EnableFullDuplex())
			if r.URL.RawQuery == "" {
				w.WriteHeader(http.StatusConflict)
				must.Do(t, http.NewResponseController(w).Flush())
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}})
		s := w.server()
		s.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			must.Do(t, http.NewResponseController(rw).EnableFullDuplex()) // like cmd/fairlead; this ends the connection
			rw.Header().Set("Connection", "close")
			w.proxy.ServeHTTP(rw, r)
		})
		s.StartTLS()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		for _, length := range []string{"Content-Length: 1000000\r\n\r\nbegin", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n"} {
			for query, status := range map[string]int{"": http.StatusConflict, "?timeout=300ms": http.StatusGatewayTimeout} {
				t.Run(fmt.Sprint(http1, length[:7], query), func(t *testing.T) {
					t.Parallel()
					conn := w.dial(t, s, nil)
					must.Get(fmt.Fprintf(conn, "POST %s/widgets%s HTTP/1.1\r\nHost: x\r\nX-Unread: 1\r\nAuthorization: Bearer token-of-bob\r\n%s", remoteGV, query, length))(t)
					must.Do(t, conn.SetReadDeadline(time.Now().Add(uploadRest*9/10))) // a response that waits for the body takes uploadRest
					br := bufio.NewReader(conn)
					res := must.Get(http.ReadResponse(br, nil))(t)
					check.Same(t, status, res.StatusCode, "status")
					ours := status == http.StatusGatewayTimeout
					check.Same(t, ours, res.ContentLength > 0, "it has a length")
					must.Do(t, conn.SetReadDeadline(time.Now().Add(2*uploadRest)))
					must.Get(io.Copy(io.Discard, br))(t) // the connection ends
				})
			}
		}
	}
}

// A response to a request that was not sent ends at once, though its client waits to be asked for the body.
func TestRefusedBeforeTheBody(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.get(t, "http/1.1", remoteGV).want(t, 200, "the backend's protocol is known")
	fillUp(t, w.upstream(), false)
	began := time.Now()
	res, _, conn := w.raw(t, "POST "+remoteGV+"/widgets", "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	must.Get(io.Copy(io.Discard, res.Body))(t)
	check.Same(t, http.StatusTooManyRequests, res.StatusCode, "status")
	check.Within(t, 0, uploadRest/2, time.Since(began), "time")
	must.Do(t, conn.Close())
}

// overdue is a body that does not come in time. net/http ends the request's context then.
type overdue func()

func (o overdue) Read([]byte) (int, error) {
	o()
	return 0, os.ErrDeadlineExceeded
}

// A refused request's short body is read, so that its connection can be used again, but not where that is of no use,
// nor for ever. Its client is still there.
func TestUnwantedBody(t *testing.T) {
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}})
	for _, tc := range []struct {
		name           string
		length, unread int
		change         func(*http.Request)
	}{
		{"short", 256 << 10, 0, func(*http.Request) {}},
		{"long", 256<<10 + 1, 256<<10 + 1, func(*http.Request) {}},
		{"late", 9, 9, func(r *http.Request) {
			ctx, leave := context.WithCancel(r.Context())
			*r = *r.WithContext(ctx)
			r.Body = io.NopCloser(overdue(leave))
		}},
		{"unsent", 9, 9, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }},
		{"of a stream", 9, 9, func(r *http.Request) { r.ProtoMajor = 2 }},
		{"of a client that leaves", 9, 9, func(r *http.Request) { r.Close = true }},
		{"at the end of this process", 9, 9, func(*http.Request) { w.proxy.leaving.Store(true) }},
	} {
		body := strings.NewReader(strings.Repeat("b", tc.length))
		rw, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", remoteGV+"/widgets", body)
		tc.change(r)
		w.proxy.ServeHTTP(rw, r)
		check.Same(t, http.StatusUnauthorized, rw.Code, "%s: status", tc.name)
		check.Same(t, tc.unread, body.Len(), "%s: what is left", tc.name)
		check.Has(t, <-seen, `"end":"refused-here"`)
	}
}

// A body of declared length that comes in many small parts, each sooner than flushAfter, does not wait for the last.
func TestTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		f := &flusher{}
		for range 3 {
			f.wait(w)
			time.Sleep(flushAfter * 2 / 5)
			f.wait(nil)
		}
		f.wait(w)
		synctest.Wait()
		check.Same(t, true, w.Flushed, "flushed after %v", flushAfter*6/5)
		f.wait(nil)
	})
}
