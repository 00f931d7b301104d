package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// Config is where the pages take what they show. All func fields are required; cmd has them all.
type Config struct {
	// Table is the current table.
	Table func() *registry.Table
	// Explain says what becomes of a request of a user.
	Explain func(*proxy.Head, user.Info) proxy.Decision
	// Load is what an entry's backend carries now, and each of its endpoints by address.
	Load func(*registry.Entry) (inFlight, longRunning int64, endpoints map[string]int64)
	// Latencies are how many of an entry's requests have taken how long so far: element i counts those of less than 2^i µs, less those before it.
	Latencies func(*registry.Entry) []uint64
	// LocalServers are the local apiservers with their health. It may return none.
	LocalServers func() []registry.Endpoint
	// Certificates describes this process's own key pairs and bundles, Trust what backends are trusted by.
	Certificates func() []certs.Status
	Trust        func() []trust.Status
	// Discovery and OpenAPI say how current each remote APIService's part of the merged documents is.
	Discovery func() []discovery.Status
	OpenAPI   func() []openapi.Status
	// Ready says why this replica takes no requests. A nil result: it does.
	Ready func() error
	// Draining reports whether the process is about to end: streams of events end too.
	Draining func() bool
	// Version is the build's. Empty: unknown.
	Version string
}

// Pages serves the pages. Run keeps the history of verdicts; everything else works without it.
type Pages struct {
	cfg         Config
	started     time.Time
	history     history
	traffic     traffic
	subscribers atomic.Int64 // to the stream of events
	mux         *http.ServeMux
}

// New makes the pages.
func New(cfg Config) (*Pages, error) {
	if cfg.Table == nil || cfg.Explain == nil || cfg.Load == nil || cfg.Latencies == nil || cfg.LocalServers == nil || cfg.Certificates == nil || cfg.Trust == nil || cfg.Ready == nil || cfg.Draining == nil ||
		cfg.Discovery == nil || cfg.OpenAPI == nil {
		return nil, errors.New("making pages: every func field of Config is required")
	}
	p := &Pages{cfg: cfg, started: time.Now(), mux: http.NewServeMux()}
	p.mux.HandleFunc("GET /status", p.serveStatus)
	p.mux.HandleFunc("GET /explain", p.serveExplain)
	p.mux.HandleFunc("GET /events", p.serveEvents)
	return p, p.addHTML()
}

// Run keeps the history of verdicts and of latencies until ctx ends.
func (p *Pages) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { _ = p.traffic.follow(ctx, p.cfg.Table, p.cfg.Latencies) }) // ends with ctx, and in no other way
	return p.history.follow(ctx, p.cfg.Table)
}

// ServeHTTP answers the pages at the root, as on the admin port, and below /fairlead/, as on the front door.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // it is true for a moment, and not for everybody
	if r.URL.Path == answer.Below {
		// The page's own links are relative: it may be behind kubectl proxy, under any prefix.
		h.Set("Location", "fairlead/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if strings.HasPrefix(r.URL.Path, answer.Below+"/") {
		http.StripPrefix(answer.Below, p.mux).ServeHTTP(w, r)
		return
	}
	p.mux.ServeHTTP(w, r)
}

func (p *Pages) serveStatus(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.status()) }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a caller that has gone needs no answer
}
