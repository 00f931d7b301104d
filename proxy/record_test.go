package proxy

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
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

// A request that the engine hands to ServeHTTP arrived before its review, not after.
func TestArrivedBeforeReview(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		reviewed, arrived := make(chan time.Time, 1), make(chan time.Time, 1)
		w := newWorld(t, worldConfig{
			reviewed:  func() { reviewed <- time.Now() },
			documents: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived <- exchangeOf(r.Context()).head.Arrived }),
		})
		w.do(t, w.httpClient(t, proto, nil), w.by(t, "Bearer token-of-bob", "GET", "/apis", nil))
		if late := (<-arrived).Sub(<-reviewed); late >= 0 {
			t.Errorf("arrived %v after its review", late)
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
	asked, gate := make(chan struct{}, parkedAtOnce+1), make(chan struct{}, 1)
	w := newWorld(t, worldConfig{access: access, audit: log, reviewed: func() {
		asked <- struct{}{}
		<-gate
	}})
	c := w.httpClient(t, "h2", nil)
	ask := func(name string) answer { return w.do(t, c, w.as(t, "bob", "GET", remoteGV+"/widgets/"+name, nil)) }
	gate <- struct{}{}
	ask("first") // makes the user of the token known
	<-asked
	<-seen
	w.proxy.frames.parked.held.Take(bound.Source{}, maxParked, 0)
	var waiting sync.WaitGroup
	for i := range parkedAtOnce {
		waiting.Go(func() { ask(strconv.Itoa(i)) })
		<-asked
	}
	refused := ask("last")
	refused.want(t, http.StatusTooManyRequests)
	check.Same(t, true, strings.Contains(<-seen, `"status":429`), "it has a line")
	close(gate)
	waiting.Wait()
	events := read(parkedAtOnce + 2)
	if last := events[len(events)-1]; len(events) != parkedAtOnce+2 || last.ResponseStatus.Code != http.StatusTooManyRequests || string(last.AuditID) != refused.header.Get("Audit-Id") {
		t.Errorf("%d events, the last %+v", len(events), events[len(events)-1])
	}
}

// A ready document is sent to authorized callers, counted and logged like any other answer.
func TestReadyDocument(t *testing.T) {
	access, seen := newLog(t)
	ready := &h2.Answer{Status: 200, Body: []byte("ready"), Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-length", Value: "5"}}}
	w := newWorld(t, worldConfig{
		access:    access,
		documents: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "asked") }),
		ready: func(h *Head) *h2.Answer {
			if h.get("accept") == "fresh" {
				return nil
			}
			return ready
		},
	})
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			method, token, accept string
			status                int
			body                  string // over HTTP/2
		}{
			{"GET", "token-of-bob", "", 200, "ready"},
			{"GET", "token-of-bob", "fresh", 200, "asked"},
			{"POST", "token-of-bob", "", 200, "asked"},
			{"HEAD", "token-of-bob", "", 200, ""},
			{"GET", "token-of-nobody", "", 403, ""},
			{"GET", "", "", 401, ""},
		} {
			r := w.request(t, tc.method, "/apis?timeout=32s", nil)
			r.Header.Set("Accept", tc.accept)
			if tc.token != "" {
				r.Header.Set("Authorization", "Bearer "+tc.token)
			}
			got := w.do(t, w.httpClient(t, proto, nil), r)
			if tc.body == "ready" && proto != "h2" {
				tc.body = "asked"
			}
			if got.status != tc.status || tc.status == 200 && got.body != tc.body || !uuid4.MatchString(got.header.Get("Audit-Id")) {
				t.Errorf("%+v: %d %v %q", tc, got.status, got.header, got.body)
			}
			var line struct {
				Path          string
				Status, Bytes int
			}
			must.Do(t, json.Unmarshal([]byte(<-seen), &line))
			if line.Path != "/apis" || line.Status != tc.status || tc.body != "" && line.Bytes != len(tc.body) {
				t.Errorf("%+v: line %+v", tc, line)
			}
		}
	})
}

// A rendered document has no handler, and the same time limit.
func TestUnreadReadyDocument(t *testing.T) {
	t.Parallel() // it waits most of the time
	access, seen := newLog(t)
	body := make([]byte, 64<<20) // more than any window and socket holds
	document := &h2.Answer{Status: 200, Body: body, Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-length", Value: "67108864"}}}
	w := newWorld(t, worldConfig{access: access, documents: http.NotFoundHandler(), ready: func(*Head) *h2.Answer { return document }})
	w.proxy.pageTime, w.proxy.unreadRest = 250*time.Millisecond, 50*time.Millisecond
	res := must.Get(w.httpClient(t, "h2", nil).Do(w.as(t, "bob", "GET", "/apis", nil)))(t)
	defer res.Body.Close()
	select {
	case <-seen:
	case <-time.After(10 * time.Second):
		t.Error("the document is still sent")
	}
}
