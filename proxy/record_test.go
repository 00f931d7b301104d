package proxy

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// lines is a writer that sends each line to a channel.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l <- line
	}
	return len(p), nil
}

// newLog makes an access log that runs until the test ends, and returns its lines.
func newLog(t *testing.T) (*accesslog.Log, lines) {
	t.Helper()
	seen := make(lines, 64)
	access := must.Get(accesslog.New(accesslog.Config{Writer: seen}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { _ = access.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		loop.Wait()
	})
	return access, seen
}

// A request that the engine hands to ServeHTTP arrived before its review, not after. Its answer has
// the fields of every answer of kube-apiserver.
func TestArrivedBeforeReview(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		reviewed, arrived := make(chan time.Time, 1), make(chan time.Time, 1)
		w := newWorld(t, worldConfig{
			reviewed: func() { reviewed <- time.Now() },
			documents: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				arrived <- exchangeOf(r.Context()).head.Arrived
				w.WriteHeader(http.StatusNoContent)
			}),
		})
		got := w.get(t, proto, "/apis")
		if late := (<-arrived).Sub(<-reviewed); late >= 0 {
			t.Errorf("arrived %v after its review", late)
		}
		if got.header.Get("Cache-Control") != "no-cache, private" || !uuid4.MatchString(got.header.Get("Audit-Id")) {
			t.Errorf("answered with %v", got.header)
		}
	})
}

// All times are measured from the arrival of the head, however late its recorder begins, with and
// without the engine: else a request could wait longer for its backend than it took.
func TestTimesSinceArrival(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		access, seen := newLog(t)
		w.proxy.cfg.AccessLog = access
		w.front.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.proxy.serve(rw, r, time.Now().Add(-time.Hour))
		})
		w.get(t, "http/1.1", remoteGV+"/widgets")
		var got struct{ Waited, First, Took time.Duration }
		must.Do(t, json.Unmarshal([]byte(<-seen), &got))
		if got.Waited < time.Hour || got.First < got.Waited || got.Took < got.First {
			t.Errorf("%+v, want an hour each, in this order", got)
		}
		must.Soon(t, 10*time.Second, "a request of more than two minutes", func() bool {
			took := w.upstream().Latencies()
			return took[len(took)-1] == 1
		})
	})
}

// Every request has a line in the access log, over either protocol and however it ended. Its ID
// leads to the logs of the server that answered.
func TestAccessLog(t *testing.T) {
	access, seen := newLog(t)
	audit := make(chan string, 64)
	w := newWorld(t, worldConfig{access: access, remote: func(w http.ResponseWriter, r *http.Request) {
		audit <- r.Header.Get("Audit-Id")
		_, _ = w.Write([]byte("seven b"))
	}})
	w.get(t, "h2", remoteGV) // the backend's protocol is known
	<-audit
	<-seen
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			target, user string
			want         map[string]any
		}{
			{remoteGV + "/widgets?secret=x", "bob", map[string]any{"verb": "list", "status": 200., "bytes": 7., "end": "complete", "tries": 1., "endpoint": w.remote.Listener.Addr().String()}},
			{remoteGV + "/widgets/one", "nobody", map[string]any{"verb": "get", "status": 403., "end": "refused-here"}},
		} {
			w.remote.CloseClientConnections() // the next request waits for a dial
			w.do(t, w.httpClient(t, proto, nil), w.as(t, tc.user, "GET", tc.target, nil))
			var got map[string]any
			must.Do(t, json.Unmarshal([]byte(<-seen), &got))
			if at, err := time.Parse(time.RFC3339, got["time"].(string)); err != nil || time.Since(at) > time.Minute {
				t.Errorf("%v, %v", at, err)
			}
			took, _ := got["took"].(float64)
			if tc.user == "bob" {
				waited, _ := got["waited"].(float64)
				if first, _ := got["first"].(float64); waited <= 0 || first < waited || took < first {
					t.Errorf("waited %v, first %v, took %v", waited, first, took)
				}
				check.Same(t, any(<-audit), got["audit"], "audit ID, as the backend got it")
			} else {
				tc.want["bytes"] = got["bytes"]
			}
			maps.Copy(tc.want, map[string]any{
				"level": "INFO", "msg": "request", "method": "GET", "from": "127.0.0.1", "tls": "TLS 1.3", "user": tc.user, "apiservice": "v1.remote.example.com",
				"proto": map[string]string{"http/1.1": "HTTP/1.1", "h2": "HTTP/2.0"}[proto],
			})
			tc.want["path"], _, _ = strings.Cut(tc.target, "?")
			maps.DeleteFunc(got, func(name string, _ any) bool {
				return slices.Contains([]string{"took", "time", "audit", "first", "waited", "new"}, name)
			})
			check.Same(t, tc.want, got, "record")
			if took <= 0 {
				t.Errorf("took %v", took)
			}
		}
	})
	check.Same(t, 0, len(seen), "further lines")
}

// A request that is refused because too many wait for their decision is recorded like any other.
func TestRecordOfARequestThatMayNotWait(t *testing.T) {
	access, seen := newLog(t)
	log, read := auditLog(t, "omitStages: [RequestReceived]\nrules: [{level: Metadata}]", false)
	w := newWorld(t, worldConfig{access: access, audit: log})
	parked := &w.proxy.frames.parked
	parked.by = map[bound.Source]*parkQueue{bound.Stranger("192.0.2.1:1"): {deciding: parkedAtOnce}}
	parked.held.Take(bound.Source{}, maxParked, 0)
	plan := w.planOf(t, &h2.Head{Method: "GET", Path: remoteGV + "/widgets", Fields: []hpack.HeaderField{{Name: "authorization", Value: "Bearer token-of-bob"}}})
	refused := httptest.NewRecorder()
	plan.Serve.ServeHTTP(refused, w.as(t, "bob", "GET", remoteGV+"/widgets", nil))
	plan.Done(h2.Outcome{Status: refused.Code})
	check.Same(t, http.StatusTooManyRequests, refused.Code, "status")
	check.Same(t, true, strings.Contains(<-seen, `"status":429`), "it has a line")
	ev := read(1)[0]
	check.Same(t, "ResponseComplete Metadata list  429", inShort(&ev), "record")
	check.Same(t, refused.Header().Get("Audit-Id"), string(ev.AuditID), "audit ID")
}

// A ready document is sent to authorized callers who ask for no other. It has no handler, and the
// time limit of one.
func TestReadyDocument(t *testing.T) {
	t.Parallel() // it waits most of the time
	access, seen := newLog(t)
	body := make([]byte, 64<<20) // more than any window and socket holds
	ready := &h2.Answer{Status: 200, Body: body, Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-length", Value: "67108864"}}}
	w := newWorld(t, worldConfig{access: access, documents: http.NotFoundHandler(), ready: func(h *Head) *h2.Answer {
		if h.get("accept") == "fresh" {
			return nil
		}
		return ready
	}})
	for _, tc := range []struct {
		method, token, accept string
		ready                 bool
	}{
		{"GET", "token-of-bob", "", true}, {"GET", "token-of-bob", "fresh", false}, {"POST", "token-of-bob", "", false}, {"HEAD", "token-of-bob", "", false},
		{"GET", "token-of-nobody", "", false}, {"GET", "", "", false},
	} {
		fields := []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + tc.token}, {Name: "accept", Value: tc.accept}}
		plan := w.planOf(t, &h2.Head{Method: tc.method, Path: "/apis", RawQuery: "timeout=32s", Fields: fields})
		check.Same(t, tc.ready, plan.Answer == ready, "%+v: ready", tc)
	}
	w.proxy.pageTime, w.proxy.unreadRest = 250*time.Millisecond, 50*time.Millisecond
	res := must.Get(w.httpClient(t, "h2", nil).Do(w.as(t, "bob", "GET", "/apis?timeout=32s", nil)))(t)
	defer res.Body.Close()
	check.Same(t, true, uuid4.MatchString(res.Header.Get("Audit-Id")), "Audit-Id")
	select {
	case line := <-seen:
		if !strings.Contains(line, `"path":"/apis","verb":"get","status":200,"bytes":`) {
			t.Error(line)
		}
	case <-time.After(10 * time.Second):
		t.Error("the document is still sent")
	}
}
