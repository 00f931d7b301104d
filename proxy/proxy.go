// Package proxy is the front door. For each request it decides where it goes and as which user, and carries it there.
//
//	a head ─► decide ─┬─► Decision ─► plan (limits) ─► the engine of proxy/h2 ─► record: metrics, logs, audit, span
//	          ▲       └─► Need (a review, certificates): goroutines look it up that may wait
//	          └───────────┘
//
// A Proxy is safe for concurrent use once New has returned. A decision loads one *registry.Table, and its request uses
// only that one. How APIServices are found, whether a backend is healthy, and where certificates come from is Config's.
//
//  1. To serve: [Proxy.Frames] for HTTP/2, [Proxy.ServeHTTP] for HTTP/1.1, upgrades, and what is not forwarded.
//  2. To ask as this process: [Proxy.Fetch].
//  3. To guard the pages of another port: [Proxy.Guard].
package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/singleflight"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/busiest"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// Proxy is the front door. It is an http.Handler, safe for concurrent use.
type Proxy struct {
	cfg          Config
	log          *slog.Logger
	impersonated http.Handler // behind the impersonation filter
	health       http.Handler
	metrics      *metrics
	frames       *frames
	copies       sync.Pool // of *[]byte, for copying responses
	// underWay counts the forwarded requests in flight. longRunning includes upgraded sessions.
	underWay struct{ requests, longRunning atomic.Int64 }
	serving  atomic.Int64  // requests in ServeHTTP that are not recorded yet
	conns    atomic.Uint32 // numbers of connections
	warns    atomic.Bool   // finish has just logged a line
	// These are the constants, except in tests. proofs are the running proofs, by token.
	bodyTime, unreadRest, answerTime, halfOpen, pageTime time.Duration

	proofs        singleflight.Group
	sessions      sessions
	sessionPlaces bound.Places // MaxSessions
	limits        limits
	givenUp       *givenUp
	callers       *busiest.Callers
	names         *memo.Cache[authn.Token, string] // of users whose tokens are among callers
	desk          desk
	unsure        *memo.Cache[authn.Token, struct{}] // tokens whose review did not come
	scrapers      *memo.Cache[scraper, struct{}]     // those that were lately allowed to read /metrics
	browsers      browsers
	// rejecting refuses new requests, see RejectNew. leaving closes each HTTP/1.1 connection after its response.
	rejecting, leaving atomic.Bool
	ending             context.Context           // done when the first long-running requests must end
	end                context.CancelFunc        // of ending
	endBy              atomic.Pointer[time.Time] // when all must have ended; set before ending is done
	// instance is this process's name in the loop header: 80 random bits, so that no two Fairleads share one.
	instance string
}

// New returns a Proxy that is ready to serve.
func New(cfg Config) (*Proxy, error) {
	browsers, err := newBrowsers(cfg.AllowedOrigins, cfg.HSTS)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, log: cfg.Log(), browsers: browsers,
		copies:   sync.Pool{New: func() any { return new(make([]byte, 32<<10)) }}, // httputil.ReverseProxy's size
		instance: rand.Text()[:16], givenUp: newGivenUp(), callers: busiest.New(), desk: newDesk(),
		limits:        limits{reads: newLimit(cfg.MaxInFlight, false), writes: newLimit(cfg.MaxMutating, true)},
		sessionPlaces: bound.Places{Lend: true},
		bodyTime:      bodyTime, unreadRest: unreadRest, answerTime: answerTime, halfOpen: halfOpen, pageTime: pageTime,
	}
	p.names = memo.New[authn.Token, string](memo.Config{Entries: 1024, Bytes: 1 << 20})
	p.scrapers = memo.New[scraper, struct{}](memo.Config{Entries: maxScrapers, Bytes: maxScrapers})
	unsure := memo.Config{Entries: maxUncertain, Bytes: uncertainBytes, Largest: uncertainBytes / 64}
	p.unsure = memo.New[authn.Token, struct{}](unsure)
	p.metrics = newMetrics(cfg.Metrics, cfg.Tables, p.active(), p.givenUp.refused)
	p.ending, p.end = context.WithCancel(context.Background())
	p.sessions.ending, p.sessions.end = context.WithCancel(context.Background())
	p.impersonated = p.impersonation(http.HandlerFunc(p.serveImpersonated))
	if cfg.Local != nil {
		p.health = http.HandlerFunc(p.serveLocal)
	}
	if cfg.Health != nil {
		p.health = cfg.Health(p.health)
	}
	notFound := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.writeError(w, r, errNotFound)
	}))
	p.health, p.cfg.Pages = cmp.Or(p.health, notFound), cmp.Or(cfg.Pages, notFound)
	return p, nil
}

// Run removes the series of group-versions that left the table, and callers' counts after an hour, until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { _ = p.callers.Run(ctx) }) // until ctx ends
	return p.metrics.prune(ctx)
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// ServeHTTP serves the requests of HTTP/1.1 clients, and those of HTTP/2 clients that are not forwarded frame by frame.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve(w, r, time.Now(), nil) }

// serve is ServeHTTP for a request whose head arrived at that time, of which something is known.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, arrived time.Time, known *learned) {
	s := slotOf(r.Context())
	x := &exchange{p: p, head: headOf(r, arrived), front: s, stay: s.stay, decision: Decision{learned: known}}
	p.serving.Add(1)
	defer p.serving.Add(-1)
	rec := &recorder{ResponseWriter: w, request: r, exchange: x}
	defer rec.done() //nolint:contextcheck // r carries it
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	r = r.WithContext(ctx)
	p.decideOffLoop(ctx, &x.decision, x.head, s.of(r.TLS))
	x.startRecords() //nolint:contextcheck // a span has its own
	// Bytes after an upgrade's head were meant for the tunnel: whatever answers, they must not be read as a request.
	if r.ProtoMajor == 1 && (p.leaving.Load() || x.head.Upgrade != "") {
		w.Header().Set("Connection", "close")
	}
	// As in kube-apiserver, a preflight needs no credentials, and has no event.
	if x.decision.Action != ToLocal && r.Method == http.MethodOptions && p.browsers.allow(r) {
		x.event, x.late = nil, nil
		rec.WriteHeader(http.StatusNoContent)
		return
	}
	x.received()
	if rec.bodies = x.bodies(); rec.bodies && r.Body != nil && r.Body != http.NoBody {
		r.Body = x.event.Request(r.Body, r.Header.Get("Content-Type"))
	}
	p.serveDecision(rec, r, x)
}

func (p *Proxy) serveDecision(w http.ResponseWriter, r *http.Request, x *exchange) {
	x.decision.learned = nil // the request may last for hours
	if x.decision.Action != Refuse {
		if err := x.admit(); err != nil {
			p.writeError(w, r, err)
			return
		}
	}
	if x.decision.Action == ToLocal || x.decision.Action == ToRemote {
		x.forward(w, r)
		return
	}
	// Answers of ours, and of the impersonation filter, have the same bounds, but pages that stream.
	if r = withoutLongAccept(r); x.decision.Action != ToPage || !x.decision.LongRunning {
		p.limitReading(w)
	}
	switch x.decision.Action {
	case ToDocument:
		documents := p.cfg.Documents // equal for everybody who may read them
		if x.decision.behind {
			documents = p.cfg.Behind
		}
		documents.ServeHTTP(w, r)
	case ToPage:
		if r = x.asUser(r); x.decision.LongRunning {
			var end func()
			r, end = p.endable(r, &x.events)
			defer end()
		}
		cmp.Or(x.page, p.cfg.Pages).ServeHTTP(w, r)
	case ToHealth:
		p.health.ServeHTTP(w, r)
	case Impersonate:
		if x.head.Size > maxEchoed && x.head.get("impersonate-user") == "" {
			p.writeError(w, r, errNameless) // the filter's repeats the fields, and JSON has six bytes for '<'
			return
		}
		p.impersonated.ServeHTTP(w, x.asUser(r))
	default:
		p.writeError(w, r, x.decision.Err)
	}
}

// pageTime is kube-apiserver's default --request-timeout, which ends responses, too. Ours is for remotes only.
const pageTime = time.Minute + unreadRest

// limitReading limits how long a client may read a response of this process, also when its handler has returned. One
// that does not read must not keep a list's place and objects, a document that is replaced, a stream, or a drain.
func (p *Proxy) limitReading(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.pageTime)) // an error: the client has gone
}

// serveLocal forwards a request of the health relay to the local apiserver, with its caller's credentials.
func (p *Proxy) serveLocal(w http.ResponseWriter, r *http.Request) {
	x := exchangeOf(r.Context())
	x.decision.Action, x.relayed = ToLocal, true
	p.decideLocal(&x.decision, x.head)
	p.serveDecision(w, r, x)
}

// Config configures a Proxy (makeProxy in cmd/fairlead).
type Config struct {
	Tables   tables               // has the current table. Required
	Authn    *authn.Authenticator // authenticates callers. Required
	Authz    *authz.Authorizer    // authorizes requests that the local apiserver does not authorize. Required
	Backends *backend.Pools       // carries requests to extension servers. Required
	// Local carries requests to the local apiserver. Nil means none; Pages then answers what no APIService claims.
	Local *backend.Local
	// CredentialRejected is called when the local apiserver rejects the credential with which this
	// process impersonates. It must not block. It may be nil.
	CredentialRejected func()
	// Documents answers /api, /apis, /apis/<group> and /openapi. If nil, the local apiserver answers them.
	Documents http.Handler
	// Claimed reports, without blocking, whether Documents answers for a path, too (OpenAPI.Claimed). Nil: for none.
	Claimed func(path string) bool
	// Ready returns Documents' response to a GET if that is at hand: it must neither compute nor
	// block. If Ready or its result is nil, Documents answers.
	Ready func(h *Head) *engine.Answer
	// Behind has the documents for the cluster's own aggregator, if Fairlead stands behind it: then
	// every front proxy is that aggregator, which asks for what it has authorized (decision 0045).
	// Nil means that front proxies are in front of Fairlead, and their users like all others.
	Behind http.Handler
	// Pages answers /fairlead/, apiregistration.k8s.io with the dir: registry, and without Local
	// all requests that nothing else answers. Nil means 404.
	Pages http.Handler
	// Health combines the local apiserver's /readyz and /healthz with this process's readiness. Without Local it gets
	// nil, and answers these and /livez alone. If nil, they are forwarded unchanged.
	Health func(local http.Handler) http.Handler
	// MaxInFlight and MaxMutating limit requests in flight to all remotes, without long-running ones. Zero: no limit.
	MaxInFlight, MaxMutating int
	// MaxSessions limits the upgrades to all backends, including the local apiserver, and the long-running requests to
	// remotes over HTTP/1.1 together: each takes a descriptor for itself. Zero means no limit.
	MaxSessions int
	// ForwardRedirects forwards a remote's redirects (--aggregator-reject-forwarding-redirect=false). If false, they
	// are answered with 502, because a client that follows sends its credentials to any address.
	ForwardRedirects bool
	GoAwayChance     float64         // probability of asking an HTTP/2 client to reconnect after a request; 0: never
	AllowedOrigins   []string        // expressions of origins whose pages may read answers (CORS). None: no CORS
	HSTS             []string        // directives of Strict-Transport-Security. None: the field is not set
	AccessLog        *accesslog.Log  // gets one line per request. Nil means no access log
	Taps             *accesslog.Taps // shows the requests of single users to operators. Nil means no taps
	// Audit gets an event for each stage of the requests that its policy selects. Nil means no audit log.
	Audit *audit.Log
	// AuditLocal also records requests that the local apiserver answers. If false, it records them
	// itself, with the same Audit-ID and the user of the token.
	AuditLocal bool
	// Tracer makes a span of each request. Nil means no tracing; a client's trace context is then forwarded unchanged.
	Tracer       trace.Tracer
	metric.Sinks // failures, and fairlead_request_*
}
