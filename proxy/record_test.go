package proxy

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/otlp"
)

// newLog makes an access log that runs until the test ends or stop is called.
func newLog(t *testing.T) (log *accesslog.Log, seen logbook.Lines, stop func()) {
	t.Helper()
	seen = make(logbook.Lines, 64)
	log = accesslog.New(accesslog.Config{Writer: seen})
	return log, seen, must.Run(t, log.Run)
}

// newAudit does the same for an audit log with the rules of a policy.
func newAudit(t *testing.T, rules string) (log *audit.Log, seen logbook.Lines, stop func()) {
	t.Helper()
	p := must.Get(policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + rules)))(t)
	seen = make(logbook.Lines, 64)
	log = audit.New(audit.Config{Policy: policy.NewPolicyRuleEvaluator(p), Writer: seen})
	return log, seen, must.Run(t, log.Run)
}

// A request that the engine hands to ServeHTTP arrived before its review, not after.
func TestArrivedBeforeReview(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		reviewed, arrived := make(chan time.Time, 1), make(chan time.Time, 1)
		w := newWorld(t, worldConfig{
			reviewed: func() error { reviewed <- time.Now(); return nil },
			Config: Config{Documents: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				arrived <- exchangeOf(r.Context()).head.Arrived
				w.WriteHeader(http.StatusNoContent)
			})},
		})
		w.get(t, proto, "/apis")
		late := (<-arrived).Sub(<-reviewed)
		check.Same(t, true, late < 0, "arrived %v after its review", late)
	})
}

// All times are measured from the arrival of the head, however late its recorder begins, with and
// without the engine: else a request could wait longer for its backend than it took. So is its limit.
func TestTimesSinceArrival(t *testing.T) {
	bothBackends(t, worldConfig{change: annotate("request-timeout", "1h"), remote: func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			<-r.Context().Done()
		}
	}}, func(t *testing.T, w *world) {
		access, seen, _ := newLog(t)
		w.proxy.cfg.AccessLog = access
		w.front.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.proxy.serve(rw, r, time.Now().Add(-time.Hour/2), nil)
		})
		w.get(t, "http/1.1", remoteGV+"/widgets")
		var got struct{ Waited, First, Took time.Duration }
		must.Do(t, json.Unmarshal([]byte(<-seen), &got))
		check.Same(t, true, got.Waited >= time.Hour/2 && got.First >= got.Waited && got.Took >= got.First, "half an hour each, in this order: %+v", got)
		must.Soon(t, 10*time.Second, "a request of more than a minute", func() bool {
			took := w.upstream().Latencies()
			return took[len(took)-1] == 1
		})
		began := time.Now()
		w.get(t, "http/1.1", remoteGV+"/widgets?timeout=20s").want(t, http.StatusGatewayTimeout, "a limit of 20s, half an hour ago")
		check.Within(t, 0, 10*time.Second, time.Since(began), "time until the limit ends")
	})
}

// A request whose stream was refused, so that its client repeats it elsewhere, is not one that its client has given up.
// One whose response was cut has failed, whatever its head says, unless its client has cut it.
func TestRefusedStreams(t *testing.T) {
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}})
	for _, tc := range []struct {
		head   int // its status; 0 means that there was none
		reason engine.Reason
		want   string
		failed uint64
	}{
		{0, "dial", "503", 1}, {0, "no-endpoint", "503", 1}, {0, "client-reset", "499", 0}, {0, "drain", "503", 1},
		{200, "lost", "200", 1}, {200, "deadline", "200", 1}, {200, "memory", "200", 1}, {200, "drain", "200", 1},
		{200, "client-reset", "200", 0}, {200, "", "200", 0},
	} {
		x, before := &exchange{p: w.proxy, head: new(Head), front: new(slot)}, w.proxy.metrics.other.failed.Load()
		x.finish(&engine.Outcome{Status: tc.head, Reason: tc.reason}, "HTTP/2.0", tc.reason == engine.ReasonClientReset)
		check.Has(t, <-seen, `"status":`+tc.want+`,`, `"end":"`+string(tc.reason))
		check.Same(t, tc.failed, w.proxy.metrics.other.failed.Load()-before, "%+v: counted as 5xx", tc)
	}
}

// A backend whose protocol is not known yet, because nothing has reached it, was tried, too.
func TestUnreached(t *testing.T) {
	access, seen, _ := newLog(t)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}})
	w.remote.Close()
	everyWay(t, func(t *testing.T, proto string) {
		w.get(t, proto, remoteGV+"/widgets").want(t, http.StatusServiceUnavailable, "nobody listens")
		check.Has(t, <-seen, `"end":"dial"`)
	})
}

// A client has not left whose context ends for a cause.
func TestEndedHere(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		access, seen, _ := newLog(t)
		w.proxy.cfg.AccessLog = access
		w.front.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			ctx, end := context.WithCancelCause(r.Context())
			end(&engine.Failure{Outcome: engine.Outcome{Reason: engine.ReasonDrain}})
			w.proxy.ServeHTTP(rw, r.WithContext(ctx))
		})
		if res, err := w.httpClient(t, "http/1.1", nil).Do(w.as(t, "bob", "GET", remoteGV+"/widgets", nil)); err == nil {
			_ = res.Body.Close()
		}
		check.Has(t, <-seen, `"end":"drain"`)
	})
}

type writes int

func (w *writes) Write(p []byte) (int, error) {
	*w++
	return len(p), nil
}

// Connections do not share one lock of the access log: each part that has one is written by itself.
func TestConnectionsAreSpread(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		var n writes
		access := accesslog.New(accesslog.Config{Writer: &n})
		w := newWorld(t, worldConfig{Config: Config{AccessLog: access}})
		for range 8 {
			w.get(t, proto, remoteGV+"/widgets")
		}
		w.settled(t)
		must.Run(t, access.Run)()
		check.Same(t, true, n >= 2, "the lines of eight connections came in %d writes", n)
	})
}

// A ready document is sent to authorized callers who ask for no other. It has no handler, and the time limit of one.
func TestReadyDocument(t *testing.T) {
	t.Parallel() // it waits most of the time
	access, seen, _ := newLog(t)
	body := make([]byte, 64<<20) // more than any window and socket holds
	ready := &engine.Answer{Status: 200, Body: body, Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-length", Value: "67108864"}}}
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access, Documents: http.NotFoundHandler(), Ready: func(h *Head) *engine.Answer {
		if h.get("accept") == "fresh" {
			return nil
		}
		return ready
	}}})
	for _, tc := range []struct {
		method, token, accept string
		ready                 bool
	}{
		{"GET", "token-of-bob", "", true}, {"GET", "token-of-bob", "fresh", false}, {"POST", "token-of-bob", "", false}, {"HEAD", "token-of-bob", "", false},
		{"GET", "token-of-nobody", "", false}, {"GET", "", "", false},
	} {
		fields := []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + tc.token}, {Name: "accept", Value: tc.accept}}
		check.Same(t, tc.ready, w.planOf(t, &wire.Head{Method: tc.method, Path: "/apis", RawQuery: "timeout=32s", Fields: fields}).Answer == ready, "%+v: ready", tc)
	}
	w.proxy.pageTime = 2 * time.Second // enough for its head on a busy machine
	res := must.Get(w.httpClient(t, "h2", nil).Do(w.as(t, "bob", "GET", "/apis?timeout=32s", nil)))(t)
	defer res.Body.Close()
	check.Same(t, true, uuid4.MatchString(res.Header.Get("Audit-Id")), "Audit-Id")
	check.Has(t, must.Come[string](t, 10*time.Second, "the document ends", seen), `"path":"/apis","verb":"get","status":200,"bytes":`)
}

// A line has at most the beginning of a User-Agent, and keeps no more of it in memory.
func TestAgent(t *testing.T) {
	for n, want := range map[int]int{0: 0, 60: 60, maxCause: maxCause, 8 << 10: maxCause} {
		h := &Head{Head: wire.Head{Fields: []hpack.HeaderField{{Name: "user-agent", Value: strings.Repeat("a", n)}}}}
		check.Same(t, strings.Repeat("a", want), h.agent(), "of %d bytes", n)
	}
}

// newTracer sends spans to a collector. spans returns those of the requests that have ended.
func newTracer(t *testing.T, perMillion string) (tr trace.Tracer, spans func() []otlp.Span) {
	t.Helper()
	c, rate := must.Get(otlp.Start(t.Context()))(t), int32(must.Get(strconv.Atoi(perMillion))(t))
	t.Cleanup(c.Close)
	provider := must.Get(tracing.NewProvider(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &c.Address, SamplingRatePerMillion: &rate}, nil, nil))(t)
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	return provider.Tracer("proxy"), func() []otlp.Span {
		must.Do(t, provider.(interface{ ForceFlush(context.Context) error }).ForceFlush(t.Context()))
		return c.Spans()
	}
}

// callersTrace is the trace of the callers of a story.
const callersTrace = "0af7651916cd43dd8448eb211c80319c"

// What a client chooses is cut: thousands of spans wait while the collector is down. Its bytes that are no UTF-8 cost
// nobody a span: the exporter sends spans of many requests together, and would lose them all.
func TestTraceIsText(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, list := newTracer(t, "1000000")
		w := newWorld(t, worldConfig{Config: Config{Tracer: tr}})
		long := strings.Repeat("X", 8<<10)
		for _, target := range []string{remoteGV + "/wid\xffgets", remoteGV + "/" + long, "/" + long} {
			r := w.as(t, "bob", long, target, nil)
			r.Header.Set("Audit-Id", "id\xff")
			w.do(t, w.httpClient(t, proto, nil), r)
		}
		must.Soon(t, 10*time.Second, "three spans", func() bool { return len(list()) == 3 })
		spans := list()
		check.Same(t, remoteGV+"/wid\uFFFDgets", spans[0].Attributes["url.path"], "path of the first of %d spans", len(spans))
		for _, s := range spans {
			for name, text := range s.Attributes {
				check.Within(t, 0, 1<<10, max(len(text), len(s.Name)), "bytes of %s or of the span's name", name)
			}
			check.Same(t, true, strings.HasPrefix(s.Attributes["url.path"], "/") && strings.HasPrefix(s.Name, "XX"), "%.20q %.20q", s.Name, s.Attributes["url.path"])
		}
	})
}
