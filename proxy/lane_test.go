package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func (w *world) get(t *testing.T, proto, target string) answer {
	t.Helper()
	return w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", target, nil))
}

func (w *world) upstream() *backend.Upstream {
	return w.proxy.cfg.Backends.Upstream(w.table().Entry(schema.GroupVersion{Group: "remote.example.com", Version: "v1"}))
}

func annotate(key, value string) func(*apiregistrationv1.APIService) {
	return func(a *apiregistrationv1.APIService) { a.Annotations = map[string]string{"fairlead.dev/" + key: value} }
}

// rejections returns how many requests to the remote were refused, by limit.
func rejections(t *testing.T, metrics prometheus.Gatherer) map[string]float64 {
	t.Helper()
	by := map[string]float64{}
	for _, f := range must.Get(metrics.Gather())(t) {
		if f.GetName() == "fairlead_backend_rejections_total" {
			for _, m := range f.GetMetric() {
				by[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return by
}

// A watch's events arrive as they are sent, and a drain ends the watch as its timeout would, but
// not in the middle of an event: its client would log an unexpected end.
func TestWatch(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		everyWay(t, func(t *testing.T, proto string) {
			stood := true
			for tries := 0; stood && tries < 20; tries++ { // where all stood still, half of an event seemed whole
				next := make(chan string, 1)
				w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(w http.ResponseWriter, r *http.Request) {
					for w.(http.Flusher).Flush(); r.URL.RawQuery != ""; w.(http.Flusher).Flush() {
						select {
						case e := <-next:
							_, _ = io.WriteString(w, e)
						case <-r.Context().Done():
							return
						}
					}
				}})
				c := w.httpClient(t, proto, nil)
				w.do(t, c, w.as(t, "bob", "GET", remoteGV+"/widgets", nil)).want(t, 200, "a list") // the backend's protocol is known
				res := must.Get(c.Do(w.as(t, "bob", "GET", remoteGV+"/widgets?watch=true", nil)))(t)
				defer res.Body.Close()
				var sent time.Time
				for _, event := range []string{"one\n", "two\n", "{half of an"} {
					sent = time.Now()
					next <- event
					got := make([]byte, len(event))
					must.Get(io.ReadFull(res.Body, got))(t)
					check.Same(t, event, string(got), "an event")
				}
				w.proxy.EndLongRunning(0)
				if proto == "h2" {
					go func() { _ = w.lane.Shutdown(t.Context(), 0) }() // waits for the client to leave
				}
				time.AfterFunc(50*time.Millisecond, func() { next <- " event}\n" })
				rest, err := io.ReadAll(res.Body)
				stood = err == nil && len(rest) == 0 && time.Since(sent) > engine.TickEvery
				check.Same(t, true, stood || err == nil && string(rest) == " event}\n", "after half of an event: %q, %v", rest, err)
				w.settled(t) // a drain would wait for it
			}
			check.Same(t, false, stood, "all stood still each time, or half of an event is cut late")
		})
	}
}

// The body of a watch ends cleanly if the drain, the end of a stranger's time or the end of trust in its connection has
// ended it, and not if its backend has, but for the loss of a kube-apiserver. The access log says which.
func TestEndingBody(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	timeout, end := context.WithTimeout(t.Context(), 0)
	defer end()
	lost, bad := errors.New("connection reset"), badResponse("a chunk without a length")
	for name, tc := range map[string]struct {
		resumes         bool
		client, request context.Context
		err, want       error
		why             engine.Reason
	}{
		"a drain":                      {false, t.Context(), over, lost, nil, engine.ReasonDrain},
		"a stranger's time":            {true, t.Context(), timeout, lost, nil, engine.ReasonDeadline},
		"trust":                        {true, t.Context(), t.Context(), &net.OpError{Op: "read", Err: net.ErrClosed}, nil, engine.ReasonRetired},
		"the backend":                  {false, t.Context(), t.Context(), lost, lost, engine.ReasonNone},
		"the loss of a kube-apiserver": {true, t.Context(), t.Context(), lost, nil, engine.ReasonLost},
		"a response that is wrong":     {true, t.Context(), t.Context(), bad, bad, engine.ReasonNone},
		"a client that has gone":       {true, over, over, lost, lost, engine.ReasonNone},
	} {
		e := &ended{offEngine: true, client: tc.client}
		e.at("192.0.2.1:443")
		b := &endingBody{io.NopCloser(iotest.ErrReader(tc.err)), tc.request, &events{}, e, tc.resumes}
		_, err := io.Copy(io.Discard, b)
		check.Same(t, true, err == tc.want, "ended by %s: %v, want %v", name, err, tc.want) //nolint:errorlint // it is passed on as it is
		check.Same(t, tc.why, e.o.Load().Reason, "ended by %s", name)
	}
	lines, p := iotest.OneByteReader(strings.NewReader(strings.Repeat("\n", 2000))), make([]byte, 8)
	b := &endingBody{io.NopCloser(lines), t.Context(), &events{}, &ended{offEngine: true}, true}
	check.Same(t, 0, check.Allocations(func() { _, _ = b.Read(p) }), "allocations for an event")
}

// planOf returns the engine's plan for a request of bob's, without I/O or with it.
func (w *world) planOf(t *testing.T, h *wire.Head) engine.Plan {
	t.Helper()
	conn := &h2.ConnInfo{Context: t.Context(), Remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, Now: time.Now()}
	later := make(chan engine.Plan, 1)
	plan, now := w.proxy.frames.decide(conn, h, func(p engine.Plan) { later <- p })
	if !now {
		plan = <-later
	}
	return plan
}

// With a probability of one, each request sends its client away: whether it is forwarded, handed to
// ServeHTTP or refused. A ready refusal needs no goroutine; one of an unauthenticated caller is
// charged to its connection. ServeHTTP answers in other formats, and to HEAD.
func TestPlans(t *testing.T) {
	w := newWorld(t, worldConfig{Config: Config{GoAwayChance: 1}})
	w.get(t, "h2", remoteGV) // the remote takes HTTP/2
	const bob, widgets = "Bearer token-of-bob", remoteGV + "/widgets"
	for _, tt := range []struct {
		full                                bool // has the remote no place left?
		method, token, accept, target, want string
	}{
		{false, "GET", bob, "", widgets, "forwarded"}, {false, "GET", "", "", "/api/v1/pods", "served"},
		{false, "GET", "", "", widgets, "answered, unwelcome"}, {false, "GET", "", "*/*", widgets, "answered, unwelcome"},
		{false, "GET", "", "application/json;as=Table", widgets, "answered, unwelcome"},
		{false, "GET", "", "application/yaml", widgets, "served"}, {false, "HEAD", "", "", widgets, "served"},
		{false, "GET", bob, "", "/fairlead/events", "served, long"},
		{true, "GET", bob, "application/json", widgets, "answered"}, {true, "GET", bob, "application/yaml", widgets, "served"},
	} {
		if tt.full {
			fillUp(t, w.upstream(), false)
		}
		h := &wire.Head{Method: tt.method, Path: tt.target}
		for name, value := range map[string]string{"authorization": tt.token, "accept": tt.accept} {
			if value != "" {
				h.Fields = append(h.Fields, hpack.HeaderField{Name: name, Value: value})
			}
		}
		p, got := w.planOf(t, h), ""
		for what, is := range map[string]bool{"forwarded": p.Forward != nil, "answered": p.Answer != nil, "served": p.Serve != nil} {
			if is {
				got += what
			}
		}
		if p.Unwelcome {
			got += ", unwelcome"
		}
		if p.LongRunning { // its reset is no flood
			got += ", long"
		}
		check.Same(t, tt.want, got, "%+v", tt)
		check.Same(t, !p.Unwelcome, p.GoAway, "%+v: sent away", tt)
		if p.Answer != nil { // a client that does not read it keeps neither the stream nor its connection, nor a drain
			check.Same(t, w.proxy.pageTime, p.Deadline, "%+v: time to read", tt)
		}
		if p.Done != nil && p.Forward != nil {
			p.Done(engine.Outcome{})
		}
	}
	many := &slot{remote: "192.0.2.1:1", remoteIP: "192.0.2.1", set: make([]hpack.HeaderField, 0, 4000)}
	<-w.ask(&h2.ConnInfo{Context: t.Context(), Now: time.Now(), Value: many}, "token-of-bob")
	check.Within(t, 0, 8*usualSet, cap(many.set), "fields for which a connection keeps room")
	as := append(with("token-of-boss"), hpack.HeaderField{Name: "impersonate-user", Value: "bob"})
	check.Same(t, true, w.planOf(t, &wire.Head{Method: "GET", Path: remoteGV + "/watch/widgets", Fields: as}).LongRunning, "a watch as somebody else is long-running")
}

// Fetch asks a backend over the protocol that it speaks, and returns an error for one that cannot be reached.
func TestFetch(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		fetch := func(u *backend.Upstream) (*http.Response, error) {
			return w.proxy.Fetch(u, must.Get(http.NewRequestWithContext(t.Context(), "GET", "https://any.example"+remoteGV, nil))(t), false, nil)
		}
		res := must.Get(fetch(w.upstream()))(t)
		res.Body.Close()
		check.Same(t, 200, res.StatusCode, "status")
		check.Same(t, w.remote.EnableHTTP2, w.remote.last(t).proto == "HTTP/2.0", "over HTTP/2")
		w.remote.CloseClientConnections()
		w.remote.Listener.Close()
		for _, u := range []*backend.Upstream{nil, w.upstream()} {
			check.Same(t, true, check.Err(fetch(u)) != nil, "what cannot be reached is an error")
		}
	})
}
